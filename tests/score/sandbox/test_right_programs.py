"""Right programs that a locked process could judge wrong: each of them passes."""

import json

import duckdb
import pytest

from score.isolation.lockdown import Layer
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Outcome
from score.tasks.kinds import KINDS
from score.tasks.measures import Answer, Measures

LIMITS = Limits(cpu_seconds=2.0, wall_seconds=20.0)
GRID = {"train": [{"input": [[1, 2]], "output": [[1, 2]]}], "test": []}
SUM = {"cases": [{"input": "1 2\n3\n", "output": "6"}]}


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), LIMITS, 1) as pool:
        yield Executor(pool)


def judged(executor: Executor, kind: str, payload: object, code: str) -> tuple[Outcome, Measures]:
    """The outcome and the measures of a program."""
    task, answer = KINDS[kind].load(payload), Answer("", code)
    plan = KINDS[kind].programs(task, answer)
    outcomes = executor.run(plan)
    return outcomes[0], KINDS[kind].measure(task, answer, outcomes)


@pytest.mark.parametrize("code", [
    "def transform(größe):\n    return größe\n",
    "def transform(g):\n    x = '\\N{BULLET}'\n    return g\n",
    "import logging\nlogging.basicConfig()\ndef transform(g):\n    logging.warning('x')\n    return g\n",
    "from concurrent.futures import ThreadPoolExecutor\ndef transform(g):\n    return g\n",
    "def transform(g):\n    assert 'm\u00fcnchen'.encode('idna') == b'xn--mnchen-3ya'\n    return g\n",
    "def transform(g):\n    'ab'.encode('cp1252').decode('utf-8-sig').encode('shift_jis')\n    return g\n",
    "import codecs\ndef transform(g):\n    assert codecs.encode('ab', 'rot13') == 'no'\n    return g\n",
    "def transform(g):\n    b'a'.decode('unicode_escape')\n    return g\n",
    "def transform(g):\n    return np.array(g, dtype=object)\n",
    "def transform(g):\n    return [map(int, row) for row in g]\n",
    "def transform(g):\n    return map(list, g)\n",
    "def transform(g):\n    return zip(*np.transpose(g))\n",
    "def transform(g):\n    return [np.array(row, dtype=object) for row in g]\n",
])
def test_grids(executor, code):
    outcome, measures = judged(executor, "grid", GRID, code)
    assert measures.correct, (outcome.error_class, outcome.error_name, outcome.error_message)


@pytest.mark.parametrize("body", [
    "[[1, None]]", "['12']", "[{1: 2}]", "[{1, 2}]", "None", "[[10**30]]", "np.array([[1.5]], dtype=object)",
    "5"])
def test_no_grids(executor, body):
    outcome, _measures = judged(executor, "grid", GRID, f"def transform(g):\n    return {body}\n")
    assert outcome.error_class == "invalid_output"


@pytest.mark.parametrize("code", [
    "import os\ndata = os.read(0, os.fstat(0).st_size)\nprint(sum(map(int, data.split())))\n",
    "import os, sys\nassert 'r' in sys.stdin.mode and 'w' in sys.stdout.mode\n"
    "print(sum(map(int, sys.stdin.buffer.read().split())))\n",
    "import sys\nlines = iter(sys.stdin.buffer.readline, b'')\n"
    "print(sum(int(x) for line in lines for x in line.split()))\n",
    "print(sum(map(int, open('/dev/stdin').read().split())))\n",
    "import sys\nfrom pathlib import Path\nprint(sum(map(int, Path('/dev/stdin').read_text().split())))\n",
    "import os\nprint(sum(map(int, open(0).read().split())), flush=True)\nos._exit(0)\n",
    "import atexit\natexit.register(print, 6)\n",
    "import sys\nsys.__stdout__.write('6\\n')\n",
    "import fileinput\nprint(sum(int(x) for line in fileinput.input() for x in line.split()))\n",
    "print(6)\nquit()\n",
    "import sys\nprint(6)\nsys.stdout.close()\n",
    "import io, os, sys\nclass Wrapper(io.StringIO):\n    def flush(self):\n"
    "        os.write(1, self.getvalue().encode())\n"
    "        self.truncate(0)\nsys.stdout = Wrapper()\nprint(6)\n",
    "import sys\nprint(6)\nsys.exit()\n",
    "größe = sum(map(int, open(0).read().split()))\nprint(größe)\n",
    "from io import BytesIO, IOBase\nimport os, sys\nbuffer = BytesIO()\nfd = sys.stdin.fileno()\n"
    "while True:\n    b = os.read(fd, max(os.fstat(fd).st_size, 8192))\n    if not b:\n        break\n"
    "    buffer.write(b)\nprint(sum(map(int, buffer.getvalue().split())))\n",
])
def test_scripts(executor, code):
    outcome, measures = judged(executor, "stdio", SUM, code)
    assert measures.correct, (outcome.error_class, outcome.error_name, outcome.error_message, outcome.result)


