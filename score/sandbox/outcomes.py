"""Outcomes of programs, from how processes ended and from the bytes they left, all checked."""

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from score.protocol import frames
from score.protocol.error_classes import CHILD_CLASSES, ErrorClass
from score.protocol.frames import MAX_MESSAGE, MAX_NAME, BadFrame, JobKind, Verdict
from score.sandbox.limits import Limits
from score.sandbox.program import Outcome, Program
from score.sandbox.ticket import Ending

Decoder = Callable[[bytes], Any]        # body of an answer -> result; BadFrame when it is none
LOST = Outcome(error_class=ErrorClass.LANE_LOST,
               error_message="the process that runs programs was lost repeatedly")
# The lane's verdict overrides any frame: class and message.
LANE_VERDICTS = {
    Verdict.SETUP_FAILED: (ErrorClass.SPAWN_FAILED, "the process ended before the program began"),
    Verdict.FORK_FAILED: (ErrorClass.SPAWN_FAILED, "no process could be forked"),
    Verdict.TIMEOUT_CPU: (ErrorClass.TIMEOUT_CPU, "more than {limits.cpu_seconds:g} s of CPU time"),
    Verdict.TIMEOUT_WALL: (ErrorClass.TIMEOUT_WALL, "more than {limits.wall_seconds:g} s")}


def outcome_of(program: Program, endings: list[Ending], limits: Limits, *, isolated: bool = True) -> Outcome:
    """The outcome of a program from the endings of its processes; none mean that lanes kept being lost."""
    if not endings:
        return LOST
    decode: Decoder = (partial(frames.decode_grids, like=program.payload) if program.kind == JobKind.GRID else
                       frames.decode_json if program.kind == JobKind.CALL else
                       decode_units if program.kind == JobKind.PLAIN else lambda _body: None)
    outcome = process_outcome(endings[0], decode, limits, isolated)
    if program.tests is not None:
        return pair_outcome(outcome, process_outcome(endings[1], decode_units, limits, isolated))
    return script_outcome(outcome, endings[0], limits) if program.kind == JobKind.STDIO else outcome


def process_outcome(ending: Ending, decode: Decoder, limits: Limits, isolated: bool) -> Outcome:
    """The outcome of one process: the lane's verdict first, then the signal, then the frame."""
    measured = (ending.cpu_seconds, ending.wall_seconds, ending.max_rss_mib)
    if ending.verdict in LANE_VERDICTS:
        error_class, message = LANE_VERDICTS[ending.verdict]
        return Outcome(None, error_class, None, message.format(limits=limits), *measured)
    if ending.verdict == Verdict.SIGNALED:
        return Outcome(None, *crash(ending, isolated), *measured)
    try:
        status, body = frames.split_result(ending.result)
        if status == 1:
            return Outcome(decode(body), None, None, None, *measured)
        index, name, message = frames.decode_error(body, len(CHILD_CLASSES))
    except BadFrame as error:
        return Outcome(None, ErrorClass.NO_RESULT, None,
                       f"the process ended with status {ending.code} and no answer ({error})", *measured)
    return Outcome(None, CHILD_CLASSES[index], name, message, *measured)


def script_outcome(outcome: Outcome, ending: Ending, limits: Limits) -> Outcome:
    """The outcome of a script: its stdout; with status 0 it may end in any way."""
    written = ending.stdout or b""
    full = len(written) >= limits.output_kib * 1024
    if full and outcome.error_class in (None, ErrorClass.RUNTIME, ErrorClass.SANDBOX_VIOLATION):
        return Outcome(error_class=ErrorClass.OUTPUT_LIMIT, cpu_seconds=outcome.cpu_seconds,
                       error_message=f"{len(written)} bytes or more on stdout")
    if outcome.error_class in (None, ErrorClass.NO_RESULT) and not ending.code:
        return replace(outcome, result=written.decode("utf-8", "replace"), error_class=None,
                       error_message=None)
    return outcome if outcome.error_class else replace(           # a frame of its own hides no status
        outcome, error_class=ErrorClass.NO_RESULT, error_message=f"it ended with status {ending.code}")


def pair_outcome(program: Outcome, tests: Outcome) -> Outcome:
    """The outcome of a program and its tests, which are [passed, name, message, whose] each.

    What the program did to itself comes first; that it gave no answer matters only if a test missed it.
    """
    if tests.infrastructure or program.infrastructure:
        return tests if tests.infrastructure else program
    measured = replace(program, result=None, error_class=None, error_name=None, error_message=None)
    if tests.error_class is not None:
        if program.error_class is not None and program.error_class != ErrorClass.NO_RESULT:
            return program
        # Only their text is certainly not the program's doing.
        blame = ErrorClass.UNTESTABLE if tests.error_class == ErrorClass.SYNTAX else tests.error_class
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


def decode_units(body: bytes) -> list[tuple[bool, str, str, str]]:
    """Passed, error name, message and whose fault it is, of each test: one of `frames.WAYS`, or
    [name, message, whose], or 0."""
    units = frames.decode_json(body)
    if not isinstance(units, list):
        raise BadFrame("not a list of tests")
    failures = [unit if isinstance(unit, list) and len(unit) == 3 else
                ["", "", frames.WAYS.get(unit, "") if isinstance(unit, int) else ""] for unit in units]
    return [(isinstance(unit, int) and unit in frames.WAYS, str(name)[:MAX_NAME], str(message)[:MAX_MESSAGE],
             str(whose)[:MAX_NAME]) for unit, (name, message, whose) in zip(units, failures, strict=True)]


def crash(ending: Ending, isolated: bool) -> tuple[ErrorClass, str, str]:
    """Class, name and message: a signal is the program's own, but isolated programs cannot send SIGKILL."""
    outside = isolated and ending.code == signal.SIGKILL
    try:
        name = signal.Signals(ending.code).name
    except ValueError:
        name = f"SIG{ending.code}"
    error_class = ErrorClass.KILLED_OUTSIDE if outside else ErrorClass.CRASHED
    return error_class, name, f"ended by signal {ending.code}"
