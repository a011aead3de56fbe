"""Several runs in one SQL: each gives what it gives alone, its name before every row."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

import warehouse
from tests.building.weather import build_run
from warehouse.cli import cli
from warehouse.sql.dictionary import described_columns
from warehouse.sql.many import run_names
from warehouse.sql.script import HIDDEN
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

OLD = Path(__file__).parents[2] / "fixtures" / "run-0.2.0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Warehouse]:
    folder = tmp_path_factory.mktemp("runs")
    return [build_run(folder / "a", iterations=2, evals=(0, 1)),
            build_run(folder / "b's", iterations=3, group_size=8, seed=3)]


@pytest.fixture(scope="module")
def connection(runs: list[Warehouse]) -> duckdb.DuckDBPyConnection:
    return warehouse.open(*(run.root for run in runs))


@pytest.fixture(scope="module")
def each(runs: list[Warehouse]) -> list[duckdb.DuckDBPyConnection]:
    """A connection to each of the runs alone."""
    return [warehouse.open(run.root) for run in runs]


def shown(rows: Iterable[tuple[object, ...]]) -> list[str]:
    """Rows in order, numbers without the last digits, which depend on the order of a sum."""
    return sorted(re.sub(r"\d+\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.9g}", repr(row))
                  for row in rows)


def sql(*words: object) -> Result:
    return CliRunner().invoke(cli, ["sql", *map(str, words)])


@pytest.mark.parametrize("view", sorted(described_columns().keys() - {*HIDDEN, "settings_diff"}))
def test_every_view_has_the_rows_of_each_run(runs: list[Warehouse], view: str,
                                             each: list[duckdb.DuckDBPyConnection],
                                             connection: duckdb.DuckDBPyConnection) -> None:
    together = connection.sql(f"FROM {view}")
    alone = [one.sql(f"FROM {view}") for one in each]
    assert together.columns == ["run", *alone[0].columns]
    rows = [(run.root.name, *row) for run, of in zip(runs, alone, strict=True) for row in of.fetchall()]
    assert shown(together.fetchall()) == shown(rows)


@pytest.mark.parametrize("call", [
    "arc_results_of('samples')", "pass_bands(resamples := 20)", "maj_at_k(1, 4)",
    "compare(0, 1, purposes := 'train')", "gains(0, 1)",
    "token_gaps(0)", "gaps_by_origin(1)", "one_completion(1, 'task-001', 2)",
    "wrong_completions(0)", "groups_of('all_samples')", "stats_of('samples')"])
def test_every_macro_has_the_rows_of_each_run(runs: list[Warehouse], call: str,
                                              each: list[duckdb.DuckDBPyConnection],
                                              connection: duckdb.DuckDBPyConnection) -> None:
    rows = [(run.root.name, *row) for run, one in zip(runs, each, strict=True)
            for row in one.sql(f"FROM {call}").fetchall()]
    together = connection.sql(f"FROM {call}")
    assert together.columns[0] == "run"
    assert shown(together.fetchall()) == shown(rows)


def test_runs_say_what_they_are(runs: list[Warehouse], connection: duckdb.DuckDBPyConnection) -> None:
    rows = connection.sql("SELECT run, folder, tasks_sha256, schema_version FROM runs "
                          "ORDER BY run").fetchall()
    assert rows == [(run.root.name, str(run.root), run.state.tasks_sha256, run.facts["schema_version"])
                    for run in runs]


def test_columns_that_an_older_version_lacks_are_null(runs: list[Warehouse], tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "old")
    both = warehouse.open(runs[0].root, tmp_path / "old")
    counted = both.sql("SELECT run, count(*), count(turn) FROM prompts GROUP BY run ORDER BY run").fetchall()
    assert counted[1] == ("old", 9, 0)
    assert both.sql("FROM runs SELECT run, schema_version ORDER BY run").fetchall() == [("a", 4), ("old", 2)]


def test_names_are_as_long_as_tells_them_apart() -> None:
    roots = [Path(root) for root in ("/x/one/run", "/y/one/run", "/x/two/run", "/x/other")]
    assert run_names(roots) == ["x/one/run", "y/one/run", "two/run", "other"]


def test_two_runs_are_compared_in_pairs(runs: list[Warehouse], connection: duckdb.DuckDBPyConnection) -> None:
    pairs = connection.sql("SELECT iteration, purpose, gain FROM compare_runs('a', 'b''s')").fetchall()
    assert len(pairs) == 3 * 8
    [row] = connection.sql("SELECT gain, low, high, num_tasks FROM gains_of_runs('a', 'b''s') "
                         "WHERE iteration = 1 AND purpose = 'train'").fetchall()
    gains = [gain for iteration, purpose, gain in pairs if (iteration, purpose) == (1, "train")]
    assert row[0] == pytest.approx(sum(gains) / 8) and row[1] < row[0] < row[2] and row[3] == 8
    with pytest.raises(duckdb.Error, match="Runs a and c are not both here, but a, b's"):
        connection.sql("FROM compare_runs('a', 'c')").fetchall()


def test_tasks_that_another_run_has_otherwise_are_not_paired(tmp_path: Path) -> None:
    runs = [build_run(tmp_path / name, iterations=1, evals=(), num_tasks=count)
            for name, count in (("a", 6), ("b", 8))]
    both = warehouse.open(*(run.root for run in runs))
    both.execute("CREATE OR REPLACE VIEW tasks AS SELECT run, task_id, CASE WHEN run = 'a' AND task_id = "
                 "'task-000' THEN '{}' ELSE payload END AS payload FROM "
                 "(SELECT 'a' AS run, * FROM run0.main.tasks UNION ALL SELECT 'b', * FROM run1.main.tasks)")
    paired = both.sql("SELECT task_id FROM compare_runs('a', 'b')").fetchall()
    assert ("task-000",) not in paired


def test_the_command_takes_several_runs(runs: list[Warehouse]) -> None:
    a, b = (run.root for run in runs)
    query = "SELECT run, count(*) AS n FROM groups GROUP BY run ORDER BY run"
    answer = "run,n\na,32\nb's,32\n"
    for words in ((a, b, "-c", query), (a, b, query), (a, "-c", query, b)):
        result = sql(*words, "--format", "csv")
        assert (result.exit_code, result.stdout.replace("\r", "")) == (0, answer), result.output
    result = sql(a, "-c", "SELECT count(*) AS n FROM groups", "--format", "csv")
    assert result.stdout.splitlines() == ["n", "32"]


def test_bad_input_is_one_sentence(runs: list[Warehouse], tmp_path: Path) -> None:
    a, b = (run.root for run in runs)
    for words, sentence in (((a, a / ".", "-c", "FROM runs"), "is given twice. Name every run once."),
                            ((a, tmp_path, "-c", "FROM runs"), "is not a run folder"),
                            ((a, b, "-c", "FROM runs", "--at", 1), "--at reads one run as it was")):
        result = sql(*words)
        assert result.exit_code == 1 and sentence in result.stderr and result.stderr.count("\n") == 1
    assert "Give one of QUERY, -c and --file" in sql(a, b).output
    with pytest.raises(StageError, match="given twice"):
        warehouse.open(a, a)
