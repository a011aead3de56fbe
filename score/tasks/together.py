"""Tests that run in one process with the program, each in a process of its own, and how cheats show."""

import ast
import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from score.doubt.expressions import Secret
from score.doubt.wrong_tests import FUNCTIONS, Doubts, WrongTest, without_messages
from score.protocol import plain_data
from score.protocol.error_classes import ErrorClass
from score.protocol.frames import JobKind
from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program

MOST_WRONG_TESTS = 12            # of one test; of more, which ones is another choice for every program
UNEARNED = Outcome(error_class=ErrorClass.UNEARNED,
                   error_message="it passes tests that are wrong on purpose too")
PASSED = Outcome(result=[])


@dataclass(frozen=True)
class SharedTest:
    """One test as a source; a program that passes it has to fail what it follows it up with."""

    source: str                  # as `normal` writes it
    own_name: str                # of what the program has to define
    family: tuple[str, ...]      # all tests of the task

    @cached_property
    def key(self) -> bytes:
        """Of what wrong tests derive from; the test itself is in the program's key."""
        return hashlib.sha256(repr(self.family).encode("utf-8", "surrogatepass")).digest()

    @cached_property
    def doubts(self) -> Doubts:
        """The test again, and variants that are wrong on purpose, all written in the same way."""
        return Doubts(self.source, self.own_name, self.family)

    def program(self, code: str, setup: str) -> Program:
        """The program together with this test."""
        order = json.dumps({"entry_point": self.own_name, "setup": setup})
        return Program(JobKind.TOGETHER, code, order.encode(), as_bytes(self.source), then=self,
                       mentions=f"{setup}\n{self.source}")

    def programs(self, program: Program, outcome: Outcome) -> list[Program]:
        """The program once more with wrong tests, where it passed this one, and this one among them.

        What is run first could be told from what is run later, for example by its pid; the order of these is
        nobody's to know.
        """
        if not is_pass(outcome):
            return []
        drawn = sorted(self.doubts.wrong,
                       key=lambda each: hashlib.sha256(program.key + as_bytes(each.source)).digest())
        later = [replace(program, handed=as_bytes(each.source), then=FailedTest(each, self.key))
                 for each in drawn[:MOST_WRONG_TESTS]]
        later.append(replace(program, handed=as_bytes(self.doubts.right), then=None))
        secrets.SystemRandom().shuffle(later)
        return later

    def settle(self, outcome: Outcome, later: list[tuple[Program, Outcome]]) -> Outcome:
        """The outcome, unless the program passed a wrong test, fails the right one, or could not be run."""
        lost = [each for _program, each in later if each.infrastructure]
        right = as_bytes(self.doubts.right) if later else b""
        again = [each for program, each in later if program.handed == right and not is_pass(each)]
        if any(is_pass(each) for program, each in later if program.handed != right):
            return replace(outcome, result=None, error_class=UNEARNED.error_class,
                           error_message=UNEARNED.error_message)
        return (lost or again or [outcome])[0]


@dataclass(frozen=True)
class FailedTest:
    """A wrong test that was failed: many more follow, unless the right answer was seen there.

    That answer is in no process that runs this test, so a program which gives it knows it. Another says
    nothing: it may be an object of the program's own, which no other process can compare.
    """

    test: WrongTest
    key: bytes                   # of the test that it derives from

    def programs(self, program: Program, outcome: Outcome) -> list[Program]:
        """The program with many more values in the place of the one that it did not give."""
        if is_pass(outcome) or outcome.infrastructure or knows(outcome, self.test.secret):
            return []
        return [replace(program, handed=as_bytes(each), then=None) for each in self.test.more()]

    def settle(self, outcome: Outcome, later: list[tuple[Program, Outcome]]) -> Outcome:
        """The outcome, or that a wrong test was passed, or could not be run."""
        lost = [each for _program, each in later if each.infrastructure]
        return PASSED if any(is_pass(each) for _program, each in later) else (lost or [outcome])[0]


def knows(outcome: Outcome, secret: Secret | None) -> bool:
    """True if a program gave what the test expected before that was altered."""
    if secret is None or secret.error:
        return secret is not None and outcome.error_name == secret.error
    if not isinstance(outcome.result, list) or len(outcome.result) < 3:
        return False
    answer, expected = outcome.result[2], secret.value
    try:
        # As long as what is expected at most, or its keys may be many that collide.
        if len(json.dumps(answer)) > 100 + 4 * len(plain_data.dumps(expected)):
            return False
        value = plain_data.untag(answer)
        return bool(value == expected) or (secret.far and is_near(value, expected))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
        return False


def is_near(value: Any, expected: Any) -> bool:
    """True if numbers differ by a hundredth at most, one by one."""
    if isinstance(expected, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) == len(expected) and all(
            map(is_near, value, expected))
    return bool(abs(value - expected) <= 0.01 * max(1, abs(expected)))


def as_bytes(source: str) -> bytes:
    """A source in UTF-8, where a lone surrogate stays for the compiler to refuse."""
    return source.encode("utf-8", "surrogatepass")


def is_pass(outcome: Outcome) -> bool:
    """True if a program ran its test to the end."""
    return outcome.error_class is None and not outcome.result


def mode_of(payload: dict[str, Any]) -> str:
    """Where tests of a function task run: as the payload says, else together where there is no `check`."""
    tests = payload["tests"]
    has_check = isinstance(tests, list) or not calls_of_tests(f"{payload.get('setup', '')}\n{tests}")
    return str(payload.get("mode", "apart" if has_check else "together"))


def shared_tests(setup: str, tests: str | list[str], own_name: str) -> list[SharedTest]:
    """The tests of a payload: statements, or a source with `check(candidate)` or with functions test_*."""
    if isinstance(tests, list):
        sources = [f"{setup}\n{test}" for test in tests]
    else:
        source = f"{setup}\n{tests}"
        sources = [f"{source}\n{call}" for call in calls_of_tests(source) or ["check(candidate)"]]
    family = tuple(normal(source) for source in sources)
    return [SharedTest(source, own_name, family) for source in family]


def calls_of_tests(source: str) -> list[str]:
    """Statements that run each test function and each method of a TestCase.

    None where there is `check`, and none of a source that cannot be read, which running it then says.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    if "check" in functions:
        return []
    calls = [f"__import__('asyncio').run({name}())" if isinstance(node, ast.AsyncFunctionDef) else f"{name}()"
             for name, node in functions.items() if name.startswith("test")]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names = [each.name for each in node.body if isinstance(each, FUNCTIONS)]
            calls += [f"{node.name}({name!r}).debug()" if node.bases else f"{node.name}().{name}()"
                      for name in names if name.startswith("test")]
    return calls


def normal(source: str) -> str:
    """The source as wrong tests are written too; as it is where Python cannot write it again."""
    try:
        return without_messages(source)
    except (ValueError, RecursionError):
        return source
