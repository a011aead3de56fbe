"""The rollup answers as the rows do, notices when they change, and can be thrown away."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.building.runs import score_again
from tests.building.weather import SCORER, build_run, weather, write_iteration, write_training
from tests.warehouse.sql.test_views import rounded, scanned_files
from warehouse.sql.database import connect
from warehouse.sql.inventory import take_inventory
from warehouse.sql.rollup import fresh_stages, write_rollup
from warehouse.sql.rollup_files import ROLLED
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return build_run(
        tmp_path_factory.mktemp("runs") / "run", iterations=3, evals=(2,), num_tasks=4, group_size=4
    )


@pytest.fixture
def run(built: Warehouse, tmp_path: Path) -> Warehouse:
    shutil.copytree(built.root, tmp_path / "run")
    return open_warehouse(tmp_path / "run")


def everything(run: Warehouse) -> list[list[dict]]:
    connection = connect(run)
    order = {"groups": "iteration, purpose, group_id", "task_results": "iteration, purpose, task_id",
             "rolled_mismatch": "iteration, staleness", "iteration_stats": "iteration, purpose"}
    return [rounded(connection, f"FROM {table} ORDER BY {order[table]}") for table in ROLLED]


def test_the_rollup_answers_as_the_rows_do(run: Warehouse) -> None:
    before = everything(run)
    assert write_rollup(run) == 4
    assert everything(run) == before
    assert connect(run).execute("SELECT count(*) FROM fresh_samples").fetchone() == (0,)
    assert not scanned_files(connect(run), "FROM iteration_stats WHERE iteration = 1")[0].startswith(
        "samples/"
    )
    assert all("/iterations/" in path for path in scanned_files(connect(run), "FROM iteration_stats"))


def test_new_iterations_are_added_to_what_is_rolled_up(run: Warehouse) -> None:
    write_rollup(run)
    random = np.random.default_rng(5)
    rows = write_iteration(run, 3, "train", weather("healthy", 3), random, num_tasks=4, group_size=4)
    assert fresh_stages(run, take_inventory(run)) == 0  # not settled: its training is still to come
    assert [row["iteration"] for row in everything(run)[3]] == [0, 1, 2, 2, 3]
    write_training(run, 3, weather("healthy", 3), random, rows)
    assert fresh_stages(run, take_inventory(run)) == 1
    mixed = everything(run)
    assert write_rollup(run) == 5 and everything(run) == mixed
    shutil.rmtree(run.root / "iterations")
    assert everything(run) == mixed


def test_another_scorer_makes_the_rollup_void(run: Warehouse) -> None:
    write_rollup(run)
    stale = everything(run)[3]
    score_again(run, SCORER, "strict-99", 1)
    (run.root / "config.toml").write_text('[warehouse]\nscorer = "strict"\n')
    rows = everything(run)[3]
    assert [row["scorer"] for row in rows] == [SCORER, "strict-99", SCORER, SCORER]
    assert [row["scorer"] for row in stale] == [SCORER] * 4


def test_only_the_newest_two_rollups_are_kept(run: Warehouse) -> None:
    random = np.random.default_rng(6)
    write_rollup(run)
    for iteration in (3, 4):
        rows = write_iteration(
            run, iteration, "train", weather("healthy", iteration), random, num_tasks=4, group_size=4
        )
        write_training(run, iteration, weather("healthy", iteration), random, rows)
        write_rollup(run)
    assert len(list(run.root.glob("iterations/rollup-*"))) == 2
    assert not list(run.root.glob(".tmp-*"))
