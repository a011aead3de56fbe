"""Children for function tasks: calls with plain data, and tests that talk to the program over a socket."""

import builtins
import contextlib
import json
import os
import sys
from collections.abc import Callable
from functools import cached_property
from io import BufferedReader
from types import CodeType, FrameType
from typing import Any

from score.isolation.lockdown import LINK_FD
from score.lane.modules import failed_at, function_of, message_of, run_module
from score.protocol import plain_data
from score.protocol.error_classes import ErrorClass

MAX_MESSAGE = 16 << 20      # bytes of one call or one answer
CANNOT_CROSS = str(ErrorClass.CANNOT_CROSS)
TEXT_CAPS = (500, 100, 20, 0)        # characters of a test's message: as many as leave room for all tests


class LinkLost(BaseException):
    """The program on the other end of the link is gone, which no `except Exception` of a test may catch."""


class CannotCross(BaseException):
    """What the program answers is no plain data, which is none of the errors that a test may expect."""


class Link:
    """The socket between a program and its tests: a line of JSON per message."""

    has_answered = False
    is_lost = False         # in the test that runs
    refused = ""            # what it answered there that cannot cross
    answered: tuple[Any, ...] = ()      # the value that it answered there last

    @cached_property
    def lines(self) -> BufferedReader:
        """The end of this process, once that is in its place."""
        return open(LINK_FD, "rb", closefd=False)

    def send(self, message: bytes) -> None:
        """Send a line."""
        if len(message) > MAX_MESSAGE:
            raise plain_data.TooLarge(f"{len(message)} bytes of data, at most {MAX_MESSAGE}")
        left = memoryview(message + b"\n")
        while left:
            left = left[os.write(LINK_FD, left):]

    def receive(self) -> bytes:
        """The next line; empty when the other end is closed, or what comes is none."""
        try:
            line = self.lines.readline(MAX_MESSAGE + 1)
        except OSError:              # it ended and left calls unread
            line = b""
        return line if line.endswith(b"\n") else b""


link = Link()
# Errors that iterating and `hasattr` take for an ordinary end, in the methods that they call.
SWALLOWED = {"IndexError": "__getitem__", "AttributeError": "__getattr__"}


def run_calls(code: CodeType, payload: bytes) -> bytes:
    """Call a function with each list of arguments; per call what came back, or the error it raised."""
    order = json.loads(payload)
    function = function_of(run_module(code, "program", {}, order.get("setup", "")), order["entry_point"])
    answers = [answer_call(function, *plain_data.untag(call))[:2] for call in order["calls"]]
    return json.dumps(answers).encode()


def answer_call(function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any],
                sent_back: list[Any] | None = None) -> list[Any]:
    """["value", tagged result, `sent_back` as it is afterwards, tagged], or ["error", name, message].

    What is no plain data is a CANNOT_CROSS in the place of an error.
    """
    try:
        value = function(*arguments, **keywords)
        return ["value", plain_data.tag(value), plain_data.tag(sent_back)]
    except MemoryError:
        raise
    except plain_data.NotPlain as error:
        return [CANNOT_CROSS, "NotPlain", str(error)]
    except Exception as error:
        return ["error", error_name(error), str(error)[:500]]


