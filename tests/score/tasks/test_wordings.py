"""A right answer in any harmless wording is right, and garbage is not: results of calls, and tests."""

import json
import math
from collections import OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import measure, run_programs
from score.protocol import plain_data
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.function import is_expected
from score.tasks.kinds import load_task
from score.tasks.measures import Answer

LEAVES = (st.none() | st.booleans() | st.integers(-10**20, 10**20) | st.text(max_size=5)
          | st.floats(-1e6, 1e6).map(lambda number: round(number, 3)))
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4)
                      | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8)


def expects(value: Any, **more: Any) -> Any:
    """A task of one call that has to return what JSON keeps of a value."""
    payload = {"entry_point": "f", "calls": [{"expected": json.loads(json.dumps(value))}], **more}
    return load_task("t", "function", payload).content


def is_right(task: Any, value: Any) -> bool:
    """What becomes of a result that crossed as the lane sends it."""
    sent = json.loads(json.dumps(plain_data.tag(value)))
    return is_expected(["value", sent], task.calls[0], task.tolerance)


def dressed(value: Any, draw: st.DataObject) -> Any:
    """The same value in other clothes: tuples, deques, other mappings, Decimal, Fraction, whole floats."""
    if isinstance(value, list):
        return draw.draw(st.sampled_from([list, tuple, deque]))([dressed(item, draw) for item in value])
    if isinstance(value, dict):
        pairs = [(key, dressed(item, draw)) for key, item in value.items()]
        return draw.draw(st.sampled_from([dict, OrderedDict]))(draw.draw(st.permutations(pairs)))
    if isinstance(value, int) and not isinstance(value, bool):
        kinds = [int, Decimal, Fraction, *([float] if abs(value) < 2**53 else [])]
        return draw.draw(st.sampled_from(kinds))(value)
    if isinstance(value, float):
        return draw.draw(st.sampled_from([float, lambda number: Decimal(repr(number))]))(value)
    return value


def spoilt(value: Any, draw: st.DataObject) -> Any:
    """The value with one of its leaves, or its length, changed."""
    if isinstance(value, list):
        if not value or draw.draw(st.booleans()):
            return [*value, draw.draw(LEAVES)]
        place = draw.draw(st.integers(0, len(value) - 1))
        return [spoilt(item, draw) if number == place else item for number, item in enumerate(value)]
    if isinstance(value, dict):
        return {**value, "another": None} if "another" not in value else {}
    if isinstance(value, bool) or value is None:
        return 1
    return value + (1 if isinstance(value, (int, float)) else "x")


@given(VALUES, st.data())
def test_a_result_of_a_call_is_right_in_any_clothes_and_wrong_with_another_leaf(
        value: Any, draw: st.DataObject) -> None:
    task = expects(value)
    assert is_right(task, dressed(value, draw))
    assert not is_right(task, dressed(spoilt(value, draw), draw))


@given(st.text() | st.binary() | st.lists(st.none()) | st.just(math.nan) | st.complex_numbers())
def test_garbage_is_no_result_of_a_call(value: Any) -> None:
    assert not is_right(expects({"number": 7}), value)
    assert not is_right(expects([7, 8]), value) and not is_right(expects(7), value if value != 7 else "7")
    for given_result in (value, ["value"], ["value", {"$": "set"}], ["error", "ValueError"], None):
        if isinstance(given_result, (str, list, type(None))):
            task = expects([7])
            assert not is_expected(given_result, task.calls[0], task)


PROGRAMS = ("def f(*a):\n    return {0!r}", "f = lambda *a, **more: {0!r}",
            "print('hi')\nX = [{0!r}]\nf = X.__getitem__",
            "class Box:\n    def __call__(self, *a):\n        return {0!r}\nf = Box()",
            "def g():\n    yield {0!r}\n\ndef f(*a):\n    'What it says.'\n    return next(g())",
            "import json\nasync def g(): ...\ndef f(*a):\n    return json.loads({1!r})")
SAME = "class Same:\n    def __eq__(self, other):\n        return True\n"
GARBAGE = ("", "x = 1", "f = 7", "def f(*a):\n    return f", "def f(:",
           f"{SAME}def f(*a):\n    return Same()",
           "def f(*a):\n    raise AssertionError", "def f(*a):\n    exit(0)", "f = print", "I don't know.")
TESTS = ("assert f(0) == {!r}", "got = f(0)\nassert got == {!r}",
         "want = {!r}\nassert (f(0), 1) == (want, 1)",
         "def check(candidate):\n    for want in [{!r}]:\n        assert candidate(0) == want\n")


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(cpu_seconds=0.5, wall_seconds=5.0), 1) as pool:
        yield Executor(pool)


@settings(max_examples=8)
@given(st.recursive(st.integers(-99, 99) | st.text("abc ", min_size=1, max_size=5), lambda inner: st.lists(
    inner, min_size=1, max_size=3), max_leaves=4), st.sampled_from(TESTS), st.data())
def test_a_program_is_right_by_its_tests_however_it_is_written(
        executor: Executor, value: Any, test: str, draw: st.DataObject) -> None:
    tests = test.format(value) if "check" in test else [test.format(value), f"assert f(0) == {value!r}"]
    task = load_task("t", "function", {"entry_point": "f", "tests": tests})
    right = [each.format(value, json.dumps(value)) for each in draw.draw(st.permutations(PROGRAMS))[:3]]
    other = spoilt(value, draw)
    wrong = [*draw.draw(st.permutations(GARBAGE))[:3], PROGRAMS[0].format(other)]
    items = [Item(task, Answer("", code)) for code in (*right, *wrong)]
    rows = [row.measures for row in measure(items, run_programs(executor, items))]
    assert [row.correct for row in rows] == [True] * len(right) + [False] * len(wrong)
    assert not any(row.test.correct_grids for row in rows[len(right):])
