"""What a payload may say besides its tests: code before the program, dotted names, any order, checkers."""

import json

import pytest

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import Judgement, measure, run_programs
from score.protocol.error_classes import ErrorClass
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from warehouse.store.errors import StageError

SQUARES = {"entry_point": "Solution.squares", "program_setup": "from typing import *\nimport math"}
SOLUTION = "class Solution:\n    def squares(self, xs: List[int]) -> List[int]:\n" \
           "        return [int(math.pow(x, 2)) for x in xs]\n"
PAIRS = {"cases": [{"input": "10", "output": ""}],
         "checker": "def check(given, output, expected):\n    a, b = map(int, output.split())\n"
                    "    return a + b == int(given)\n"}


@pytest.fixture(scope="module")
def executor():
    limits = Limits(cpu_seconds=1.0, wall_seconds=5.0, memory_mib=256)
    with LanePool(LaneConfig(Layer.SECCOMP), limits, 1) as pool:
        yield Executor(pool)


def judged(executor: Executor, kind: str, payload: dict, code: str) -> Judgement:
    items = [Item(load_task("t", kind, payload), Answer("", code))]
    return measure(items, run_programs(executor, items))[0]


@pytest.mark.parametrize("tests", [
    {"calls": [{"args": [[1, 2]], "expected": [1, 4]}]}, {"tests": ["assert Solution().squares([3]) == [9]"]},
    {"tests": "def check(candidate):\n    assert candidate([3]) == [9]\n"}],
    ids=["calls", "statement", "check"])
def test_a_method_of_a_class_with_code_before_the_program(executor, tests):
    assert judged(executor, "function", {**SQUARES, **tests}, SOLUTION).measures.correct
    wrong = judged(executor, "function", {**SQUARES, **tests}, SOLUTION.replace("2)", "3)"))
    assert not wrong.measures.correct and wrong.outcome.error_class is None
    assert judged(executor, "function", {**SQUARES, **tests},
                  "class Solution: pass").outcome.error_class == "missing_function"


def test_each_call_of_a_method_has_an_object_of_its_own(executor):
    payload = {"entry_point": "S.f", "calls": [{"expected": 1}, {"expected": 1}]}
    code = "class S:\n    n = 0\n    def f(self):\n        self.n += 1\n        return self.n\n"
    assert judged(executor, "function", payload, code).measures.correct


def test_code_before_a_script(executor):
    payload = {"cases": [{"input": "9", "output": "3"}], "program_setup": "import math"}
    assert judged(executor, "stdio", payload, "print(math.isqrt(int(input())))").measures.correct


PASSES = r"import os\nos.pwrite(3, b'RHR1\x01\x03\0\0\0[1]', 0)\nos._exit(0)"


@pytest.mark.parametrize(("code", "right"), [
    ("print('2 * 12')", True), ("print('25 - 2')", False), (f"print({f'exec({PASSES!r})'!r})", False),
    ("print('int(_expected_)')", False), ("print('int(expected)')", False)])
def test_what_a_checker_evaluates_of_an_output_is_no_more_than_a_value(executor, code, right):
    payload = {"cases": [{"input": "", "output": "24"}],
               "checker": "def check(given, output, expected):\n    return eval(output) == int(expected)\n"}
    row = judged(executor, "stdio", payload, code)
    assert row.measures.correct == right and not row.outcome.infrastructure


@pytest.mark.parametrize("expected", ["[1, 24]", "set()", "-24", "max(1, 24)", "{1: 2}", "24 - 2 * 3 == 18"])
def test_a_checker_that_evaluates_both_texts_compares_their_values(executor, expected):
    check = "def check(given, output, expected):\n    return eval(output) == eval(expected)\n"
    payload = {"cases": [{"input": "", "output": expected}], "checker": check}
    row = judged(executor, "stdio", payload, f"print({expected!r})")
    assert row.measures.correct
    for text in ("type('X', (), {'__eq__': lambda a, b: True})()", "__import__('builtins')", "25",
                 "setattr(__import__('builtins'), 'max', lambda *a: 7) or 7", "eval.__self__", "()"):
        row = judged(executor, "stdio", payload, f"print({text!r})")
        assert not row.measures.correct and not row.outcome.infrastructure, text


@pytest.mark.parametrize("read", ["ast.literal_eval(output)", "eval(output)", "ast.parse(output)"])
def test_no_output_makes_a_checker_untestable(executor, read):
    """Python loads a module to read a name that is not ASCII, which a locked process cannot."""
    check = f"def check(given, output, expected):\n    import ast\n    return {read} == 3 and 1\n"
    payload = {"cases": [{"input": "", "output": "3"}], "checker": check}
    row = judged(executor, "stdio", payload, "print('\u00e9')")
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("skip", ["raise unittest.SkipTest('x')", "unittest.TestCase().skipTest('x')",
                                  "import pytest\n    pytest.skip('x')"])
