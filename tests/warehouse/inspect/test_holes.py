"""Signals of runs that are not neat: one task, another scorer from some iteration on, nothing measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.building.runs import finish, without_waiting, write_rows
from tests.building.weather import SCORER, Weather, empty_run, write_iteration
from warehouse.cli import cli
from warehouse.sql.database import compute_once, connect, rows_of
from warehouse.store.run_folder import Warehouse

OTHER = "arc-small-0a1b2c3d"


def weather_run(folder: Path, iterations: int, num_tasks: int, seed: int = 0) -> Warehouse:
    """A run whose policy stays as it is."""
    random = np.random.default_rng(seed)
    with without_waiting():
        run = empty_run(folder, num_tasks)
        for iteration in range(iterations):
            write_iteration(run, iteration, "train", Weather(truncated=0.2), random, num_tasks, parts=1)
    return run


def score_again(run: Warehouse, iteration: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Other scores of an iteration, as the scorer OTHER gives them, which finished last."""
    rows = run.read("samples", iteration=iteration, purpose="train", scorer=SCORER).to_pylist()
    write_rows(run, "samples", [[{**row, "scorer": OTHER, **change(row)} for row in rows]], scorer=OTHER)
    finish(run, "score", scorer=OTHER, iteration=iteration, purpose="train")


def raised(run: Warehouse) -> set[tuple[int, str]]:
    return {(row["iteration"], row["signal"]) for row in rows_of(connect(run), "FROM raised_signals")}


@pytest.mark.parametrize("seed", [0, 1, *(
    pytest.param(seed, marks=pytest.mark.slow("other draws of the same run")) for seed in (2, 3))])
def test_a_run_of_one_task_falls_by_no_chance(tmp_path: Path, seed: int) -> None:
    connection = compute_once(connect(weather_run(tmp_path / "run", 8, 1, seed)))
    assert not {row["signal"] for row in rows_of(connection, "FROM raised_signals")} & {
        "solving_falls", "reward_falls", "sharpening"}
    for row in rows_of(connection, "SELECT solving_error, reward_error FROM adjusted"):
        assert row["solving_error"] == pytest.approx(np.sqrt(0.5 * 0.5 / 15), abs=0.03)
        assert row["reward_error"] is None
    errors = rows_of(connection, "SELECT DISTINCT pass_at_1_error, pass_at_max_k_error, reward_error, "
                                 "standard_error FROM iteration_stats JOIN pass_curve USING (iteration)")
    assert [set(row.values()) for row in errors] == [{None}]


def test_rewards_of_another_scorer_do_not_fall(tmp_path: Path) -> None:
    run = weather_run(tmp_path / "run", 8, 8)
    for iteration in range(4, 8):
        score_again(run, iteration, lambda row: {"reward": row["reward"] / 10})
    assert "reward_falls" not in {signal for _, signal in raised(run)}
    with without_waiting():
        write_iteration(run, 8, "train", Weather(), np.random.default_rng(9), 8, parts=1)
    score_again(run, 8, lambda _row: {"reward": 0.0})
    assert (8, "reward_falls") in raised(run)           # of one scorer they do
    story = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout.splitlines()[1]
    assert story.startswith("The reward fell at iteration 8: pass@1 .")         # which did not


def test_rewards_of_different_scorers_have_no_gain(tmp_path: Path) -> None:
    run = weather_run(tmp_path / "run", 4, 4)
    for iteration in (1, 2):
        score_again(run, iteration, lambda row: {"reward": 1000 - row["reward"]})
    connection = connect(run)
    for policies, paid in (("0, 1", False), ("1, 2", True), ("0, 3", True)):
        rows = rows_of(connection, f"FROM compare({policies})")
        assert [row["n_a"] for row in rows] == [16] * 4 and all(row["gain"] is not None for row in rows)
        assert [row["reward_gain"] is not None for row in rows] == [paid] * 4


def test_of_an_iteration_without_any_reward_that_alone_is_said(tmp_path: Path) -> None:
    run = weather_run(tmp_path / "run", 6, 4)
    before = raised(run)
    score_again(run, 5, lambda row: {"reward": None, "correct": None, "reward_parts": None})
    assert raised(run) - {(iteration, signal) for iteration, signal in before if iteration < 5} == {
        (5, "unmeasured")}
    assert {row["signal"] for row in rows_of(connect(run), "FROM fired_signals WHERE iteration = 5")} == {
        "unmeasured"}
    printed = CliRunner().invoke(cli, ["summary", str(run.root)]).stdout
    assert "\n64 rewards left out, not measured (reward is null).\n" in printed
