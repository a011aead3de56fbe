"""Job engines that are installed start the files of examples/jobs for real; those that are not say so."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
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
CONDOR_CONF = """
RELEASE_DIR = /usr
SBIN = /usr/sbin
LIBEXEC = /usr/libexec/condor
LOCAL_DIR = {folder}
LOG = {folder}
SPOOL = {folder}
LOCK = {folder}
EXECUTE = {folder}/execute
NETWORK_HOSTNAME = localhost
NETWORK_INTERFACE = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
USE_SHARED_PORT = false
DAEMON_LIST = MASTER {daemons}
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
SEC_USE_FAMILY_SESSION = false
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
STARTD_NAME = {name}
NUM_CPUS = 4
MEMORY = 64000
MACHINE_RESOURCE_GPUS = GPU-0 GPU-1
RunBenchmarks = false
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
DAGMAN_USER_LOG_SCAN_INTERVAL = 1
DAGMAN_USE_STRICT = 0
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
        for _ in range(3):
            while not (busy := [node for node in nodes if at_work(node)]):
                assert loop.poll() is None, loop.communicate()
                time.sleep(0.1)
            cluster.remove_node(busy[0], allow_graceful=False)
            nodes[nodes.index(busy[0])] = cluster.add_node(num_cpus=2)
            time.sleep(5)
        output, _ = loop.communicate(timeout=300)
    finally:
        cluster.shutdown()
    assert loop.returncode == 0 and "retries remaining" in output, output
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


def at_work(node: Any) -> bool:
    """Whether a command of ours runs on a node of Ray."""
    with contextlib.suppress(psutil.Error):
        return any("tests.chaos.commands" in process.cmdline() for process in psutil.Process(
            node.all_processes["raylet"][0].process.pid).children(recursive=True))
    return False


@pytest.fixture
def condor(tmp_path: Path) -> Iterator[tuple[dict[str, str], Callable[[str], None]]]:
    """The variables of an HTCondor pool of this machine, and what ends one of its nodes and starts it again.

    Each node has a condor_master of its own, as on a machine of its own.
    """
    if not shutil.which("condor_master"):
        pytest.skip("condor_master is not installed")
    if os.geteuid() == 0:
        pytest.skip("HTCondor (condor_master) takes no jobs of root")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(name: str, daemons: str) -> psutil.Process:
        folder = tmp_path / name
        (folder / "execute").mkdir(parents=True, exist_ok=True)
        (folder / "condor_config").write_text(CONDOR_CONF.format(folder=folder, name=name, port=port,
                                                                 daemons=daemons))
        return psutil.Process(subprocess.Popen(
            ["condor_master", "-f"], stderr=subprocess.DEVNULL,
            env=os.environ | {"CONDOR_CONFIG": str(folder / "condor_config")}).pid)

    def lose(name: str) -> None:
        vanish(running[name])
        running[name] = start(name, "STARTD")

    names = [f"node-{number}" for number in range(NODES)]
    running = {"head": start("head", "COLLECTOR NEGOTIATOR SCHEDD")}
    try:
        running |= {name: start(name, "STARTD") for name in names}
        yield {"CONDOR_CONFIG": str(tmp_path / "head" / "condor_config")}, lose
    finally:
        for master in running.values():
            vanish(master)


def vanish(machine: psutil.Process) -> None:
    """Kill all that runs there, at once."""
    for process in (machine, *machine.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    machine.wait()


@pytest.mark.slow("a pool of HTCondor is started, and every command")
def test_condor_starts_again_what_is_evicted_or_lost(undisturbed: Warehouse, condor, tmp_path: Path) -> None:
    variables, lose = condor
    warehouse = new_run(tmp_path / "with a space")
    environment = commands(tmp_path / "bin") | variables

    def say(*words: str) -> str:
        return subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True).stdout

    while len(say("condor_status", "-af", "Name").split()) < NODES or not say("condor_status", "-schedd"):
        time.sleep(0.3)
    dag, stage, sooner = tmp_path / "loop.dag", "examples/jobs/htcondor/stage.sub", tmp_path / "stage.sub"
    words = ["bash", "examples/jobs/htcondor/make_dag.sh", str(warehouse.root), ITERATIONS, "3", "2"]
    dag.write_text(say(*words).replace(stage, str(sooner)))
    sooner.write_text((ROOT / stage).read_text().replace("= 300", "= 20"))  # seconds until a node is given up
    say("condor_submit_dag", str(dag))
    evicted: dict[str, str] = {}                                     # a job of each cluster, and how
    end = time.monotonic() + 450
    columns = ["ClusterId", "ProcId", "RemoteHost", "JobStatus", "JobUniverse"]
    while queue := say("condor_q", "-af", *columns).splitlines():
        assert time.monotonic() < end, queue
        for cluster, process, host, *state in map(str.split, queue):
            if state == ["2", "5"] and cluster not in evicted:
                time.sleep(0.7)
                evicted[cluster] = ["condor_vacate_job", "condor_vacate_job -fast", "lost"][len(evicted) % 3]
                if evicted[cluster] == "lost":
                    lose(host.split("@")[1])
                else:
                    say(*evicted[cluster].split(), f"{cluster}.{process}")
        time.sleep(0.3)
    log = (warehouse.root / "condor.log").read_text()
    assert len(evicted) == 3 * int(ITERATIONS) and "Job was evicted" in log
    assert "EXITING WITH STATUS 0" in Path(f"{dag}.dagman.out").read_text()
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


def test_condor_reads_the_submit_file() -> None:
    """With HTCondor's own parser: pip install htcondor."""
    htcondor = pytest.importorskip("htcondor2")
    job = htcondor.Submit((ROOT / "examples" / "jobs" / "htcondor" / "stage.sub").read_text())
    for name, value in (("stage", "score"), ("run", "/runs/a"), ("iteration", "3"), ("gpus", "0")):
        job[name] = value
    assert "work.sh score '/runs/a' 3" in job.expand("arguments") and job.expand("request_gpus") == "0"
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
