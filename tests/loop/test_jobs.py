"""The loop in a shell and under job engines, with kills in the middle: the undisturbed result.

SLURM, HTCondor and SkyPilot are stand-ins here; test_real_engines.py starts those that are installed.
"""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.building import plain
from tests.chaos.loop import contents, leftovers, new_run, problems
from tests.chaos.scheduler import ROOT, commands, run_until, start_until_done, submit_file
from warehouse.maintain.rollback import roll_back
from warehouse.store.run_folder import Warehouse

SHARDS = 2
JOBS = ROOT / "examples" / "jobs"


def submitted(run: Path, folder: Path, *words: str, **environment: str) -> list[dict[str, Any]]:
    """What submit.sh gives a stand-in for sbatch."""
    queue = folder / "queue.json"
    given = commands(folder / "bin", queue) | environment
    code, output = run_until(["bash", "examples/jobs/slurm/submit.sh", str(run), *words], given,
                             preempt_after=None)
    jobs = json.loads(queue.read_text())
    assert code == 0 and output.endswith(f"\nscancel {' '.join(job['id'] for job in jobs)}\n")
    return jobs


def dag_of(run: Path, *words: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str]]]:
    """The submit file of each node of a DAG with its variables filled in, and which node follows which."""
    dag = subprocess.run(["bash", "examples/jobs/htcondor/make_dag.sh", str(run), *words], cwd=ROOT,
                         capture_output=True, text=True, check=True).stdout
    values = {name: dict(re.findall(r'(\w+)="([^"]*)"', rest))
              for name, rest in re.findall(r"^VARS (\w+) (.*)$", dag, flags=re.MULTILINE)}
    nodes = {name: submit_file(ROOT / path, values[name])
             for name, path in re.findall(r"^JOB (\w+) (\S+)$", dag, flags=re.MULTILINE)}
    return nodes, re.findall(r"^PARENT (\w+) CHILD (\w+)$", dag, flags=re.MULTILINE)


@pytest.mark.parametrize("words", [
    ["slurm/submit.sh", "run", "3x", "2"], ["slurm/submit.sh", "run", "three", "2"],
    ["slurm/submit.sh", "run", "-1", "2"], ["slurm/submit.sh", "run", "3", "0"],
    ["slurm/submit.sh", "run", "3", "2", "x"], ["work.sh", "learn", "run", "x"]])
