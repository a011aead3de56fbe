"""Function tasks: calls whose results are compared here, or tests that run in a process of their own."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

from score.protocol import plain_data
from score.protocol.error_classes import ErrorClass
from score.protocol.frames import ALTERED, BUILT, LEFT_OUT, JobKind
from score.sandbox.program import EVALUATE, Outcome, Part, Program
from score.tasks.measures import NO_CODE, Answer, Measures, digest, unit_measures
from score.tasks.test_sources import calls_of_tests, facts_of

IN_PLACE = "`in_place` in the payload"
UNSEEN = f"it changes an argument or earlier answer, which must not matter (if it should: {IN_PLACE})"
WHERE = {ALTERED: UNSEEN, BUILT: "where what the test builds as text runs in its process"}
PLAINLY = "in one process with its tests"
FLOAT_ERROR = 1e-12                              # relative, of a whole number that floats computed
MOST_LIMITS = 10                                 # times those of one program, of which all tests run in turn
OF_SOURCES = ("meant", "claims", "drops")        # facts of each source


@dataclass(frozen=True)
class Call:
    """One call, as the payload has it, and what it must return."""

    arguments: list[Any]
    keywords: dict[str, Any]
    expected: Any


@dataclass(frozen=True)
class FunctionTask:
    """`calls`, or tests: a source `setup`, then the statements `units`; `separate` where each begins anew."""

    entry_point: str
    program_setup: str = ""
    calls: tuple[Call, ...] = ()
    tolerance: float = 0
    setup: str = ""
    units: tuple[str, ...] = ()
    separate: bool = False
    in_place: bool = False               # whether tests see what calls whose answer they use change

    @property
    def num_units(self) -> int:
        return len(self.calls) or len(self.units)

    @cached_property
    def order(self) -> bytes:
        """The payload of every program; made once, because it may be long."""
        order: dict[str, Any] = {"entry_point": self.entry_point, "setup": self.program_setup}
        if self.calls:
            order["calls"] = [[call.arguments, call.keywords] for call in self.calls]
        return json.dumps(order).encode()

    @cached_property
    def tests(self) -> list[dict[str, Any]]:
        """What to run: all tests, which share what the program keeps, or each by itself."""
        facts, units = facts_of(self.setup, self.units, self.entry_point), list(self.units)
        order = {"entry_point": self.entry_point, **facts, "run": units if self.separate else None}
        order["in_place"] |= self.in_place
        groups = [slice(place, place + 1) for place in range(len(units))] if self.separate else [slice(None)]
        return [order | {"sources": [self.setup, *units[group]],
                         **{key: [facts[key][0], *facts[key][1:][group]] for key in OF_SOURCES}}
                for group in groups]

    @cached_property
    def ways(self) -> list[list[Program]]:
        """The programs that run each of the tests on the other end of the link, in each way."""
        return [[tests_program(order | {"copies": copies, "here": here})
                 for copies, here in ((False, False), (True, False), (True, True))] for order in self.tests]

    @cached_property
    def evaluates(self) -> bool:
        """Whether tests mention what evaluates text."""
        return bool(EVALUATE.search("\n".join([self.setup, *self.units])))


@dataclass(frozen=True)
class Plainly:
    """A program and those of its tests that it passed, in turn in one process: they share what it keeps."""

    task: FunctionTask
    source: str

    def program(self, places: Sequence[int]) -> Program:
        tests = [self.task.tests[place] for place in places]
        sources = [self.task.setup, *(unit for each in tests for unit in each["sources"][1:])]
        order = tests[0] | {"sources": sources, "setup": self.task.program_setup,
                            "evaluates": self.task.evaluates}
        return Program(JobKind.PLAIN, self.source, json.dumps(order).encode(), reads_tests=True,
                       mentions="\n".join([self.task.program_setup, *sources]),
                       num_limits=min(1 + len(places), MOST_LIMITS))


@dataclass(frozen=True)
class Again:
    """Judges a program again by what the first run said of its tests: each way to run them must pass.

    In one they do not see what the program altered, in one what they built as text runs in their process, and
    in one they share a process with the program. In the latter two it may have a hand, so they make no task
    untestable.
    """

    make: Callable[..., Program]
    ways: tuple[tuple[str, Program], ...]
    plainly: Part
    key: ClassVar[bytes] = b"again"

    def next_way(self, outcome: Outcome) -> int | None:
        said = {word for unit in outcome.result or () for word in unit[3].split()}
        return next((place for place, (word, _tests) in enumerate(self.ways) if word in said), None)

    def program(self, outcome: Outcome) -> Program | Part | None:
        place = self.next_way(outcome)
        if place is not None:
            word, tests = self.ways[place]
            return self.make(tests=tests, then=replace(self, ways=self.ways[place + 1:]),
                             reads_tests=word == BUILT)
        return self.plainly if any(unit[0] for unit in outcome.result or ()) else None

    def settle(self, outcome: Outcome, later: Outcome | None) -> Outcome:
        if later is None:
            return outcome
        place = self.next_way(outcome)
        where = PLAINLY if place is None else WHERE[self.ways[place][0]]
        if later.error_class is not None or len(later.result) != len(outcome.result):
            is_choice = later.error_class in (None, ErrorClass.UNTESTABLE)
            return replace(later, result=None, error_message=f"{where}: {later.error_message}",
                           error_class=ErrorClass.RUNTIME if is_choice else later.error_class)
        return replace(outcome, result=[agreed(first, second, where) for first, second in zip(
            outcome.result, later.result, strict=True)])


def agreed(first: tuple[Any, ...], second: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """The verdict on a test that was run twice: it has to pass both times, and may be skipped the first."""
    if not first[0]:
        return first
    if LEFT_OUT in second[3] and LEFT_OUT not in first[3]:
        return False, "SkipTest", f"{where}, it is skipped", ""
    if second[0] or second[2].startswith(PLAINLY):
        return second
    return *second[:2], f"{where}, {second[2]}", second[3]


def tests_program(order: dict[str, Any]) -> Program:
    """The tests of a program; `sources` are a setup and the statements that are tests."""
    return Program(JobKind.TEST, "", json.dumps(order).encode(), mentions="\n".join(order["sources"]))


class FunctionKind:
    """{entry_point, calls: [{args, kwargs, expected}], tolerance}, or {entry_point, setup, tests}.

    `tests` is a list of statements, each a unit, or a source that defines `check(candidate)`, or functions
    test_* and classes, each test of which is a unit with a program of its own. `program_setup` is code that
    comes before the program.
    """

    def load(self, payload: dict[str, Any]) -> FunctionTask:
        names = payload["entry_point"], payload.get("program_setup", "")
        setup = payload.get("setup", "")
        if "calls" in payload:
            calls = [Call(call.get("args", []), call.get("kwargs", {}),
                          plain_data.restored(call["expected"])) for call in payload["calls"]]
            return FunctionTask(*names, tuple(calls), payload.get("tolerance", 0))
        tests = payload["tests"]
        in_place = payload.get("in_place", False)
        if isinstance(tests, list):
            return FunctionTask(*names, setup=setup, units=tuple(tests), in_place=in_place)
        whole = f"{setup}\n{tests}"
        calls_of = tuple(calls_of_tests(whole))
        return FunctionTask(*names, setup=whole, units=calls_of or ("check(candidate)",),
                            separate=bool(calls_of), in_place=in_place)

    def programs(self, task: FunctionTask, answer: Answer) -> list[Program] | Outcome:
        if answer.code is None:
            return NO_CODE
        if task.calls:
            return [Program(JobKind.CALL, answer.code, task.order, mentions=task.program_setup)]
        serve = partial(Program, JobKind.SERVE, answer.code, task.order, mentions=task.program_setup)
        whole = Plainly(task, answer.code)
        return [serve(tests=tests, then=Again(serve, ((ALTERED, copies), (BUILT, here)), Part(whole, place)))
                for place, (tests, copies, here) in enumerate(task.ways)]

    def measure(self, task: FunctionTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        """Tests that fail to run count as failed; only when none ran is there no valid output."""
        ran = [outcome for outcome in outcomes if outcome.error_class is None]
        if not ran:
            return unit_measures(answer, outcomes[0], [], task.num_units)
        if not task.calls:
            units = [list(unit) for outcome in outcomes for unit in outcome.result or [
                (False, outcome.error_name or outcome.error_class or "", outcome.error_message or "", "")]]
            return unit_measures(answer, ran[0], [unit[0] for unit in units], task.num_units, outputs=units)
        outcome = outcomes[0]
        results = outcome.result if isinstance(outcome.result, list) else []
        passed = [is_expected(result, call, task.tolerance)
                  for result, call in zip(results, task.calls, strict=False)]
        shown = [result[:2] for result in results if isinstance(result, list)]
        return unit_measures(answer, outcome, passed, task.num_units, outputs=shown,
                             fingerprint=digest(json.dumps(shown, sort_keys=True)))


def is_expected(result: Any, call: Call, tolerance: float) -> bool:
    """True if a call's result is plain data equal to what was expected."""
    if not isinstance(result, list) or len(result) != 2 or result[0] != "value":
        return False
    try:
        return same(plain_data.untag(result[1]), call.expected, tolerance)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
        return False       # an integer too large for a float is an ArithmeticError


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Equal as JSON can say it: a tuple is a list, a set is none, truth values are not numbers.

    The tolerance is for what was rounded: whole numbers agree exactly, and a fraction has to round to one and
    be as near to it as the tolerance says, whatever its size.
    """
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return value is expected
    if isinstance(expected, (int, float)):
        return isinstance(value, (int, float)) and (
            value == expected or (value != value and expected != expected)           # both are NaN
            or (tolerance > 0 and (
                math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
                if isinstance(expected, float) else 0 < abs(value - expected) < 0.5 and math.isclose(
                    value, expected, rel_tol=FLOAT_ERROR, abs_tol=tolerance))))
    if isinstance(expected, list):
        return isinstance(value, (list, tuple)) and len(value) == len(expected) and all(
            same(ours, theirs, tolerance) for ours, theirs in zip(value, expected, strict=True))
    if isinstance(expected, dict):
        return isinstance(value, dict) and value.keys() == expected.keys() and all(
            same(value[key], expected[key], tolerance) for key in expected)
    return type(value) is type(expected) and bool(value == expected)
