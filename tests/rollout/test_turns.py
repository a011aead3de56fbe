"""Waves of later turns around a scripted engine: what is answered, planned, resumed and refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rollout.cli import default_options
from rollout.prompts.selection import choose_tasks
from tests.building.runs import finish, new_run, replace_rows, sample_row, small_run, write_rows
from tests.building.scripted import ScriptedEngine, sample
from tests.building.sound import check_run
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.discard import discard
from warehouse.store.errors import SettingChanged, StageError
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse

SCORER = "arc-exact-0123456789"


def score(warehouse: Warehouse, purpose: str = "train", iteration: int = 0) -> None:
    """Made-up scores: sample 1 has one train pair wrong, sample 2 is right, all others have both wrong."""
    parts = [read_parts([path], "completions").to_pylist()
             for path in warehouse.parts("completions", iteration=iteration, purpose=purpose)]
    samples = [[sample_row(row, SCORER, reward=float(row["sample_index"] == 2), **{
        "correct": row["sample_index"] == 2, "valid_outputs": True, "code": f"program {row['sample_index']}",
        "train_is_correct": row["sample_index"] == 2, "fingerprint": f"{row['sample_index'] % 3}",
        "first_output": row["sample_index"] != 3,
        "train_correct_grids": (0.0, 0.5, 1.0, 0.0)[row["sample_index"] % 4], "train_pixel_score": 0.0,
        "outputs": json.dumps({"train": [[[2, 1], [4, 3]], [[0, 0, 0]]], "test": [[[9, 9], [9, 9]]]})})
        for row in rows] for rows in parts]
    write_rows(warehouse, "samples", samples, scorer=SCORER)
    finish(warehouse, "score", iteration=iteration, purpose=purpose, scorer=SCORER)


@pytest.fixture
def run(tmp_path: Path) -> Warehouse:
    """A run whose first turns are sampled and scored."""
    warehouse = small_run(tmp_path)
    sample(warehouse)
    score(warehouse)
    return warehouse


def prompts(run: Warehouse, purpose: str) -> list[dict[str, Any]]:
    return run.read("prompts", iteration=0, purpose=purpose).to_pylist()


def test_the_best_wrong_completion_of_each_task_is_answered_token_for_token(run: Warehouse) -> None:
    sample(run, turn=2)
    parents = {(row["task_id"], row["sample_index"]): row for row in run.read(
        "completions", iteration=0, purpose="train").to_pylist()}
    asked = {row["task_id"]: row["prompt_ids"] for row in prompts(run, "train")}
    rows = prompts(run, "train-turn2")
    assert [(row["task_id"], row["parent_sample_index"]) for row in rows] == [
        (f"t{task}", 1) for task in range(5)]
    for row in rows:
        parent = parents[row["task_id"], 1]
        verbatim = asked[row["task_id"]] + parent["completion_ids"]
        assert row["prompt_ids"][:len(verbatim)] == verbatim and row["verbatim_prefix"]
        assert (row["turn"], row["parent_purpose"], row["parent_iteration"]) == (2, "train", 0)
        assert row["feedback_format"] == "tests@1" and row["split"] == "train"
        assert "765" in row["prompt"] and "90" not in row["prompt"]  # a train pair, never the test's
    completions = run.read("completions", iteration=0, purpose="train-turn2").to_pylist()
    assert sorted((row["task_id"], row["sample_index"]) for row in completions) == [
        (f"t{task}", index) for task in range(5) for index in range(4)]
    assert check_run(run).problems == []


def test_several_of_a_task_are_answered_best_first_each_by_a_group(run: Warehouse) -> None:
    """Samples 0 and 3 do the same, so of three wrong ones two are different; the third place goes round."""
    sample(run, turn=2, parents_per_task=3, num_tasks=2)
    assert [(row["task_id"], row["group_index"], row["parent_sample_index"])
            for row in prompts(run, "train-turn2")] == [
        (f"t{task}", *place) for task in range(2) for place in ((0, 1), (1, 0), (2, 1))]
    rows = run.read("completions", iteration=0, purpose="train-turn2").to_pylist()
    assert sorted(row["sample_index"] for row in rows if row["task_id"] == "t0") == list(range(12))


def test_a_query_says_what_is_answered(run: Warehouse) -> None:
    query = "select task_id, sample_index from samples where task_id = 't3' and correct"
    sample(run, turn=2, parents_sql=query)
    [row] = prompts(run, "train-turn2")
    assert (row["task_id"], row["parent_sample_index"]) == ("t3", 2)


def test_a_third_turn_follows_the_second_and_a_resumed_wave_is_the_undisturbed_one(
        run: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        sample(run, ScriptedEngine(stop_after=11), turn=2)
    with pytest.raises(SettingChanged) as refused:
        sample(run, turn=2, feedback="error")
    assert (refused.value.name, refused.value.before, refused.value.now) == ("feedback", "tests@1", "error@1")
    before = prompts(run, "train-turn2")
    sample(run, turn=2)
    assert prompts(run, "train-turn2") == before
    score(run, "train-turn2")
    sample(run, turn=3)
    for row in prompts(run, "train-turn3"):
        assert (row["turn"], row["parent_purpose"]) == (3, "train-turn2")
        assert [each["kind"] for each in row["segments"]].count("policy") == 2
        assert sum(each["length"] for each in row["segments"]) == row["num_prompt_tokens"]
    assert run.state.turns(0) == ["train", "train-turn2", "train-turn3"]


@pytest.mark.parametrize(("values", "words"), [
    ({"turn": 3}, "has no complete rollout of purpose train-turn2 to answer"),
    ({"parents_per_task": 2}, "give them together with --turn 2"),
    ({"turn": 2, "iteration": 1, "policy_version": 0},
     "Iteration 1 has no scored rollout of purpose train"),
    ({"turn": 2, "parents_sql": "select task_id, sample_index from samples where false"},
     "--from gives no row"),
    ({"turn": 2, "parents_sql": "select task_id from samples"},
     "gives no column 'sample_index' but task_id"),
    ({"turn": 2, "parents_sql": "selec"}, "syntax error"),
    ({"turn": 2, "parents_sql": " "}, "gives no column 'task_id' but none"),
    ({"parents_sql": ""}, "give them together with --turn 2"),
    ({"turn": 2, "parents_sql": "select ['t0'] as task_id, 0 as sample_index"},
     "gives ['t0'] as task_id, which is not text"),
    ({"turn": 2, "parents_sql": "select 't0' as task_id, 'a' as sample_index"},
     "gives a as sample_index, which is not a whole number"),
    ({"turn": 2, "parents_sql": "select 't0' as task_id, 99 as sample_index"},
     "There is no completion 0/train/t0/99 in the complete rollouts: it was never sampled, or its"),
    ({"turn": 2, "parents_sql": "select 't0' as task_id, 1 as sample_index, 'train-turn2' as purpose"},
     "no completion 0/train-turn2/t0/1"),
    ({"turn": 2, "max_prompt_tokens": 40}, "None of 5 conversations fits 40 tokens"),
    ({"turn": 2, "splits": ("heldout",)}, "No completion to answer is of these splits"),
    ({"turn": 2, "evaluate": True}, "has no complete rollout of purpose eval to answer"),
    ({"evaluate": True, "label": "turn2"}, "would name the turns of another evaluation")])
def test_bad_input_is_a_sentence_and_nothing_is_written(run: Warehouse, values: dict, words: str) -> None:
    def written() -> list[Path]:
        return sorted(path for table in ("prompts", "completions") for path in (run.root / table).rglob("*"))
    before = written()
    with pytest.raises(StageError, match=f"(?i){re.escape(words)}"):
        sample(run, **values)
    assert written() == before


def test_parents_that_nothing_can_follow_are_refused(run: Warehouse, tmp_path: Path) -> None:
    sample(run, evaluate=True)
    query = "select task_id, sample_index, purpose from completions where purpose = 'eval'"
    with pytest.raises(StageError, match="is not scored, so there is no feedback for it"):
        sample(run, turn=2, evaluate=True, iteration=0, parents_sql=query)
    score(run, "eval")
    with pytest.raises(StageError, match="is an evaluation, not to be trained on"):
        sample(run, turn=2, parents_sql=query)
    sample(run, turn=2)
    score(run, "train-turn2")
    with pytest.raises(StageError, match="is of turn 1: turn 3 follows turn 2 alone"):
        sample(run, turn=3, parents_sql="select task_id, sample_index, purpose from samples "
                                        "where purpose = 'train'")


def test_what_is_answered_cannot_be_discarded_before_its_answers(run: Warehouse) -> None:
    sample(run, turn=2)
    with pytest.raises(Refusal) as refused:
        discard(run, 0, "train")
    assert refused.value.code == "answered"
    discard(run, 0, "train-turn2")
    discard(run, 0, "train")
    with pytest.raises(Refusal) as refused:
        sample(run, turn=2)
    assert refused.value.code == "no_turn"


def test_check_sees_that_what_was_answered_is_not_there_any_more(run: Warehouse) -> None:
    sample(run, turn=2, num_tasks=2)
    replace_rows(run, "prompts", lambda row: {**row, "prompt_ids": [9, *row["prompt_ids"][1:]]},
                 iteration=0, purpose="train-turn2")
    problems = check_run(run).problems
    assert len(problems) == 2 and "0/train-turn2/t0/0 does not go on from what it answers" in problems[0]


def test_an_evaluation_may_answer_training_rows_of_a_trained_iteration(run: Warehouse) -> None:
    with pytest.MonkeyPatch.context() as patched:
        finish(run, "train", iteration=0)
        patched.setattr(Warehouse, "verify_policy", lambda *_, **_options: None)
        with pytest.raises(StageError, match="Iteration 0 is trained already"):
            sample(run, turn=2)
        query = "select task_id, sample_index, purpose from samples where sample_index = 0"
        sample(run, turn=2, evaluate=True, iteration=0, parents_sql=query)
    assert {row["parent_purpose"] for row in prompts(run, "eval-turn2")} == {"train"}


def test_an_evaluation_without_held_out_tasks_says_how_to_add_some(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    with pytest.raises(StageError, match=r"no held-out split.* warehouse tasks add \S+run --heldout SOURCE"):
        choose_tasks(run, default_options(run.root).replace(evaluate=True))
