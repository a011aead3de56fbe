"""What a program can learn from its lane, and what becomes of it when the lane is gone."""

import os
import struct
import tempfile
import time

import numpy as np
import pytest

from score.isolation.lockdown import Layer, Lockdown, limit_bytes
from score.judging.completions import Item
from score.judging.judge import measure, run_programs
from score.protocol.frames import OVERLOAD_PATIENCE, JobKind, Verdict, encode_grids, split_result
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import SILENT_SECONDS, LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Program
from score.sandbox.ticket import Slot, Ticket
from score.tasks.kinds import load_task
from score.tasks.measures import Answer

GRID = np.array([[1, 2], [3, 4]], dtype=np.uint8)
# Values in the frames of the lane, and the memory in which the kernel leaves its account of a process.
LOOK = """
import sys
seen = []
frame = sys._getframe()
while frame is not None:
    if frame.f_code.co_filename.endswith(("lane/main.py", "supervisor.py")):
        for name, value in frame.f_locals.items():
            if isinstance(value, (bytes, list)) and name not in ("message", "ancillary", "children"):
                seen.append((name, len(value)))
            if name == "self":
                seen.append((name, value.status.value, any(value.usage.raw)))
    frame = frame.f_back
def transform(g):
    raise ValueError(str(sorted(seen)))
def f():
    pass
"""


def test_a_program_sees_nothing_of_others_in_the_frames_of_its_lane():
    crash = Program(JobKind.GRID, "import os\nos._exit(3)\n", encode_grids([GRID]))
    look = Program(JobKind.GRID, LOOK, encode_grids([GRID]))
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(), 1) as pool:
        for program in (crash, look):
            [outcome] = Executor(pool).run([program])
    seen = {name: rest for name, *rest in eval(str(outcome.error_message).partition(": ")[2])}
    assert seen == {"jobs": [5], "self": [0, False], "slots": [2]}


def test_an_error_says_in_which_line_of_the_program_it_was():
    helper = "def half(g):\n    return g[9]\n\ndef transform(g):\n    return half(g)\n"
    raised = Program(JobKind.GRID, helper, encode_grids([GRID]))
    liar = "class E(Exception):\n    __traceback__ = 7\nraise E('x')"
    at_import = Program(JobKind.GRID, "x = 1\nprint(y)\n", encode_grids([GRID]))
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(), 1) as pool:
        outcomes = Executor(pool).run([raised, Program(JobKind.GRID, liar, encode_grids([GRID])), at_import])
    messages = [str(outcome.error_message) for outcome in outcomes]
    assert messages[0].startswith("line 2: index 9 is out of bounds")
    assert (outcomes[1].error_class, messages[1]) == ("runtime", "(no message)")
    assert messages[2] == "line 2: name 'y' is not defined"


def test_a_child_whose_lane_died_before_it_could_notice_ends():
    reading, writing = os.pipe()
    lane = os.fork()
    if lane == 0:
        own = os.getpid()
        if os.fork() == 0:
            while os.getppid() == own:
                pass
            Lockdown(0, []).die_with_lane(own, limit_bytes(60))
            os.write(writing, b"still there")
        os._exit(0)
    os.waitpid(lane, 0)
    os.close(writing)
    assert os.read(reading, 99) == b""
    os.close(reading)


def test_a_program_without_a_lane_still_has_a_cpu_limit():
    source = ("import ctypes\ndef transform(g):\n    raise ValueError('unreachable')\n"
              "import resource\nraise ValueError(str(resource.getrlimit(resource.RLIMIT_CPU)))\n")
    program = Program(JobKind.GRID, source, encode_grids([GRID]))
    with LanePool(LaneConfig(Layer(0), ("resource",)), Limits(cpu_seconds=2.0), 1) as pool:
        [(_number, [ending])] = pool.run([program])
    assert b"(80, 80)" in ending.result and struct.calcsize("P") == 8


NAP = "import time\ndef transform(g):\n    time.sleep(99)\n"
STARVED_ONCE = """import os, time
def transform(g):
    if not os.path.exists({path!r}):
        open({path!r}, "w").close()
        time.sleep(99)
    return g
"""


def test_a_program_that_ran_out_of_wall_time_once_is_run_again_after_all_others():
    limits = Limits(cpu_seconds=0.5, wall_seconds=0.5)
    with tempfile.TemporaryDirectory() as folder, LanePool(LaneConfig(Layer(0)), limits, 1) as pool:
        os.chmod(folder, 0o777)                    # lanes are nobody
        sources = [STARVED_ONCE.format(path=f"{folder}/ran"), NAP, "def transform(g):\n    return g\n"]
        programs = [Program(JobKind.GRID, source, encode_grids([GRID])) for source in sources]
        order, endings = zip(*pool.run(programs), strict=True)
    assert order == (2, 0, 1)
    assert [ending.verdict for [ending] in endings] == [Verdict.EXITED, Verdict.EXITED, Verdict.TIMEOUT_WALL]


