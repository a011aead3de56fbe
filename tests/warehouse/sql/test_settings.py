"""Settings as rows, and which of them differ."""

from pathlib import Path

import numpy as np
import pytest

import warehouse
from tests.building.runs import change_settings, score_again
from tests.building.weather import SCORER, build_run, empty_run, weather, write_iteration, write_training
from warehouse.inspect.advice import changed_settings
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect, empty_connection
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture
def runs(tmp_path: Path) -> list[Warehouse]:
    runs = [build_run(tmp_path / name, iterations=3, evals=()) for name in ("a", "b")]
    change_settings(runs[1], "train", 2, learning_rate=5e-5, adam_beta1=None)
    return runs


def test_each_setting_of_each_stage_is_a_row(runs: list[Warehouse]) -> None:
    rows = connect(runs[1]).sql("SELECT key, value FROM settings WHERE stage = 'train' AND iteration = 2 "
                                "AND key IN ('learning_rate', 'adam_beta1', 'loss')").fetchall()
    assert {("learning_rate", "0.00005"), ("adam_beta1", None)} <= set(rows)
    [sampled] = connect(runs[1]).sql("SELECT value FROM settings WHERE stage = 'rollout' AND iteration = 0 "
                                     "AND purpose = 'train' AND key = 'group_size'").fetchall()
    assert sampled == ("16",)


def test_of_several_scorers_the_chosen_one_counts(tmp_path: Path) -> None:
    run = empty_run(tmp_path / "run")
    write_iteration(run, 0, "train", weather("healthy", 0), np.random.default_rng(0))
    score_again(run, SCORER, "other-00000000", 0)
    change_settings(run, "score", 0, scorer="other-00000000", reward="other")
    (run.root / "config.toml").write_text('[warehouse]\nscorer = "arc-v1"\n')
    connection = connect(run)
    assert len(connection.sql("SELECT scorer FROM stages WHERE stage = 'score'").fetchall()) == 2
    rows = connection.sql("SELECT value FROM settings WHERE stage = 'score' AND key = 'reward'").fetchall()
    assert rows == [("arc-v1",)]


def test_what_differs_within_a_run(runs: list[Warehouse]) -> None:
    query = "SELECT stage, key, value, first_iteration, last_iteration, num_iterations FROM settings_diff"
    assert connect(runs[0]).sql(query).fetchall() == []
    assert connect(runs[1]).sql(query).fetchall() == [
        ("train", "learning_rate", None, 0, 1, 2), ("train", "learning_rate", "0.00005", 2, 2, 1)]


def test_the_learning_rate_is_the_one_that_a_rescue_left(runs: list[Warehouse]) -> None:
    run, random = runs[0], np.random.default_rng(0)
    for iteration in range(3):
        change_settings(run, "train", iteration, learning_rate=0.03, kl_beta=None)
    for iteration in (3, 4):
        roll_back(open_warehouse(run.root), 1, rate=0.5)
        run = open_warehouse(run.root)
        rows = write_iteration(run, iteration, "train", weather("healthy", 0), random)
        write_training(run, iteration, weather("healthy", 0), random, rows)
        change_settings(run, "train", iteration, learning_rate=0.03, kl_beta=None)
    connection = connect(run)
    assert connection.sql("SELECT value, first_iteration, last_iteration FROM settings_diff "
                          "WHERE stage = 'train' AND key = 'learning_rate'").fetchall() == [
        ("0.03", 0, 2), ("0.015", 3, 3), ("0.0075", 4, 4)]
    assert connection.sql("SELECT value FROM settings WHERE key = 'kl_beta'").fetchall() == [(None,)] * 5
    assert changed_settings(connection, 4, 1) == [
        "Settings changed at iteration 4: train learning_rate 0.0075 (was 0.015)."]


def test_how_an_adapter_is_served_is_no_change_from_the_base_which_has_none(runs: list[Warehouse]) -> None:
    change_settings(runs[0], "rollout", 0, serve=None)
    for iteration in (1, 2):
        change_settings(runs[0], "rollout", iteration, serve="merged", updates_per_shard=iteration)
    query = "SELECT key, value FROM settings_diff"
    assert connect(runs[0]).sql(query).fetchall() == [
        ("updates_per_batch", None), ("updates_per_batch", "1"), ("updates_per_batch", "2")]


def test_what_differs_between_runs(runs: list[Warehouse]) -> None:
    for iteration in range(3):
        change_settings(runs[0], "train", iteration, learning_rate=1e-4)
    rows = warehouse.open(*(run.root for run in runs)).sql(
        "SELECT run, key, value, num_iterations FROM settings_diff").fetchall()
    assert rows == [("a", "learning_rate", "0.0001", 3), ("b", "learning_rate", None, 2),
                    ("b", "learning_rate", "0.00005", 1)]


def test_an_interval_that_leaves_out_zero_is_beyond_chance_of_six_tasks() -> None:
    connection = empty_connection()
    for bounds, tasks, answer in (([0.1, 0.3], 6, True), ([-0.3, -0.1], 6, True), ([-0.1, 0.3], 60, False),
                                  ([0.1, 0.3], 5, None), ([0.2, 0.2], 60, None), (None, 1, None)):
        assert connection.execute("SELECT beyond_chance($1::DOUBLE[], $2)", [bounds, tasks]).fetchone() == (
            answer,), bounds
