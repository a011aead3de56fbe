"""A stage in several processes, with weights shared over them or not, trains what it trains in one."""


import os
import signal
import time

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import train.steps.steps
from tests.building.many import FSDP, in_processes
from tests.building.runs import copy_run
from tests.building.sampled import SAVING, sample_rows, with_options
from train.cli import train as train_command
from train.model.sharding import merge_programs
from train.steps.accelerator import GONE, Processes, ending_if_stuck
from warehouse.store.errors import StageError


def weights(run, version=1):
    file, = run.policy_dir(version).glob("*.safetensors")
    return load_file(str(file))


def train_in(count, run, *options, environment=FSDP):
    return in_processes(count, lambda: train_command.main([str(run.root), *with_options(*options)]),
                        run.root.parent / "outputs", environment)


def said(run, rank=0):
    return (run.root.parent / "outputs" / f"{rank}.out").read_text()


def complained(run, rank=0):
    return (run.root.parent / "outputs" / f"{rank}.err").read_text()


FULL, PIECES = ("--full", "--learning-rate", "1e-3"), ("--tokens-per-batch", "12")
LAUNCHES = {"whole": {}, "by layer": FSDP, "checkpointed": FSDP | {"FSDP_ACTIVATION_CHECKPOINTING": "true"},
            "whole step, offloaded": FSDP | {"FSDP_RESHARD_AFTER_FORWARD": "false",
                                             "FSDP_OFFLOAD_PARAMS": "true"}}
QUICK = [("checkpointed", FULL + PIECES), ("whole", ())]
REST = [pytest.param(launch, options, marks=pytest.mark.slow("two processes more"))
        for launch in LAUNCHES for options in ((), FULL, PIECES, FULL + PIECES)
        if (launch, options) not in QUICK]


@pytest.mark.parametrize(("launch", "options"), [*QUICK, *REST])
def test_two_processes_train_what_one_trains(scored, tmp_path, launch, options):
    alone, shared = copy_run(scored, tmp_path / "alone"), copy_run(scored, tmp_path / "shared")
    CliRunner().invoke(train_command, [str(alone.root), *with_options(*options)], catch_exceptions=False)
    codes = train_in(2, shared, *options, environment=LAUNCHES[launch])
    assert codes == [0, 0], complained(shared) + complained(shared, 1)
    expected, actual = weights(alone), weights(shared)
    assert list(actual) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(actual[name], values, rtol=0, atol=2e-5)


@pytest.mark.parametrize("processes_then", [1, pytest.param(3, marks=pytest.mark.slow("again, by three"))])
def test_a_killed_process_ends_the_others_in_a_sentence_and_any_number_goes_on(scored, tmp_path, monkeypatch,
                                                                               processes_then):
    alone, shared = copy_run(scored, tmp_path / "alone"), copy_run(scored, tmp_path / "shared")
    CliRunner().invoke(train_command, [str(alone.root), *with_options()], catch_exceptions=False)
    take_step = train.steps.steps.take_step

    def killed(learner, step, *arguments):
        if step == 2 and learner.processes.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return take_step(learner, step, *arguments)
    monkeypatch.setattr(train.steps.steps, "take_step", killed)
    assert train_in(2, shared, *SAVING) == [75, -signal.SIGKILL]
    assert GONE in complained(shared) and "Error" not in complained(shared)
    monkeypatch.undo()
    assert [path.name for path in shared.stage("train", iteration=0).folder.glob("checkpoint-[1-9]")] == [
        "checkpoint-2"]
    codes = train_in(processes_then, shared, environment={} if processes_then == 1 else FSDP)
    assert codes == [0] * processes_then, complained(shared)
    expected, actual = weights(alone), weights(shared)
    for name, values in expected.items():
        torch.testing.assert_close(actual[name], values, rtol=0, atol=2e-5)
    steps = [run.read("train_steps", iteration=0).to_pylist() for run in (alone, shared)]
    assert [[row["optimizer_step"] for row in rows] for rows in steps] == [[0, 1, 2]] * 2


