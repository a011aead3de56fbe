"""What a completion is told: the error, the train pairs as its prompt showed them, or the failing test."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollout.prompts.feedback import find_feedback, shown_of
from warehouse.store.errors import StageError

PAIRS = [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3, 4]], "output": [[4, 3]]},
         {"input": [[5, 6]], "output": [[6, 5]]}]
HIDDEN = {"input": [[7, 7]], "output": [[8, 9]]}


def parent(kind: str, payload: dict, outputs: Any = None, **columns: Any) -> dict[str, Any]:
    return {"kind": kind, "payload": json.dumps(payload), "code": "x = 1", "truncated": False,
            "outputs": None if outputs is None else json.dumps(outputs), "error_class": None,
            "error_name": None, "error_message": None, "num_completion_tokens": 7, "flip": None,
            "rotations": None, "color_map": None, "pair_order": [0, 1, 2], "format_options": "{}", **columns}


def said(row: dict[str, Any], name: str = "tests") -> str:
    return find_feedback(name).say(row, shown_of(row))


def grid(**columns: Any) -> dict[str, Any]:
    outputs = {"train": [[[2, 1]], [[0, 3]], [[6, 5]]], "test": [[[8, 9]]]}
    return parent("grid", {"train": PAIRS, "test": [HIDDEN]}, outputs, **columns)


def test_wrong_train_pairs_stand_beside_what_was_expected_and_the_test_pair_never_does() -> None:
    assert said(grid()) == (
        "Your program is wrong on 1 of 3 examples.\nExample 2, expected:\n43\nYour output:\n03\n"
        "Write the whole program again, corrected.")
    assert "89" not in said(grid()) and "77" not in said(grid())
    right = grid() | {"outputs": json.dumps({"train": [pair["output"] for pair in PAIRS], "test": [[[0]]]})}
    assert said(right).startswith("Your program is right on every example shown, but not in general.")


def test_grids_are_shown_as_the_prompt_showed_them() -> None:
    """Flipped, recoloured and in the order of the prompt; only pairs that it showed."""
    colors = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    text = said(grid(flip=True, rotations=0, color_map=colors, pair_order=[2, 1],
                     format_options='{"encoder": "names"}'))
    assert text.startswith("Your program is wrong on 1 of 2 examples.\nExample 2, expected:\nPink Gray\n"
                           "Your output:\nPink Brown")


def test_a_prompt_that_does_not_say_which_pairs_it_showed_is_answered_with_all_of_them() -> None:
    """As where a task brings its own messages, or a rollout was imported."""
    assert said(grid(pair_order=None, format_options=None)) == said(grid())


def test_pairs_that_a_replaced_task_has_no_longer_or_only_since_are_not_spoken_of() -> None:
    fewer = json.dumps({"train": PAIRS[:2], "test": [HIDDEN]})
    assert said(grid() | {"payload": fewer}) == said(grid(pair_order=[0, 1]))
    more = json.dumps({"train": PAIRS + PAIRS, "test": [HIDDEN]})
    assert said(grid() | {"payload": more, "pair_order": None}) == said(grid())


def test_an_error_is_told_with_its_message() -> None:
    message = "line 2: index 3 is too large"
    row = grid(error_class="runtime", error_name="IndexError", error_message=message,
               code="def transform(g):\n    return g[3]\n")
    row["outputs"] = None
    assert said(row).startswith("Your program failed with IndexError in line 2, `return g[3]`: "
                                "index 3 is too large.")
    assert said(grid(error_class="timeout_cpu")).startswith("Your program failed with timeout cpu.")
    cut = grid(error_class="parsing", truncated=True)
    assert said(cut).startswith("Your answer was cut off at the limit of 7 tokens.")


def test_of_tests_the_first_that_fails_is_shown() -> None:
    tests = ["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9"]
    units = [[True, "", "", ""], [False, "AssertionError", "", ""], [False, "KeyError", "3", ""]]
    row = parent("function", {"entry_point": "f", "tests": tests}, {"test": units})
    assert said(row).startswith("Your program fails this test:\nassert f(2) == 4\nAssertionError\n")
    assert "assert" not in said(row, "error") and said(row, "error").startswith("Your answer is not right.")


def test_a_call_or_a_case_is_shown_with_what_came_instead() -> None:
    calls = [{"args": [1], "expected": 2}, {"args": [[2]], "kwargs": {"k": "a"}, "expected": [3]}]
    row = parent("function", {"entry_point": "f", "calls": calls}, {"test": [["value", 2], ["value", [4]]]})
    assert said(row).startswith("Your program fails this test:\nf([2], k='a') == [3]\nit gave [4]\n")
    tagged = {"test": [["value", 2], ["value", {"$": "tuple", "v": [3]}]]}  # equal, as the scorer compares
    unclear = parent("function", {"entry_point": "f", "calls": calls}, tagged)
    assert said(unclear).startswith("Your answer is not right.")
    cases = [{"input": "1\n", "output": "2\n"}, {"input": "5\n", "output": "6\n"}]
    text = said(parent("stdio", {"cases": cases}, {"test": ["2 ", "7\n"]}))
    assert text.startswith("Your program fails this test:\nInput:\n5\n\nExpected output:\n6\n\n"
                           "It wrote:\n7\n")


def test_a_function_of_the_users_says_it_and_is_known_by_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def tell(sample, shown):\n    return f\"{sample['code']}: {len(shown)}\"\n"
                    "def fail(sample, shown):\n    return sample['nothing']\n"
                    "def mute(sample, shown):\n    return ''\n")
    assert said(grid(), f"{file}:tell") == "x = 1: 3"
    assert find_feedback(f"{file}:tell").name.startswith("tell@")
    with pytest.raises(StageError, match=r"raised KeyError: 'nothing' \(line 4\)\. Nothing was sampled"):
        said(grid(), f"{file}:fail")
    with pytest.raises(StageError, match="which is not text"):
        said(grid(), f"{file}:mute")
    with pytest.raises(StageError, match=r"Known: tests@1, error@1, or FILE\.py:NAME"):
        find_feedback("nonsense")
