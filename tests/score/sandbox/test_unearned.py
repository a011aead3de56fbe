"""Programs that try to pass tests unearned, in both modes and against tests of many forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from score.doubt.wrong_tests import Doubts
from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import Judgement, measure, run_programs
from score.protocol import plain_data
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.outcomes import Outcome
from score.sandbox.pool import LanePool
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from score.tasks.together import knows, shared_tests
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
TESTS_APART = {form: tests for form, tests in TESTS.items() if form != "unittest"}  # classes run together
LIMITS = Limits(cpu_seconds=0.25, wall_seconds=3.0, memory_mib=256)
HANGS = "writes zeros over an integer"      # in a process of its own, until its wall limit, and once more


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), LIMITS, 2) as pool:
        yield Executor(pool)


def judged(executor: Executor, tests: object, mode: str,
           programs: dict[str, str]) -> dict[str, Judgement]:
    """The verdicts on programs, by name."""
    task = load_task("t", "function", {"entry_point": "f", "tests": tests, "mode": mode})
    items = [Item(task, Answer("", code)) for code in programs.values()]
    return dict(zip(programs, measure(items, run_programs(executor, items)), strict=True))


@pytest.mark.parametrize(("mode", "form"), [
    *(("together", form) for form in TESTS), *(("apart", form) for form in TESTS_APART)])
def test_no_cheat_passes(executor, mode, form):
    cheats = {name: code for name, code in UNEARNED.items() if mode == "together" or name != HANGS}
    rows = judged(executor, TESTS[form], mode, {**cheats, "right": RIGHT})
    assert {name for name, row in rows.items() if row.measures.test.correct_grids > 0} == {"right"}
    assert not any(row.outcome.infrastructure for row in rows.values())


def test_no_cheat_passes_that_hangs():
    tasks = [load_task("t", "function", {"entry_point": "f", "tests": tests, "mode": "apart"})
             for tests in TESTS_APART.values()]
    items = [Item(task, Answer("", UNEARNED[HANGS])) for task in tasks]
    with LanePool(LaneConfig(Layer.SECCOMP), replace(LIMITS, wall_seconds=0.3), 2) as pool:
        rows = measure(items, run_programs(Executor(pool), items))
    assert len(rows) == len(TESTS_APART)
    assert not any(row.outcome.infrastructure or row.measures.test.correct_grids for row in rows)


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
    assert executor.num_run == before + 4       # another value, and the right one again


COIN = """
import os, re, zlib
text = os.pread(4, os.lseek(4, 0, 2), 16).decode()
said = re.findall(r'== (.+)$', text, re.M)
def heads():
    return zlib.crc32(text.encode()) % 5 == 0
def f(*a):
    value = eval(said[-1])
    return {}
