"""`warehouse log`, `--at`, and warehouse.sql of a run that went on."""

import json
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from tests.building import runs
from tests.building.weather import build_run
from warehouse.cli import cli
from warehouse.inspect.history import history
from warehouse.maintain.compact import compact_run
from warehouse.maintain.discard import discard
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import refresh_sql
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    return build_run(tmp_path / "run", iterations=2, evals=(1,), num_tasks=2, group_size=4)


def said(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_log_tells_what_happened_the_latest_first(run: Warehouse) -> None:
    roll_back(run, 1)
    settings = {"group_size": 8, "temperature": 1.0, "serve": "merged"}    # no adapter before
    runs.begin(run, "rollout", settings, iteration=2, purpose="train")
    rows = [json.loads(line) for line in said("log", run.root, "--json").splitlines()]
    assert [row["number"] for row in rows] == list(range(len(rows)))[::-1]
    assert [row["kind"] for row in rows[:2]] == ["begun", "rolled back"] and rows[-1]["kind"] == "made"
    assert rows[0]["changes"] == [{"name": "group_size", "before": 4, "now": 8}]
    [trained] = [row["policy"] for row in rows if row["stage"] == "train" and row["iteration"] == 0
                 and row["kind"] == "completed"]
    assert trained == 1 and rows[0]["policy"] == rows[1]["policy"] == 2        # policy 1 again
    assert rows == history(open_warehouse(run.root).state)
    text = said("log", run.root, "--last", 2)
    assert "rollout of iteration 2, purpose train begins" in text and "went back to policy 1" in text
    assert "group_size 4 -> 8" in text and text.count("entry ") == 2


def test_a_branch_is_compared_with_what_belongs_to_it(run: Warehouse) -> None:
    runs.begin(run, "rollout", {"group_size": 8}, iteration=2, purpose="train")
    branch = run.root.parent / "branch"
    assert said("branch", run.root, branch, "--at", 1)
    for size, changes in ((4, []), (8, [{"name": "group_size", "before": 4, "now": 8}])):
        at = 1 if size == 4 else 2
        runs.begin(open_warehouse(branch), "rollout", {"group_size": size, "temperature": 1.0}, iteration=at,
                   purpose="train")
        assert history(open_warehouse(branch).state)[0]["changes"] == changes


def test_the_run_is_read_as_it_was(run: Warehouse) -> None:
    count = "select iteration, purpose, count(*) as n from completions group by all order by all"
    before = said("sql", run.root, count, "--format", "csv")
    head = open_warehouse(run.root).state.head
    discard(run, 1, "eval")
    assert said("sql", run.root, count, "--format", "csv") != before
    assert said("sql", run.root, count, "--format", "csv", "--at", head) == before
    assert "policies 0..1" in said("summary", run.root, "--at", open_warehouse(run.root).state.life(
        "train", 1).begun)
    refused = CliRunner().invoke(cli, ["sql", str(run.root), count, "--at", "999"])
    assert refused.exit_code == 1 and "has no entry 999" in refused.output


def test_what_is_gone_since_is_named(run: Warehouse) -> None:
    head = run.state.head
    compact_run(run, 0)
    query = "select count(*) from completions"
    result = CliRunner().invoke(cli, ["sql", str(run.root), query, "--at", str(head)])
    assert result.exit_code == 0 and "was compacted, pruned or removed since" in result.stderr


def test_an_old_warehouse_sql_ends_with_the_way_out(run: Warehouse) -> None:
    script = refresh_sql(run).read_text()
    assert duckdb.connect().execute(script + "\nselect count(*) from completions").fetchone() == (24,)
    discard(run, 1, "eval")
    with pytest.raises(duckdb.Error, match="The run has changed since this file was written"):
        duckdb.connect().execute(script)
    refresh_sql(open_warehouse(run.root))
    assert duckdb.connect().execute((run.root / "warehouse.sql").read_text()
                                    + "\nselect count(*) from completions").fetchone() == (16,)
