"""The page that compares runs: what differs in settings, what is beyond chance, and what no curve can say."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from docs.generate import JSON_KEYS
from reports.cli import cli
from reports.compare import gains_table
from tests.building.runs import change_document, change_settings, copy_run
from tests.building.weather import Weather, build_run, write_iteration
from warehouse.experiments.branch import make_branch
from warehouse.maintain.tasks import replace_tasks
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Warehouse]:
    folder = tmp_path_factory.mktemp("runs")
    return [build_run(folder / name, iterations=3, evals=(0,), num_tasks=6, group_size=4, seed=seed)
            for name, seed in (("a", 1), ("b", 2))]


@pytest.fixture
def runs(made: list[Warehouse], tmp_path: Path) -> list[Warehouse]:
    return [copy_run(run, tmp_path / run.root.name) for run in made]


def compared(runs: list[Warehouse], folder: Path) -> str:
    words = ["compare", *(str(run.root) for run in runs), "-o", str(folder / "page.html")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    return html.unescape((folder / "page.html").read_text())


def test_the_page_begins_with_what_differs(runs: list[Warehouse], tmp_path: Path) -> None:
    for iteration in range(3):
        change_settings(runs[0], "train", iteration, learning_rate=1e-4)
        change_settings(runs[1], "train", iteration, learning_rate=5e-4 if iteration else 1e-4)
        change_settings(runs[1], "train", iteration, correction="token-tis" if iteration else None)
    text = compared(runs, tmp_path)
    places = [text.index(title) for title in ("What differs", "Beyond chance", "Curves")]
    assert places == sorted(places)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text[text.index("What differs"):text.index("Beyond chance")])
    assert cells == ["train", "", "correction", "default", "default (0), token-tis (1..2)",
                     "train", "", "learning_rate", "0.0001", "0.0001 (0), 0.0005 (1..2)"]


def test_programs_get_the_same_as_one_object(runs: list[Warehouse], tmp_path: Path) -> None:
    change_settings(runs[1], "train", 2, learning_rate=5e-4)
    told = CliRunner().invoke(cli, ["compare", str(runs[0].root), str(runs[1].root), "--json"])
    facts = json.loads(told.stdout)
    assert (told.exit_code, facts["runs"]) == (0, ["a", "b"])
    assert {row["key"] for row in facts["settings"]} == {"learning_rate"}
    assert [(row["run"], row["other"], row["iteration"], row["purpose"], row["num_tasks"])
            for row in facts["gains"] if row["purpose"] == "eval"] == [("a", "b", 0, "eval", 6)]
    assert all(row["low"] <= row["gain"] <= row["high"] for row in facts["gains"])
    assert facts.keys() == JSON_KEYS["reports compare RUN OTHER.. --json"].keys()


def test_runs_that_differ_in_nothing_say_so(runs: list[Warehouse], tmp_path: Path) -> None:
    assert "No setting of a complete stage differs." in compared(runs, tmp_path)


def test_curves_per_token_need_one_tokenizer(runs: list[Warehouse], tmp_path: Path) -> None:
    assert 'data-figure="tokens-mean"' in compared(runs, tmp_path)
    change_document(runs[1].root / "warehouse.json", tokenizer_sha256="0" * 64)
    text = compared([open_warehouse(run.root) for run in runs], tmp_path)
    assert "The runs have different tokenizers" in text and 'data-figure="pass-at-1"' in text
    assert 'data-figure="tokens-mean"' not in text and 'data-figure="nll-sampled"' not in text
    assert ">000000000000<" in text


@pytest.mark.parametrize(("beyond", "num_tasks", "said"), [
    (True, 6, "beyond chance"), (False, 6, "within chance"), (None, 1, "too little to tell")])
def test_a_difference_is_said_to_be_beyond_chance_or_not(beyond: bool | None, num_tasks: int,
                                                         said: str) -> None:
    row = {"run": "b", "iteration": 3, "purpose": "train", "num_tasks": num_tasks, "rate_a": 0.25,
           "rate_b": 0.5, "gain": 0.25, "low": None, "high": None, "better": 1, "worse": 0,
           "beyond_chance": beyond}
    cells = re.findall(r"<td>(.*?)</td>", gains_table("a", [row]))
    assert cells == ["b", "training", "3", str(num_tasks), "0.25", "0.5", "+0.250", "", "1, 0", said]


def test_a_task_that_another_run_has_otherwise_is_not_paired(runs: list[Warehouse], tmp_path: Path) -> None:
    payload = next(json.loads(row["payload"]) for row in runs[1].read("tasks").to_pylist()
                   if row["task_id"] == "task-001")
    payload["test"][0]["output"] = [[7]]
    corrected = tmp_path / "corrected.jsonl"
    corrected.write_text(json.dumps({"task_id": "task-001", "kind": "grid", "payload": payload}))
    replace_tasks(runs[1], (str(corrected),))
    text = compared([open_warehouse(run.root) for run in runs], tmp_path)
    assert "1 task with the same name in a and b but other contents, not paired: task-001." in text
    assert "<td>training</td><td>2</td><td>5</td>" in text


def test_rows_that_both_runs_share_are_not_compared(made: list[Warehouse], tmp_path: Path) -> None:
    run, branch = copy_run(made[0], tmp_path / "a"), tmp_path / "branch"
    make_branch(run, branch, 2, rows=False)
    assert "<td>branch</td>" not in (text := compared([run, open_warehouse(branch)], tmp_path))
    assert "branch: no rows but those of a." in text
    rng = np.random.default_rng(0)
    for warehouse in (run, new := open_warehouse(branch)):
        write_iteration(warehouse, 2, "eval", Weather(), rng, num_tasks=6, group_size=4)
    text = compared([run, new], tmp_path)
    assert re.findall(r"<td>branch</td><td>(\w+)</td><td>(\d)</td>", text) == [("eval", "2")]
