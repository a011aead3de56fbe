"""Function, script and answer tasks, and how programs try to pass tests they do not deserve."""

import json
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import measure, registered_terms, run_programs
from score.protocol.frames import encode_grids, encode_result
from score.rewards.named import BY_KIND, DEFAULTS, REWARDS, default_reward, reward_of
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Outcome
from score.tasks.answer import given_answer, is_same
from score.tasks.graded import boxed_or_end
from score.tasks.kinds import KINDS, load_task
from score.tasks.measures import Answer, Measures
from score.tasks.script import is_expected
from tests.building.texts import THOUGHTS
from warehouse.store.errors import StageError
from warehouse.tasks.answers import first_code_block
from warehouse.tasks.task_files import KINDS as IMPORTED
from warehouse.tasks.task_files import read_jsonl

SCORER = Scorer("arc-exact-shaped")
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=3.0, memory_mib=256)
ASSERTS = {
    "entry_point": "add",
    "tests": ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]", "assert add('a', b='b') == 'ab'"],
}
CHECK = {
    "entry_point": "add",
    "tests": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n",
}
CALLS = {
    "entry_point": "add",
    "calls": [
        {"args": [1, 2], "expected": 3},
        {"args": [[1], [2]], "expected": [1, 2]},
        {"args": ["a"], "kwargs": {"b": "b"}, "expected": "ab"},
    ],
}
RIGHT = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), LIMITS, 1) as pool:
        yield Executor(pool)


class Scored(NamedTuple):
    outcome: Outcome
    measures: Measures
    reward: float | None


def scored(executor, kind: str, payload, code: str | None, text: str = "",
           scorer: Scorer = SCORER) -> Scored:
    items = [Item(load_task("t", kind, payload), Answer(text, code))]
    [judgement] = measure(items, run_programs(executor, items))
    [terms] = registered_terms(items, [judgement], scorer)
    return Scored(judgement.outcome, judgement.measures, None if terms is None else sum(terms.values()))


@pytest.mark.parametrize("payload", [ASSERTS, CHECK, CALLS])
def test_a_right_function_passes(executor, payload):
    row = scored(executor, "function", payload, RIGHT)
    assert row.measures.correct and row.reward == 1.0 and row.outcome.error_class is None


@pytest.mark.parametrize("payload", [ASSERTS, CALLS])
def test_a_share_of_the_units_is_a_share_of_the_shaping(executor, payload):
    row = scored(executor, "function", payload, "def add(a, b):\n    return 3 if a == 1 else a + b + b\n")
    assert row.measures.test.correct_grids == pytest.approx(1 / 3)
    assert row.reward == pytest.approx(0.1 / 3)


CHEATS = {
    "an object equal to everything": "class Same:\n    def __eq__(self, other): return True\n"
    "def add(a, b):\n    return Same()\n",
    "a number equal to everything": "class Same(int):\n    def __eq__(self, other): return True\n"
    "    def __hash__(self): return 0\ndef add(a, b):\n    return Same()\n",
    "a list equal to everything": "class Same(list):\n    def __eq__(self, other): return True\n"
    "def add(a, b):\n    return Same()\n",
    "exit 0": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "exit 0 at import": "import os\nos._exit(0)\n",
    "sys.exit": "import sys\ndef add(a, b):\n    sys.exit(0)\n",
    "patched assertion": "import builtins\nbuiltins.AssertionError = type('E', (BaseException,), {})\n"
    "def add(a, b):\n    return None\n",
    "skipped assertion": "import sys\nsys.flags = None\ndef add(a, b):\n    return 0\n",
    "forged verdict": "import os\ndef add(a, b):\n    os.pwrite(3, b'RHR1' + bytes([1, 12, 0, 0, 0]) "
    '+ b\'[[true,"","",""]]\'[:12], 0)\n    os._exit(0)\n',
    "forged answers": "import os\ndef add(a, b):\n"
    "    while True: os.write(4, b'[\"ready\"]\\n')\n",
    "reads the tests": "import sys\ndef add(a, b):\n    for frame in sys._current_frames().values():\n"
    "        while frame:\n            for v in frame.f_locals.values():\n"
    "                if isinstance(v, (str, bytes)) and 'as' + 'sert' in str(v):\n"
    "                    return a + b\n            frame = frame.f_back\n    return None\n",
    "huge answer": "def add(a, b):\n    return 'x' * 10**7\n",
    "deep answer": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x\n",
    "closes the link": "import os\nos.close(4)\ndef add(a, b):\n    return 3\n",
}


@pytest.mark.parametrize("payload", [ASSERTS, CHECK, CALLS], ids=["asserts", "check", "calls"])
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_gain_nothing(executor, name, payload):
    row = scored(executor, "function", payload, CHEATS[name])
    assert not row.measures.correct and row.measures.test.correct_grids == 0.0
    assert not row.outcome.infrastructure


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        ("def add(a, b):\n    while True: pass\n", "timeout_cpu"),
        ("while True: pass\n", "timeout_cpu"),
        ("def add(a, b:\n", "syntax"),
        ("def sub(a, b):\n    return 0\n", "missing_function"),
        ("def add(a, b):\n    return a / 0\n", "runtime"),
        ("import nothing_such\n", "import_not_allowed"),
        ("def add(a, b):\n    import ctypes\n    ctypes.string_at(0)\n", "crashed"),
        ("def add(a, b):\n    return bytearray(10**12)\n", "memory"),
        (None, "parsing"),
    ],
)
def test_error_classes_of_functions_under_test(executor, code, error_class):
    row = scored(executor, "function", CHECK, code)
    assert row.outcome.error_class == error_class and row.reward == -0.1


