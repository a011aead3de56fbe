"""How the summary ends: what the run waits for, and whether it goes wrong."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.weather import build_run
from warehouse.care.rollback import roll_back
from warehouse.cli import cli
from warehouse.store.run_folder import Warehouse


def ending(run: Warehouse) -> list[str]:
    """The lines after the last blank one."""
    result = CliRunner().invoke(cli, ["summary", str(run.root)])
    assert result.exit_code == 0, result.output
    return result.stdout.rpartition("\n\n")[2].splitlines()


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    return build_run(tmp_path / "run", iterations=2, evals=(), num_tasks=2, group_size=4)


def test_a_trained_run_waits_for_the_next_rollout(run: Warehouse) -> None:
    assert ending(run)[0] == f"Next: rollout {run.root}"


def test_a_scored_iteration_waits_for_training(run: Warehouse) -> None:
    shutil.rmtree(run.root / "train/iteration=1")
    shutil.rmtree(run.root / "policies/2")
    assert ending(run)[0] == f"Next: train {run.root}"


def test_a_complete_rollout_waits_for_its_scores(run: Warehouse) -> None:
    for folder in ("train/iteration=1", "policies/2", "samples/iteration=1"):
        shutil.rmtree(run.root / folder)
    assert ending(run) == [f"Next: score {run.root}"]
    shutil.rmtree(run.root / "train/iteration=0")
    shutil.rmtree(run.root / "samples/iteration=0")
    assert ending(run) == [f"Nothing is scored yet. Next: score {run.root}"]


def test_a_rollout_under_way_is_to_be_finished_first(run: Warehouse) -> None:
    for folder in ("train/iteration=1", "policies/2", "samples/iteration=1"):
        shutil.rmtree(run.root / folder)
    (run.root / "completions/iteration=1/purpose=train/manifest.json").unlink()
    assert ending(run)[-1] == f"Next: rollout {run.root}"


def test_a_collapse_is_the_last_thing_said(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="wrong-adapter", iterations=6, evals=(), num_tasks=4,
                    group_size=8)
    due, alarms = ending(run)
    assert due == f"Next: rollout {run.root}"
    assert alarms.startswith("1 signal since iteration 5")
    assert alarms.endswith(f": warehouse watch {run.root}")
    roll_back(run, 5)
    assert ending(run)[0] == f"Next: rollout {run.root}"
