"""What a program can learn from its lane, and what becomes of it when the lane is gone."""

from __future__ import annotations

import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from score.isolation.lockdown import Layer, Lockdown, limit_bytes
from score.lane import child
from score.lane.main import REHEARSAL
from score.sandbox.executor import Executor
from score.sandbox.flight import Ending, Flight
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool, must_run_alone
from score.sandbox.program import Program
from score.sandbox.slots import Slot, memory_file
from score.wire.frames import JobKind, Verdict, encode_grids, split_result

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
    seen = {name: rest for name, *rest in eval(str(outcome.error_message))}
    assert seen == {"jobs": [5], "self": [0, False], "slots": [2]}


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


LOOP = Program(JobKind.GRID, "def transform(g):\n    while True: pass\n", encode_grids([GRID]))
NAP = Program(JobKind.GRID, "import time\ndef transform(g):\n    time.sleep(99)\n", encode_grids([GRID]))


def timed_out(pauses: int, preemptions: int, cpu_seconds: float) -> Ending:
    """A program that was ended after the 5 seconds of the default limit."""
    return Ending(Verdict.TIMEOUT_WALL, 9, cpu_seconds, 5.0, 20.0, b"", None, pauses, preemptions)


@pytest.mark.parametrize(("endings", "alone"), [
    ([timed_out(2, 1, 0.001)], False),              # it sleeps
    ([timed_out(51, 3, 0.01)], False),              # it sleeps in a loop
    ([timed_out(1, 0, 0.0)], True),                 # the machine stood still
    ([timed_out(1, 16, 0.05)], True),               # a core among very many that want it
    ([timed_out(500, 2, 0.02)], True),              # it sleeps, or is woken late
    ([timed_out(2, 16, 0.05), timed_out(2, 0, 0.001)], True),      # tests that wait for a starved program
    ([timed_out(1, 900, 0.9)], False),              # it used what it may
])
def test_wall_timeouts_that_load_can_have_made_are_run_alone(endings, alone):
    assert must_run_alone(Flight(0, NAP), endings, Limits()) == alone
    assert not must_run_alone(Flight(0, NAP, alone=True), endings, Limits())


def test_lanes_count_how_often_a_program_sleeps():
    with LanePool(LaneConfig(Layer.SECCOMP), Limits(cpu_seconds=0.1, wall_seconds=0.3), 1) as pool:
        [(_number, [loop])] = pool.run([LOOP])
        [(_number, [nap])] = pool.run([NAP])
    assert (loop.verdict, nap.verdict) == (Verdict.TIMEOUT_CPU, Verdict.TIMEOUT_WALL)
    assert loop.pauses <= 1 < nap.pauses < 5


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


@pytest.mark.parametrize(("kind", "names", "counted"), [
    (JobKind.GRID, b"", False), (JobKind.STDIO, b"", False), (JobKind.GRID, b"math", True),
    (JobKind.CALL, b"", True), (JobKind.SERVE, b"", True), (JobKind.TEST, b"", True)])
def test_waiting_for_imports_is_not_charged_to_the_program(kind, names, counted, monkeypatch):
    reported = []
    nothing = SimpleNamespace(die_with_lane=lambda *_: None, enter_child=lambda *_: None)
    ready = SimpleNamespace(report=lambda _place, imported: reported.append(imported))
    watch = SimpleNamespace(lockdown=nothing, ready=ready, pid=0, has_generators=False)
    monkeypatch.setattr(child, "arrange_streams", lambda *_: None)
    monkeypatch.setattr(child, "seed_generators", lambda *_: None)
    job = memory_file("job")
    os.pwrite(job, names + b"x = 1", 0)
    child.prepare((job, job), -1, [kind, 0, len(names), 5, 0], 0, watch, REHEARSAL)
    os.close(job)
    assert reported == [counted]