def test_tests_may_expect_errors_and_changed_arguments(executor):
    payload = {
        "entry_point": "f",
        "setup": "import math",
        "tests": [
            "values = [3, 1]\nf(values)\nassert values == [1, 3]",
            "try:\n    f(None)\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError",
            "assert math.isclose(f([0.1, 0.2]), 0.3)",
            "assert f([1]) == 1 and isinstance(f([1]), int)",
        ],
    }
    row = scored(
        executor,
        "function",
        payload,
        "def f(v):\n    v.sort()\n    return sum(v)\n".replace(
            "v.sort()", "v.sort() if v is not None else len(v)"
        ),
    )
    assert row.measures.correct, row.measures.outputs


def test_values_survive_the_link(executor):
    values = [
        "(1, [2.5, None])",
        "{1: {2, 3}, (4,): b'x'}",
        "1 << 300",
        "float('inf')",
        "-0.0",
        "1 + 2j",
        "'\\ud800'",
    ]
    payload = {"entry_point": "f", "tests": [f"assert repr(f({value})) == repr({value})" for value in values]}
    row = scored(executor, "function", payload, "def f(x):\n    return x\n")
    assert row.measures.correct, row.measures.outputs


def test_tests_that_cannot_be_run_are_no_fault_of_the_program(executor):
    payload = {"entry_point": "f", "setup": "1 / 0", "tests": ["assert f(1) == 2"]}
    row = scored(executor, "function", payload, "def f(x):\n    return x + 1\n")
    assert row.outcome.error_class == "untestable" and row.reward is None


@pytest.mark.parametrize(
    ("code", "expected", "right"),
    [
        ("return [3, 1, 2]", [1, 2, 3], False),
        ("return {(1, 'a'), (0, 'b')}", [[1, "a"], [0, "b"]], False),
        ("return 2 ** 53 + 1", 2**53, False),
    ],
)
def test_results_that_json_cannot_say(executor, code, expected, right):
    payload = {"entry_point": "f", "calls": [{"expected": expected}]}
    assert scored(executor, "function", payload, f"def f():\n    {code}\n").measures.correct == right


@pytest.mark.parametrize(("result", "right"), [("-n", True), ("n", False), ("-n + 1", False)])
def test_integers_of_more_digits_than_python_reads_are_compared(executor, tmp_path, result, right):
    digits = "1" + "0" * 5000
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"task_id": "t", "kind": "function", "messages": [{"role": "user", "content": "?"}], '
                    f'"payload": {{"entry_point": "f", "calls": [{{"args": [{digits}], '
                    f'"expected": -{digits}}}]}}}}\n')
    [task] = read_jsonl(path)
    code = f"def f(n):\n    return {result}\n"
    assert scored(executor, "function", json.loads(task.payload), code).measures.correct == right


@pytest.mark.parametrize(("expected", "result", "right"), [
    (1_000_000, "1_000_001", False), (1_000_000_006, "1_000_000_000", False),
    (1_000_000, "1_000_000.6", False), ([10**18, 2], "[10**18 + 1, 2]", False),
    ({"a": 10**7}, "{'a': 10**7 + 5}", False),
    (150_002, "450_006 / 3 + 0.1", False), (333_333_333, "10**9 / 3", False),
    (2, "1.9999999999", True), (10**15, "1e15", True), (1_000_000, "1_000_000.0000001", True),
    (0.3, "0.1 + 0.2", True), (1e6, "1_000_000", True), (0.5, "0.50001", False)])
def test_a_tolerance_is_for_what_was_rounded_and_whole_numbers_are_counted(executor, expected, result, right):
    payload = {"entry_point": "f", "calls": [{"expected": expected}], "tolerance": 1e-6}
    assert scored(executor, "function", payload, f"def f():\n    return {result}\n").measures.correct == right


@pytest.mark.parametrize("answer", [r"\sqrt{2}", r"2\pi", r"3\sqrt{13}", "[1,5]", "12:30", "7 million",
                                    "1/0", "9" * 1001])
def test_an_answer_that_is_no_number_is_none_to_compare_numbers_with(executor, answer):
    payload = {"answer": answer, "match": "numeric"}
    for text in (r"\boxed{2}", r"\boxed{13}", "5:30", "7", rf"\boxed{{{answer}}}"):
        row = scored(executor, "answer", payload, None, text)
        assert row.outcome.error_class == "untestable" and row.reward is None
    assert scored(executor, "answer", payload | {"answer": [answer, "7"]}, None, "7").measures.correct


@pytest.mark.parametrize(("expected", "result"), [(10**17 + 1, "1e17"), (1e16, "10**16 + 1")])
def test_without_a_tolerance_a_float_near_an_integer_is_another_number(executor, expected, result):
    payload = {"entry_point": "f", "calls": [{"expected": expected}]}
    assert not scored(executor, "function", payload, f"def f():\n    return {result}\n").measures.correct


SUMS = {"cases": [{"input": "1 2\n", "output": "3"}, {"input": "10 -4", "output": "6\n"}]}


