"""The SQL and the names on docs/reading.md are those that exist."""

import re
from pathlib import Path

import click
import duckdb
import pytest

from reports.cli import cli as reports
from tests.building.runs import change_settings
from tests.building.weather import build_run
from warehouse import open as open_runs
from warehouse.cli import cli as warehouse
from warehouse.sql.database import connect

TEXT = (Path(__file__).parents[3] / "docs" / "reading.md").read_text()
SQL = [statement for block in re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
       for statement in re.sub(r"--[^\n]*", "", block).split(";") if statement.strip()]


@pytest.fixture(scope="module")
def connections(tmp_path_factory: pytest.TempPathFactory) -> list[duckdb.DuckDBPyConnection]:
    """A healthy run, one that blows up with another rate in the end, and both together."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [build_run(folder / name, shape=shape, iterations=8, evals=(5,), num_tasks=16, group_size=8)
            for name, shape in (("a", "healthy"), ("b", "blow-up"))]
    change_settings(runs[1], "train", 7, learning_rate=5e-5)
    return [*map(connect, runs), open_runs(*(run.root for run in runs))]


@pytest.mark.parametrize("statement", SQL)
def test_every_query_has_an_answer(connections: list[duckdb.DuckDBPyConnection], statement: str) -> None:
    """In one of the runs, for what asks after trouble, or in both together."""
    chosen = connections[2:] if re.search(r"\brun\b|_runs\(", statement) else connections
    assert any(connection.execute(statement).fetchall() for connection in chosen)


def test_every_command_exists() -> None:
    groups: dict[str, click.Group] = {"warehouse": warehouse, "reports": reports}
    found = re.findall(r"`?\b(warehouse|reports) ([a-z]+) (?:\"?\$?[A-Za-z]+)", TEXT)
    assert len(found) >= 8
    for group, name in found:
        assert name in groups[group].commands, (group, name)
