"""Who is to blame for what cannot be judged: a program can choose to be wrong, never to have no reward."""

import builtins
import json
import socket
import sys
import time
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

from score.checks import check_unscored
from score.cli import score
from score.isolation.lockdown import Layer
from score.jobs import link, program_end
from score.protocol.error_classes import ErrorClass
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Outcome
from score.tasks.kinds import KINDS
from score.tasks.measures import Answer, Measures
from tests.building.runs import TURN, new_run
from tests.building.texts import FLIP, add_rollout, fenced
from warehouse.store.errors import StageError

LIMITS = Limits(cpu_seconds=2.0, wall_seconds=20.0, memory_mib=256)
DEEP = "x = 1\n    for _ in range(64): x = [x]\n    return x"
DEEP_ARGUMENT = DEEP.replace("64", "62").replace("return x", "y.append(x)")


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), LIMITS, 1) as pool:
        yield Executor(pool)


def judged(executor: Executor, payload: object, code: str) -> tuple[Outcome, Measures]:
    """The outcome and the measures of a program that defines f."""
    kind = KINDS["function"]
    task, answer = kind.load({"entry_point": "f", **payload}), Answer("", code)
    outcomes = executor.run(kind.programs(task, answer))
    return outcomes[0], kind.measure(task, answer, outcomes)


@pytest.mark.parametrize(("tests", "code"), [
    ([f"assert f({n}) == 1" for n in range(40)], "def f(x):\n    raise ValueError('\\0' * 5000)"),
    ([f"assert f({n}) == 1" for n in range(1500)], "def f(x):\n    raise ValueError('é' * 5000)"),
    ([f"assert f({n}) == 1, f({n})" for n in range(40)], "def f(x):\n    return '\\1' * 5000"),
    (["assert f(1) == 2, f(1)"], "def f(x):\n    return 10 ** 5000"),
    (["x = [1]\nf(x)\nassert f(x) == 1"], "def f(x):\n    x.append(print)"),
    (["x = [1]\nf(x)\nassert f(x) == 1"], f"def f(y):\n    {DEEP_ARGUMENT}"),
    (["assert f([f(1)]) == 1"], f"def f(y):\n    {DEEP}"),
    (["assert f([f(1)]) == 1"], "def f(y):\n    return 'x' * ((16 << 20) - 20)"),
    (["assert f([f(1)]) == 1", "assert f(1) == 1"], f"def f(y):\n    {DEEP}"),
    ("value = candidate(1)\ndef check(c):\n    assert c(2) == 2\n", "def f(x):\n    raise ValueError('no')"),
    ("value = candidate(1)[0]\ndef check(c):\n    assert c(2) == 2\n", "def f(x):\n    return None"),
    ("value = candidate(1)\ndef check(c):\n    assert c(2) == 2\n", "import os\ndef f(x):\n    os._exit(0)"),
], ids=["long messages", "many long messages", "long messages of tests",
        "message of too many digits", "argument that cannot cross",
        "deep argument passed on", "deep answer passed on", "large answer passed on",
        "deep answer in one of two", "raises in setup", "wrong in setup", "exits in setup"])
def test_what_a_program_brings_about_is_wrong_and_not_unknown(executor, tests, code):
    outcome, measures = judged(executor, {"tests": tests}, code)
    assert not outcome.infrastructure, (outcome.error_class, outcome.error_message)
    assert not measures.correct


@pytest.mark.parametrize(("test", "is_unknown"), [
    ("import sqlite3\nassert f(1) == 1", True), ("assert f(1) == 1\nimport sqlite3", True),
    ("try:\n    f(1)\nexcept ValueError:\n    import sqlite3", False)])
def test_tests_that_import_what_is_not_there_cannot_be_run_unless_the_program_led_them_to_it(
        executor, test, is_unknown):
    outcome, measures = judged(executor, {"tests": [test]}, "def f(x):\n    raise ValueError")
    assert outcome.infrastructure == is_unknown and not measures.correct