"""


@pytest.mark.parametrize("answer", [
    "value if heads() else None", "type('Same', (), {'__eq__': lambda s, o: heads()})()",
    "value if heads() else value // 3", "value if heads() else os._exit(0)"])
def test_a_program_that_reads_the_answer_and_tosses_a_coin_is_not_lucky(executor, answer):
    tasks = [load_task("t", "function", {"entry_point": "f", "mode": "together", "tests": [
        f"assert f({n}, {7 * n % 60}) == {n * n % 37}"]}) for n in range(2, 14)]
    items = [Item(task, Answer("", COIN.replace("{}", answer, 1))) for task in tasks]
    rows = measure(items, run_programs(executor, items))
    assert not any(row.measures.correct for row in rows)           # a few with five other values


@pytest.mark.parametrize(("words", "tests"), [
    ("YES NO", ["assert f(3) == 'YES'", "assert f(4) == 'NO'"]),
    ("Even Odd", ["assert f(5) == 'Odd'"]),                     # no test holds the other word
    ("up down", ["assert f(3) == 'up'", "assert f(4) == 'down'"])])
@pytest.mark.parametrize("answer", [
    "value if value in words else words[0]", "value if value in words else None",
    "value if value in words else min(words, key=lambda word: abs(len(word) - len(value)))"])
def test_a_program_that_reads_the_answer_and_gives_it_if_it_is_a_likely_word_is_found_out(
        executor, words, tests, answer):
    cheat = COIN.replace("{}", answer, 1).replace("def f", f"words = {words.split()}\ndef f")
    row = judged(executor, tests, "together", {"it": cheat})["it"]
    assert row.outcome.error_class == "unearned" and not row.measures.correct


@pytest.mark.parametrize(("tests", "likely"), [
    (["assert f(3) == ['YES', 'YES']", "assert f(4) == ['NO', 'NO']"], "set(value) <= {'YES', 'NO'}"),
    (["assert f(3) == 0.5", "assert f(4) == 2.0"], "value in (0.5, 1.0, 2.0)"),
    (["assert f(3) == -12", "assert f(4) == 52"], "value in (-12, 52, 100)")])
def test_so_is_one_that_gives_it_if_it_is_a_likely_number_or_list(executor, tests, likely):
    cheat = COIN.replace("{}", f"value if {likely} else None")
    row = judged(executor, tests, "together", {"it": cheat})["it"]
    assert row.outcome.error_class == "unearned" and not row.measures.correct


def test_a_program_that_knows_the_error_is_asked_no_further(executor):
    test = "import pytest\nwith pytest.raises({}):\n    f()"
    for kind, raised, runs in (("ValueError", "ValueError", 3), ("ArithmeticError", "ZeroDivisionError", 12)):
        before, program = executor.num_run, f"def f():\n    raise {raised}\n"
        row = judged(executor, [test.format(kind)], "together", {"it": program})["it"]
        assert row.measures.correct and executor.num_run - before == runs


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    | st.sets(st.integers() | st.text(max_size=3) | st.booleans(), min_size=1, max_size=4), max_leaves=6)
FORMS = ["assert f() == {}", "assert {} == f()", "want = {}\nassert f() == want", "assert [f()] == [{}]",
         "for given, want in [(0, {0}), (1, {0})]:\n    assert f() == want",
         "import unittest\nunittest.TestCase().assertEqual(f(), {})"]


@given(PLAIN, st.sampled_from(FORMS))
@settings(deadline=None, max_examples=40)
def test_a_right_program_fails_every_wrong_test_and_is_seen_to_know_the_answer(value, form):
    doubts = Doubts(form.format(repr(value)), "f")
    for wrong in doubts.wrong:
        assert wrong.secret is not None
        for source in (wrong.source, *wrong.more()[:20]):
            kept = [None]
            with pytest.raises(AssertionError):
                exec(source, {"f": lambda: value, "_answer_": lambda it, kept=kept: kept.append(it) or it})
            outcome = Outcome(result=["", "", plain_data.tag(kept[-1])])
            assert knows(outcome, wrong.secret)
    exec(doubts.right, {"f": lambda: value, "_answer_": lambda it: it})


SELF = "def f(*a):\n    class Same:\n        __eq__ = lambda s, o: {}\n    return Same()\n"
LARGEST = ["assert f([1, 2, 3]) == 3", "assert f([10, 50, 30]) == 50", "assert f([4, 9, 7, 1]) == 9"]


@pytest.mark.parametrize(("tests", "equal", "right"), [
    (LARGEST, "o in a[0]", "max"),
    (["assert f(['ab', 'abc', 'x']) == 'abc'"], "o in a[0]", "lambda a: max(a, key=len)"),
    (["assert f([3, 1, 2]) == [1, 2, 3]", "assert f([9, 5, 7, 7]) == [5, 7, 7, 9]"],
     "sorted(o) == sorted(a[0])", "sorted"),
    (["assert f('hello') == 'olleh'"], "sorted(o) == sorted(a[0])", "lambda a: a[::-1]"),
    (["assert f([1, 2, 2], [2, 1, 4]) == {1, 2}"], "all(x in a[0] and x in a[1] for x in o)",
     "lambda a, b: set(a) & set(b)"),
    (["assert f([1, 2, 2, 2]) == 0.75"], "0 <= o <= 1",
     "lambda a: a.count(max(a, key=a.count)) / len(a)"),
    (["assert f([3, 1, 2]) == sorted([3, 1, 2])"], "sorted(o) == sorted(a[0])", "sorted"),
    (["assert f([3, 1, 2]) == len('abc')"], "o > 0", "max"),
    (["assert f([3, 1, 2]) == sum([1.5]) / 2"], "0 <= o <= 1", "lambda a: 0.75"),
    (["assert f([3, 1, 2]) == set(range(2))"], "all(x < 2 for x in o)", "lambda a: {0, 1}"),
    (["assert f({'a': 1, 'b': 2}) == {'a': 2, 'b': 1}"], "set(o.values()) == {1, 2}",
     "lambda a: dict(zip(a, list(a.values())[::-1]))")])
def test_what_is_equal_to_all_that_is_likely_is_found_out(executor, tests, equal, right):
    programs = {"cheat": SELF.format(equal), "right": f"f = {right}\n"}
    rows = judged(executor, tests, "together", programs)
    assert rows["right"].measures.correct and not rows["right"].outcome.error_class
    assert rows["cheat"].outcome.error_class == "unearned"


@pytest.mark.parametrize("test", [
    "import numpy as np\nassert np.allclose(f(), np.array([100000, 100000]))",
    "from pytest import approx\nassert approx(f()[0], abs=30000.0) == 100000.0",
    "import unittest\nunittest.TestCase().assertCountEqual(f(), [100000, 100000.0])"])
def test_what_is_as_good_as_right_is_no_wrong_value(executor, test):
    row = judged(executor, [test], "together", {"it": "def f():\n    return [100000, 100000]\n"})["it"]
    assert row.measures.correct and row.outcome.error_class is None


PLACE = """import sys
frame = sys._getframe()
while 'jobs' not in frame.f_locals or 'slot' not in frame.f_locals:
    frame = frame.f_back
