"""Children for function tasks: calls with plain data, and tests that talk to the program over a socket."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
from collections.abc import Callable
from types import CodeType
from typing import Any

from score.isolation.lockdown import LINK_FD
from score.lane.modules import function_of, run_module
from score.wire import plain_data

MAX_MESSAGE = 1 << 20       # bytes of one call or one answer


class LinkLost(Exception):
    """The program on the other end of the link is gone."""


def run_calls(code: CodeType, payload: bytes) -> bytes:
    """Call a function with each list of arguments; per call what came back, or the error it raised."""
    order = json.loads(payload)
    function = function_of(run_module(code, "program", {}), order["entry_point"])
    answers = [answer_call(function, *plain_data.untagged(call, 0)) for call in order["calls"]]
    return json.dumps(answers).encode()


def answer_call(function: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
    """["value", tagged result, tagged arguments as they are now], or ["error", name, message]."""
    try:
        value = function(*arguments, **keywords)
        return ["value", plain_data.tagged(value, 0), plain_data.tagged(arguments, 0)]
    except MemoryError:
        raise
    except Exception as error:
        return ["error", error_name(error), str(error)[:500]]


def error_name(error: BaseException) -> str:
    """Name of the nearest builtin class of an exception, which the other side can raise again."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__
    return "Exception"


def serve_calls(code: CodeType, payload: bytes) -> bytes:
    """Answer the calls that arrive over the link until it closes."""
    function = function_of(run_module(code, "program", {}), payload.decode())
    send(["ready"])
    while (message := receive()) is not None:
        arguments, keywords = plain_data.loads(message)
        send(answer_call(function, arguments, keywords))
    return b""


def run_tests(code: CodeType, payload: bytes) -> bytes:
    """Run tests against the program behind the link; per test [passed, error name, message, whose]."""
    order = json.loads(payload)
    if receive() is None:
        return json.dumps([[False, "", "the program did not start", "lost"]] * order["num_units"]).encode()
    names: dict[str, Any] = {order["entry_point"]: call_program, "candidate": call_program}
    try:
        namespace = run_module(code, "tests", names)
        units = ["check(candidate)"] if order["check"] else order["units"]
        compiled = [compile(unit, "test", "exec") for unit in units]
    except BaseException as error:
        whose = "lost" if isinstance(error, LinkLost) else "tests"
        failed = [False, type(error).__name__, str(error)[:500], whose]
        return json.dumps([failed] * order["num_units"]).encode()
    return json.dumps([run_unit(unit, namespace) for unit in compiled]).encode()


def run_unit(unit: CodeType, namespace: dict[str, Any]) -> list[Any]:
    """One test: passed, failed, raised by the program, or impossible to run from here."""
    try:
        exec(unit, namespace)
    except LinkLost as error:
        return [False, "", str(error), "lost"]
    except plain_data.NotPlain as error:
        return [False, "NotPlain", str(error)[:500], "tests"]
    except BaseException as error:
        whose = "program" if hasattr(error, "raised_by_program") else "assertion"
        return [False, type(error).__name__, str(error)[:500], whose]
    return [True, "", "", ""]


def call_program(*arguments: Any, **keywords: Any) -> Any:
    """What tests call in place of the function: the arguments go over the link, plain data comes back.

    Lists, dictionaries and sets among the arguments are updated to what the program made of them.
    """
    call = framed(plain_data.dumps([list(arguments), keywords]))
    with contextlib.suppress(OSError):      # a program that is gone: whether it answered before is read next
        os.write(LINK_FD, call)
    message = receive()
    if message is None:
        raise LinkLost("the program ended during the test")
    try:
        kind, first, second = json.loads(message)
        if kind == "error":
            raise_again(str(first), str(second))
        update_in_place(arguments, plain_data.untagged(second, 0))
        return plain_data.untagged(first, 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError) as error:
        if hasattr(error, "raised_by_program"):
            raise
        raise LinkLost("the program's answer is no plain data") from None


def raise_again(name: str, message: str) -> None:
    """The program's exception, as the builtin class of that name."""
    kind: Any = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    error = kind(message)
    error.raised_by_program = True
    raise error


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


def framed(content: bytes) -> bytes:
    """A message for the link: its length, then its bytes."""
    if len(content) > MAX_MESSAGE:
        raise plain_data.NotPlain(f"{len(content)} bytes of data, at most {MAX_MESSAGE}")
    return len(content).to_bytes(4, "little") + content


def send(answer: list[Any]) -> None:
    """Send an answer over the link, in pieces where its buffer is full."""
    view = memoryview(framed(json.dumps(answer).encode()))
    while view:
        view = view[os.write(LINK_FD, view):]


def receive() -> bytes | None:
    """The next message; None when the other end is closed or sends no message."""
    header = read_exactly(4)
    length = int.from_bytes(header, "little")
    if len(header) < 4 or length > MAX_MESSAGE:
        return None
    content = read_exactly(length)
    return content if len(content) == length else None


def read_exactly(size: int) -> bytes:
    """Up to `size` bytes of the link; fewer only at its end, which is an error if it left calls unread."""
    chunks = []
    with contextlib.suppress(OSError):
        while size and (chunk := os.read(LINK_FD, size)):
            chunks.append(chunk)
            size -= len(chunk)
    return b"".join(chunks)