def error_name(error: BaseException) -> str:
    """Name of the nearest builtin class of an exception, which the other side can raise again."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__
    return "Exception"


def serve_calls(code: CodeType, payload: bytes) -> bytes:
    """Answer the calls that arrive over the link until it closes.

    Tests that have ended, because they cannot be compiled or took too long, are no error of the program.
    """
    order = json.loads(payload)
    function = function_of(run_module(code, "program", {}, order.get("setup", "")), order["entry_point"])
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.send(b'["ready"]')
        while message := link.receive():
            arguments, keywords = plain_data.loads(message)
            answer = json.dumps(answer_call(function, arguments, keywords, arguments)).encode()
            link.send(answer)
    return b""


def run_tests(code: CodeType, payload: bytes, room: int) -> bytes:
    """Run tests against the program behind the link; `room` bytes are there to say how each of them ended."""
    order = json.loads(payload)
    if not link.receive():
        return encode_units([["", "the program did not start", "lost"]] * order["num_units"], room)
    first, _, method = order["entry_point"].partition(".")
    callee = type(first, (), {method: staticmethod(call_program)}) if method else call_program
    names: dict[str, Any] = {first: callee, "candidate": call_program}
    try:
        units = ["check(candidate)"] if order["check"] else order["units"]
        compiled = [compile(unit, "test", "exec", dont_inherit=True) for unit in units]
        namespace = run_module(code, "tests", names)
    except BaseException as error:
        whose = "lost" if link.is_lost else whose_fault(error) if link.has_answered else "tests"
        failed = [type(error).__name__, message_of(error), whose]
        return encode_units([failed] * order["num_units"], room)
    return encode_units([run_unit(unit, namespace) for unit in compiled], room)


def run_unit(unit: CodeType, namespace: dict[str, Any]) -> Any:
    """One test: 1 if it passed, else [error name, message, whose fault it is], `lost` where the link is."""
    link.is_lost, link.refused, link.answered = False, "", ()
    verdict: Any = 1
    try:
        exec(unit, namespace)
    except BaseException as error:
        verdict = [type(error).__name__, message_of(error) or account_of(error), whose_fault(error)]
    if link.refused:
        return ["NotPlain", link.refused, CANNOT_CROSS]
    return ["", "the program ended during the test", "lost"] if link.is_lost else verdict


def account_of(error: BaseException) -> str:
    """Of an assertion that says nothing itself: its line, and what the program had answered last."""
    if not isinstance(error, AssertionError):
        return ""
    try:
        return failed_at(error) + "".join(f", {value!r}" for value in link.answered[-1:])
    except ValueError:                  # a number of more digits than Python writes
        return failed_at(error)


def whose_fault(error: BaseException) -> str:
    """The program's, by raising it or by what it answered, or that of tests which cannot be run from here."""
    if isinstance(error, CannotCross):
        return CANNOT_CROSS
    if isinstance(error, plain_data.NotPlain):
        return "assertion" if isinstance(error, plain_data.TooLarge) and link.has_answered else "tests"
    return "program" if hasattr(error, "raised_by_program") else "assertion"


def encode_units(units: list[Any], room: int) -> bytes:
    """The verdicts as JSON with messages as long as there is room for; a program cannot make it too long."""
    for cap in TEXT_CAPS:
        cut = [unit if unit == 1 else [unit[0], unit[1][:cap], unit[2]] for unit in units]
        if len(body := json.dumps(cut).encode()) <= room:
            return body
    return json.dumps([int(unit == 1) for unit in units]).encode()


def call_program(*arguments: Any, **keywords: Any) -> Any:
    """What tests call in place of the function: the arguments go over the link, plain data comes back.

    Lists, dictionaries and sets among the arguments are updated to what the program made of them.
    """
    call = plain_data.dumps([list(arguments), keywords])
    with contextlib.suppress(OSError):      # a program that is gone: whether it answered before is read next
        link.send(call)
    try:
        kind, first, second = json.loads(link.receive())
        link.has_answered = True
        if kind == "value":
            update_in_place(arguments, plain_data.untag(second))
            link.answered = (plain_data.untag(first),)
            return link.answered[0]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
        link.is_lost = True
        raise LinkLost("the program ended, or its answer is no plain data") from None
    if kind == CANNOT_CROSS:
        link.refused = str(second)
        raise CannotCross(link.refused)
    raise error_again(str(first), str(second), sys._getframe(1))


def error_again(name: str, message: str, frame: FrameType | None) -> Any:
    """The program's exception: the builtin class of that name, unless that would pass for an ordinary end."""
    kind: Any = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or name.startswith("Stop"):
        kind = RuntimeError
    while frame is not None:
        if frame.f_code.co_name == SWALLOWED.get(name):
            kind = RuntimeError
        frame = frame.f_back
    try:
        error = kind(message)
    except TypeError:                   # it takes more, as UnicodeDecodeError does
        error = ValueError(message)
    error.raised_by_program = True
    return error


def update_in_place(arguments: tuple[Any, ...], now: list[Any]) -> None:
    """Give mutable arguments the content that the program left in its copies."""
    for before, after in zip(arguments, now, strict=True):
        if type(before) is not type(after) or before == after:
            continue
        if isinstance(before, list):
            before[:] = after
        elif isinstance(before, (dict, set)):
            before.clear()
            before.update(after)