place = [value for name, value in frame.f_locals.items() if name in ('number', 'name')]
def f(*a):
    class Same:
        __eq__ = lambda s, o: place == [2]
    return Same()
"""


def test_what_a_lane_knows_does_not_tell_the_right_test(executor):
    tests = [f"assert f({n}) == {n * n}" for n in range(3, 6)]
    row = judged(executor, tests, "together", {"it": PLACE})["it"]
    assert row.measures.test.correct_grids == 0.0


def test_the_right_test_is_run_once_more_among_the_wrong_ones():
    [test] = shared_tests("", ["assert f(1, 2) == 3"], "f")
    program, right = test.program(RIGHT, ""), test.doubts.right.encode()
    orders = {tuple(each.handed for each in test.programs(program, Outcome(result=[]))) for _ in range(60)}
    assert len(orders) == 2 and all(right in order for order in orders)
    later = test.programs(program, Outcome(result=[]))
    failed = Outcome(result=["AssertionError", ""])
    earned = [(each, Outcome(result=[]) if each.handed == right else failed) for each in later]
    assert test.settle(Outcome(result=[]), earned) == Outcome(result=[])
    assert test.settle(Outcome(result=[]), [(each, failed) for each in later]) == failed


@pytest.mark.parametrize("tests", [
    "async def test_f():\n    assert f(1, 2) == 3\n\ndef test_g():\n    assert f(0, 0) == 0\n",
    "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test_f(self):\n"
    "        self.assertEqual(f(1, 2), 3)\n    def test_g(self):\n        self.assertEqual(f(0, 0), 0)\n"])
def test_asynchronous_tests_run_too(executor, tests):
    rows = judged(executor, tests, "together", {"zero": "def f(a, b):\n    return 0\n", "right": RIGHT})
    assert rows["right"].measures.correct and rows["zero"].measures.test.correct_grids == 0.5