@pytest.mark.parametrize(
    "code",
    [
        "print(sum(map(int, input().split())))\n",
        "import sys\nprint(sum(int(x) for x in sys.stdin.read().split()))\n",
        "a, b = map(int, open(0).read().split())\nprint(a + b, end='')\n",
        "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())\n",
        "import sys\ndef main():\n    print(sum(map(int, input().split())))\n    sys.exit(0)\n"
        "if __name__ == '__main__':\n    main()\n",
        "import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size(1 << 27)\n"
        "def main():\n    print(sum(map(int, input().split())))\n    sys.exit()\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()\n",
        "import threading\nfound = []\nclass Work(threading.Thread):\n    def __init__(self, x):\n"
        "        super().__init__(daemon=True)\n        self.x = x\n    def run(self):\n"
        "        found.append(int(self.x))\nworkers = [Work(x) for x in input().split()]\n"
        "for each in workers: each.start()\nfor each in workers: each.join(1)\nprint(sum(found))\n",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
        "    print(sum(pool.map(int, input().split())))\n",
        "import asyncio\nasync def main():\n    words = await asyncio.to_thread(str.split, input())\n"
        "    print(sum(map(int, words)))\nasyncio.run(main())\n",
        "import argparse, doctest, locale\nprint(sum(map(int, input().split())))\n",
        "import threading\ndef main():\n    while True: print(sum(map(int, input().split())))\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()\n",
        *(f"import io, os, sys\ns = sum(map(int, input().split()))\n{code}\n" for code in (
            "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint(s)",
            "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint(s)",
            "with open(1, 'w') as sys.stdout: print(s)", "print(s)\nsys.stdout = None",
            "sys.stdout = open(1, 'w')\nprint(s)\nsys.stdout.close()",
            "out = open(1, 'w')\nout.write(str(s))", "out = os.fdopen(1, 'w')\nprint(s, file=out)",
            "class Last:\n    def __del__(self): print(s)\nlast = Last()",
            "print(s if __file__.endswith('.py') and __builtins__.sum is sum else 0)")),
    ],
)
def test_scripts_that_are_right(executor, code):
    assert scored(executor, "stdio", SUMS, code).reward == 1.0


@pytest.mark.parametrize(
    ("code", "share", "error_class"),
    [
        ("print(3)\n", 0.5, None),
        ("a, b = map(int, input().split())\nprint(3 if a == 1 else 1 / 0)\n", 0.5, "runtime"),
        ("while True: pass\n", 0.0, "timeout_cpu"),
        ("while True: print('x' * 999)\n", 0.0, "output_limit"),
        ("import sys\nsys.exit(1)\n", 0.0, "runtime"),
        ("x = (\n", 0.0, "syntax"),
        ("", 0.0, None),
    ],
)
def test_scripts_that_are_wrong(executor, code, share, error_class):
    row = scored(executor, "stdio", SUMS, code)
    assert (row.measures.test.correct_grids, row.outcome.error_class) == (share, error_class)


def test_a_file_that_is_not_there_is_missing_and_others_stay_forbidden(executor):
    right = ("import sys\ntry:\n    sys.stdin = open('input.txt')\nexcept FileNotFoundError:\n    pass\n"
             "print(sum(map(int, input().split())))\n")
    assert scored(executor, "stdio", SUMS, right).reward == 1.0
    for code in ("open('output.txt', 'w')", "open('a', mode='r+')", "open('/etc/passwd')"):
        assert scored(executor, "stdio", SUMS, code).outcome.error_class == "sandbox_violation"


def test_a_frame_with_another_number_of_grids_is_no_answer(executor):
    payload = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]], "output": [[4]]}]}
    body = encode_grids([np.array([[2]], np.uint8), np.array([[4]], np.uint8)])
    for grids, error_class in ((body, None), (encode_grids([]), "no_result"),
                               (b"\3" + body[1:] + body[-3:], "no_result")):
        code = f"import os\nos.pwrite(3, {encode_result(grids)!r}, 0)\nos._exit(0)\n"
        row = scored(executor, "grid", payload, code)
        assert (row.outcome.error_class, row.measures.valid_outputs) == (error_class, error_class is None)


@pytest.mark.parametrize("frame", ["b''", "b'RHR1' + bytes([1, 0, 0, 0, 0])"], ids=["no frame", "a frame"])
def test_a_status_that_is_not_0_is_wrong_whatever_the_script_wrote(executor, frame):
    payload = {"cases": [{"input": "", "output": "3\n"}]}
    code = f"import os\nos.write(1, b'3\\n')\nos.pwrite(3, {frame}, 0)\nos._exit(7)\n"
    row = scored(executor, "stdio", payload, code)
    assert not row.measures.correct and row.outcome.error_class == "no_result"
    assert scored(executor, "stdio", payload, code.replace("(7)", "(0)")).measures.correct


@pytest.mark.parametrize(("code", "exact", "share"), [
    ("", 0.0, 0.0), ("print(3)\n", 0.0, 0.5), ("print(sum(map(int, input().split())))\n", 1.0, 1.0)])
def test_a_script_that_prints_nothing_earns_nothing(executor, code, exact, share):
    rewards = [scored(executor, "stdio", SUMS, code, scorer=Scorer(name)).reward
               for name in (default_reward(["stdio"]), "by-kind", "tests-share")]
    assert rewards == [exact, exact, share]