def test_what_is_no_number_is_refused_before_anything_is_submitted(words: list[str]) -> None:
    done = subprocess.run(["bash", f"examples/jobs/{words[0]}", *words[1:]], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 2 and "usage: " in done.stderr and len(done.stderr.splitlines()) == 1


def test_jobs_of_the_run_that_are_queued_already_are_named(tmp_path: Path) -> None:
    run = new_run(tmp_path / "a").root
    given = commands(tmp_path / "bin", tmp_path / "queue.json")
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho 41\n")
    (tmp_path / "bin" / "squeue").chmod(0o755)
    words = ["bash", "examples/jobs/slurm/submit.sh", str(run), "1", "1"]
    code, output = run_until(words, given, preempt_after=None)
    first = output.splitlines()[0]
    assert code == 0 and "are queued already" in first and first.endswith("scancel 41")


def test_slurm_gets_two_arrays_and_a_job_per_iteration(tmp_path: Path) -> None:
    run = str(new_run(tmp_path / "a").root)
    jobs = submitted(Path(run), tmp_path, "2", "16", "4", SCORE_NEEDS="--partition=cpu --mem=8G")
    assert [job["words"][1:] for job in jobs] == [
        [stage, run, iteration, *shards] for iteration in "01"
        for stage, shards in (("rollout", ["16"]), ("score", ["4"]), ("learn", []))]
    options = [set(job["options"]) - {"--parsable"} for job in jobs]
    assert options[0] == {"--job-name=run-rollout", "--gres=gpu:1", "--array=0-15"}
    assert options[1] == {"--job-name=run-score", "--array=0-3", "--partition=cpu", "--mem=8G",
                          "--dependency=afterany:100", "--kill-on-invalid-dep=yes"}
    assert options[2] == {"--job-name=run-learn", "--gres=gpu:1", "--dependency=afterany:101",
                          "--kill-on-invalid-dep=yes"}
    assert options[3] >= {"--dependency=afterok:102", "--kill-on-invalid-dep=yes"}
    # A score task does not start after a rollout that was cancelled because its policy failed.
    assert options[4] >= {"--dependency=afterok:102,afterany:103", "--kill-on-invalid-dep=yes"}
    assert options[5] >= {"--dependency=afterok:102,afterany:104", "--kill-on-invalid-dep=yes"}
    jobs = submitted(Path(run), tmp_path / "evaluated", "2", "16", "4", EVAL_EVERY="2")
    assert len(jobs) == 7 and jobs[-1]["words"][1:] == ["eval", run, "2"]
    assert {"--job-name=run-eval", f"--dependency=afterok:{jobs[-2]['id']}"} <= {*jobs[-1]["options"]}
    text = (JOBS / "slurm" / "stage.sbatch").read_text()
    assert "JobState=RUNNING" in text and "#SBATCH --requeue\n" in text and "#SBATCH --signal=B:TERM@" in text


@pytest.fixture
def gone_back(tmp_path: Path) -> Warehouse:
    """A run of a trained iteration and one that a rollback left out, with other options by now."""
    warehouse = new_run(tmp_path / "back")
    plain.sample(warehouse, iteration=0)
    plain.score(warehouse)
    plain.train(warehouse)
    plain.sample(warehouse, iteration=1)
    roll_back(warehouse, 0)
    config = warehouse.root / "config.toml"
    config.write_text(config.read_text().replace("group-size = 4", "group-size = 8").replace("1e-3", "1e-4"))
    return warehouse


def test_submit_begins_at_the_first_untrained_iteration(gone_back: Warehouse, tmp_path: Path) -> None:
    jobs = submitted(gone_back.root, tmp_path, "4", "16")
    assert [job["words"][1::2] for job in jobs] == [
        [stage, str(iteration)] for iteration in (2, 3) for stage in ("rollout", "score", "learn")]


@pytest.mark.parametrize("role", ["rollout", "score", "learn"])
def test_an_iteration_that_is_over_is_passed_over_whatever_the_settings_are(role: str, gone_back: Warehouse,
                                                                            tmp_path: Path) -> None:
    for iteration in ("0", "1"):
        words = ["bash", "examples/jobs/work.sh", role, str(gone_back.root), iteration, "0/2"]
        environment = commands(tmp_path / "bin") | {"WATCH": ""}
        code, output = run_until(words, environment, preempt_after=None)
        assert code == 0 and f"iteration {iteration} is trained, or a rollback left it out" in output, output
        assert len(output.splitlines()) == 1, output


def test_workers_go_on_after_what_a_rollback_left_out(gone_back: Warehouse, tmp_path: Path) -> None:
    environment = commands(tmp_path / "bin") | {"POLL_SECONDS": "0", "WATCH": ""}
    for name in ("rollout", "score", "train"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {name} $2\n")
    for role, does in (("worker", "rollout --iteration\nscore --iteration\n"), ("trainer", "")):
        ended = run_until(["bash", "examples/jobs/work.sh", role, str(gone_back.root), "3" if does else "2"],
                          environment, preempt_after=None)
        over = "".join(f"iteration {each} is trained, or a rollback left it out: nothing to do\n"
                       for each in (0, 1))
        said = ended[1]
        assert (ended[0], said) == (0, over + does)


@pytest.mark.parametrize("script", ["slurm/submit.sh", "slurm/stage.sbatch", "work.sh",
                                    "htcondor/make_dag.sh"])
def test_too_few_words_are_a_usage_line(script: str) -> None:
    ended = run_until(["bash", f"examples/jobs/{script}", "loop", "run"],
                      {**os.environ, "SLURM_SUBMIT_DIR": "."}, preempt_after=None)
    assert ended[0] == 2 and re.fullmatch(r"usage: \S+ .*\n", ended[1]), ended


def test_condor_gets_three_nodes_per_iteration(tmp_path: Path) -> None:
    nodes, order = dag_of(tmp_path, "2", "16", "4")
    assert set(order) == {("rollout0", "score0"), ("score0", "learn0"), ("learn0", "rollout1"),
                          ("rollout1", "score1"), ("score1", "learn1")}
    assert [(nodes[name]["queue"], nodes[name]["request_gpus"]) for name in ("rollout1", "score1", "learn1")
            ] == [("16", "1"), ("4", "0"), ("1", "1")]
    assert nodes["score1"]["arguments"] == f"\"bash examples/jobs/work.sh score '{tmp_path}' 1 $(Process)/4\""
    for node in nodes.values():
        assert node["on_exit_remove"] == "(ExitBySignal =?= False) && (ExitCode =!= 75)"


DONE = (0, 3)       # 3: an alarm, as what the scripted engine says is not what is trained


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """One iteration of the loop without kills."""
    folder = tmp_path_factory.mktemp("loop")
    warehouse = new_run(folder / "undisturbed")
    code, output = run_until(["warehouse", "loop", str(warehouse.root), "1"], commands(folder / "bin"),
                             preempt_after=None)
    assert code in DONE, output
    return warehouse


def test_a_job_that_is_told_to_stop_as_a_command_ends_asks_to_be_started_again(tmp_path: Path) -> None:
    for name, does in (("rollout", "kill -TERM $PPID"), ("score", f"touch {tmp_path}/scored"),
                       ("warehouse", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for _ in range(10):
        code, output = run_until(["bash", "examples/jobs/work.sh", "learn", "run", "0"], environment,
                                 preempt_after=None)
        assert (code, (tmp_path / "scored").exists()) == (75, False), output


def test_a_training_under_a_launcher_that_hides_its_exit_code_is_started_again(tmp_path: Path) -> None:
    for name, does in (("rollout", "exit 0"), ("score", "exit 0"), ("warehouse", "exit 0"),
                       ("launch", "trap 'kill $!; exit 1' TERM; \"$@\" & wait $!"),
                       ("train", f"echo $* >> {tmp_path}/trained; [ -e {tmp_path}/again ] || exec sleep 60")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAIN": "launch train --full"}
    learn = ["bash", "examples/jobs/work.sh", "learn", "run", "0"]
    code, output = run_until(learn, environment, preempt_after=2)
    assert code == 75, output
    (tmp_path / "again").touch()
    code, output = run_until(learn, environment, preempt_after=None)
    assert code == 0 and set((tmp_path / "trained").open()) == {"--full run --iteration 0\n"}, output


@pytest.mark.parametrize(("launcher", "fails", "times", "ends"), [
    ("'{}/with a blank/launch' ", "exit 1", 1, 0), ("'{}/with a blank/launch' ", "exit 1", 2, 1),
    ("", "exit 1", 1, 1), ("", "kill -9 $$", 1, 0), ("", "kill -9 $$", 2, 137)])
def test_a_killed_training_is_started_once_more_as_is_one_whose_launcher_says_one(
        launcher: str, fails: str, times: int, ends: int, tmp_path: Path) -> None:
    (tmp_path / "with a blank").mkdir()
    for name, does in (("rollout", "exit 0"), ("score", "exit 0"), ("warehouse", "exit 0"),
                       ("with a blank/launch", '"$@"'),
                       ("train", f"[ -z \"$again\" ] || exit 9      # what work.sh remembers is its own\n"
                                 f"echo >> {tmp_path}/starts\n"
                                 f"[ $(wc -l < {tmp_path}/starts) -gt {times} ] || {fails}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}",
                                **({"TRAIN": launcher.format(tmp_path) + "train"} if launcher else {})}
    code, output = run_until(["bash", "examples/jobs/work.sh", "learn", "run", "0"], environment,
                             preempt_after=None)
    starts = 1 if ends == 1 and not launcher else 2
    assert (code, (tmp_path / "starts").read_text().count("\n")) == (ends, starts), output


def stand_ins(folder: Path, log: str = '"policy": 5') -> dict[str, str]:
    """Commands that say how they were called; the environment that finds them. The newest policy is 5."""
    for name in ("rollout", "score", "train", "warehouse"):
        (folder / name).write_text(f"#!/bin/sh\n[ \"$1\" = log ] && echo '{log}' || echo {name} \"$*\"\n")
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("words", "calls"), [
    ("rollout run 5 1/2", ["rollout run --eval --iteration 5 --shard 1/2",
                           "rollout run --iteration 5 --shard 1/2"]),
    ("rollout run 6 1/2", ["rollout run --iteration 6 --shard 1/2"]),
    ("learn run 5", ["rollout run --eval --iteration 5", "rollout run --iteration 5",
                     "score run --iteration 5", "warehouse summary run --line --iteration 5 --purpose eval",
                     "train run --iteration 5",
                     "warehouse summary run --line --iteration 5"]),
    ("worker run 6 1/2", ["rollout run --eval --iteration 5 --shard 1/2",
                          "rollout run --iteration 5 --shard 1/2", "score run --iteration 5 --shard 1/2"]),
    *((f"{role} run 5", ["rollout run --eval --iteration 5", "score run --iteration 5 --purpose eval",
                         "warehouse summary run --line --iteration 5 --purpose eval"])
      for role in ("trainer", "eval"))])
def test_every_fifth_policy_is_evaluated_by_whoever_samples(words: str, calls: list[str],
                                                            tmp_path: Path) -> None:
    code, output = run_until(["bash", "examples/jobs/work.sh", *words.split()],
                             stand_ins(tmp_path) | {"EVAL_EVERY": "5"}, preempt_after=None)
    assert (code, [line for line in output.splitlines() if "nothing to do" not in line]) == (0, calls)


def test_the_last_policy_of_a_dag_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVAL_EVERY", "5")
    nodes, edges = dag_of(tmp_path, "2", "4")
    assert ("learn1", "eval2") in edges and f"eval '{tmp_path}' 2" in nodes["eval2"]["arguments"]


def test_a_score_before_any_rollout_is_left_to_learn(tmp_path: Path) -> None:
    warehouse, environment = new_run(tmp_path / "early"), commands(tmp_path / "bin")
    for run, code, said in ((warehouse.root, 0, "no rollout of iteration 0 yet: left to `learn`\n"),
                            (tmp_path, 1, f"Error: {tmp_path} is not a run folder")):
        ended = run_until(["bash", "examples/jobs/work.sh", "score", str(run), "0", "0/2"], environment,
                          preempt_after=None)
        assert ended[0] == code and ended[1].startswith(said), ended


@pytest.mark.parametrize("words", ["loop run 30", "arms run arms.toml"])
def test_a_nodes_loop_is_a_job_whose_alarm_is_final(words: str, tmp_path: Path) -> None:
    (tmp_path / "warehouse").write_text('#!/bin/sh\necho "$*"\nexit 3\n')
    (tmp_path / "warehouse").chmod(0o755)
    code, output = run_until(["bash", "examples/jobs/work.sh", *words.split(), "0/1"],
                             os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, preempt_after=None)
    assert code == 3 and f"{words}\n" in output


@pytest.mark.parametrize(("asked", "options"), [
    ("yes", ""), ("--ignore errors", " --ignore errors"), ("", None)])
@pytest.mark.parametrize("role", ["learn", "eval"])
def test_an_alarm_ends_training_where_it_should(role: str, asked: str, options: str | None,
                                                tmp_path: Path) -> None:
    for name in ("rollout", "score", "train", "warehouse"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$*"\n[ "$1" != watch ] || exit 3\n')
        (tmp_path / name).chmod(0o755)
    code, output = run_until(["bash", "examples/jobs/work.sh", role, "run", "0"], os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "WATCH": asked}, preempt_after=None)
    assert code == (0 if options is None else 3)
    assert (f"warehouse watch run --since 0{options}\n" in output) is (options is not None)


def test_a_training_job_that_was_stopped_before_its_alarms_asks_for_them_again(tmp_path: Path) -> None:
    given = stand_ins(tmp_path) | {"WATCH": "yes"}                # the newest policy is 5
    for iteration, asks in (("4", True), ("3", False)):
        _, output = run_until(["bash", "examples/jobs/work.sh", "learn", "run", iteration], given,
                              preempt_after=None)
        assert ("warehouse watch run --since 4\n" in output) is asks


@pytest.mark.parametrize(("log", "asks"), [
    ([("rolled back", None, None, 5), ("completed", "train", 3, 4)], False),      # iteration 4 was left out
    ([("rolled back", None, None, 5), ("completed", "train", 4, 5)], False),
    ([("completed", "score", 5, 5), ("completed", "train", 4, 5), ("rolled back", None, None, 4)], True)])
def test_no_alarms_are_asked_of_what_a_rollback_left(log: list[tuple], asks: bool, tmp_path: Path) -> None:
    """Else a job that is started again after going back would end with the same alarm for ever."""
    lines = [json.dumps({"kind": kind, "stage": stage, "iteration": iteration, "policy": policy})
             for kind, stage, iteration, policy in log]
    _, output = run_until(["bash", "examples/jobs/work.sh", "trainer", "run", "5"],
                          stand_ins(tmp_path, "\n".join(lines)) | {"WATCH": "yes"}, preempt_after=None)
    assert ("warehouse watch run --since 4\n" in output) is asks


@pytest.mark.slow("the loop is started five times, with the imports of its commands")
def test_the_loop_killed_in_the_middle_gives_the_undisturbed_result(undisturbed: Warehouse,
                                                                    tmp_path: Path) -> None:
    warehouse, environment, draw = new_run(tmp_path / "killed"), commands(tmp_path / "bin"), random.Random(0)
    loop = ["warehouse", "loop", str(warehouse.root), "1"]
    kills = 0
    for _ in range(3):
        code, _ = run_until(loop, environment, preempt_after=draw.uniform(0.3, 4), number=signal.SIGKILL,
                            group=True)
        kills += code == -signal.SIGKILL
    code, output = run_until(loop, environment, preempt_after=None)
    assert code in DONE and kills, output
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.slow("every job is started twice, with its imports")
def test_slurm_jobs_preempted_and_requeued_give_the_undisturbed_result(undisturbed: Warehouse,
                                                                       tmp_path: Path) -> None:
    warehouse, folder = new_run(tmp_path / "slurm"), tmp_path / "bin"
    for job in submitted(warehouse.root, tmp_path, "1", str(SHARDS)):
        for task in range(SHARDS) if f"--array=0-{SHARDS - 1}" in job["options"] else [0]:
            _slurm_task(job, task, commands(folder, tmp_path / "queue.json"), folder)
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
    nodes, _ = dag_of(warehouse.root, "1", str(SHARDS))
    for job in nodes.values():                               # in the order of the DAG
        for process in range(int(job["queue"])):
            arguments = job["arguments"].strip('"').replace("$(Process)", str(process))
            words = [job["executable"], *shlex.split(arguments)]
            for preempt_after in (0.8, None):
                code, output = run_until(words, environment, preempt_after=preempt_after,
                                         number=signal.Signals[job["kill_sig"]])
                if code >= 0 and code != 75:
                    break
            assert code == 0, output
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.slow("workers and a trainer are started again and again, with their imports")
def test_skypilot_jobs_on_machines_that_vanish_give_the_undisturbed_result(undisturbed: Warehouse,
                                                                           tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "sky")
    environment = {**commands(tmp_path / "bin"), "RUN": str(warehouse.root), "ITERATIONS": "1",
                   "POLL_SECONDS": "1", "SKYPILOT_NUM_JOBS": str(SHARDS)}
    run = {name: yaml.safe_load((JOBS / "skypilot" / f"{name}.yaml").read_text())["run"].replace(
        "source .venv/bin/activate\n", "") for name in ("worker", "trainer")}
    jobs = [(run["worker"], {"SKYPILOT_JOB_RANK": str(rank)}, [1.0, 4.0]) for rank in range(SHARDS)]
    jobs.append((run["trainer"], {}, [2.0, 15.0]))

    def recovered(job: tuple[str, dict[str, str], list[float]]) -> list[int]:
        return start_until_done(["bash", "-c", job[0]], environment | job[1], job[2])

    with ThreadPoolExecutor() as together:
        ends = list(together.map(recovered, jobs))
    assert all(-signal.SIGKILL in codes and codes[-1] == 0 for codes in ends), ends
    assert contents(warehouse) == contents(undisturbed)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.slow("every job starts its commands")
def test_a_share_whose_rollout_vanished_is_made_up_for_by_learn(undisturbed: Warehouse,
                                                                tmp_path: Path) -> None:
    warehouse, environment = new_run(tmp_path / "lost"), commands(tmp_path / "bin")

    def work(*words: str) -> int:
        given = ["bash", "examples/jobs/work.sh", words[0], str(warehouse.root), "0", *words[1:]]
        return run_until(given, environment, preempt_after=None)[0]

    assert [work("rollout", "1/2"), work("score", "0/2"), work("score", "1/2")] == [0, 0, 0]
    assert len(warehouse.parts("samples", iteration=0, purpose="train", scorer=_scorer(warehouse))) == 1
    assert work("learn") == 0
    assert contents(warehouse) == contents(undisturbed)


def _scorer(warehouse: Warehouse) -> str:
    [folder] = (warehouse.root / "samples" / "iteration=0" / "purpose=train").iterdir()
    return folder.name.removeprefix("scorer=")


def test_a_slurm_task_of_an_array_requeues_itself_alone(tmp_path: Path) -> None:
    """The task that runs under the array's own job id is among them: 700 names all tasks, 700_3 the one."""
    said = tmp_path / "said"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$*" >> {said}\necho JobState=RUNNING\n')
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "examples" / "jobs").mkdir(parents=True)
    (tmp_path / "examples" / "jobs" / "work.sh").write_text("exit 75\n")
    for array in ({"SLURM_ARRAY_JOB_ID": "700", "SLURM_ARRAY_TASK_ID": "3"}, {}):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path),
                       "SLURM_JOB_ID": "700", "REQUEUE_WAIT": "0", **array}
        words = ["bash", str(JOBS / "slurm" / "stage.sbatch"), "rollout", "run", "0", "4"]
        assert subprocess.run(words, env=environment, check=False).returncode == 75
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$*" >> {said}\necho JobState=CANCELLED\n')
    assert subprocess.run(words, env=environment, check=False).returncode == 75
    assert said.read_text().splitlines() == [
        "show job 700_3", "requeue 700_3", "show job 700", "requeue 700", "show job 700"]


def test_ray_without_a_cluster_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("""
def remote(**options):
    return lambda function: function
def init(address=None):
    raise ConnectionError("no running instance") if address == "auto" else SystemError
""")
    done = subprocess.run([sys.executable, "examples/jobs/ray/loop.py", "run", "1"], capture_output=True,
                          text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 1 and done.stderr.startswith("No Ray cluster runs here."), done.stderr
