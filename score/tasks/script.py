"""Script tasks: a program reads stdin and writes stdout, once per case, each in its own process."""

import ast
import json
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

from score.protocol.frames import JobKind
from score.sandbox.program import Outcome, Program
from score.tasks.function import same, tests_program
from score.tasks.measures import NO_CODE, Answer, Measures, digest, unit_measures
from score.tasks.test_sources import imported, no_facts

CHECKED = ("_input_", "_output_", "_expected_")       # what a checker is called with


@dataclass(frozen=True)
class ScriptTask:
    """Cases as (stdin, expected stdout), and how the two outputs are compared."""

    cases: list[tuple[str, str]]
    compare: str
    tolerance: float
    checker: str
    program_setup: str

    @cached_property
    def inputs(self) -> list[bytes]:
        """The stdin of each case, which all programs share."""
        return [given.encode() for given, _expected in self.cases]


@cache
def imports_of_checker(source: str) -> list[str]:
    """The modules that a checker imports in any case."""
    return sorted(imported([ast.parse(source)]))


@dataclass(frozen=True)
class Checker:
    """A function `check(input, output, expected)` of the task, for a case that has several right outputs.

    It runs after the script, as the test of a program that does nothing: in whose process `eval` of what the
    script wrote runs. The verdict takes the place of the script's output.
    """

    source: str
    given: str
    expected: str

    @property
    def key(self) -> bytes:
        return json.dumps([self.source, self.expected]).encode()

    def program(self, outcome: Outcome) -> Program | None:
        """The checker with what the script wrote."""
        if outcome.error_class is not None:
            return None
        names = dict(zip(CHECKED, (self.given, outcome.result, self.expected), strict=True))
        order = {**no_facts(2), "entry_point": "nothing", "catches": False, "copies": False, "here": False,
                 "run": None, "names": names, "imports": imports_of_checker(self.source),
                 "sources": [self.source, f"assert check({', '.join(CHECKED)}) == True"]}
        return Program(JobKind.SERVE, "def nothing(): pass", json.dumps({"entry_point": "nothing"}).encode(),
                       tests=tests_program(order))

    def settle(self, outcome: Outcome, later: Outcome | None) -> Outcome:
        """The outcome with [output, what the checker says]; a checker that fails finds nothing right."""
        if later is None or later.infrastructure:
            return later or outcome
        return replace(outcome, result=[outcome.result, bool(later.result and later.result[0][0])])


class ScriptKind:
    """{cases: [{input, output}], compare: tokens, lines or values, tolerance, checker, program_setup}."""

    def load(self, payload: dict[str, Any]) -> ScriptTask:
        return ScriptTask([(case["input"], case["output"]) for case in payload["cases"]],
                          payload.get("compare", "tokens"), payload.get("tolerance", 0),
                          payload.get("checker", ""), payload.get("program_setup", ""))

    def programs(self, task: ScriptTask, answer: Answer) -> list[Program] | Outcome:
        if answer.code is None:
            return NO_CODE
        return [Program(JobKind.STDIO, answer.code, task.program_setup.encode(), stdin,
                        then=Checker(task.checker, given, expected) if task.checker else None,
                        mentions=task.program_setup)
                for stdin, (given, expected) in zip(task.inputs, task.cases, strict=True)]

    def measure(self, task: ScriptTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        """Cases that fail to run count as wrong; only when none ran is there no valid output."""
        ran = [outcome for outcome in outcomes if outcome.error_class is None]
        if not ran:
            return unit_measures(answer, outcomes[0], [], len(task.cases))
        checked = [outcome.result if isinstance(outcome.result, list) else
                   [outcome.result,
                    outcome.error_class is None and is_expected(outcome.result, expected, task)]
                   for outcome, (_given, expected) in zip(outcomes, task.cases, strict=True)]
        texts, passed = [text for text, _right in checked], [right for _text, right in checked]
        return unit_measures(answer, ran[0], passed, len(task.cases), outputs=texts,
                             fingerprint=digest(repr(texts)))


def is_expected(written: str, expected: str, task: ScriptTask) -> bool:
    """True if the output is what was expected, blanks at the ends of lines and of the text left aside."""
    if task.compare == "lines":
        return [line.rstrip() for line in written.rstrip().split("\n")] == [
            line.rstrip() for line in expected.rstrip().split("\n")]
    if task.compare == "values":
        lines = written.strip().split("\n"), expected.strip().split("\n")
        return len(lines[0]) == len(lines[1]) and all(map(have_one_value, *lines))
    ours, theirs = written.split(), expected.split()
    return len(ours) == len(theirs) and all(
        word == wanted or (task.tolerance > 0 and is_close(word, wanted, task.tolerance))
        for word, wanted in zip(ours, theirs, strict=True))


def have_one_value(line: str, wanted: str) -> bool:
    """True if two lines read the same, or their words are the same numbers, as 1.50 and 1.5."""
    try:
        return line.strip() == wanted.strip() or (
            [Decimal(word) for word in line.split()] == [Decimal(word) for word in wanted.split()])
    except ArithmeticError:
        return False


def is_close(word: str, wanted: str, tolerance: float) -> bool:
    """True if both are numbers, finite and near each other, and equal where they are whole."""
    try:
        ours, theirs = (int(each) if each.lstrip("+-").isdigit() else float(each) for each in (word, wanted))
        return abs(theirs) < math.inf and same(ours, theirs, tolerance) and word.isascii() and "_" not in word
    except (ValueError, OverflowError):         # no numbers, or too many digits
        return False
