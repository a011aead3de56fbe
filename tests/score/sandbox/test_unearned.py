"""Programs that try to pass tests unearned, in both modes and against tests of many forms."""

from __future__ import annotations

import pytest

from score.isolation.lockdown import Layer
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from score.verdicts.completions import Item
from score.verdicts.judge import Judgement, measure, run_programs
from tests.hostile.unearned import UNEARNED

RIGHT = "def f(a, b):\n    return a + b\n"
RAISES = "import pytest\nwith pytest.raises(TypeError):\n    f(1, 'a')"
TESTS = {
    "statement": ["assert f(1, 2) == 3"],
    "statements": ["assert f(1, 2) == 3\nassert f(2, 5) == 7", "assert f(4, 5) == 9"],
    "check": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 2) == 7\n",
    "cases": "def check(candidate):\n    for a, b, want in [(1, 2, 3), (4, 5, 9)]:\n"
             "        assert candidate(a, b) == want\n",
    "variable": ["expected = 3\nassert f(1, 2) == expected"],
    "computed": ["want = sum([1, 2])\nassert f(1, 2) == want"],
    "computed in place": ["assert f(1, 2) == sum([1, 2])"],
    "computed loop": ["for n in sorted([1, 2]):\n    assert f(n, 5) == n + 5"],
    "all of what is computed": ["assert all(f(n, 5) == n + 5 for n in sorted([1, 2]))"],
    "branch": ["import sys\nif sys.version_info > (3, 0):\n    assert f(1, 2) == 3"],
    "near": ["import math\nassert math.isclose(f(1, 2), 3.0)", "assert abs(f(2, 2.5) - 4.5) < 1e-6"],
    "list": ["assert [f(1, 2), f(3, 3)] == [3, 6]"],
    "exception": [RAISES],
    "exception and value": [RAISES, "assert f(1, 2) == 3"],
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
                "        self.assertEqual(f(1, 2), 3)\n",
}


@pytest.fixture(scope="module")
def executor():
    limits = Limits(cpu_seconds=0.25, wall_seconds=3.0, memory_mib=256)
    with LanePool(LaneConfig(Layer.SECCOMP), limits, 2) as pool:
        yield Executor(pool)


def judged(executor: Executor, tests: object, mode: str,
           programs: dict[str, str]) -> dict[str, Judgement]:
    """The verdicts on programs, by name."""
    task = load_task("t", "function", {"entry_point": "f", "tests": tests, "mode": mode})
    items = [Item(task, Answer("", code)) for code in programs.values()]
    return dict(zip(programs, measure(items, run_programs(executor, items)), strict=True))


@pytest.mark.parametrize("form", TESTS)
@pytest.mark.parametrize("mode", ["together", "apart"])
def test_no_cheat_passes(executor, mode, form):
    if (mode, form) == ("apart", "unittest"):
        pytest.skip("test classes run together in any case")
    rows = judged(executor, TESTS[form], mode, {**UNEARNED, "right": RIGHT})
    assert {name for name, row in rows.items() if row.measures.test.correct_grids > 0} == {"right"}
    assert not any(row.outcome.infrastructure for row in rows.values())


def test_a_program_that_passes_anything_is_called_that(executor):
    rows = judged(executor, TESTS["statements"], "together", {
        "equal": UNEARNED["equal to everything"], "sees": UNEARNED["constants of the test"],
        "raises": UNEARNED["equal to everything"].replace("return S", "if a != (4, 5): 1 / 0\n    return S"),
        # right about the first test and a cheat in the second: all of it counts for nothing
        "half": UNEARNED["equal to everything"].replace("return S", "return 3 if a == (1, 2) else S")})
    for row in rows.values():
        assert row.outcome.error_class == "unearned" and row.measures.test.correct_grids == 0.0


@pytest.mark.parametrize(("value", "error_class"), [
    ("object()", "cannot_cross"), ("iter([a])", "cannot_cross"), ("[print]", "cannot_cross"), ("[a]", None)])
def test_what_cannot_cross_has_an_error_class_of_its_own(executor, value, error_class):
    program = {"it": f"def f(a, b):\n    return {value}\n"}
    row = judged(executor, ["assert list(f(1, 2)) == [1]"], "apart", program)["it"]
    assert row.outcome.error_class == error_class and row.measures.correct == (error_class is None)


def test_what_cannot_cross_is_no_error_that_a_test_expects(executor):
    test = ["try:\n    f(1, 2)\nexcept Exception:\n    pass", "try:\n    f(1, 2)\nexcept:\n    pass"]
    row = judged(executor, test, "apart", {"it": "def f(a, b):\n    return object()\n"})["it"]
    assert row.measures.test.correct_grids == 0.0


def test_a_wrong_test_costs_nothing_where_the_right_test_fails(executor):
    before = executor.num_run
    judged(executor, ["assert f(9, 9) == 18"], "together", {"it": "def f(a, b):\n    return 17\n"})
    assert executor.num_run == before + 1
    judged(executor, ["assert f(9, 9) == 18"], "together", {"it": "def f(a, b):\n    return 18\n"})
    assert executor.num_run == before + 4               # two other values, each in a process of its own
