"""A run folder that version 0.2.0 wrote is opened, checked, scored, trained and reported by today's code."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from warehouse.store.run_folder import Warehouse, open_warehouse

ROOT = Path(__file__).parents[1]
COMMANDS = {"score": "score.cli:score", "train": "train.cli:train", "warehouse": "warehouse.cli:cli",
            "reports": "reports.cli:cli"}
SCORER = "arc-exact-shaped-3a80feab91"      # the scorer of 0.2.0


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    """A copy of the stored run, its base model beside the rows as it was."""
    shutil.copytree(ROOT / "tests" / "fixtures" / "run-0.2.0", tmp_path / "run")
    (tmp_path / "run" / "model").symlink_to(ROOT / "examples" / "starter" / "model")
    return open_warehouse(tmp_path / "run")


def invoke(command: str, *words: object) -> str:
    """What a command prints; it must end well."""
    module, _, name = COMMANDS[command].partition(":")
    result = CliRunner().invoke(getattr(importlib.import_module(module), name), [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def rewards(run: Warehouse, scorer: str) -> list[dict[str, Any]]:
    """What a scorer decided about the training completions of iteration 1."""
    columns = ["task_id", "sample_index", "reward", "correct", "error_class", "fingerprint", "first_output"]
    return run.read("samples", columns, iteration=1, purpose="train", scorer=scorer).to_pylist()


def test_it_has_no_problem_and_answers(run: Warehouse) -> None:
    assert "93 rows, 0 problems" in invoke("warehouse", "check", run.root)
    query = "select count(*) as n, count(distinct group_id) as groups, sum(correct::int) as correct "\
            "from samples"
    answer = json.loads(invoke("warehouse", "sql", run.root, query, "--format", "json"))
    assert answer == {"n": 24, "groups": 6, "correct": 5}
    curve = "select iteration, round(pass_at_k, 3) as rate from pass_curve where k = 4 and purpose = 'train'"
    answers = invoke("warehouse", "sql", run.root, f"{curve} order by 1", "--format", "json").splitlines()
    assert [json.loads(line)["rate"] for line in answers] == [0.667, 0.333]
    told = "select count(answer) as answers, count(thoughts) as thoughts from answers where purpose = 'train'"
    apart = json.loads(invoke("warehouse", "sql", run.root, told, "--format", "json"))
    assert apart == {"answers": 24, "thoughts": 0}      # of a model that writes none
    assert "train" in invoke("warehouse", "summary", run.root)


def test_it_is_scored_again_with_the_same_verdicts(run: Warehouse) -> None:
    invoke("score", run.root, "--iteration", 1)  # the evaluation, which 0.2.0 left unscored, too
    evaluation, = run.state.scorers(1, "eval")
    assert run.read("samples", ["reward"], iteration=1, purpose="eval", scorer=evaluation).num_rows == 12
    newest = [scorer for scorer in run.state.scorers(1, "train") if scorer != SCORER]
    assert all(rewards(run, scorer) == rewards(run, SCORER) for scorer in newest)
    invoke("score", run.root, "--iteration", 1, "--reward", "arc-v1")
    other, = (scorer for scorer in run.state.scorers(1, "train") if scorer.startswith("arc-v1"))
    assert [row["correct"] for row in rewards(run, other)] == [row["correct"] for row in rewards(run, SCORER)]
    assert "0 problems" in invoke("warehouse", "check", run.root)


@pytest.mark.filterwarnings("error:Could not find a config file")     # PEFT, which would ask the hub
def test_its_next_iteration_is_trained_and_reported(run: Warehouse) -> None:
    """On the rows that 0.2.0 scored, from the adapter and the optimizer that it wrote."""
    assert "wrote policy 2" in invoke("train", run.root)
    manifest = run.stage("train", iteration=1).manifest()
    assert manifest is not None
    assert manifest["facts"]["scorer"] == SCORER and run.policy(2)["global_step"] == 4
    mismatch, = manifest["facts"]["mismatch"]
    assert mismatch["mismatch_kl"] < 1e-9  # as the engine of then saw the adapter of then
    assert "0 problems" in invoke("warehouse", "check", run.root)
    invoke("reports", "build", run.root)
    assert "iteration" in (run.root / "report.html").read_text()


def test_columns_added_since_are_empty(run: Warehouse) -> None:
    asked = ("select count(*) as n, count(turn) as turns, count(segments) as segments from prompts "
             "union all select count(*), count(version_segments), sum(len(completion_ids)) from completions")
    answers = invoke("warehouse", "sql", run.root, asked, "--format", "json")
    assert json.loads(answers.splitlines()[0]) == {"n": 9, "turns": 0, "segments": 0}


def test_what_check_left_out_goes_with_what_was_ended(run: Warehouse) -> None:
    """Parts of an old run lie in no generation: they stay beside the new one until somebody prunes."""
    part, *others = run.parts("completions", iteration=1, purpose="eval")
    part.chmod(0o644)
    part.write_bytes(b"torn")
    invoke("warehouse", "check", run.root, "--fix")
    former = {path.name for path in part.parent.glob("*.*")}
    assert part.name in former and run.folder("completions", iteration=1, purpose="eval") != part.parent
    invoke("warehouse", "prune", run.root, "--ended", "--yes")
    left = run.parts("completions", iteration=1, purpose="eval")
    assert [path.name for path in left] == [path.name for path in others]
    assert not list(part.parent.glob("*.*"))
