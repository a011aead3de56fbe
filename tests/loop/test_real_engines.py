"""Job engines that are installed start the files of examples/jobs for real; those that are not say so."""

import getpass
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chaos.loop import contents, leftovers, new_run, problems
from tests.chaos.scheduler import ROOT, commands, run_until
from warehouse.store.run_folder import Warehouse

ITERATIONS = "2"
NODES = 3
SLURM_CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16917
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=0
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17101-{last}] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """The loop without kills."""
    folder = tmp_path_factory.mktemp("loop")
    warehouse, environment = new_run(folder / "undisturbed"), commands(folder / "bin")
    for iteration in range(int(ITERATIONS)):
        code, output = run_until(["bash", "examples/jobs/work.sh", "learn", str(warehouse.root),
                                  str(iteration)], environment, preempt_after=None)
        assert code == 0, output
    return warehouse


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a SLURM cluster of this machine alone, one controller and three nodes of two cores."""
    if not (shutil.which("slurmctld") and shutil.which("slurmd")):
        pytest.skip("slurmctld is not installed")
    folder = tmp_path / "cluster"
    (folder / "state").mkdir(parents=True)
    names = [f"n{number}" for number in range(1, NODES + 1)]
    for name in names:
        (folder / f"spool-{name}").mkdir()
    configuration = folder / "slurm.conf"
    host = os.uname().nodename.split(".")[0]
    configuration.write_text(SLURM_CONF.format(host=host, user=getpass.getuser(), folder=folder, nodes=NODES,
                                               last=17100 + NODES))
    daemons = [subprocess.Popen(["slurmctld", "-D", "-f", configuration], stderr=subprocess.DEVNULL)]
    daemons += [subprocess.Popen(["slurmd", "-D", "-f", configuration, "-N", name], stderr=subprocess.DEVNULL)
                for name in names]
    try:
        needs = f"--output={folder}/%x-%A-%a.out"
        yield {"SLURM_CONF": str(configuration), "REQUEUE_WAIT": "5", "ROLLOUT_NEEDS": needs,
               "SCORE_NEEDS": needs, "LEARN_NEEDS": needs}
    finally:
        for daemon in daemons[::-1]:
            daemon.terminate()
            daemon.wait()


@pytest.mark.slow("a cluster of SLURM is started, and every command")
def test_slurm_requeues_what_is_stopped_or_preempted(undisturbed: Warehouse, slurm: dict[str, str],
                                                     tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "slurm")
    environment = commands(tmp_path / "bin") | slurm

    def say(*words: str) -> str:
        return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True).stdout

    while "idle" not in say("sinfo", "-h"):
        time.sleep(0.3)
    say("bash", "examples/jobs/slurm/submit.sh", str(warehouse.root), ITERATIONS, "3", "2")
    preempted: dict[str, str] = {}                                    # a job of each array, and how
    end = time.monotonic() + 450
    while queue := say("squeue", "-h", "-o", "%i %t").splitlines():
        assert time.monotonic() < end, queue
        for job in [line.split()[0] for line in queue if line.endswith(" R")]:
            array = job.partition("_")[0]
            if array not in preempted:
                time.sleep(0.7)
                how = ["scontrol requeue", "scancel --signal=TERM --batch"][len(preempted) % 2]
                say(*how.split(), job)
                preempted[array] = how
        time.sleep(0.3)
    assert len(preempted) == 3 * int(ITERATIONS)
    assert (tmp_path / "cluster" / "slurmctld.log").read_text().count("requeue") >= int(ITERATIONS)
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.slow("a cluster of Ray is started, and every command")
def test_ray_starts_again_what_its_nodes_lose(undisturbed: Warehouse, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster
    warehouse = new_run(tmp_path / "ray")
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = commands(tmp_path / "bin") | {"PYTHONPATH": path}
    for name in ("PATH", "PYTHONPATH"):                              # what its workers inherit
        monkeypatch.setenv(name, environment[name])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=2) for _ in range(NODES)]
        loop = subprocess.Popen([sys.executable, "examples/jobs/ray/loop.py", str(warehouse.root), ITERATIONS,
                                 "--rollouts", "3", "--scores", "2", "--gpus", "0", "--cpus", "1"], cwd=ROOT,
                                env=environment | {"RAY_ADDRESS": cluster.address}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for seconds in (8, 6, 9):
            time.sleep(seconds)
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=2))
        output, _ = loop.communicate(timeout=300)
    finally:
        cluster.shutdown()
    assert loop.returncode == 0 and "retries remaining" in output, output
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


def test_condor_reads_the_submit_file() -> None:
    """With HTCondor's own parser: pip install htcondor."""
    htcondor = pytest.importorskip("htcondor2")
    job = htcondor.Submit((ROOT / "examples" / "jobs" / "htcondor" / "stage.sub").read_text())
    for name, value in (("stage", "score"), ("run", "/runs/a"), ("iteration", "3"), ("gpus", "0")):
        job[name] = value
    assert "work.sh score /runs/a 3" in job.expand("arguments") and job.expand("request_gpus") == "0"
    assert job.expand("on_exit_remove") == "(ExitBySignal =?= False) && (ExitCode =!= 75)"
    assert job.getQArgs() == "$(shards)"


def test_skypilot_reads_its_files() -> None:
    """With SkyPilot's own parser: pip install skypilot."""
    sky = pytest.importorskip("sky", reason="skypilot is not installed")
    folder = ROOT / "examples" / "jobs" / "skypilot"
    pool = sky.Task.from_yaml(str(folder / "pool.yaml"))
    assert pool.service.pool and pool.service.min_replicas == 16
    for name in ("worker", "trainer"):
        task = sky.Task.from_yaml_config(yaml.safe_load((folder / f"{name}.yaml").read_text()),
                                         [("RUN", "/runs/a"), ("ITERATIONS", "3")])
        [resources] = task.resources
        assert resources.use_spot and resources.job_recovery["recover_on_exit_codes"] == [75]
        with pytest.raises(ValueError, match="RUN"):                 # a run must be named
            sky.Task.from_yaml(str(folder / f"{name}.yaml"))