@pytest.mark.parametrize(
    ("payload", "text", "correct"),
    [
        ({"answer": "Paris"}, " paris. ", True),
        ({"answer": "Paris"}, "It is Paris", False),
        ({"answer": ["Paris", "Lutetia"]}, "lutetia", True),
        ({"answer": "Paris", "label": "Answer"}, "Answer: Rome\nno:\n**Answer:** Paris\n", True),
        ({"answer": "Paris", "label": "Answer"}, "Paris", False),
        ({"answer": 1234.5, "match": "numeric"}, "so 7 apples and then 1,234.50", True),
        ({"answer": "0.5", "match": "numeric"}, "the result is 1/2", True),
        ({"answer": "0.5", "match": "numeric"}, "0.500001", False),
        ({"answer": "0.5", "match": "numeric", "tolerance": 1e-3}, "0.5001", True),
        ({"answer": "1234568", "match": "numeric"}, "1,234,567", False),
        ({"answer": "1234568", "match": "numeric"}, "1234567.9", True),
        ({"answer": "1234568", "match": "numeric", "tolerance": 1e-6}, "1234567", True),
        ({"answer": "12", "match": "numeric"}, "it is \\boxed{12} since 5 > 3", True),
        ({"answer": "x"}, "", False),
        ({"answer": "caf\u00e9"}, "cafe\u0301", True),
        ({"answer": "0.5", "match": "numeric"}, r"it is \boxed{\frac{1}{2}}", True),
        ({"answer": r"-\frac34", "match": "numeric"}, r"$-\dfrac{3}{4}$", True),
        ({"answer": 1.5, "match": "numeric"}, r"1\frac{1}{2}", True),
        ({"answer": 1000000, "match": "numeric"}, "10^6", True),
        ({"answer": "10^{6}", "match": "numeric"}, "1,000,000", True),
        ({"answer": 120000, "match": "numeric"}, r"1.2 \times 10^5", True),
        ({"answer": 0.00012, "match": "numeric"}, "1.2 \u00d7 10\u207b\u2074", True),
        ({"answer": -5, "match": "numeric"}, "\u22125", True),
        ({"answer": 42, "match": "numeric"}, "42 m^2", True),
        ({"answer": 42, "match": "numeric"}, r"\boxed{42\text{ m}^2}", True),
        ({"answer": 42, "match": "numeric"}, "42 m\u00b2", True),
        ({"answer": 42, "match": "numeric"}, "x^2 = 42km", True),
        ({"answer": 42, "match": "numeric"}, "_42_", True),
        ({"answer": 42, "match": "numeric"}, "x_42", False),
        ({"answer": 42, "match": "numeric"}, "USD42", True),
        ({"answer": -4, "match": "numeric"}, "\u20134", True),
        ({"answer": 42, "match": "numeric"}, "0x42", False),
        ({"answer": 0, "match": "numeric"}, "-0x42", False),
        ({"answer": "Paris"}, "**Paris**", True),
        ({"answer": 2, "match": "numeric"}, "42 m^2", False),
        ({"answer": 1, "match": "numeric"}, "9^99999999", False),
        ({"answer": "Paris"}, '"Paris."', True),
        ({"answer": "Paris"}, "\\boxed{\\text{\u201cparis\u201d}}", True),
        ({"answer": "'Paris'"}, "Paris", True),
        ({"answer": "..."}, "?", False),
        ({"answer": 3.5, "match": "numeric"}, "3 1/2", True),
        ({"answer": 0.5, "match": "numeric"}, "3 1/2", False),
        ({"answer": -3.5, "match": "numeric"}, "so it is -3 1/2 m", True),
        ({"answer": 3.5, "match": "numeric"}, r"\boxed{3\,\frac{1}{2}}", True),
        ({"answer": -0.75, "match": "numeric"}, r"\boxed{\frac{3}{-4}}", True),
        ({"answer": 0.15, "match": "numeric"}, r"\boxed{\frac{1.5}{10}}", True),
        ({"answer": -3, "match": "numeric"}, r"\boxed{- 3}", True),
        ({"answer": 42, "match": "numeric"}, r"\boxed{x_1 = 40 + 2 = 42}", True),
        ({"answer": 42, "match": "numeric"}, r"\fbox{42}", True),
        ({"answer": 1200000, "match": "numeric"}, "12,00,000", True),
        ({"answer": 1234, "match": "numeric"}, r"\boxed{1,2,3,4}", False),
        ({"answer": 42, "match": "numeric"}, r"\boxed{41 or 42}", False),
        ({"answer": 58, "match": "numeric"}, r"\boxed{100-58}", False),
        ({"answer": 3, "match": "numeric"}, r"\boxed{2\sqrt{3}}", False),
        ({"answer": 16, "match": "numeric"}, r"\boxed{\sqrt{16}}", False),
        ({"answer": 3, "match": "numeric"}, r"\boxed{3\pi}", False),
        ({"answer": 3, "match": "numeric"}, r"\boxed{3!}", False),
        *(({"answer": answer, "match": "numeric"}, text, True) for answer, text in (
            (-7, r"\boxed{-\left(7\right)}"), (-7, r"\boxed{-\$7}"), (-7, "Answer: -$7"),
            (-0.25, r"\boxed{-2^{-2}}"), (7, r"\boxed{7^{\text{th}}}"), (7, r"\boxed{7^\circ}"),
            (7, r"\boxed{**7**}"), (7, r"\boxed{7 \min}"), (0.5, r"\boxed{P(A) = 0.5}"),
            (7, r"\boxed{\boldsymbol{7}}"), (7, r"\boxed{7\text{-year}}"), (7, r"\boxed{7 nm}"),
            (7, r"\boxed{7\text{ orders}}"), (7, "\\boxed{\u2248 7}"), (-7, "\\boxed{\u20117}"),
            (1000000, "1000000.4"), (-5, "\\boxed{\uff0d5}"), (-5, "it is \ufe635"), (-5, "\\boxed{\u20105}"),
            (-5, "\\boxed{\u20145}"), (-5, "\\boxed{\u22125}"), (0.5, "\\boxed{\u00bd}"), (2.5, "2\u00bd"),
            (-0.75, "\\boxed{-\u00be}"), (42, r"so \boxed42 in 3 steps"), (-1.5, r"\fbox -1.5."),
            (42.5, r"\boxed{85\over 2}"), (1000, "1\u202f000"), (42, r"\boxed{42\text{km}}"),
            (10, r"\boxed{10 a.m.}"), (762, r"\boxed{762\text{ M&Ms}}"),
            (40, r"\boxed{40\text{ fewer songs}}"),
            (20, r"\boxed{20\text{ left over}}"), (10, r"\boxed{\text{pots left over: }10}"),
            (14, r"\boxed{14\text{ degrees lower than}}"), (42, r"\boxed{42\,\text{kg}\cdot\text{m}}"),
            (42, r"\boxed{42\ \mathrm{m\cdot s^{-1}}}"), (42, r"\boxed{-(-42)}"), (1000, r"\boxed{1\ 000}"),
            (1000, "\\boxed{1~000}"), ("1/3", "0.333333"), (-7, r"\boxed{-\ 7}"),
            (8, "\\boxed{8\\text{ of Sue\u2019s}}"),
            (1234, r"\boxed{1,234}"), (-7, "\\boxed{\u2212\u200b7}"))),
        *(({"answer": answer, "match": "numeric"}, text, False) for answer, text in (
            *((12, text) for text in (r"\boxed{144/12}", "144/12", r"\boxed{\frac{24}{2}}", "12^1", "5 14/2")
              ), (1024, "2^{10}"), (12100, "110^2"),
            (7, r"\boxed{-\left(7\right)}"), (7, "-$7"), (4, r"\boxed{-2^2}"), (7, r"\boxed{(7)^2}"),
            (0.5, r"\boxed{\left(\frac{1}{2}\right)^2}"), (7, r"\boxed{\frac{x}{7}}"), (7, r"\boxed{x + 7}"),
            (7, r"\boxed{(7)!}"), (7, r"\boxed{7^x}"), (7, r"\boxed{\arcsin 7}"), (7, r"\boxed{f(7)}"),
            (-7, r"\boxed{|-7|}"), (7, r"\boxed{x != 7}"), (7, r"\boxed{x \ge 7}"), (7, r"\boxed{\pm 7}"),
            (7, r"\boxed{7 \cdot x}"), (7, r"\boxed{7x}"), (7, r"\boxed{7 - x}"), (7, r"\boxed{7 million}"),
            (7, r"\boxed{7\text{ hundred}}"), (7, r"\boxed{\text{not } 7}"), (7, r"\boxed{at least 7}"),
            (7, r"\boxed{x or 7}"), (7, r"\boxed{7 squared}"), (7, r"\boxed{\notin 7}"),
            (7, r"\boxed{7 and a half}"), (7, r"\boxed{twice 7}"), (7, r"\boxed{7\text{ trillion}}"),
            (7, "\\boxed{\u22607}"), (7, "\\boxed{\u20117}"), (7, r"\boxed{x \equiv 7}"),
            *((5, f"\\boxed{{{dash}5}}") for dash in "\uff0d\u2010\ufe63\u2014\u2212"),
            (2, "\\boxed{2\u00bd}"), (7, "\\boxed{7\u2460}"), (7, r"\boxed{7\quad8}"), (7, r"\boxed{7a8}"),
            (7, r"\boxed{7C2}"), (7, r"\boxed{ln 7}"), (7, r"\boxed{\operatorname{log} 7}"),
            (7, r"\boxed{\mathrm{log} 7}"),
            (7, r"\boxed{7k}"), (7, r"\boxed{7M}"), (7, r"\boxed{7 lakh}"), (7, r"\boxed{under 7}"),
            (7, r"\boxed{7 below zero}"),
            (1000000, "1000000.6"), (1000001, r"\boxed{1000000.5}"), (1234, r"\boxed{(1,234)}"),
            (7, r"\boxed{(7,x)}"),
            ("1/23", r"\boxed{\frac{1}{2}3}"), (7, r"\boxed{\text{under }7}"), (7, r"\boxed{7\text{k}}"),
            *((7, f"\\boxed{{{dash}7}}") for dash in ("-\\ ", "-~", r"-\;", "-\u200b", "\u2015", "\u02d7",
            "\u2796",
                                                     r"\textminus ")),
            *((7, f"\\boxed{{{other}}}") for other in (
                "{7}^2", r"\underline{7}^{2}", "7/x", r"7\div x", "7K", "7bn", "7xy", r"7\theta", r"\theta 7",
                r"\sinh 7", r"\det 7", r"x \not= 7", "x < = 7", r"7 \choose x", "7\u203c", "7\u2030",
                r"\cancel{7}")))),
        ({"answer": 42, "match": "numeric"}, r"\boxed{42 \frac{\text{m}}{\text{s}}}", True),
        ({"answer": "Paris", "label": "Final Answer"}, "### **Final Answer:** Paris", True),
        ({"answer": "Paris"}, r"\boxed{\textbf{Paris}}", True),
        ({"answer": "C"}, r"\boxed{\text{(C)}}", True),
        ({"answer": "(C)"}, "c)", True),
        ({"answer": "C"}, "(A)", False),
        ({"answer": "(1, 2)"}, "1, 2", False),
        ({"answer": "1/2"}, "$1/2$", True),
        ({"answer": "x"}, r"\(x\)", True),
        ({"answer": "don't"}, "Don\u2019t.", True),
        *(({"answer": "Paris", "label": "Answer"}, text, True) for text in (
            "## Answer: Paris", "- Answer: Paris", "2. **Answer:** Paris",
            "1. **Answer: Paris**", "> **Answer:** Paris", "1. Answer: Paris",
            "## The final answer: Paris", "Final Answer: Paris",
            "**The answer: Paris**", "Answer:\n\nParis\nbecause", "**Answer:**\nParis",
            "Answer: $\\text{Paris}$",
            "Answer\uff1aParis", "## Answer\nParis", "## Final answer\r\n\r\n**Paris**",
            "Answer\uff1a\nParis",
            "Answer: Paris\nAnswers may vary.", "**Answer**\n\nParis", "Answer\nParis",
            "Answer: (Paris)", "Answer: Paris\nThe answer is clear.", "Answer: Paris\n\nAnswer:\n")),
        *(({"answer": answer}, given, False) for answer, given in (
            ("SELECT *", "SELECT"), ("a*", "a"), ("a", "a*"), ("(ab)*", "ab"), ("ab.*", "ab"), ("^a$", "^a"),
            ("*args", "args"), ("char **", "char *"), ("f'", "f"), ("f", "f'"), ("x''", "x'"),
            ("$PATH", "PATH"), ("'a' and 'b'", "a' and 'b"), ("$a$ + $b$", "a$ + $b"))),
        *(({"answer": answer}, given, True) for answer, given in (
            ("SELECT *", "SELECT *"), ("SELECT *", "`SELECT *`."), ("a*", r"\boxed{a*}"),
            ("*args", "`*args`"), ("...", "..."), ("f'", "$f'$"), ("$PATH", '"$PATH"'),
            ("__init__", "`__init__`"), ("__init__", "__init__"), ("init", "__init__"),
            ("'a' and 'b'", "'a' and 'b'"), ("Paris", "**'Paris'**."),
            ("100%", r"\boxed{100\%}"), ("$5", r"\boxed{\$5}"), ("B", '"B".'),
            ("Tom & Jerry", r"\boxed{\text{Tom \& Jerry}}"))),
        *(({"answer": "a*", "label": "Answer"}, text, True) for text in (
            "Answer: a*", "Answer: `a*`", "## Answer\na*")),
        ({"answer": "Paris", "label": "Answer"}, "\u2022 Answer: Paris", True),
        ({"answer": "Paris", "label": "Answer"}, "The correct answer: _Paris_.", True),
        *(({"answer": 7, "match": "numeric"}, rf"\boxed{{7\text{{ {word}}}}}", False) for word in (
            "millions", "thousands", "hundreds", "dozens")),
        *(({"answer": "Paris", "label": "Answer"}, text, False) for text in (
            "## Answer\nRome\nParis",
            "Answer: Rome\nParis", "Answer: Paris\nFinal answer: Rome", "Answer:\nRome\nParis")),
        *(({"answer": "A", "label": "The answer is"}, text, True) for text in (
            "The answer is **A**", "The answer is **A**.", "The answer is `A`", "The answer is **(A)**.",
            "Therefore, the answer is A.", "I think the answer is: A", "- The answer is A",
            "**Therefore, the answer is (A).**")),
        ({"answer": "B", "label": "The answer is"}, "So the answer is A.\nNo, the answer is B.", True),
        ({"answer": "Paris", "label": "Answer"}, "Answer **Paris**", True),
        ({"answer": "Paris", "label": "Answer"}, "The capital, and my answer to that, Paris", False),
        ({"answer": 18, "match": "numeric", "label": "####"}, "So #### 18", True),
        *(({"answer": 42, "match": match, "label": label}, text, correct) for match in ("exact", "numeric")
          for label, text, correct in (
            ("Answer:", "Answer: 42\nI checked this answer: it is consistent.", True),
            ("Answer:", "**Answer: 42**\n\nConfidence in answer: 95%", True),
            ("Answer:", "Answer: 43\nA common wrong answer: 42", False),
            ("The answer is", "The answer is 43.\nSome may think the answer is 42", False),
            ("####", "#### 42\nFormat: the line \"#### <number>\" as asked.", True))),
        *(({"answer": answer}, rf"\boxed{{{given}}}", True) for answer, given in (
            ("{1,2}", r"\{1,2\}"), ("New York", r"New\ York"), ("New York", r"\text{New~York}"),
            ("3 m", r"3\,\text{m}"), ("Yes", r"\mbox{Yes}"), ("Yes", r"\operatorname{Yes}"))),
        *(({"answer": r"\(\d+\)"}, given, given[1] == "(") for given in (r"\d+", r"\(\d+\)")),
        *(({"answer": 7, "match": "numeric"}, text, False) for text in (
            "It is $7 billion.", "7 thousand", "$7$ million", "7 **million**", "7-million", "7 mln",
            r"\boxed{7\text{ bil}}", r"\boxed{7 mio}")),
        *(({"answer": 7, "match": "numeric"}, text, True) for text in (
            "7 km", "7m", "7m/s", r"7\,\mathrm{m}", "7 dozen", "7 kids", "a 7k race")),
    ],
)
def test_answers(executor, payload, text, correct):
    row = scored(executor, "answer", payload, None, text)
    assert row.measures.correct == correct


