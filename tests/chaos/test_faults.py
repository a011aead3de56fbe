"""Faults of the machine: each is one sentence, nothing half-written stays, and the next run finishes."""

import contextlib
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.building import runs, sampled
from tests.building.mounts import mounted
from tests.building.runs import small_run
from tests.building.scripted import ScriptedEngine, sample
from tests.chaos.kills import Step, to_the_end
from tests.chaos.loop import contents, leftovers, new_run, problems
from train.cli import train
from train.steps import steps
from train.steps.checkpoint import Checkpoints
from warehouse.stages import space
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 100 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted(folder, ["mount", "-t", "tmpfs", "-o", "size=100m", "none"]) as worked:
        if not worked:
            pytest.skip("mounting a filesystem needs root")
        yield folder


def remount(folder: Path, mode: str) -> None:
    """Mount it `ro` or `rw`; busy as long as a process that just ended still holds a file."""
    for _ in range(600):
        if subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)]).returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{folder} could not be remounted {mode}")


def fill(folder: Path, leave: int) -> Path:
    """A file that leaves about `leave` bytes free."""
    path = folder / "filler"
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        for _ in range(max(0, shutil.disk_usage(folder).free - leave) // 65536):
            stream.write(bytes(65536))
    return path


@pytest.mark.slow("nine commands, each with its own imports")
def test_a_disk_that_fills_up_stops_each_stage_and_room_lets_it_finish(
        small_disk: Path, tmp_path: Path) -> None:
    reference, warehouse = new_run(tmp_path / "reference"), new_run(small_disk / "tight")
    for name in ("rollout", "score", "train"):
        step = Step(name, 0)
        assert to_the_end(step, reference).code == 0
        filler = fill(small_disk, leave=70_000)
        stopped = to_the_end(step, warehouse)
        assert stopped.code == 1 and "Free some space" in stopped.output, stopped.output
        assert "Traceback" not in stopped.output
        filler.unlink()
        assert to_the_end(step, warehouse).code == 0
    assert contents(warehouse) == contents(reference)
    assert leftovers(warehouse) == problems(warehouse) == []


@pytest.mark.slow("eight commands, each with its own imports")
def test_a_disk_mounted_read_only_is_one_sentence_in_each_stage(small_disk: Path) -> None:
    warehouse = new_run(small_disk / "archive")
    for name in ("rollout", "score", "train", "compact"):
        remount(small_disk, "ro")
        stopped = to_the_end(Step(name, 0), warehouse)
        remount(small_disk, "rw")
        assert stopped.code == 1 and "the filesystem is read-only" in stopped.output, stopped.output
        assert "Traceback" not in stopped.output
        assert to_the_end(Step(name, 0), warehouse).code == 0
    assert problems(warehouse) == []


def test_a_disk_that_is_full_at_the_write_itself_is_one_sentence(
        small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check beforehand: another process took the room meanwhile."""
    warehouse = small_run(small_disk / "run", num_tasks=40)
    monkeypatch.setattr(space, "RESERVE", -(2**40))
    filler = fill(small_disk, leave=40_000)
    with pytest.raises(StageError, match="the disk is full: free some space"):
        sample(warehouse)
    assert not list(warehouse.root.rglob("*.tmp-*"))
    filler.unlink()
    sample(warehouse)
    assert problems(warehouse) == []


def test_an_estimate_above_the_free_space_is_refused_before_the_engine_starts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse, engine = small_run(tmp_path), ScriptedEngine()
    monkeypatch.setattr(space, "BYTES_PER_TOKEN", 1e15)
    with pytest.raises(StageError, match=r"rollout of iteration 0, purpose train needs about [\d,]+ MiB"):
        sample(warehouse, engine)
    assert engine.started == [] and not (warehouse.root / "completions").exists()


@pytest.mark.parametrize(("num_taken", "free", "sentence"), [
    (2, 0, "The checkpoint after step 2 needs about 1 MiB, but .* has 0 MiB free"),
    (2, space.RESERVE, "What follows step 2, which is saved, needs about 1 MiB and a reserve"),
    (3, 0, "Policy 1 needs about 1 MiB, but .* has 0 MiB free")])
def test_a_disk_that_fills_up_while_a_training_runs_stops_it_with_what_it_saved(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_taken: int, free: int, sentence: str) -> None:
    whole = sampled.tiny_run(tmp_path / "whole")
    sampled.sample_rows(whole, 0)
    tight = runs.copy_run(whole, tmp_path / "tight")
    options = [*sampled.OPTIONS, *sampled.SAVING, "--threads", "1"]
    taken: list[int] = []

    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=free if len(taken) == num_taken else 2**40)

    take_step = steps.take_step

    def counted(learner, step, *others):
        taken.append(step)
        return take_step(learner, step, *others)
    with monkeypatch.context() as filling:
        filling.setattr(space, "shutil", SimpleNamespace(disk_usage=usage))
        filling.setattr(steps, "take_step", counted)
        stopped = CliRunner().invoke(train, [str(tight.root), *options])
    assert stopped.exit_code == 1 and re.search(sentence, stopped.output), stopped.output
    assert "Free some space, then run the same command again; what was written" in stopped.output
    assert tight.state.versions == [0] and list(tight.root.glob("train/*/*/checkpoint-[12]"))
    for run in (whole, tight):
        assert CliRunner().invoke(train, [str(run.root), *options]).exit_code == 0
    assert whole.policy(1)["sha256"] == tight.policy(1)["sha256"]


def test_a_disk_that_is_full_when_a_training_writes_is_one_sentence(
        small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks beforehand: another process took the room meanwhile."""
    warehouse = sampled.tiny_run(small_disk / "run")
    sampled.sample_rows(warehouse, 0)
    monkeypatch.setattr("train.steps.checkpoint.check_space", lambda *_, **__: None)
    save, fillers = Checkpoints.save, []

    def on_a_full_disk(*arguments):
        fillers.append(fill(small_disk, leave=40_000))
        save(*arguments)
    with monkeypatch.context() as filling:
        filling.setattr(Checkpoints, "save", on_a_full_disk)
        stopped = sampled.run_train(warehouse, *sampled.SAVING)
    assert stopped.exit_code == 1 and "is full (" in stopped.output, stopped.output
    fillers[0].unlink()
    assert sampled.run_train(warehouse).exit_code == 0


@pytest.mark.parametrize(("error", "sentence"), [
    (13, "permission was denied: have it granted, then"), (30, "the filesystem is read-only: have it"),
    (122, "the disk quota is used up: free some"), (24, "too many open files: raise `ulimit -n`"),
    (5, "the disk reports an error: mend it")])
def test_what_the_system_refuses_is_said_with_the_way_out(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, sentence: str) -> None:
    warehouse = small_run(tmp_path)
    flush = "warehouse.store.commit.flush"
    with monkeypatch.context() as failing, pytest.raises(StageError, match=sentence):
        def refuse(path: Path) -> None:
            raise OSError(error, os.strerror(error))
        failing.setattr(flush, refuse)
        sample(warehouse)
    sample(warehouse)
    assert problems(warehouse) == []


def test_a_read_only_folder_is_one_sentence_for_a_user_who_is_not_root(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user without rights")
    warehouse = small_run(tmp_path)
    for folder in (warehouse.root, *warehouse.root.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            sample(warehouse)
        except StageError as error:
            os._exit(0 if "permission was denied" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_too_many_open_files_while_reading_do_not_pass_for_damage(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(StageError, match=r"cannot be opened: Too many open files"):
            warehouse.read("completions", iteration=0, purpose="train")
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_manifest_that_another_nfs_client_replaces_is_read_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    stage, read_text = warehouse.stage("rollout", iteration=0, purpose="train"), Path.read_text
    stale = [OSError(errno.ESTALE, "Stale file handle")] * 2

    def replaced(path: Path, **options: str) -> str:
        if path.name == "manifest.json" and stale:
            raise stale.pop()
        return read_text(path, **options)
    monkeypatch.setattr(Path, "read_text", replaced)
    assert (stage.manifest() or {})["facts"]["num_completions"] == 20 and not stale


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true, set_back = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(true)

    class SetBack(ScriptedEngine):
        def sample(self, requests, sampling):
            for count, drawn in enumerate(super().sample(requests, sampling)):
                if count == 9:
                    monkeypatch.setattr(time, "time", lambda: 0.0)
                yield drawn
    sample(set_back, SetBack(), spill_seconds=0.0)
    space.sweep(set_back)
    assert contents(set_back) == contents(true)
    assert problems(set_back) == []


def test_a_damaged_spill_is_said_and_sampled_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warehouse, whole = small_run(tmp_path / "a"), small_run(tmp_path / "b")
    sample(whole)
    with pytest.raises(KeyboardInterrupt):
        sample(warehouse, ScriptedEngine(stop_after=5), spill_seconds=0.0)
    for path in warehouse.root.rglob("*.spill-*"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-20])
    sample(warehouse)
    assert "is damaged" in capfd.readouterr().err
    assert contents(warehouse) == contents(whole)


def test_what_died_long_ago_is_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    warehouse = small_run(tmp_path)
    sample(warehouse)
    old, fresh = warehouse.scratch("policy-1"), warehouse.scratch("policy-1")
    part = warehouse.part_path("completions", 0, iteration=0, purpose="train")
    torn = part.with_name(f"{part.name}.tmp-0123456789ab")
    torn.write_bytes(b"half")
    for path in (old, torn):
        os.utime(path, (0, 0))
    space.sweep(warehouse)
    assert fresh.exists() and part.exists() and not old.exists() and not torn.exists()


KILLING = """
import os, signal, sys
from pathlib import Path
import score.run
from score.cli import score as command
from score.sandbox import executor

outcome_of = executor.outcome_of

def lanes():
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in children if b"score.lane" in Path(f"/proc/{child}/cmdline").read_bytes()]

def kill_the_lanes(*arguments, **options):
    executor.outcome_of = outcome_of
    for lane in lanes():
        os.kill(lane, signal.SIGKILL)
        print("killed a lane", file=sys.stderr, flush=True)
    return outcome_of(*arguments, **options)

score.run.check_golden = lambda *_: 0     # its programs are the first to run
executor.outcome_of = kill_the_lanes
command(sys.argv[1:])
"""


def test_children_killed_for_memory_cost_no_row(tmp_path: Path) -> None:
    """The system kills the children of a stage; those of score are the lanes that run programs."""
    warehouse = new_run(tmp_path / "oom")
    assert to_the_end(Step("rollout", 0), warehouse).code == 0
    done = subprocess.run([sys.executable, "-c", KILLING, str(warehouse.root), "--iteration", "0"],
                          capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "killed a lane" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert to_the_end(Step("score", 0), warehouse).code == 0
    scorer, = open_warehouse(warehouse.root).state.scorers(0, "train")
    rewards = warehouse.read("samples", ["reward"], iteration=0, purpose="train", scorer=scorer)["reward"]
    assert len(rewards) == 20 and rewards.null_count == 0