@pytest.mark.parametrize("code", [
    "print(6)\nraise SystemExit(1)\n", "print(6)\nraise SystemExit(0.0)\n",
    "import os\nprint(6, flush=True)\nos._exit(1)\n", "print(6)\n1 / 0\n",
    "print(6)\nimport os\nos.abort()\n"])
def test_scripts_that_fail_after_their_output(executor, code):
    outcome, measures = judged(executor, "stdio", SUM, code)
    assert outcome.error_class in ("runtime", "no_result", "crashed") and not measures.correct


@pytest.mark.parametrize(("value", "expected"), [
    ("Color.RED", "red"), ("float('nan')", float("nan")),
    ("collections.deque([1, 2])", [1, 2]), ("decimal.Decimal('0.5')", 0.5), ("decimal.Decimal(3)", 3),
    ("fractions.Fraction(1, 4)", 0.25), ("fractions.Fraction(10**30)", 10**30),
    ("{(1, 2): 3}", {"(1, 2)": 3}),
    ("decimal.Decimal('Infinity')", float("inf"))])
def test_results_of_calls(executor, value, expected):
    code = ("import collections, decimal, enum, fractions\nclass Color(str, enum.Enum):\n    RED = 'red'\n"
            f"def f():\n    return {value}\n")
    payload = {"entry_point": "f", "calls": [{"args": [], "expected": expected}]}
    outcome, measures = judged(executor, "function", json.loads(json.dumps(payload)), code)
    assert measures.correct, (outcome.error_message, measures.outputs)


@pytest.mark.parametrize(("value", "expected"), [
    ("{3, 1, 2}", [1, 2, 3]), ("frozenset('ba')", ["a", "b"]), ("{1.0, 2}", [2, 1]),
    ("[{1, 2}, (3, {'a': {4}})]", [[2, 1], [3, {"a": [4]}]]), ("{(1, 2), (0, 1)}", [[0, 1], [1, 2]])])
def test_sets_are_no_results_of_calls(executor, value, expected):
    test_wrong_results_of_calls(executor, value, expected)


@pytest.mark.parametrize(("value", "expected"), [
    ("{1, 2}", [1, 3]), ("{1}", [1, 1]), ("{True}", [1]), ("float('nan')", 1), ("1", float("nan")),
    ("{1: 2, '1': 2}", {"1": 2})])
def test_wrong_results_of_calls(executor, value, expected):
    payload = {"entry_point": "f", "calls": [{"args": [], "expected": expected}]}
    _outcome, measures = judged(executor, "function", payload, f"def f():\n    return {value}\n")
    assert not measures.correct


def test_arguments_of_calls_take_no_room_in_the_output(executor):
    payload = {"entry_point": "f", "calls": [{"args": [list(range(30_000))], "expected": 449985000}]}
    outcome, measures = judged(executor, "function", payload, "f = sum\n")
    assert measures.correct, outcome.error_class


