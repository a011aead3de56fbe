"""The SQL and the names on docs/reading.md are those that exist."""

import re
from pathlib import Path

import click
import duckdb
import pytest

from reports.cli import cli as reports
from tests.building.weather import build_run
from warehouse.cli import cli as warehouse
from warehouse.sql.database import connect

TEXT = (Path(__file__).parents[3] / "docs" / "reading.md").read_text()
SQL = [statement for block in re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
       for statement in re.sub(r"--[^\n]*", "", block).split(";") if statement.strip()]
ALARMS = (Path(__file__).parents[3] / "warehouse" / "sql" / "texts" / "alarms.sql").read_text()


@pytest.fixture(scope="module")
def connections(tmp_path_factory: pytest.TempPathFactory) -> list[duckdb.DuckDBPyConnection]:
    """A healthy run and one that blows up."""
    folder = tmp_path_factory.mktemp("runs")
    return [connect(build_run(folder / shape, shape=shape, iterations=8, evals=(), num_tasks=4, group_size=8))
            for shape in ("healthy", "blow-up")]


@pytest.mark.parametrize("statement", SQL)
def test_every_query_has_an_answer(connections: list[duckdb.DuckDBPyConnection], statement: str) -> None:
    """In one of the two runs, for what asks after trouble."""
    assert any(connection.execute(statement).fetchall() for connection in connections)


def test_every_command_exists() -> None:
    groups: dict[str, click.Group] = {"warehouse": warehouse, "reports": reports}
    found = re.findall(r"`?\b(warehouse|reports) ([a-z]+) (?:\"?\$?[A-Za-z]+)", TEXT)
    assert len(found) >= 15
    for group, name in found:
        assert name in groups[group].commands, (group, name)


def test_every_signal_is_explained() -> None:
    signals = set(re.findall(r"signal_of\('(\w+)'", ALARMS))
    table = TEXT[TEXT.index("| signal |"):TEXT.index("The best is the best mean")]
    assert signals == set(re.findall(r"`(\w+)`", table))
