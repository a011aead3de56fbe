"""A program and its tests in one process, as plain Python runs them.

Here a program may read its tests and decide how they end. So this is asked of programs that passed in a
process of their own; what happens here can take a verdict away, and gives none.
"""

import builtins
import contextlib
import functools
import json
import sys
import warnings
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from score.jobs import stand_ins
from score.jobs.modules import failed_at, function_of, message_of, run_module
from score.jobs.test_runner import failures, is_skip, skips, warn_as_usual
from score.jobs.tests_end import Names, begin, encode_units
from score.protocol.frames import SKIPPED

# What tests call around themselves by name.
AROUND = ("setUpModule", "tearDownModule", "setup_module", "teardown_module", "setup_function",
          "teardown_function")


class Together:
    """The program in the process of its tests, asked as one in another process is."""

    has_asked = has_answered = is_of_checker = False

    def __init__(self, namespace: dict[str, Any], entry_point: str) -> None:
        self.namespace, self.entry_point = namespace, entry_point
        stand_ins.peer = self

    def ask(self, operation: str, name: str = "") -> Any:
        """What the program has by a name, or its entry point."""
        return function_of(self.namespace, self.entry_point) if operation == "entry" else self.namespace[name]


class NamesHere(Names):
    """The tests' globals, where data of the program comes before modules that it loaded."""

    def __missing__(self, name: str) -> Any:
        value = self.peer.namespace.get(name)
        is_data = name in self.peer.namespace and not callable(value) and not isinstance(value, ModuleType)
        if is_data and not hasattr(builtins, name) and name != self.entry_point:
            return value
        return super().__missing__(name)


def run_plainly(code: CodeType, payload: bytes, room: int) -> bytes:
    """Run tests and program; the report has `room` bytes."""
    order = json.loads(payload)
    fixtures = getattr(sys.modules.get("pytest"), "fixtures", {})
    own = dict(fixtures)
    warn_as_usual(bool(order["run"]))     # before the program, whose filters stay
    namespace = run_module(code, "program", {}, order["setup"])
    fixtures.clear()
    fixtures.update(own)                  # the program's are none of the tests'
    names = NamesHere(Together(namespace, order["entry_point"]), order["entry_point"], order["called"])
    for module in order["program"]:
        sys.modules.setdefault(module, sys.modules["program"])
    if order["evaluates"]:                # such text asks for no names that are missing
        names.fetch([name for name, value in namespace.items() if callable(value) and name not in AROUND])
    setup, *units = [compile(source, f"test {place}" if place else "setup", "exec", dont_inherit=True)
                     for place, source in enumerate(order["sources"])]
    around = begin(names, setup, order, ends=False)
    alone = warnings.catch_warnings if order["run"] else contextlib.nullcontext        # as pytest runs each
    verdicts = [run_unit(functools.partial(exec, unit, names), alone()) for unit in units]
    ended = run_unit(around.end, alone())
    if isinstance(verdicts[-1], int) and not isinstance(ended, int):
        verdicts[-1] = ended
    return encode_units(verdicts, room)


def run_unit(unit: Callable[[], Any], alone: contextlib.AbstractContextManager[Any]) -> Any:
    """Run one test: 1 if it passed, SKIPPED, or [error name, message, at fault]."""
    failures.clear()
    skips.clear()
    try:
        with alone:
            unit()
    except BaseException as error:
        (skips if is_skip(error) else failures).append(error)
    if not failures:
        return SKIPPED if skips else 1
    return [type(failures[0]).__name__, message_of(failures[0]) or failed_at(failures[0]), "assertion"]
