"""`warehouse tasks`: a task that is wrong is corrected in the run that has it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from score.cli import score
from score.rewards.scorer import Scorer
from tests.building.runs import TURN, arc_file, new_run
from tests.building.sound import check_run
from tests.building.texts import SAME, add_rollout, fenced
from warehouse.cli import cli
from warehouse.maintain.fix import fix
from warehouse.store.errors import counted
from warehouse.store.run_folder import open_warehouse

OTHER = {**TURN, "test": [{"input": [[1, 0]], "output": [[0, 1]]}]}


def said(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["tasks", *map(str, words)])


def rows_of(run: Path) -> dict[str, dict[str, Any]]:
    return {row["task_id"]: row for row in open_warehouse(run).read("tasks").to_pylist()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return new_run(tmp_path / "run", {"a": TURN, "b": TURN}, {"c": TURN}).root


@pytest.fixture
def corrected(tmp_path: Path) -> Path:
    path = tmp_path / "corrected.json"
    path.write_text(json.dumps({"b": OTHER}))
    return path


def test_a_replaced_task_keeps_its_place_and_what_it_was(run: Path, corrected: Path) -> None:
    before = rows_of(run)
    done = said("replace", run, corrected)
    assert (done.exit_code, done.output) == (
        0, f"1 task replaced; completions stay, and `score {run}` judges them again and keeps the former "
           "rows\n")
    after = rows_of(run)
    assert json.loads(after["b"]["payload"])["test"] == OTHER["test"]
    assert after["b"] | {"payload": "", "source": ""} == before["b"] | {"payload": "", "source": ""}
    assert {name: after[name] for name in "ac"} == {name: before[name] for name in "ac"}
    [change] = open_warehouse(run).state.task_changes
    assert change["replaced"]["b"]["before"]["payload"] == before["b"]["payload"]
    assert check_run(open_warehouse(run)).problems == []


def test_rows_of_a_replaced_task_keep_the_scorer_that_judged_them(run: Path, corrected: Path) -> None:
    assert open_warehouse(run).state.replaced_payloads == {}
    said("replace", run, corrected)
    first = open_warehouse(run).state.replaced_payloads
    corrected.write_text(json.dumps({"b": {**OTHER, "train": OTHER["test"]}}))
    said("replace", run, corrected)
    second = open_warehouse(run).state.replaced_payloads
    scorers = [Scorer("exact", replaced=facts).identity for facts in ({}, first, second)]
    assert len(set(scorers)) == 3 and scorers[0] == Scorer("exact").identity


@pytest.mark.parametrize("table", ["samples", "completions"])
def test_what_was_scored_before_a_replacement_cannot_be_scored_again(run: Path, corrected: Path,
                                                                     table: str) -> None:
    add_rollout(open_warehouse(run), [("a", fenced(SAME)), ("b", fenced(SAME))] * 2, part_size=2)
    assert CliRunner().invoke(score, [str(run)]).exit_code == 0
    said("replace", run, corrected)
    part, = run.glob(f"{table}/*/*/**/part-00001.parquet")
    part.unlink()
    warehouse = open_warehouse(run)
    fix(warehouse, check_run(warehouse).changes)
    scorer, = warehouse.state.scorers(0, "train")
    rows = warehouse.read("samples", ["task_id"], iteration=0, purpose="train", scorer=scorer)
    assert rows.num_rows == 2
    wrong = check_run(warehouse).problems
    assert [text[:22] for text in wrong] == ["rollout of iteration 0"] * (table == "completions"), wrong


def test_again_it_does_nothing(run: Path, corrected: Path) -> None:
    said("replace", run, corrected)
    facts = (run / "warehouse.json").read_bytes()
    assert said("replace", run, corrected).output == "The run has these tasks already; nothing to do.\n"
    assert (run / "warehouse.json").read_bytes() == facts and len(open_warehouse(run).state.task_changes) == 1


def test_added_tasks_come_behind_those_of_the_run(run: Path, tmp_path: Path) -> None:
    done = said("add", run, "--tasks", f"more={arc_file(tmp_path, ['d', 'e'])}", "--heldout",
                f"exam={arc_file(tmp_path, ['f'])}")
    assert (done.exit_code, done.output) == (0, "3 tasks added; the run has 6 now\n")
    rows = sorted(rows_of(run).values(), key=lambda row: row["position"])
    assert [(row["task_id"], row["split"], row["heldout"]) for row in rows] == [
        ("a", "train", False), ("b", "train", False), ("c", "heldout", True),
        ("d", "more", False), ("e", "more", False), ("f", "exam", True)]
    assert check_run(open_warehouse(run)).problems == []
    again = said("add", run, "--tasks", f"more={arc_file(tmp_path, ['d', 'e'])}")
    assert again.output == "The run has these tasks already; nothing to do.\n"


@pytest.mark.parametrize(("words", "sentence"), [
    (("replace", "{run}", "{file}"), "The run has no task x. Add it with `warehouse tasks add"),
    (("add", "{run}", "--tasks", "{own}"), "The run has a task a already. Change it with `warehouse tasks "),
    (("add", "{run}", "--tasks", "heldout={file}"), "Split 'heldout' would be trained on and held out"),
    (("add", "{run}", "--tasks", "nowhere.jsonl"), "nowhere.jsonl"),
])
def test_mistakes_are_one_sentence_and_change_nothing(run: Path, tmp_path: Path, words: tuple[str, ...],
                                                      sentence: str) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"a": OTHER}))
    done = said(*(word.format(run=run, file=arc_file(tmp_path, ["x"]), own=own) for word in words))
    assert done.exit_code == 1 and sentence in done.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_to_add_needs_a_source(run: Path) -> None:
    refused = said("add", run)
    assert refused.exit_code == 1 and "No tasks given" in refused.output


def test_one_is_one() -> None:
    assert [counted(number, "task") for number in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]
    assert counted(1000, "held-out task", ",") == "1,000 held-out tasks"