def test_advantages_of_ones_own_are_asked_once_for_all_processes_and_lives_of_a_stage(scored, tmp_path,
                                                                                      monkeypatch):
    run, calls = copy_run(scored, tmp_path / "run"), tmp_path / "calls"
    (tmp_path / "mine.py").write_text(f"import random\n\ndef own(rows):\n    open({str(calls)!r}, 'a')"
                                      ".write('x')\n    return [random.gauss() for row in rows]\n")
    options = ("--advantages", f"{tmp_path}/mine.py:own", *SAVING)
    take_step = train.steps.steps.take_step

    def killed(learner, step, *arguments):
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return take_step(learner, step, *arguments)
    monkeypatch.setattr(train.steps.steps, "take_step", killed)
    assert -signal.SIGKILL in train_in(2, run, *options)
    monkeypatch.undo()
    result = CliRunner().invoke(train_command, [str(run.root), *with_options(*options)])
    assert result.exit_code == 0, result.output
    assert calls.read_text() == "x"


@pytest.mark.slow("two stages by two processes")
def test_the_next_iteration_takes_over_the_moments_whoever_wrote_them(scored, tmp_path):
    alone, shared = copy_run(scored, tmp_path / "alone"), copy_run(scored, tmp_path / "shared")
    CliRunner().invoke(train_command, [str(alone.root), *with_options()], catch_exceptions=False)
    assert train_in(2, shared) == [0, 0]
    moments = [torch.load(run.policy_dir(1) / "optimizer.pt", weights_only=True)["state"]
               for run in (alone, shared)]
    for expected, actual in zip(*(state.values() for state in moments), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    for run in (alone, shared):
        sample_rows(run, 1)
    rows = [run.read("completions", iteration=1, purpose="train", columns=["completion_ids"])
            for run in (alone, shared)]
    assert rows[0] == rows[1], "another policy samples other rows, and nothing can be compared"
    CliRunner().invoke(train_command, [str(alone.root), *with_options()], catch_exceptions=False)
    assert train_in(2, shared) == [0, 0], complained(shared)
    expected, actual = weights(alone, 2), weights(shared, 2)
    for name, values in expected.items():
        torch.testing.assert_close(actual[name], values, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("environment", "options", "sentence"), [
    (FSDP | {"FSDP_VERSION": "1"}, (), "Set fsdp_version to 2"),
    ({"ACCELERATE_USE_DEEPSPEED": "true"}, (), "asks for DeepSpeed, which `train` cannot use"),
    (FSDP, ("--load-4bit",), "--load-4bit needs all weights in one process"),
    (FSDP | {"FSDP_ACTIVATION_CHECKPOINTING": "perhaps"}, (), "Compare them with those in examples/")])
def test_what_a_launch_cannot_have_is_said_in_a_sentence(scored, tmp_path, environment, options, sentence):
    run = copy_run(scored, tmp_path / "run")
    assert train_in(1, run, *options, environment=environment) == [1]
    error, = (line for line in complained(run).splitlines() if line.startswith("Error: "))
    assert sentence in error
    assert not (run.root / "train").exists()


def test_a_launcher_that_starts_one_process_instead_of_two_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")          # as `accelerate launch --cpu --num_processes 2` does
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with pytest.raises(StageError, match="was asked for several processes and started one"):
        Processes("cpu")


def test_passes_are_made_in_the_shortest_order_that_holds_those_of_every_process():
    assert merge_programs(["NGG", "GNG"]) == "NGNG"
    assert merge_programs(["", "NNG", "G"]) == "NNG"
    assert merge_programs(["", ""]) == ""


def test_a_process_that_does_not_answer_a_signal_ends_with_a_sentence(tmp_path):
    def wait():
        signal.signal(signal.SIGTERM, lambda *_: None)
        with ending_if_stuck(lambda: False, 0.1):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
    assert in_processes(1, wait, tmp_path) == [75]
    assert (tmp_path / "0.err").read_text() == f"{GONE}\n"