@pytest.mark.parametrize("call", ["open('log', 'a')", "os.listdir('.')", "os.mkdir('x')"])
def test_no_test_may_expect_what_the_sandbox_refuses(executor, call):
    tests = ["import pytest\nwith pytest.raises(OSError): f(1)", "assert f(2) == 2"]
    code = f"import os\ndef f(x):\n    if x == 1: {call}\n    return x\n"
    outcome, measures = judged(executor, {"tests": tests}, code)
    assert not measures.correct and not outcome.infrastructure and "the sandbox refused it" in str(outcome)
    raises = "def f(x):\n    if x == 1: raise PermissionError('not you')\n    return x\n"
    assert judged(executor, {"tests": tests}, raises)[1].correct


def test_tests_that_ended_before_a_program_was_ready_are_no_error_of_it(monkeypatch):
    ours, theirs = socket.socketpair()
    theirs.close()
    monkeypatch.setattr(link, "LINK_FD", ours.fileno())
    for name in ("stdout", "stderr", "stdin"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(builtins, "input", input)
    code = compile("def f(x):\n    return x\n", "program", "exec")
    with ours, warnings.catch_warnings():
        assert program_end.serve_tests(code, json.dumps({"entry_point": "f"}).encode()) == b""


@pytest.mark.parametrize("tests", [
    "import nothing_such\ndef check(candidate):\n    assert candidate(1) == 1\n", "def check(:\n",
    ["assert f('x' * (16 << 20)) == 1"], "1 / 0\ndef check(candidate):\n    assert candidate(1) == 1\n",
], ids=["import", "syntax", "large", "raises"])
def test_what_tests_cannot_do_is_no_fault_of_the_program(executor, tests):
    outcome, _measures = judged(executor, {"tests": tests}, "def f(x):\n    return x\n")
    assert outcome.error_class == "untestable"


@pytest.mark.parametrize(("test", "code"), [
    ("assert all(map(f, [1, 2]))", "def f(x):\n    raise StopIteration"),
    ("assert all(f(x) for x in [1, 2])", "def f(x):\n    raise StopIteration"),
    ("class S:\n    def __getitem__(self, i):\n        if i > 3: raise IndexError\n        return f(i)\n"
     "assert all(x == 1 for x in S())", "def f(x):\n    raise IndexError"),
    ("class S:\n    def __getattr__(self, name):\n        return f(name)\nassert not hasattr(S(), 'x')",
     "def f(x):\n    raise AttributeError"),
    ("try:\n    f(1)\nexcept Exception:\n    pass", "import os\ndef f(x):\n    os._exit(0)"),
    ("try:\n    f(1)\nexcept:\n    pass", "import os\ndef f(x):\n    os._exit(0)"),
    ("try:\n    f(1)\nexcept BaseException:\n    pass\nelse:\n    raise AssertionError",
     "import os\nos._exit(0)"),
], ids=["map", "generator", "getitem", "getattr", "any exception", "anything", "before the tests"])
def test_errors_that_tests_would_swallow_pass_none(executor, test, code):
    outcome, measures = judged(executor, {"tests": [test]}, code)
    assert not measures.correct and not outcome.infrastructure


@pytest.mark.parametrize("error", ["IndexError", "KeyError", "AttributeError", "ValueError", "RuntimeError"])
def test_errors_that_tests_expect_pass(executor, error):
    test = f"def call():\n    try:\n        f(1)\n    except {error}:\n        return True\nassert call()"
    assert judged(executor, {"tests": [test]}, f"def f(x):\n    raise {error}('x')\n")[1].correct


def test_errors_that_take_more_than_a_message_arrive_as_their_base(executor):
    test = "try:\n    f(1)\n    assert False\nexcept ValueError:\n    pass"
    assert judged(executor, {"tests": [test]}, "def f(x):\n    return b'\\xff'.decode()\n")[1].correct


@pytest.mark.parametrize("forged", [
    '{"$": "set", "v": [%s]}', '{"$": "frozenset", "v": [%s]}', '{"$": "dict", "v": [%s]}'])
def test_keys_that_collide_cost_the_scorer_no_time(forged):
    keys = [json.dumps({"$": "int", "v": hex(number * (2**61 - 1))}) for number in range(1, 30_000)]
    if "dict" in forged:
        keys = [f"[{key}, 1]" for key in keys]
    kind = KINDS["function"]
    task = kind.load({"entry_point": "f", "calls": [{"args": [], "expected": [1]}]})
    result = json.loads(forged % ", ".join(keys))
    started = time.process_time()
    assert not kind.measure(task, Answer("", "x"), [Outcome(result=[["value", result]])]).correct
    assert time.process_time() - started < 10     # every key against every other would take longer


def test_an_allowed_module_that_cannot_be_imported_stops_the_lanes(tmp_path):
    (tmp_path / "broken_module.py").write_text("import nothing_such\n")
    config = LaneConfig(Layer.SECCOMP, ("broken_module",), import_paths=(str(tmp_path),))
    with pytest.raises(StageError, match=r"broken_module.*nothing_such"):
        LanePool(config, LIMITS, 1)


def test_a_module_that_fails_beside_the_program_is_the_program_s_risk(tmp_path):
    (tmp_path / "greedy.py").write_text("import sys\nif 'graphlib' in sys.modules:\n    raise MemoryError\n")
    config = LaneConfig(Layer.SECCOMP, ("greedy",), import_paths=(str(tmp_path),))
    code = "import graphlib, greedy\ndef f(x):\n    return x\n"
    with LanePool(config, LIMITS, 1) as pool:
        sources = (code, code.replace("graphlib, greedy", "greedy, graphlib"))
        outcomes = [judged(Executor(pool), {"tests": ["assert f(1) == 1"]}, source)[0] for source in sources]
    assert not any(outcome.infrastructure for outcome in outcomes)


LAMBDA = {"entry_point": "f", "setup": "import nothing_such", "tests": ["assert f() == 1"]}


@pytest.mark.parametrize(("num_untestable", "stops"), [(1, False), (2, True)])
def test_tests_that_cannot_be_run_stop_the_stage_as_the_fault_of_tasks(tmp_path, num_untestable, stops):
    warehouse = new_run(tmp_path / "run", {"turn": TURN, "call": ("function", LAMBDA)})
    programs = [f"def f(g):\n    return {number}\n" for number in range(num_untestable)]
    add_rollout(warehouse, [("turn", fenced(FLIP)), *(("call", fenced(program)) for program in programs)])
    scored = CliRunner().invoke(score, [str(warehouse.root), "--lanes", "1"])
    assert scored.exit_code == int(stops), scored.output
    told = "The tests of 2 of 3 programs of part-00000.parquet cannot be run ("
    assert (told in scored.output) == stops and "That is this machine" not in scored.output
    assert ("1 completion without reward: the tests of call cannot be run (" in scored.output) != stops


def test_a_few_tasks_whose_tests_cannot_be_run_do_not_end_a_run():
    untestable = Outcome(error_class=ErrorClass.UNTESTABLE, error_message="name 'Node' is not defined")
    check_unscored([untestable] * 16 + [Outcome()] * 496, Path("part"))
    with pytest.raises(StageError, match="The tests of 128 of 512 programs of part cannot be run"):
        check_unscored([untestable] * 128 + [Outcome()] * 384, Path("part"))


def test_programs_that_could_not_be_run_stop_the_stage_as_the_machines_fault():
    failed = Outcome(error_class=ErrorClass.SPAWN_FAILED, error_message="no process could be forked")
    check_unscored([failed] + [Outcome()] * 50, Path("part"))
    with pytest.raises(StageError, match=r"2 of 52 .* \(2 x spawn_failed; .* this machine"):
        check_unscored([failed] * 2 + [Outcome()] * 50, Path("part"))