WORDINGS = ("{}", "The answer is {}.", "**{}**", r"\boxed{{{}}}", "so 7 - 2 = 5, and then ${}$", "= {} m^2",
            "{}\n", "`{}` apples", r"\[ x_2 = {}\text{{ cm}}^3 \]")


@given(st.integers(-10**6, 10**6), st.integers(1, 10**4), st.sampled_from(WORDINGS), st.booleans())
def test_a_right_number_is_right_in_any_wording(above, below, wording, in_latex):
    shown = f"{'-' if above < 0 else ''}\\frac{{{abs(above)}}}{{{below}}}" if in_latex else f"{above}/{below}"
    task = KINDS["answer"].load({"answer": f"{above}/{below}", "match": "numeric", "tolerance": 0})
    given_text = given_answer(task, wording.format(shown))
    assert given_text is not None and is_same(given_text, f"{above}/{below}", task)
    assert not is_same(given_text, f"{above + 1}/{below}", task)


TEXTS = ("{}", " {}.\n", "**{}**", '"{}"', r"\boxed{{{}}}",
         r"I think of \boxed{{nothing}}, but \boxed{{\text{{{}}}}}")


@given(st.from_regex(r"[a-z]{1,9}( [a-z]{1,9}){0,3}", fullmatch=True), st.sampled_from(TEXTS), st.booleans())
def test_a_right_text_is_right_in_any_wording_and_another_is_not(answer, wording, shouted):
    task = KINDS["answer"].load({"answer": answer})
    said = wording.format(answer.upper() if shouted else answer)
    assert is_same(given_answer(task, said), answer, task)
    assert not is_same(given_answer(task, wording.format(f"{answer} x")), answer, task)


