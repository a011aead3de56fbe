"""The view task_history: what tells of the policy that goes on, after rollbacks of every order."""

import random
from typing import Any

import duckdb
import pytest

from warehouse.sql.database import empty_connection, rows_of

EDGE = "SELECT task_id FROM task_history WHERE last_rate BETWEEN 0.05 AND 0.95"


def history(rates: list[float], backs: dict[int, int]) -> duckdb.DuckDBPyConnection:
    """A run that visits its one task in every iteration; `backs`: policies that are earlier ones again."""
    connection = empty_connection()
    connection.execute("CREATE TABLE visits AS SELECT (place - 1)::INTEGER AS iteration, rate "
                       "FROM (SELECT unnest($1::DOUBLE[]) AS rate, generate_subscripts($1, 1) AS place)",
                       [rates])
    known: dict[str, dict[str, Any]] = {
        "task_results": {"task_id": "'task'", "purpose": "'train'", "n": "100", "c": "rate * 100",
                         "iteration": "iteration"},
        "policies": {"policy_version": "iteration", "rolled_back_to": f"MAP {backs}[iteration]"}}
    for view, columns in known.items():
        shown = ", ".join(f"{columns.get(name, 'NULL')}::{kind} AS {name}"
                          for name, kind, *_ in connection.execute(f"DESCRIBE {view}").fetchall())
        connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {shown} FROM visits")
    return connection


def test_a_task_that_a_collapsed_policy_could_not_solve_stays_at_the_edge() -> None:
    assert rows_of(history([0.5, 0.5, 0.0, 0.0], {}), EDGE) == []
    assert rows_of(history([0.5, 0.5, 0.0, 0.0], {4: 1}), EDGE) == []       # no policy 4 yet
    connection = history([0.5, 0.4, 0.0, 0.0, 0.4], {4: 1})
    [row] = rows_of(connection, "FROM task_history")
    assert rows_of(connection, EDGE) and (row["visits"], row["last_iteration"]) == (3, 4)
    assert row["last_rate"] == 0.4 and not row["forgotten"]


@pytest.mark.parametrize("seed", range(12))
def test_what_counts_is_what_the_newest_policy_comes_from(seed: int) -> None:
    draw = random.Random(seed)
    backs = {version: draw.randrange(version) for version in range(1, 14) if draw.random() < 0.4}
    line, version = [], 13
    while version >= 0:
        line.append(version)
        version = backs.get(version, version - 1)
    [row] = rows_of(history([number / 100 for number in range(14)], backs or {99: 0}),
                    "SELECT visits, num_completions, best_rate FROM task_history")
    assert (row["visits"], row["best_rate"]) == (len(line), 0.13), (backs, line)
    [[total]] = history([0.0 if number in line else 1.0 for number in range(14)], backs or {99: 0}).execute(
        "SELECT best_rate FROM task_history").fetchall()
    assert total == 0
