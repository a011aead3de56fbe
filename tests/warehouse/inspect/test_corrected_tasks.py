"""What is said of a verdict whose task was corrected afterwards, on the terminal and in the browser."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from score.cli import score
from tests.building.runs import TURN, add_policy, arc_file, new_run
from tests.building.stored import weights
from tests.building.texts import SAME, add_rollout, fenced
from tests.reports.viewer.conftest import client_of
from train.inputs.inputs import scorer_to_train
from warehouse.cli import cli
from warehouse.inspect.history import history
from warehouse.sql.database import connect, rows_of
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse

PAGES = ("completion?name=0/add/0", "task?task=add", "group?iteration=0&group=0/train/add/0")


def said(command: Any, *words: object) -> str:
    result = CliRunner().invoke(command, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def replace(run: Path, expected: int, words: str = "?") -> None:
    """Correct what add(1, 1) is expected to return, or the prompt."""
    path = run.parent / "corrected.jsonl"
    path.write_text(json.dumps({
        "task_id": "add", "kind": "function", "messages": [{"role": "user", "content": words}],
        "payload": {"entry_point": "add", "tests": [f"assert add(1, 1) == {expected}"]}}))
    said(cli, "tasks", "replace", run, path)


def judge(run: Path) -> str:
    """Score it; the scorer."""
    said(score, run)
    return open_warehouse(run).choose_scorer(0, "train")[0]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A program that returns 2, where 3 is expected."""
    run = new_run(tmp_path / "run", {"add": ("function", {"entry_point": "add",
                                                          "tests": ["assert add(1, 1) == 3"]})})
    add_rollout(run, [("add", fenced("def add(a, b):\n    return a + b\n"))])
    return run.root


def test_a_verdict_is_shown_with_the_tests_that_it_was_made_with(run: Path) -> None:
    former = judge(run)
    assert "corrected" not in said(score, "explain", run, "0/add/0")
    replace(run, 2)
    line = f"\n{former} judged this task as it was before it was corrected; `score {run}` judges it again.\n"
    text = said(score, "explain", run, "0/add/0")
    assert line in text and "test 1: wrong   assert add(1, 1) == 3\n" in text
    newer = judge(run)
    text = said(score, "explain", run, "0/add/0")
    assert newer != former and "corrected" not in text and "test 1: right   assert add(1, 1) == 2\n" in text
    text = said(score, "explain", run, "0/add/0", "--scorer", former)
    assert f"corrected; `score explain` with `--scorer {newer}` shows the newer verdict.\n" in text
    assert "test 1: wrong   assert add(1, 1) == 3\n" in text


def test_the_viewer_says_it_on_every_page_of_the_task(run: Path) -> None:
    former = judge(run)
    replace(run, 2)
    newer = judge(run)
    with client_of(run) as client:
        assert not any("it was corrected" in client.get(f"/run/{page}").text for page in PAGES)
    (run / "config.toml").write_text(f'[warehouse]\nscorer = "{former}"\n')
    with client_of(run) as client:
        texts = [unescape(client.get(f"/run/{page}").text) for page in PAGES]
    line = (f"<p>{former} judged this task as it was before it was corrected; `score explain` with `--scorer "
            f"{newer}` shows the newer verdict.</p>")
    assert all(text.count(line) == 1 for text in texts)
    assert "test 1: wrong   assert add(1, 1) == 3" in texts[0]


def test_of_several_corrections_the_last_before_the_verdict_counts(run: Path) -> None:
    first = judge(run)
    replace(run, 4)
    second = judge(run)
    replace(run, 2)
    for scorer, expected in ((first, 3), (second, 4)):
        text = said(score, "explain", run, "0/add/0", "--scorer", scorer)
        assert f"{scorer} judged this task as it was before" in text and f"== {expected}\n" in text
    replace(run, 4, "Write add.")                                   # as the second judged it
    assert "corrected" not in said(score, "explain", run, "0/add/0", "--scorer", second)
    assert f"`--scorer {second}` shows" in said(score, "explain", run, "0/add/0", "--scorer", first)