@pytest.mark.parametrize(("start", "end"), THOUGHTS.values(), ids=THOUGHTS)
def test_the_answer_stands_behind_the_thoughts_not_in_them(start, end):
    thoughts = f"{start}a long thought {'and on ' * 20000}: ```python\ndraft\n``` or \\boxed{{1}}, no"
    assert first_code_block(f"{thoughts}{end}\n```python\nanswer\n```\n```python\nusage\n```") == "answer\n"
    assert boxed_or_end(f"{thoughts}{end} 3/4") == " 3/4"
    assert first_code_block(f"{thoughts}{end} I do not know") is None
    assert given_answer(KINDS["answer"].load({"answer": "Paris"}), f"{thoughts}{end}\n\nParis") == "Paris"


@pytest.mark.parametrize(("start", "end"), THOUGHTS.values(), ids=THOUGHTS)
def test_thoughts_that_never_end_hold_no_answer(start, end):
    for text in (f"{start}a draft\n```python\ndraft\n```\n\\boxed{{1}}",
                 f"{start}a{end} {start}\n```python\nx\n```"):
        assert first_code_block(text) is None and boxed_or_end(text) == ""
        assert given_answer(KINDS["answer"].load({"answer": "1", "match": "numeric"}), text) is None
    said = given_answer(KINDS["answer"].load({"answer": "1"}), f"It is so.\n{start}a draft: \\boxed{{1}}")
    assert said == "It is so."
    assert first_code_block(f"```python\nx\n```\n{start}") == "x\n"


