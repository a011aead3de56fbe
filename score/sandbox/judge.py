"""From how a process ended, and the bytes it left, to an outcome; no byte is believed unchecked."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from score.sandbox.flight import Ending
from score.sandbox.limits import Limits
from score.sandbox.outcome import Outcome
from score.wire.error_classes import CHILD_CLASSES, ErrorClass
from score.wire.frames import BadFrame, Verdict, decode_error, split_result


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What an ending is judged under."""

    limits: Limits
    isolated: bool = True


Decode = Callable[[bytes], Any]       # body of an answer -> result; BadFrame when it is none

LOST = Outcome(error_class=ErrorClass.LANE_LOST,
               error_message="the process that runs programs was lost repeatedly")
# What a lane concludes overrides whatever frame was written before.
LANE_CLASSES = {Verdict.SETUP_FAILED: ErrorClass.SPAWN_FAILED, Verdict.FORK_FAILED: ErrorClass.SPAWN_FAILED,
                Verdict.TIMEOUT_CPU: ErrorClass.TIMEOUT_CPU, Verdict.TIMEOUT_WALL: ErrorClass.TIMEOUT_WALL}


def outcome_of(ending: Ending, decode: Decode, circumstances: Circumstances) -> Outcome:
    """The outcome of one process: the lane's verdict first, then the signal, then the frame."""
    measured = (ending.cpu_seconds, ending.wall_seconds, ending.max_rss_mib)
    if ending.verdict in LANE_CLASSES:
        return Outcome(None, LANE_CLASSES[ending.verdict], None, lane_message(ending, circumstances.limits),
                       *measured)
    if ending.verdict == Verdict.SIGNALED:
        return Outcome(None, *crash(ending, circumstances.isolated), *measured)
    try:
        status, body = split_result(ending.result)
        if status == 1:
            return Outcome(decode(body), None, None, None, *measured)
        index, name, message = decode_error(body, len(CHILD_CLASSES))
    except BadFrame as error:
        return Outcome(None, ErrorClass.NO_RESULT, None,
                       f"the process ended with status {ending.code} and no answer ({error})", *measured)
    return Outcome(None, CHILD_CLASSES[index], name, message, *measured)


def pair_outcome(endings: list[Ending], decode: Decode, circumstances: Circumstances) -> Outcome:
    """The outcome of a program (first) and its tests (second), which are [passed, name, message, whose] each.

    What the program did to itself comes first; that it gave no answer matters only if a test missed one.
    """
    program = outcome_of(endings[0], lambda _body: None, circumstances)
    tests = outcome_of(endings[1], decode, circumstances)
    if tests.infrastructure or program.infrastructure:
        return tests if tests.infrastructure else program
    measured = replace(program, result=None, error_class=None, error_name=None, error_message=None)
    if tests.error_class is not None:
        timeouts = (ErrorClass.TIMEOUT_CPU, ErrorClass.TIMEOUT_WALL)
        if program.error_class is not None and program.error_class != ErrorClass.NO_RESULT:
            return program
        blame = tests.error_class if tests.error_class in timeouts else ErrorClass.UNTESTABLE
        return replace(measured, error_class=blame, error_name=tests.error_name,
                       error_message=f"in the tests: {tests.error_message}")
    impossible = [unit for unit in tests.result if unit[3] == "tests"]
    if impossible:
        return replace(measured, error_class=ErrorClass.UNTESTABLE, error_name=impossible[0][1],
                       error_message=impossible[0][2])
    if program.error_class is not None and any(unit[3] == "lost" for unit in tests.result):
        return program
    raised = [unit for unit in tests.result if unit[3] == "program"]
    if raised and not any(unit[0] for unit in tests.result):
        return replace(measured, error_class=ErrorClass.RUNTIME, error_name=raised[0][1],
                       error_message=raised[0][2])
    return replace(measured, result=tests.result)


def crash(ending: Ending, isolated: bool) -> tuple[ErrorClass, str, str]:
    """Class, name and message: a signal is the program's own, but an isolated one cannot send SIGKILL."""
    outside = isolated and ending.code == signal.SIGKILL
    try:
        name = signal.Signals(ending.code).name
    except ValueError:
        name = f"SIG{ending.code}"
    error_class = ErrorClass.KILLED_OUTSIDE if outside else ErrorClass.CRASHED
    return error_class, name, f"ended by signal {ending.code}"


def lane_message(ending: Ending, limits: Limits) -> str:
    """What the lane saw, in words."""
    return {Verdict.TIMEOUT_CPU: f"more than {limits.cpu_seconds:g} s of CPU time",
            Verdict.TIMEOUT_WALL: f"more than {limits.wall_seconds:g} s",
            Verdict.SETUP_FAILED: "the process ended before the program began",
            Verdict.FORK_FAILED: "no process could be forked"}[ending.verdict]
