"""A run that starts from an adapter: policy 0 samples with it, training goes on from it."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.runs import arc_file
from tests.building.sampled import load_policy, run_train, sample_rows
from warehouse.cli import cli
from warehouse.init import init_run
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture
def started(trained: Warehouse, tmp_path: Path) -> Warehouse:
    """A run that starts where `trained` ended."""
    tasks = arc_file(tmp_path, [f"task-{number}" for number in range(8)])
    for _ in range(2):      # typed again, it does nothing
        init_run(tmp_path / "run", trained.model, (str(tasks),), adapter=trained.policy_dir(1).parent)
    return open_warehouse(tmp_path / "run")


def test_policy_0_is_the_adapter_and_training_goes_on_from_it(started: Warehouse, trained: Warehouse) -> None:
    assert started.policy(0)["kind"] == "lora" and started.policy(0)["sha256"] == trained.policy(1)["sha256"]
    started.verify_policy(0)
    sample_rows(started, 0)
    result = run_train(started)         # its mismatch is that of rows sampled with the adapter
    assert result.exit_code == 0, result.output
    before, after = (load_policy(warehouse, 1).trainable() for warehouse in (trained, started))
    moved = sum((before[name] - after[name]).norm() for name in before)
    assert 0 < moved < sum(weight.norm() for weight in after.values()) / 2
    assert CliRunner().invoke(cli, ["check", str(started.root)]).exit_code == 0


def test_an_adapter_of_another_shape_than_asked_for_is_refused(started: Warehouse) -> None:
    sample_rows(started, 0)
    result = run_train(started, "--lora-rank", "8")
    assert result.exit_code == 1 and "lora-rank = 4" in result.output


def test_no_adapter_and_an_adapter_as_the_model_are_refused(trained: Warehouse, tmp_path: Path) -> None:
    tasks = str(arc_file(tmp_path, ["one"]))
    with pytest.raises(StageError, match="is an adapter, not a model"):
        init_run(tmp_path / "run", str(trained.policy_dir(1)), (tasks,))
    with pytest.raises(StageError, match="is not an adapter"):
        init_run(tmp_path / "run", trained.model, (tasks,), adapter=tmp_path)
    shutil.copytree(trained.policy_dir(1), tmp_path / "other")
    (tmp_path / "other" / "adapter_model.safetensors").unlink()
    with pytest.raises(StageError, match="is not a LoRA adapter"):
        init_run(tmp_path / "run", trained.model, (tasks,), adapter=tmp_path / "other")
    assert not (tmp_path / "run").exists()