@pytest.mark.parametrize("tag", ["python", "Python", "PYTHON", "python3", "py", " python", "py3",
                                 "python3.11"])
def test_a_block_is_of_python_by_any_of_its_names(tag):
    assert first_code_block(f"```\n7\n```\n```{tag}\nx = 1\n```\n```{tag}\ny\n```") == "x = 1\n"
    assert first_code_block(f"```{tag}x\ny\n```") is None and first_code_block(f"```{tag}\nx") is None
    assert first_code_block(f"```\nx\n```\n```{tag}\ny") is None


def test_a_block_without_a_language_is_a_program_where_no_other_is():
    assert first_code_block("So `f`:\n```\ndef f(): pass\n```\nThen:\n```\n>>> f()\n```") == "def f(): pass\n"
    assert first_code_block("```bash\nls\n```\nThen:\n```\nx\n```") is None
    assert first_code_block("```\nx\n") is None


@pytest.mark.parametrize(("text", "code"), [
    ("1. So:\n   ```python\n   if x:\n       y\n   ```\n", "if x:\n    y\n"),
    ("\t```python\n\tx\n\t```", "x\n"), ("```python\nx='```'\ny\n```", "x='```'\ny\n"),
    ("```python\nx # ends with ```\ny\n```\nz\n```", "x # ends with ```\ny\n"),
    ("```python\nx #```\ny\n```", "x #```\ny\n"),
    ("```python\ndef f():\n    \"\"\"As in\n    ```python\n    f()\n    ```\n    \"\"\"\n```",
     "def f():\n    \"\"\"As in\n    ```python\n    f()\n    ```\n    \"\"\"\n"),
    ("````python\nx\n````", "x\n"), ("```python\nx```\nThen:\n```\n7\n```", "x"), ("```python x```", "x"),
    ("```python\nx ``` so", "x "), ("```python\r\nx\r\n```\r\n", "x\r\n"),
    ("- ```python\n  if x:\n      y\n  ```\n", "if x:\n    y\n"),
    ("* So:\n  1. ```python\n     x\n     ```\n", "x\n"),
    ("- ```python\nif x:\n  y\n```", "if x:\n  y\n"), ("1. ```python\nif x:\n\ty\n```", "if x:\n\ty\n"),
    ("- ```python\n  s = \'\'\'\nx\n  \'\'\'\n  ```", "s = \'\'\'\nx\n\'\'\'\n"),
    ("> ```python\nif (x\n> 2):\n  y\n```", "if (x\n> 2):\n  y\n"),
    ("> ```python\n> if (x\n> > 2):\n>   y\n> ```", "if (x\n> 2):\n  y\n"),
    ("About ~~~ python ~~~ lists:\n```python\nx\n```", "x\n"), ("~~~python~~~ no\n```python\nx\n```", "x\n"),
    ("> ```python\n> if x:\n>\n>     y >= '>'\n> ```\nso", "if x:\n\n    y >= '>'\n"),
    ("```python main.py\nx\n```", "x\n"), ("```python:src/a-b.py \nx\n```", "x\n"),
    (">```python\n>x\n>```", "x\n"), ("~~~python\nx\n```\ny\n~~~\nz", "x\n```\ny\n"),
    ("```python\n>>> x\n```", ">>> x\n"), ("```python x.py = 1\n```", "x.py = 1\n"),
    ("```python\nx\n``` This prints", "x\n"), ("**```python\nx\n```**", "x\n")])