def test_a_task_is_not_paired_with_itself_under_other_tests(tmp_path: Path) -> None:
    """Policy 1 writes what policy 0 wrote: all that it gains is the correction."""
    payloads = {name: {"entry_point": "add", "tests": [f"assert add(1, 1) == {expected}"]}
                for name, expected in (("add", 3), ("other", 2))}
    warehouse = new_run(tmp_path / "run", {name: ("function", each) for name, each in payloads.items()})
    run, texts = warehouse.root, [(name, fenced("def add(a, b):\n    return a + b\n")) for name in payloads]
    add_rollout(warehouse, texts)
    said(score, run)
    replace(run, 2)
    add_policy(warehouse, 1, weights(warehouse, 1, "one"))
    add_rollout(warehouse, texts, iteration=1)
    said(score, run, "--iteration", 1)
    connection = connect(open_warehouse(run))
    assert [row["task_id"] for row in rows_of(connection, "FROM compare(0, 1)")] == ["other"]
    story = said(cli, "summary", run)
    newer = open_warehouse(run).choose_scorer(1, "train")[0]
    assert (f" 1 task had other tests at iteration 0: to judge all alike, run `score`, then set scorer = "
            f'"{newer}" under [warehouse] in config.toml.') in story
    said(score, run, "--iteration", 0)
    (run / "config.toml").write_text(f'[warehouse]\nscorer = "{newer}"\n')
    connection = connect(open_warehouse(run))
    assert {row["gain"] for row in rows_of(connection, "FROM compare(0, 1)")} == {0.0}
    assert "other tests" not in said(cli, "summary", run)


def test_rows_are_trained_on_the_verdicts_with_the_corrected_tests(run: Path) -> None:
    judge(run)
    replace(run, 2)
    newer = judge(run)
    assert open_warehouse(run).choose_scorer(0, "train")[1] == "the latest of this reward"
    assert scorer_to_train(open_warehouse(run), 0, None) == newer
    said(score, run, "--cpu-seconds", 2)
    with pytest.raises(StageError, match="Name the one to train on"):
        scorer_to_train(open_warehouse(run), 0, None)


def test_a_scorer_in_the_config_by_which_nothing_is_scored_is_named(run: Path) -> None:
    judged = judge(run)
    (run / "config.toml").write_text('[warehouse]\nscorer = "nonsense"\n')
    warned = CliRunner().invoke(cli, ["summary", str(run)]).stderr
    assert f"config.toml names the scorer nonsense, but the scores here are by {judged}: name one" in warned
    (run / "config.toml").write_text('[warehouse]\nscorer = "exact"\n')
    assert CliRunner().invoke(cli, ["summary", str(run)]).stderr == ""


def test_grids_are_compared_with_those_of_the_verdict(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", {"turn": TURN}).root
    add_rollout(open_warehouse(run), [("turn", fenced(SAME))])
    judge(run)
    (tmp_path / "corrected.json").write_text(json.dumps({"turn": {
        **TURN, "test": [{"input": TURN["test"][0]["input"], "output": TURN["test"][0]["input"]}]}}))
    said(cli, "tasks", "replace", run, tmp_path / "corrected.json")
    assert "test 1: wrong" in said(score, "explain", run, "0/turn/0")
    with client_of(run) as client:
        assert "output ✓" not in client.get("/run/group?iteration=0&group=0/train/turn/0").text


def test_the_history_names_the_tasks_that_were_replaced(run: Path, tmp_path: Path) -> None:
    judge(run)
    replace(run, 2)
    judge(run)
    said(cli, "tasks", "add", run, "--tasks", f"more={arc_file(tmp_path, list('abcde'))}")
    rows = history(open_warehouse(run).state)
    assert [row["what"] for row in rows if row["kind"] == "tasks changed"] == [
        "5 tasks added: a, b, c and 2 more", "1 task replaced: add"]
    assert [row["changes"] for row in rows if row["stage"] == "score" and row["kind"] == "begun"] == [[], []]
