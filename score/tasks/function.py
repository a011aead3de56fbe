"""Function tasks: calls whose results are compared here, or tests that run in a process of their own."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program
from score.tasks.measures import Answer, Measures
from score.tasks.units import NO_CODE, field, unit_measures
from score.wire import plain_data
from score.wire.frames import JobKind
from warehouse.store.errors import StageError


@dataclass(frozen=True)
class Call:
    """One call and what it must return."""

    arguments: list[Any]
    keywords: dict[str, Any]
    expected: Any


@dataclass(frozen=True)
class FunctionTask:
    """Either `calls`, or tests: `setup` and then the statements `units`, or `setup` that defines `check`."""

    task_id: str
    entry_point: str
    calls: list[Call]
    setup: str
    units: list[str]
    check: bool
    tolerance: float

    @property
    def num_units(self) -> int:
        return len(self.calls) or len(self.units) or 1


class FunctionKind:
    """{entry_point, calls: [{args, kwargs, expected}], tolerance}, or {entry_point, setup, tests}.

    `tests` is a list of statements, each a unit, or a source that defines `check(candidate)`.
    """

    def load(self, task_id: str, payload: dict[str, Any]) -> FunctionTask:
        entry_point = field(task_id, payload, "entry_point", str)
        setup = field(task_id, payload, "setup", str, "")
        tolerance = field(task_id, payload, "tolerance", (int, float), 0)
        if "calls" in payload:
            calls = [read_call(task_id, call) for call in field(task_id, payload, "calls", list)]
            if not calls:
                raise StageError(f"Task {task_id}: payload field 'calls' is empty. Give at least one call.")
            return FunctionTask(task_id, entry_point, calls, "", [], False, tolerance)
        tests = field(task_id, payload, "tests", (str, list))
        if isinstance(tests, str):
            return FunctionTask(task_id, entry_point, [], f"{setup}\n{tests}", [], True, 0)
        if not tests or not all(isinstance(test, str) for test in tests):
            raise StageError(f"Task {task_id}: payload field 'tests' is no list of statements. Correct it.")
        return FunctionTask(task_id, entry_point, [], setup, tests, False, 0)

    def programs(self, task: FunctionTask, answer: Answer) -> list[Program] | Outcome:
        if answer.code is None:
            return NO_CODE
        if task.calls:
            calls = [plain_data.tagged([call.arguments, call.keywords], 0) for call in task.calls]
            order = json.dumps({"entry_point": task.entry_point, "calls": calls})
            return [Program(JobKind.CALL, answer.code, order.encode())]
        order = json.dumps({"entry_point": task.entry_point, "units": task.units, "check": task.check,
                            "num_units": task.num_units}, ensure_ascii=False)
        tests = Program(JobKind.TEST, task.setup, order.encode("utf-8", "surrogatepass"))
        return [Program(JobKind.SERVE, answer.code, task.entry_point.encode(), tests=tests)]

    def measure(self, task: FunctionTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        outcome = outcomes[0]
        if outcome.error_class is not None:
            return unit_measures(answer, outcome, [], task.num_units)
        if not task.calls:
            return unit_measures(answer, outcome, [unit[0] for unit in outcome.result], task.num_units,
                                 outputs=[list(unit) for unit in outcome.result])
        results = outcome.result if isinstance(outcome.result, list) else []
        passed = [is_expected(result, call, task.tolerance)
                  for result, call in zip(results, task.calls, strict=False)]
        shown = [result[:2] for result in results if isinstance(result, list)]
        digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]
        return unit_measures(answer, outcome, passed, task.num_units, outputs=shown, fingerprint=digest)


def read_call(task_id: str, call: Any) -> Call:
    """A call as the payload has it."""
    if not isinstance(call, dict) or "expected" not in call:
        raise StageError(f"Task {task_id}: a call is no object with 'args' and 'expected'. Correct it.")
    keywords = field(task_id, call, "kwargs", dict, {})
    return Call(field(task_id, call, "args", list, []), keywords, call["expected"])


def is_expected(result: Any, call: Call, tolerance: float) -> bool:
    """True if a call's result is plain data equal to what was expected."""
    if not isinstance(result, list) or len(result) != 2 or result[0] != "value":
        return False
    try:
        return same(plain_data.untagged(result[1], 0, hashing=False), call.expected, tolerance)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
        return False       # an integer too large for a float is an ArithmeticError


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Equal as JSON can say it: a tuple is a list, so is a set in any order, truth values are no numbers."""
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return value is expected
    if isinstance(expected, (int, float)):
        return isinstance(value, (int, float)) and (
            value == expected or math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
            or (value != value and expected != expected))           # both are NaN
    if isinstance(expected, list):
        if isinstance(value, plain_data.Unordered):
            value, expected = sorted(value, key=place_of), sorted(expected, key=place_of)
        return isinstance(value, (list, tuple)) and len(value) == len(expected) and all(
            same(one, other, tolerance) for one, other in zip(value, expected, strict=True))
    if isinstance(expected, dict):
        return isinstance(value, dict) and value.keys() == expected.keys() and all(
            same(value[key], expected[key], tolerance) for key in expected)
    return type(value) is type(expected) and bool(value == expected)


def place_of(value: Any) -> tuple[bool, float, str]:
    """Where an item of a set is put: numbers by value, then all else by what it looks like as JSON."""
    is_number = isinstance(value, (int, float))
    return not is_number, value if is_number else 0, "" if is_number else json.dumps(value)