def test_a_block_ends_where_markdown_ends_it(text, code):
    assert first_code_block(text) == code


@given(st.text("xyz?!,; \n", max_size=80))
def test_garbage_is_no_number(text):
    assert given_answer(KINDS["answer"].load({"answer": "7", "match": "numeric"}), text) is None


@given(st.lists(st.from_regex(r"[a-z0-9.-]{1,6}", fullmatch=True), min_size=1, max_size=6), st.data())
def test_blanks_between_words_of_an_output_are_harmless_and_other_words_are_not(words, data):
    blanks = data.draw(st.lists(st.text(" \t\n", min_size=1, max_size=3), min_size=len(words),
                                max_size=len(words)))
    task = KINDS["stdio"].load({"cases": [{"input": "", "output": " ".join(words)}]})
    written = "".join(word + blank for word, blank in zip(words, blanks, strict=True))
    assert is_expected(written, " ".join(words), task)
    assert not is_expected(written + "x", " ".join(words), task)
    assert not is_expected(written.replace(words[0], "+", 1), " ".join(words), task)


@pytest.mark.parametrize(("written", "wanted", "right"), [
    ("1000001", "1000000", False), ("3 999999999", "3 999999998", False), ("1e9", "1000000006", False),
    ("1000000.9", "1000000", False), ("5.0", "5", True), ("5", "5.0", True),
    ("0.3333333", "0.33333333", True),
    ("1_0.5", "10.5", False), ("\u0661.5", "1.5", False), ("1e400", "1e500", False), ("nan", "NaN", False)])
def test_whole_words_of_an_output_are_equal_and_others_near(written, wanted, right):
    task = KINDS["stdio"].load({"cases": [{"input": "", "output": wanted}], "tolerance": 1e-6})
    assert is_expected(written, wanted, task) == right


@pytest.mark.parametrize(("written", "right"), [
    ("inf", False), ("1" + "0" * 400, False), ("7" * 400, True), ("nan", False)])
def test_no_number_is_near_one_that_no_float_holds(written, right):
    task = KINDS["stdio"].load({"cases": [{"input": "", "output": "7" * 400}], "tolerance": 1e-6})
    assert is_expected(written, task.cases[0][1], task) == right


@pytest.mark.parametrize(("written", "wanted", "right"), [
    ("a \n1.50 2\n", "a\n1.5 2.0", True), ("1 2", "1\n2", False), ("YES", "yes", False), ("", "", True),
    ("a 1.0", "a 1", False), ("50000000000000001", "50000000000000000", False), ("1e1", "10", True),
    ("1", "", False), ("sNaN", "1", False)])
def test_values_are_compared_by_line_as_livecodebench_does(written, wanted, right):
    task = KINDS["stdio"].load({"cases": [{"input": "", "output": wanted}], "compare": "values"})
    assert is_expected(written, wanted, task) is right


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        ("function", {}, "payload field 'entry_point' is missing: it has to be str"),
        ("function", {"entry_point": "f", "calls": []}, "Task t: payload field 'calls' is empty"),
        ("function", {"entry_point": "f", "tests": [" "]}, "'tests' is not a list of statements"),
        ("function", {"entry_point": "f", "tests": ""}, "'tests' is not a list of statements"),
        ("stdio", {"cases": []}, "Task t: payload field 'cases' is empty"),
        ("answer", {"match": "numeric"}, "field 'answer' is missing: it has to be str or int"),
        ("answer", {"answer": []}, "Task t: payload field 'answer' is empty. Give"),
        ("function", {"entry_point": "f", "tests": [1]}, "'tests' is not a list of statements"),
        (
            "function",
            {"entry_point": "f", "calls": [{"args": []}]},
            "a call is not an object with 'args' and 'expected'",
        ),
        ("function", {"entry_point": "S().f", "calls": []}, "'entry_point' is 'S().f', which names nothing"),
        ("stdio", {"cases": [{"input": "1"}]}, "field 'cases[0].output' is missing: it has to be str"),
        (
            "stdio",
            {"cases": [{"input": "", "output": ""}], "compare": "magic"},
            "'compare' is 'magic'. Use one of",
        ),
        ("answer", {"answer": "x", "match": "fuzzy"}, "'match' is 'fuzzy'"),
        ("grid", {"train": []}, "Task t has no list 'train'. Correct it."),
        ("grid", {"train": [{"input": [[0] * 31], "output": [[1]]}]}, "input is larger than 30 x 30"),
        ("knitting", {}, "Task t is of kind 'knitting', which cannot be scored. Known: grid"),
    ],
)
def test_a_damaged_payload_is_named(kind, payload, message):
    with pytest.raises(StageError) as caught:
        load_task("t", kind, payload)
    assert message in str(caught.value)


def test_every_kind_that_is_imported_is_scored_by_every_reward():
    assert KINDS.keys() == set(IMPORTED)
    for reward in (*REWARDS, BY_KIND):
        assert reward_of(reward, "new") == REWARDS["exact" if reward == BY_KIND else reward]
    assert DEFAULTS.keys() <= KINDS.keys()


def test_lines_end_where_the_task_ends_them(executor):
    payload = {"cases": [{"input": "", "output": "a\nb\r\n"}], "compare": "lines"}
    rows = [scored(executor, "stdio", payload, f"print({text!r})") for text in ("a\r\nb", "a\vb", "a\u2028b")]
    assert [row.measures.correct for row in rows] == [True, False, False]
