"""Programs that leave the link to their tests: one verdict, whatever happens first."""

from collections import Counter

import pytest

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import measure, run_programs
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks.kinds import load_task
from score.tasks.measures import Answer

TASK = load_task("t", "function", {"entry_point": "f", "tests": ["assert f(1) == 2", "assert f(2) == 3"]})
SEND = "import json, os\ndef send(x):\n    x = json.dumps(x).encode()\n" \
       "    os.write(4, x + b'\\n')\n"
READY = SEND + "send(['ready'])\n"
ANSWER = "send(['=', False, None, [], [], {}])\n"
FUNCTION = ANSWER.format(
    "['object', 0, ['class', 1, 'function', [], ['__call__'], [], None, 'function', False, None]]")
REPEATS = 12


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(cpu_seconds=0.1, wall_seconds=3.0), 1) as pool:
        yield Executor(pool)


@pytest.mark.parametrize(("code", "verdict"), [
    (READY + "send(['ready'])\nwhile True: pass\n", ("timeout_cpu", 0.0)),
    (READY + "while True: pass\n", ("timeout_cpu", 0.0)),
    (READY + "os._exit(0)\n", ("no_result", 0.0)),
    (READY + "1 / 0\n", ("runtime", 0.0)),
    (SEND + "def f(x):\n    " + ANSWER.format("x + 1") + "    os._exit(0)\n", ("no_result", 0.0)),
    # Constants that are right: in one process with its tests this program does not even start.
    (READY + FUNCTION + ANSWER.format(2) + ANSWER.format(3) + "os._exit(0)\n", ("runtime", 0.0)),
    (SEND + "def f(x):\n    while True: pass\n", ("timeout_cpu", 0.0)),
], ids=["ready twice, hangs", "ready, hangs", "ready, exits", "ready, raises", "one answer, exits",
        "answers ahead", "hangs when called"])
def test_a_program_that_leaves_its_tests_gets_one_verdict(executor, code, verdict):
    answers = [Answer("", f"{code}# {number}\n") for number in range(REPEATS)]
    items = [Item(TASK, answer) for answer in answers]
    rows = measure(items, run_programs(executor, items))
    found = Counter((row.outcome.error_class, row.measures.test.correct_grids) for row in rows)
    assert found == {verdict: REPEATS}
