"""A stage in several processes, with weights shared over them or not, trains what it trains in one."""


import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from tests.building.many import FSDP, in_processes
from tests.building.runs import copy_run
from tests.building.sampled import OPTIONS, sample_rows, tiny_run
from train.cli import train as train_command


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    run = tiny_run(tmp_path_factory.mktemp("runs") / "scored")
    sample_rows(run, 0)
    return run


def weights(run, version=1):
    file, = run.policy_dir(version).glob("*.safetensors")
    return load_file(str(file))


def train_in(count, run, *options, environment=FSDP):
    return in_processes(count, lambda: train_command.main([str(run.root), *OPTIONS, *options]),
                        run.root.parent / "outputs", environment)


def said(run, rank=0):
    return (run.root.parent / "outputs" / f"{rank}.out").read_text()


def complained(run, rank=0):
    return (run.root.parent / "outputs" / f"{rank}.err").read_text()


@pytest.mark.parametrize("options", [(), ("--full", "--learning-rate", "1e-3"), ("--tokens-per-batch", "12"),
                                     ("--full", "--tokens-per-batch", "25", "--learning-rate", "1e-3")],
                         ids=["lora", "full", "lora, pieces", "full, pieces"])
@pytest.mark.parametrize("environment", [
    {}, FSDP, FSDP | {"FSDP_ACTIVATION_CHECKPOINTING": "true"},
    FSDP | {"FSDP_RESHARD_AFTER_FORWARD": "false", "FSDP_OFFLOAD_PARAMS": "true"}],
    ids=["whole", "by layer", "by layer, checkpointed", "whole step, offloaded"])
def test_two_processes_train_what_one_trains(scored, tmp_path, options, environment):
    alone, shared = copy_run(scored, tmp_path / "alone"), copy_run(scored, tmp_path / "shared")
    CliRunner().invoke(train_command, [str(alone.root), *OPTIONS, *options], catch_exceptions=False)
    codes = train_in(2, shared, *options, environment=environment)
    assert codes == [0, 0], complained(shared) + complained(shared, 1)
    expected, actual = weights(alone), weights(shared)
    assert list(actual) == list(expected)
    for name, values in expected.items():
        torch.testing.assert_close(actual[name], values, rtol=0, atol=2e-5)
