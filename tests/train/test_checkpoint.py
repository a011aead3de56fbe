"""A training says that its checkpoint is damaged, and ends with the policy of one that was not killed."""

import json
import os
import signal
from pathlib import Path
from shutil import rmtree

import pytest

import train.steps.checkpoint
import train.steps.steps
from tests.building.many import FSDP, in_processes
from tests.building.runs import copy_run
from tests.building.sampled import SAVING, run_train, with_options
from train.cli import train as train_command

LOGPROBS = "checkpoint-0/logprobs.safetensors"
WEIGHTS = "checkpoint-2/weights/__0_0.distcp"
FILES = ["checkpoint-0/checkpoint.json", LOGPROBS, "checkpoint-2/checkpoint.json",
         "checkpoint-2/tokens.safetensors", "checkpoint-2/weights/.metadata", WEIGHTS]


class Killed(BaseException):
    """Stands for kill -9: nothing of the stage handles it."""


def kill_at_the_third_step(warehouse, *options):
    take_step = train.steps.steps.take_step

    def killed(learner, step, *arguments):
        if step == 2:
            raise Killed
        return take_step(learner, step, *arguments)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(train.steps.steps, "take_step", killed)
        train_command.main([str(warehouse.root), *with_options(*SAVING, *options)])


@pytest.fixture(scope="session")
def half(scored, tmp_path_factory):
    """Killed with two of three steps saved; never to be written to."""
    warehouse = copy_run(scored, tmp_path_factory.mktemp("runs") / "demo")
    kill_at_the_third_step(warehouse)
    return warehouse


@pytest.fixture
def killed(half, tmp_path):
    """A copy of it."""
    return copy_run(half, tmp_path / "demo")


def inside(warehouse, name) -> Path:
    return warehouse.stage("train", iteration=0).folder / name


def damage(path, how):
    content = bytearray(path.read_bytes())
    place = len(content) // 4       # of the weights: within a moment, and nothing else would notice
    content[place] ^= 0x40
    path.unlink()
    if how != "missing":
        path.write_bytes(content if how == "flipped" else content[:place])


def damaged_line(name, start="from the beginning"):
    folder, _, file = name.partition("/")
    return (f"checkpoint of step {folder.removeprefix('checkpoint-')} is damaged ({file}): "
            f"training starts {start}\n")


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_and_the_training_ends_in_the_same_policy(trained, killed, name, how):
    damage(inside(killed, name), how)
    result = run_train(killed, "--iteration", "0")
    assert result.exit_code == 0, result.output
    assert result.stderr.count(damaged_line(name)) == result.stderr.count("damaged") == 1
    assert "continues after" not in result.stdout
    assert killed.policy(1)["sha256"] == trained.policy(1)["sha256"]
    assert not list(inside(killed, ".").glob("checkpoint-*"))


@pytest.mark.parametrize("name", [WEIGHTS, "checkpoint-2/checkpoint.json"])
def test_a_whole_checkpoint_takes_the_place_of_the_damaged_one(trained, killed, name):
    damage(inside(killed, name), "missing")
    kill_at_the_third_step(killed)
    result = run_train(killed, "--iteration", "0")
    assert "continues after step 2 of 3" in result.stdout and "damaged" not in result.stderr
    assert killed.policy(1)["sha256"] == trained.policy(1)["sha256"]


def test_the_one_before_is_taken_if_it_is_there(trained, run, monkeypatch):
    with monkeypatch.context() as patched:      # killed before it was removed
        patched.setattr(train.steps.checkpoint, "remove_folder", lambda _: None)
        kill_at_the_third_step(run)
    damage(inside(run, WEIGHTS), "flipped")
    result = run_train(run, "--iteration", "0")
    assert damaged_line(WEIGHTS, "from the one before") in result.stderr
    assert "continues after step 1 of 3" in result.stdout
    assert run.policy(1)["sha256"] == trained.policy(1)["sha256"]


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_steps_taken_with_advantages_that_are_lost_are_taken_again(run, tmp_path, lost):
    (tmp_path / "mine.py").write_text("import random\n\ndef own(rows):\n"
                                      "    return [random.gauss() for row in rows]\n")
    options = ("--advantages", f"{tmp_path}/mine.py:own")
    kill_at_the_third_step(run, *options)
    if lost == "file":
        damage(inside(run, LOGPROBS), "flipped")
    else:
        rmtree(inside(run, "checkpoint-0"))
    result = run_train(run, "--iteration", "0", *options)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("checkpoint of step 0 is damaged") == 1
    assert "continues after" not in result.stdout


def test_a_dry_run_leaves_a_damaged_checkpoint_alone(killed):
    damage(inside(killed, LOGPROBS), "cut")
    before = {path: path.stat().st_mtime_ns for path in killed.root.rglob("*")}
    assert run_train(killed, "--iteration", "0", "--dry-run").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in killed.root.rglob("*")} == before


def test_checkpoints_of_the_former_version_have_no_hashes_and_are_resumed(trained, killed):
    for path in inside(killed, ".").glob("checkpoint-*/checkpoint.json"):
        state = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in state.items()
                                    if key not in ("files", "checksum")}))
    result = run_train(killed, "--iteration", "0")
    assert "continues after step 2 of 3" in result.stdout and "damaged" not in result.stderr
    assert killed.policy(1)["sha256"] == trained.policy(1)["sha256"]


@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata"])
def test_what_any_of_several_processes_wrote_is_compared(scored, tmp_path, monkeypatch, name):
    run, outputs = copy_run(scored, tmp_path / "run"), tmp_path / "outputs"
    take_step = train.steps.steps.take_step

    def killed(learner, step, *arguments):
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return take_step(learner, step, *arguments)

    def start(*options):
        return in_processes(2, lambda: train_command.main([str(run.root), *with_options(*options)]), outputs,
                            FSDP)
    with monkeypatch.context() as patched:
        patched.setattr(train.steps.steps, "take_step", killed)
        assert -signal.SIGKILL in start(*SAVING)
    damage(inside(run, f"checkpoint-2/weights/{name}"), "flipped")
    assert start() == [0, 0]
    said = [(outputs / f"{rank}.err").read_text().count("damaged") for rank in range(2)]
    assert said == [1, 0]