@pytest.mark.parametrize("tests", [
    ["import math\nassert f(4) == math.isqrt(16)",
     "from fractions import Fraction\nassert f(Fraction(1, 2)) == 0.5"],
    ["größe = 4\nassert f(größe) == größe"], ["assert f('\\N{BULLET}') == '•'"],
    "import logging\ndef check(candidate):\n    assert candidate(1) == 1\n"])
def test_tests_may_import_and_hold_any_character(executor, tests):
    payload = {"entry_point": "f", "tests": tests}
    outcome, measures = judged(executor, "function", payload, "def f(x):\n    return x\n")
    assert measures.correct, (outcome.error_message, measures.outputs)


@pytest.mark.parametrize("name", ["int8", "uint16", "float32", "bool", "object"])
def test_grids_of_every_number_type_pass(executor, name):
    payload = {"train": [], "test": [{"input": [[1, 0]], "output": [[1, 0]]}]}
    assert judged(executor, "grid", payload, f"def transform(g):\n    return g.astype('{name}')\n")[1].correct


@pytest.mark.parametrize("task", [{"calls": [{"expected": 1}]}, {"tests": ["assert f() == 1, f()"]}])
def test_outputs_are_json_for_every_reader(executor, task):
    code = "def f():\n    return 'é\\ud800'\n"
    _outcome, measures = judged(executor, "function", {"entry_point": "f", **task}, code)
    [[is_null]] = duckdb.sql("SELECT json_extract(?, '$.test') IS NULL", params=[measures.outputs]).fetchall()
    assert not is_null and "é" in str(json.loads(measures.outputs))


KINDS_OF_THINGS = """
from abc import ABC
from typing import Protocol, runtime_checkable

@runtime_checkable
class Quacks(Protocol):
    def quack(self): ...

class Duck:
    def quack(self): return "quack"

class Rock: pass

class Shape(ABC): pass

@Shape.register
class Square:
    def area(self): return 1

class Measured(ABC):
    @classmethod
    def __subclasshook__(cls, other): return hasattr(other, "area") or NotImplemented

class Good(type):
    def __instancecheck__(cls, value): return getattr(value, "is_good", False)

class Goods(metaclass=Good): pass

class Apple:
    is_good = True

def f(): return Square()
"""


def test_classes_decide_by_their_hooks_what_is_one_of_them(executor):
    tests = ["assert isinstance(Duck(), Quacks)", "assert not isinstance(Rock(), Quacks)",
             "assert isinstance(f(), Shape) and issubclass(Square, Shape)",
             "assert isinstance(f(), Measured)", "assert isinstance(Apple(), Goods)",
             "assert not isinstance(Rock(), Goods)",
             "assert not isinstance(3, Quacks)"]
    _outcome, measures = judged(executor, "function", {"entry_point": "f", "tests": tests}, KINDS_OF_THINGS)
    assert measures.correct, measures.outputs
    wrong = KINDS_OF_THINGS.replace("@Shape.register\n", "").replace("    is_good = True", "    pass")
    _outcome, measures = judged(executor, "function", {"entry_point": "f", "tests": tests}, wrong)
    assert [place for place, unit in enumerate(json.loads(measures.outputs)["test"]) if not unit[0]] == [2, 4]


COUNTED = """
class Once:
    def __init__(self): self.left = [5]
    def __len__(self): return len(self.left)
    def __iter__(self): return self
    def __next__(self):
        if not self.left: raise StopIteration
        return self.left.pop()

class Queue:
    def __init__(self): self.items = []
    def __len__(self): return len(self.items)
    def put(self, x): self.items.append(x)
    def get(self): return self.items.pop()

def f(): return Queue()
def once(): return Once()
"""


def test_lengths_are_those_of_the_program_where_it_may_have_changed_them(executor):
    tests = ["assert list(once()) == [5]",
             "q = f(); q.put(1); assert len(q) == 1; assert q.get() == 1; assert len(q) == 0",
             "q = f(); assert len(q) == 0; q.items = [1]; assert len(q) == 1"]
    payload = {"entry_point": "f", "tests": tests}
    _outcome, measures = judged(executor, "function", payload, COUNTED)
    assert measures.correct, measures.outputs
