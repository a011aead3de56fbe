"""`warehouse compact`: the same rows in fewer files, at every instant, whoever is killed or late."""

import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from score.cli import score
from tests.building.runs import TURN, add_policy, begin, new_run
from tests.building.sound import check_run
from tests.building.stored import weights
from tests.building.texts import FLIP, SAME, add_rollout, fenced
from warehouse.cli import cli
from warehouse.maintain import compact, prune
from warehouse.maintain.compact import compact_run
from warehouse.maintain.fix import fix
from warehouse.maintain.prune import prune_run
from warehouse.sql.database import connect, rows_of
from warehouse.store import commit
from warehouse.store.errors import StageError
from warehouse.store.parts import read_part
from warehouse.store.run_folder import Warehouse, open_warehouse

KEYS: dict[str, Any] = {"iteration": 0, "purpose": "train"}


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    """Twelve scored completions in six parts."""
    warehouse = new_run(tmp_path / "run", {"turn": TURN, "same": TURN})
    add_rollout(warehouse, [("turn", fenced(FLIP)), ("same", fenced(SAME))] * 6, part_size=2)
    assert CliRunner().invoke(score, [str(warehouse.root)]).exit_code == 0
    return warehouse


def tables(warehouse: Warehouse) -> tuple[list[dict], list[dict]]:
    scorer, = warehouse.state.scorers(0, "train")
    return (warehouse.read("completions", **KEYS).to_pylist(),
            warehouse.read("samples", **KEYS, scorer=scorer).to_pylist())


def test_the_same_rows_in_the_same_order_from_fewer_files(run: Warehouse) -> None:
    query = "FROM samples JOIN completions USING (task_id, sample_index) ORDER BY ALL"
    before, shown = tables(run), rows_of(connect(run), query)
    done = CliRunner().invoke(cli, ["compact", str(run.root)])
    assert done.output == "iteration 0 (train): 12 files merged into 2\n"
    assert [path.name for path in run.root.glob("completions/*/*/*/*.parquet")] == ["part-00000.parquet"]
    assert [path.name for path in run.root.glob("samples/*/*/*/*/*.parquet")] == ["part-00000.parquet"]
    assert [pq.read_metadata(path).num_row_groups for path in run.root.glob("*/*/*/**/part-*.parquet")
            if "prompts" not in str(path)] == [1, 1]
    assert tables(run) == before
    assert rows_of(connect(run), query) == shown
    again = CliRunner().invoke(cli, ["compact", str(run.root)])
    assert again.output == "nothing to merge: no finished iteration has several small parts\n"


def test_a_kill_at_any_instant_leaves_every_row_once_and_the_next_run_finishes(
        run: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    before, passed = tables(run), set[str]()

    class Killed(BaseException):
        pass

    def die_at_the_first_time(point: str, path: Path) -> None:
        instant = re.sub(r"compacted-\w+", "compacted", f"{point} {path.relative_to(run.root)}")
        if instant not in passed:
            passed.add(instant)
            raise Killed
    monkeypatch.setattr(commit, "reached", die_at_the_first_time)
    while True:
        try:
            compact_run(run, part_mib=1)
            break
        except Killed:
            assert tables(run) == before, passed
    monkeypatch.undo()
    entry = f"_log/{run.state.head:08d}.json"
    assert {f"before link {entry}", f"after link {entry}"} <= passed and len(passed) >= 12, passed
    monkeypatch.setattr(prune, "UNDER_WAY_SECONDS", 0)
    prune.prune_ended(run, dry_run=False)
    assert len(list(run.root.glob("*/*/*/**/part-*.parquet"))) == 3              # prompts, two merged
    assert tables(run) == before
    assert not [problem for problem in check_run(run).problems if "/tasks/" not in problem
                and "/prompts/" not in problem]                                  # the test's own are bare


def test_a_reader_sees_every_row_once_while_parts_are_merged(run: Warehouse) -> None:
    counts, over = set(), threading.Event()

    def read() -> None:
        reader = open_warehouse(run.root)
        while not over.is_set():
            counts.add(reader.read("completions", ["sample_index"], **KEYS).num_rows)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        compact_run(run)
    finally:
        over.set()
        thread.join()
    assert counts == {12}


def test_a_query_of_rows_that_are_merged_meanwhile_says_to_run_it_again(run: Warehouse) -> None:
    connection = connect(run)
    compact_run(run)
    with pytest.raises(StageError, match=r"part-00000.parquet is gone, as after `warehouse compact`, .* Run "
                                         "the same command again"):
        rows_of(connection, "SELECT completion FROM completions")


def test_a_late_twin_adds_nothing(run: Warehouse) -> None:
    late = read_part(run.parts("completions", **KEYS)[1])
    before = tables(run)
    compact_run(run)
    assert not run.write_part("completions", 1, late, **KEYS)
    assert tables(run) == before and check_run(run, quick=True).notes == []


def test_a_compaction_that_ends_while_another_is_at_any_line_changes_nothing(
        run: Warehouse, tmp_path: Path) -> None:
    before, passed = tables(run), set[tuple[str, int]]()

    def follow(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        line = (frame.f_code.co_name, frame.f_lineno)
        if frame.f_code.co_filename == compact.__file__ and event == "line" and line not in passed:
            passed.add(line)
            sys.settrace(None)
            compact_run(open_warehouse(copy))
            return None
        return follow
    former = -1
    while len(passed) > former:
        former, copy = len(passed), tmp_path / f"copy{len(passed)}"
        shutil.copytree(run.root, copy)
        sys.settrace(follow)
        try:
            compact_run(open_warehouse(copy))
        finally:
            sys.settrace(None)
        assert tables(open_warehouse(copy)) == before, passed
        assert len(list(copy.glob("*/*/*/**/part-*.parquet"))) == 3, passed          # prompts, two merged
        shutil.rmtree(copy)
    assert len(passed) > 40


def test_what_is_under_way_is_not_merged(run: Warehouse) -> None:
    begin(run, "score", **KEYS, scorer="other-1")
    assert compact_run(run) == ["nothing to merge: no finished iteration has several small parts"]
    with pytest.raises(StageError, match=r"scorer other-1 is not complete. Run it to its end, then compact"):
        compact_run(run, iteration=0)
    assert len(run.parts("completions", **KEYS)) == 6


def test_a_run_of_version_0_2_0_is_merged_with_the_columns_added_since_empty(tmp_path: Path) -> None:
    shutil.copytree("tests/fixtures/run-0.2.0", tmp_path / "run")
    run = open_warehouse(tmp_path / "run")
    before = tables(run)
    assert compact_run(run)[0] == "iteration 0 (train): 4 files merged into 2"
    assert tables(run) == before and "cost" in pq.read_schema(run.parts("completions", **KEYS)[0]).names
    assert check_run(run).problems == []


@pytest.mark.parametrize("table", ["samples", "completions"])
def test_rows_that_a_repair_named_as_lost_stop_no_compaction(run: Warehouse, table: str) -> None:
    add_policy(run, 1, weights(run, 1, "weights 1"))
    run.stage("train", iteration=0).complete({})
    prune_run(run, 1, dry_run=False)
    part, = run.root.glob(f"{table}/*/*/**/part-00005.parquet")
    part.unlink()
    fix(run, check_run(run).changes)
    before = tables(run)
    said = {"samples": "as a part of its scores is lost", "completions": "10 files merged into 2"}
    assert compact_run(run)[0].endswith(said[table])
    assert tables(run) == before and check_run(run).problems == []