def test_a_checker_that_skips_finds_nothing_right(executor, skip):
    check = f"import unittest\ndef check(given, output, expected):\n    {skip}\n"
    row = judged(executor, "stdio", {"cases": [{"input": "", "output": "3"}], "checker": check}, "print(4)")
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("mark", ["unittest.expectedFailure", "pytest.mark.filterwarnings('error')"])
def test_marks_that_change_what_passes_are_untestable(executor, mark):
    tests = f"import pytest, unittest\nclass T(unittest.TestCase):\n    @{mark}\n" \
            "    def test_a(self): assert f(1) == 1\n"
    row = judged(executor, "function", {"entry_point": "f", "tests": tests}, "def f(x): return x\n")
    assert row.outcome.error_class == ErrorClass.UNTESTABLE


@pytest.mark.parametrize("tests", [
    ["r = f(1)", "assert eval(r) == 3"], ["r = f(1)", "if r:\n    import sympy", "assert r == 3"]])
def test_no_answer_makes_its_tests_untestable(executor, tests):
    row = judged(executor, "function", {"entry_point": "f", "tests": tests}, "def f(x): return '\u00e9'\n")
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("payload", [
    {"entry_point": "f", "tests": ["assert f(1) == 1", "import sympy\nassert f(2) == 2"]},
    {"entry_point": "f", "tests": "def check(candidate):\n    assert candidate(1) == 1\n    import sympy\n"}])
def test_tests_that_import_what_is_not_there_are_untestable(executor, payload):
    row = judged(executor, "function", payload, "def f(x): return x\n")
    assert row.outcome.error_class == ErrorClass.UNTESTABLE and "sympy is not here" in row.outcome.said


@pytest.mark.parametrize(("code", "right"), [
    ("print(3, 7)", True), ("print(10, 0)", True), ("print(3, 8)", False), ("print('x')", False),
    ("print('True')", False), ("1 / 0", False)])
def test_a_checker_decides_where_several_outputs_are_right(executor, code, right):
    row = judged(executor, "stdio", PAIRS, code)
    assert row.measures.correct == right
    if row.outcome.error_class is None:
        assert isinstance(json.loads(row.measures.outputs)["test"][0], str)


CLASS = "class Tests:\n    def test(self):\n        assert f()\n\nif __name__ == '__main__':\n    Tests()"


@pytest.mark.parametrize(("kind", "payload", "message"), [
    ("function", {"tests": ["assert f( == 1"]}, "'tests' is not Python"),
    ("function", {"tests": "x = 1"}, "defines no `check(candidate)`"),
    *(("function", {"tests": tests}, "no class with methods test_*") for tests in (
        "class Node: pass\nassert f() == 1", "def check_it():\n    assert f() == 1",
        "class T:\n    def runTest(self):\n        assert f() == 1",
        "async def check(candidate):\n    assert candidate() == 1")),
    ("function", {"tests": ["import math\ndef test_it():\n    assert f()"]}, "test_it and nothing calls it"),
    ("function", {"tests": [CLASS, "assert f()"]}, "defines Tests and nothing calls it"),
    ("function", {"tests": ["def check(f):\n    assert f()"]}, "defines check and nothing calls it"),
    ("function", {"setup": "def f():\n    return 1", "tests": ["assert f() == 1"]}, "defines f itself"),
    ("function", {"tests": "class f: ...\ndef test_it():\n    assert f()"}, "defines f itself"),
    ("function", {"tests": ["f()"], "program_setup": "import"}, "'program_setup' is not Python"),
    *(("function", {"tests": ["f()"], wrong: True}, f"'{wrong}' is not known. Write '{right}', or rename")
      for wrong, right in (("inplace", "in_place"), ("tolerence", "tolerance"), ("Checkers", "checker"),
                           ("programSetup", "program_setup"), ("module", "modules"))),
    ("function", {"calls": [{"expected": 1}], "any_order": True}, "'any_order' is not known. Write the"),
    ("stdio", {**PAIRS, "checker": "def chek(): ..."}, "defines no `check(input, output, expected)`"),
])
def test_payloads_are_checked(kind, payload, message):
    with pytest.raises(StageError) as caught:
        load_task("t", kind, {"entry_point": "f", **payload})
    assert message in str(caught.value)


REFERENCE = "def f():\n    return 1\ndef check(candidate):\n    assert candidate() == f()"


@pytest.mark.parametrize("tests", [
    ["def check(f):\n    assert f() == 1\ncheck(f)"], ["def check(f):\n    assert f() == 1", "check(f)"],
    ["from math import sqrt\nassert f() == 1"], ["g = f\ndef f():\n    return g()\nassert f() == 1"],
    ["class f(f):\n    pass\nassert f()"], REFERENCE, REFERENCE.replace("candidate", "given"),
    ["def f(own=f):\n    return own()\nassert f() == 1"],
    ["class Node:\n    value = 1", "assert f() == 1"], ["class Gone(Exception): ...", "assert f() == 1"],
    ["def check_close(a, b):\n    return abs(a - b) < 1e-6", "assert f() == 1"],
    ["def test_it():\n    assert f() == 1", "[v() for k, v in [*globals().items()] if k.startswith('test')]"],
    ["own = globals()['f']\ndef f():\n    return own()\nassert f() == 1"]])
def test_tests_that_ask_the_program_are_taken_whatever_they_define(tests):
    load_task("t", "function", {"entry_point": "f", "tests": tests})
