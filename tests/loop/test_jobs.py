"""The loop in a shell, under SLURM and under HTCondor, with kills in the middle: the undisturbed result."""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.chaos.loop import contents, leftovers, new_run, problems
from tests.chaos.scheduler import ROOT, commands, run_until, submit_file
from warehouse.store.run_folder import Warehouse

SHARDS = 2


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """One iteration of the loop without kills."""
    folder = tmp_path_factory.mktemp("loop")
    warehouse = new_run(folder / "undisturbed")
    code, output = run_until(["bash", "examples/loop.sh", str(warehouse.root), "1"], commands(folder / "bin"),
                             preempt_after=None)
    assert code == 0, output
    return warehouse


@pytest.mark.slow("the loop is started five times, with the imports of its commands")
def test_the_loop_killed_in_the_middle_gives_the_undisturbed_result(undisturbed: Warehouse,
                                                                    tmp_path: Path) -> None:
    warehouse, environment, draw = new_run(tmp_path / "killed"), commands(tmp_path / "bin"), random.Random(0)
    loop = ["bash", "examples/loop.sh", str(warehouse.root), "1"]
    kills = 0
    for _ in range(3):
        code, _ = run_until(loop, environment, preempt_after=draw.uniform(0.3, 4), number=signal.SIGKILL,
                            group=True)
        kills += code == -signal.SIGKILL
    code, output = run_until(loop, environment, preempt_after=None)
    assert code == 0 and kills, output
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.slow("every job is started twice, with its imports")
def test_slurm_jobs_preempted_and_requeued_give_the_undisturbed_result(undisturbed: Warehouse,
                                                                       tmp_path: Path) -> None:
    warehouse, queue, folder = new_run(tmp_path / "slurm"), tmp_path / "queue.json", tmp_path / "bin"
    environment = commands(folder, queue)
    submit = ["bash", "examples/slurm/submit.sh", str(warehouse.root), "2", str(SHARDS)]
    code, output = run_until(submit, environment, preempt_after=None)
    assert code == 0 and "the last job is 103" in output
    jobs = json.loads(queue.read_text())
    assert [[option for option in job["options"] if "dependency" in option] for job in jobs] == [
        [], ["--dependency=afterany:100"], ["--dependency=afterok:101"], ["--dependency=afterany:102"]]
    for job in jobs[:2]:                                     # the first iteration, in the order submitted
        text = (ROOT / job["words"][0]).read_text()
        assert "#SBATCH --requeue\n" in text and "#SBATCH --signal=B:TERM@" in text
        for task in range(SHARDS) if f"--array=0-{SHARDS - 1}" in job["options"] else [0]:
            _slurm_task(job, task, environment, folder)
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


def _slurm_task(job: dict, task: int, environment: dict[str, str], folder: Path) -> None:
    """Start one task as SLURM does; preempt its first run, start it again as long as it asks for it."""
    number = f"{job['id']}{task}"
    slurm = {"SLURM_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_SUBMIT_DIR": str(ROOT),
             "REQUEUE_WAIT": "0"}
    for preempt_after in (1.0, None):
        code, output = run_until(["bash", *job["words"]], environment | slurm, preempt_after=preempt_after)
        if code == 0:
            return
        assert code == 75 and (folder / number).exists(), output      # it asked for the requeue
    raise AssertionError(f"the requeued job did not finish: {output}")


@pytest.mark.slow("every job is started twice, with its imports")
def test_condor_jobs_preempted_and_requeued_give_the_undisturbed_result(undisturbed: Warehouse,
                                                                        tmp_path: Path) -> None:
    warehouse, environment = new_run(tmp_path / "condor"), commands(tmp_path / "bin")
    dag = subprocess.run(["bash", "examples/htcondor/make_dag.sh", str(warehouse.root), "2", str(SHARDS)],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout
    nodes = dict(re.findall(r"^JOB (\w+) (\S+)$", dag, flags=re.MULTILINE))
    values = {name: dict(re.findall(r'(\w+)="([^"]*)"', rest))
              for name, rest in re.findall(r"^VARS (\w+) (.*)$", dag, flags=re.MULTILINE)}
    order = re.findall(r"^PARENT (\w+) CHILD (\w+)$", dag, flags=re.MULTILINE)
    assert set(order) == {("rollout0", "learn0"), ("learn0", "rollout1"), ("rollout1", "learn1")}
    for node in ("rollout0", "learn0"):
        for process in range(int(submit_file(ROOT / nodes[node], values[node])["queue"])):
            job = submit_file(ROOT / nodes[node], values[node] | {"Process": str(process)})
            assert job["on_exit_remove"] == "(ExitBySignal =?= False) && (ExitCode =!= 75)"
            words = [job["executable"], *shlex.split(job["arguments"])]
            for preempt_after in (0.8, None):
                code, output = run_until(words, environment, preempt_after=preempt_after,
                                         number=signal.Signals[job["kill_sig"]])
                if code >= 0 and code != 75:
                    break
            assert code == 0, output
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.parametrize("name", ["rollout.sub", "learn.sub"])
def test_condor_reads_the_submit_files(name: str) -> None:
    """With HTCondor's own parser: pip install htcondor."""
    htcondor = pytest.importorskip("htcondor2")
    job = htcondor.Submit((ROOT / "examples" / "htcondor" / name).read_text())
    job["run"], job["iteration"], job["shards"] = "/runs/a", "3", "16"
    assert "/runs/a" in job.expand("arguments") and "3" in job.expand("arguments")
    assert job.expand("on_exit_remove") == "(ExitBySignal =?= False) && (ExitCode =!= 75)"
    assert job.getQArgs() == ("$(shards)" if name == "rollout.sub" else "")
