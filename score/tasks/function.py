"""Function tasks: calls whose results are compared here, or tests apart from or together with the program."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from score.protocol import plain_data
from score.protocol.error_classes import ErrorClass
from score.protocol.frames import JobKind
from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program
from score.tasks.measures import NO_CODE, Answer, Measures, digest, unit_measures
from score.tasks.together import SharedTest, is_pass, mode_of, shared_tests


@dataclass(frozen=True)
class Call:
    """One call and what it must return."""

    arguments: list[Any]
    keywords: dict[str, Any]
    expected: Any


@dataclass(frozen=True)
class FunctionTask:
    """`calls`, or `shared` tests, or `setup` and the statements `units`, or `setup` that defines `check`."""

    entry_point: str
    program_setup: str = ""
    calls: tuple[Call, ...] = ()
    tolerance: float = 0
    any_order: bool = False
    shared: tuple[SharedTest, ...] = ()
    setup: str = ""
    units: tuple[str, ...] = ()

    @property
    def num_units(self) -> int:
        return len(self.calls) or len(self.shared) or len(self.units) or 1

    @cached_property
    def order(self) -> bytes:
        """What a program is told; made once, for it may be long and each of its programs holds it."""
        order: dict[str, Any] = {"entry_point": self.entry_point, "setup": self.program_setup}
        if self.calls:
            order["calls"] = [plain_data.tag([call.arguments, call.keywords]) for call in self.calls]
        return json.dumps(order).encode()

    @cached_property
    def tests(self) -> Program:
        """The tests that run apart from the program."""
        units = json.dumps({"entry_point": self.entry_point, "units": self.units, "check": not self.units,
                            "num_units": self.num_units})
        return Program(JobKind.TEST, self.setup, units.encode(), mentions="\n".join(self.units))


class FunctionKind:
    """{entry_point, calls: [{args, kwargs, expected}], tolerance, any_order}, or {entry_point, setup, tests}.

    `tests` is a list of statements, each a unit, or a source that defines `check(candidate)`. By `mode` they
    run `apart` from the program, in a process of their own, or `together` with it. `program_setup` is
    code that comes before the program.
    """

    def load(self, payload: dict[str, Any]) -> FunctionTask:
        names = payload["entry_point"], payload.get("program_setup", "")
        setup = payload.get("setup", "")
        if "calls" in payload:
            calls = [Call(restore(call.get("args", [])), restore(call.get("kwargs", {})),
                          restore(call["expected"])) for call in payload["calls"]]
            return FunctionTask(*names, tuple(calls), payload.get("tolerance", 0),
                                payload.get("any_order", False))
        tests = payload["tests"]
        if mode_of(payload) == "together":
            return FunctionTask(*names, shared=tuple(shared_tests(setup, tests, names[0])))
        if isinstance(tests, str):
            return FunctionTask(*names, setup=f"{setup}\n{tests}")
        return FunctionTask(*names, setup=setup, units=tuple(tests))

    def programs(self, task: FunctionTask, answer: Answer) -> list[Program] | Outcome:
        if answer.code is None:
            return NO_CODE
        if task.shared:
            return [test.program(answer.code, task.program_setup) for test in task.shared]
        if task.calls:
            return [Program(JobKind.CALL, answer.code, task.order, mentions=task.program_setup)]
        return [Program(JobKind.SERVE, answer.code, task.order, tests=task.tests,
                        mentions=task.program_setup)]

    def measure(self, task: FunctionTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        if task.shared:
            return shared_measures(answer, outcomes, task.num_units)
        outcome = outcomes[0]
        if outcome.error_class is not None:
            return unit_measures(answer, outcome, [], task.num_units)
        if not task.calls:
            return unit_measures(answer, outcome, [unit[0] for unit in outcome.result], task.num_units,
                                 outputs=[list(unit) for unit in outcome.result])
        results = outcome.result if isinstance(outcome.result, list) else []
        passed = [is_expected(result, call, task) for result, call in zip(results, task.calls, strict=False)]
        shown = [result[:2] for result in results if isinstance(result, list)]
        return unit_measures(answer, outcome, passed, task.num_units, outputs=shown,
                             fingerprint=digest(json.dumps(shown, sort_keys=True)))


def shared_measures(answer: Answer, outcomes: list[Outcome], num_units: int) -> Measures:
    """Tests that fail to run count as failed; none counts where one was passed without being earned."""
    ran = [outcome for outcome in outcomes if outcome.error_class is None]
    unearned = [outcome for outcome in outcomes if outcome.error_class == ErrorClass.UNEARNED]
    if unearned or not ran:
        return unit_measures(answer, (unearned or outcomes)[0], [], num_units)
    shown = [[is_pass(outcome), *(outcome.result or [outcome.error_name or str(outcome.error_class or ""),
                                                      outcome.error_message or ""])] for outcome in outcomes]
    return unit_measures(answer, ran[0], list(map(is_pass, outcomes)), num_units, outputs=shown)


def restore(value: Any) -> Any:
    """A value of a payload, with the integers that were too long for JSON."""
    if isinstance(value, list):
        return [restore(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {"$", "v"} and value["$"] == "int":
            return int(value["v"], 16)
        return {key: restore(item) for key, item in value.items()}
    return value


def is_expected(result: Any, call: Call, task: FunctionTask) -> bool:
    """True if a call's result is plain data equal to what was expected."""
    if not isinstance(result, list) or len(result) != 2 or result[0] != "value":
        return False
    try:
        value = plain_data.untag(result[1], hashing=False)
        if task.any_order and isinstance(value, (list, tuple)):
            value = plain_data.Unordered(value)
        return same(value, call.expected, task.tolerance)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
        return False       # an integer too large for a float is an ArithmeticError


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Equal as JSON can say it: a tuple is a list, so is a set in any order, truth values are no numbers."""
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return value is expected
    if isinstance(expected, (int, float)):
        if isinstance(value, int) and isinstance(expected, int) and not tolerance:
            return value == expected                                # as floats, large integers may be equal
        return isinstance(value, (int, float)) and (
            value == expected or math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
            or (value != value and expected != expected))           # both are NaN
    if isinstance(expected, list) and isinstance(value, plain_data.Unordered):
        return same_in_any_order(value, expected, tolerance)
    if isinstance(expected, list):
        return isinstance(value, (list, tuple)) and len(value) == len(expected) and all(
            same(ours, theirs, tolerance) for ours, theirs in zip(value, expected, strict=True))
    if isinstance(expected, dict):
        return isinstance(value, dict) and value.keys() == expected.keys() and all(
            same(value[key], expected[key], tolerance) for key in expected)
    return type(value) is type(expected) and bool(value == expected)


def same_in_any_order(items: list[Any], expected: list[Any], tolerance: float) -> bool:
    """Whether each item is the same as one expected of its own: sorted, the first left but for ties."""
    if len(items) != len(expected):
        return False
    left = sorted(expected, key=place_of)
    for item in sorted(items, key=place_of):
        match = next((place for place, wanted in enumerate(left) if same(item, wanted, tolerance)), None)
        if match is None:
            return False
        del left[match]
    return True


def place_of(value: Any) -> tuple[Any, Any]:
    """Where an item is put: by what it holds in any order, as there may be sets in it, then in its own."""
    return sortable(value, sorted), sortable(value, list)


def sortable(value: Any, order: Callable[[Iterable[Any]], list[Any]]) -> tuple[int, Any]:
    """The value as what compares with that of any other; lists and the like in an order."""
    if isinstance(value, (int, float)):
        return 0, value
    if isinstance(value, str):
        return 1, value
    if isinstance(value, (list, tuple)):
        return 2, order(sortable(item, order) for item in value)
    if isinstance(value, dict):
        return 3, sorted((key, sortable(item, order)) for key, item in value.items())
    return 4, repr(value)