@pytest.mark.parametrize("num_limits", [1, 10])
def test_a_lane_is_given_up_only_after_the_longest_that_its_program_may_take(num_limits):
    limits = Limits(wall_seconds=5)
    with LanePool(LaneConfig(Layer.SECCOMP), limits, 1) as pool:
        lane, now = pool.lanes[0], time.monotonic()
        lane.tickets.append(Ticket(0, Program(JobKind.GRID, "", b"", num_limits=num_limits)))
        longest = limits.wall_seconds * num_limits * OVERLOAD_PATIENCE
        for seconds, is_stuck in ((longest + 1, False), (longest + SILENT_SECONDS + 1, True)):
            lane.since = now - seconds
            assert lane.is_stuck() == is_stuck
        lane.tickets.clear()


@pytest.mark.parametrize(("cores", "at_a_time"), [(1, 1), (2, 2)])
def test_second_runs_share_the_lanes_but_have_a_core_each(cores, at_a_time, monkeypatch):
    monkeypatch.setattr("score.sandbox.pool.usable_cores", lambda: cores)
    programs = [Program(JobKind.GRID, f"# {number}\n{NAP}", encode_grids([GRID])) for number in range(4)]
    seen = []
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(cpu_seconds=0.2, wall_seconds=0.2), 2) as pool:
        for _number, [ending] in pool.run(programs):
            seen.append([ticket.is_second for lane in pool.lanes for ticket in lane.tickets])
            assert ending.verdict == Verdict.TIMEOUT_WALL
    assert all(all(tickets) for tickets in seen) and len(seen) == 4
    assert max(len(tickets) for tickets in seen) == at_a_time - 1


def test_the_smallest_limit_on_output_leaves_room_for_what_a_lane_rehearses():
    program = Program(JobKind.GRID, "def transform(g):\n    return g\n", encode_grids([GRID]))
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(output_kib=1), 1) as pool:
        [(_number, [ending])] = pool.run([program])
        assert ending.verdict == Verdict.EXITED and ending.result and pool.num_restarts == 0


@pytest.mark.parametrize("body", [
    "try:\n        1 / 0\n    except ZeroDivisionError:\n        traceback.format_exc()",
    "ast.get_docstring(ast.parse('1'))",
    "isinstance(Thing(), Sized)",
    "warnings.warn('careful')",
    "statistics.multimode([1, 1, 2])",
    "copy.deepcopy([g])",
], ids=lambda body: body.split("(")[0].split()[-1])
def test_what_allowed_modules_import_late_is_there(body):
    source = f"""
import ast, copy, statistics, traceback, warnings
from typing import Protocol, runtime_checkable

@runtime_checkable
class Sized(Protocol):
    size: int

class Thing:
    def __init__(self):
        self.size = 1

def transform(g):
    {body}
    return g
"""
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(), 1) as pool:
        [(_number, [ending])] = pool.run([Program(JobKind.GRID, source, encode_grids([GRID]))])
    assert split_result(ending.result) == (1, encode_grids([GRID])), ending.result


def test_a_folder_of_the_users_modules_does_not_stand_in_for_standard_ones(tmp_path):
    for name in ("copy", "token", "tokenize", "mine"):
        (tmp_path / f"{name}.py").write_text("answer = 42\n")
    source = ("from copy import deepcopy\nfrom dataclasses import dataclass\nimport mine\n"
              "def transform(g):\n    return deepcopy(g) % mine.answer\n")
    config = LaneConfig(Layer.SECCOMP, ("mine",), import_paths=(str(tmp_path),))
    with LanePool(config, Limits(), 1) as pool:
        [(_number, [ending])] = pool.run([Program(JobKind.GRID, source, encode_grids([GRID]))])
    assert split_result(ending.result)[0] == 1, ending.result


def test_what_a_program_appends_to_its_input_is_gone_for_the_next():
    slot = Slot()
    slot.fill([b"job", b"3 4\n"])
    os.pwrite(slot.inputs[1], b"for the next", 4)       # only a tier without isolation lets a program do this
    slot.fill([b"job", b"3 5 6\n"])
    assert os.pread(slot.inputs[1], 99, 0) == b"3 5 6\n"
    slot.close()


def test_what_runs_tests_is_loaded_once_by_a_lane_and_not_before_there_are_any():
    look = "import sys\ndef transform(g):\n    return [[int('score.jobs.tests_end' in sys.modules)]]\n# "
    grids = [Program(JobKind.GRID, look + number, encode_grids([GRID])) for number in "12"]
    task = load_task("t", "function", {"entry_point": "f", "tests": ["assert f(1) == 2"]})
    tested = Item(task, Answer("", "def f(x):\n    return x + 1\n"))
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(), 1) as pool:
        [before] = Executor(pool).run(grids[:1])
        assert measure([tested], run_programs(Executor(pool), [tested]))[0].measures.correct
        [after] = Executor(pool).run(grids[1:])
    assert [before.result[0].item(), after.result[0].item()] == [0, 1]
