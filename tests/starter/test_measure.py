"""Measuring the starter: programs run under limits, exactness on every pair, pass@k."""

import json
from pathlib import Path

import pytest

from examples.starter.measure import Task, fitting_tasks, pass_at_k, set_result, solved_completions
from examples.starter.programs import code_of, run_programs

ROOT = Path(__file__).parents[2]


def block(body: str) -> str:
    return f"```python\ndef transform(grid):\n    {body}\n```"


def test_programs_that_fail_give_no_outputs_and_spoil_no_other():
    bodies = ["return grid", "while True: pass", "raise SystemExit", "import os; os._exit(0)",
              "return [[10]]", "return [1, 2]", "print('[[[7]]]'); return grid", "return [[0] * 31]",
              "return [[len(bytearray(1 << 33)) % 10]]"]
    outputs = run_programs([(code_of(block(body)), [[[3, 4]]]) for body in bodies] + [("def (", [[[1]]])])
    assert outputs == [[[[3, 4]]], None, None, None, None, None, [[[3, 4]]], None, None, None]


def test_code_is_taken_from_a_closed_block_only():
    assert code_of("x\n```python\na = 1\n```\ny") == "a = 1"
    assert code_of("```python\na = 1\n") is None and code_of("a = 1") is None


def test_a_completion_is_right_when_every_train_and_test_pair_is():
    payload = {"train": [{"input": [[1]], "output": [[1]]}], "test": [{"input": [[2]], "output": [[2]]}]}
    rows = [[block("return grid"), block("return [[1]]"), "no code", block("return 7")]]
    assert solved_completions([Task("synthetic", "t", payload)], rows) == [[True, False, None, None]]


def test_pass_at_k_counts_draws_without_return():
    assert pass_at_k(4, 1, 1) == 0.25 and pass_at_k(4, 1, 4) == 1 and pass_at_k(4, 0, 4) == 0
    assert pass_at_k(4, 2, 2) == pytest.approx(1 - 1 / 6)


def test_shares_leave_the_greedy_column_out_of_pass_at_1():
    result = set_result([0, 1], [[True, False, True], [True, None, False]])
    assert result == {"num_tasks": 2, "pass@1": 0.25, "greedy": 1.0, "valid": 0.75, "tasks_solved": 1}


def test_the_demo_pool_is_what_was_measured_and_fits():
    lines = (ROOT / "examples/demo/pool.txt").read_text().splitlines()
    assert lines[0].startswith("# ") and "examples.starter.measure" in lines[0]
    measured = json.loads((ROOT / "examples/starter/model/measured.json").read_text())
    assert lines[1:] == list(measured["arc_tasks_solved"])
    assert set(lines[1:]) <= {task.task_id for task in fitting_tasks(0, 0)}
