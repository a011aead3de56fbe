"""Tests that run in one process with the program, each in a process of its own, and how cheats show."""

import ast
import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from score.doubt.wrong_tests import FUNCTIONS, without_messages, wrong_tests
from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program
from score.wire.error_classes import ErrorClass
from score.wire.frames import JobKind

MOST_WRONG_TESTS = 12            # of one test; of more, which ones is another choice for every program
UNEARNED = Outcome(error_class=ErrorClass.UNEARNED,
                   error_message="it passes tests that are wrong on purpose too")


@dataclass(frozen=True)
class SharedTest:
    """One test as a source; a program that passes it has to fail what it follows it up with."""

    source: str                  # as `normal` writes it
    own_name: str                # of what the program has to define

    key: ClassVar[bytes] = b"wrong tests"        # they derive from the test, which is in the program's key

    @cached_property
    def wrong(self) -> list[str]:
        """Variants that are wrong on purpose."""
        return wrong_tests(self.source, self.own_name)

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
        drawn = sorted(self.wrong, key=lambda each: hashlib.sha256(program.key + as_bytes(each)).digest())
        tests = [self.source, *drawn[:MOST_WRONG_TESTS]]
        secrets.SystemRandom().shuffle(tests)
        return [replace(program, handed=as_bytes(each), then=None) for each in tests]

    def settle(self, outcome: Outcome, later: list[tuple[Program, Outcome]]) -> Outcome:
        """The outcome, unless the program passed a wrong test, fails the right one, or could not be run."""
        lost = [each for _program, each in later if each.infrastructure]
        right = as_bytes(self.source)
        again = [each for program, each in later if program.handed == right and not is_pass(each)]
        if any(is_pass(each) for program, each in later if program.handed != right):
            return replace(outcome, result=None, error_class=UNEARNED.error_class,
                           error_message=UNEARNED.error_message)
        return (lost or again or [outcome])[0]


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
    return [SharedTest(normal(source), own_name) for source in sources]


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
