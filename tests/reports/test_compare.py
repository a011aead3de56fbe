"""The page that compares runs: what differs in settings, what is beyond chance, and what no curve can say."""

import html
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate import JSON_KEYS
from reports.cli import cli
from reports.pairs import Pairing
from tests.building.runs import change_document, change_settings
from tests.building.weather import build_run
from warehouse.maintain.tasks import replace_tasks
from warehouse.store.run_folder import Warehouse, open_warehouse


@pytest.fixture
def runs(tmp_path: Path) -> list[Warehouse]:
    return [build_run(tmp_path / name, iterations=3, evals=(0,), num_tasks=6, group_size=4, seed=seed)
            for name, seed in (("a", 1), ("b", 2))]


def compared(runs: list[Warehouse], folder: Path) -> str:
    words = ["compare", *(str(run.root) for run in runs), "-o", str(folder / "page.html")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    return html.unescape((folder / "page.html").read_text())


def test_the_page_begins_with_what_differs(runs: list[Warehouse], tmp_path: Path) -> None:
    for iteration in range(3):
        change_settings(runs[0], "train", iteration, learning_rate=1e-4)
        change_settings(runs[1], "train", iteration, learning_rate=5e-4 if iteration else 1e-4)
    text = compared(runs, tmp_path)
    places = [text.index(title) for title in ("What differs", "Beyond chance", "Curves", "Tasks<")]
    assert places == sorted(places)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text[text.index("What differs"):text.index("Beyond chance")])
    assert cells == ["train", "", "learning_rate", "0.0001", "0.0001 (0), 0.0005 (1..2)"]


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
    (True, 6, "6 tasks, beyond chance."), (False, 6, "within chance."),
    (None, 1, "1 task, too little to tell.")])
def test_a_difference_is_said_to_be_beyond_chance_or_not(beyond: bool | None, num_tasks: int,
                                                         said: str) -> None:
    row = {"iteration": 3, "purpose": "train", "num_tasks": num_tasks, "gain": 0.25, "low": None,
           "high": None, "beyond_chance": beyond}
    sentence = Pairing(("a", "b"), row, 3).sentence
    assert sentence.startswith("b against a, Training at iteration 3: pass@1 +0.250 over")
    assert sentence.endswith(said)


def test_a_task_that_another_run_has_otherwise_is_not_paired(runs: list[Warehouse], tmp_path: Path) -> None:
    payload = next(json.loads(row["payload"]) for row in runs[1].read("tasks").to_pylist()
                   if row["task_id"] == "task-001")
    payload["test"][0]["output"] = [[7]]
    corrected = tmp_path / "corrected.jsonl"
    corrected.write_text(json.dumps({"task_id": "task-001", "kind": "grid", "payload": payload}))
    replace_tasks(runs[1], (str(corrected),))
    text = compared([open_warehouse(run.root) for run in runs], tmp_path)
    assert "1 task with the same name in a and b but other contents, not paired: task-001." in text
    assert "over 5 tasks" in text
