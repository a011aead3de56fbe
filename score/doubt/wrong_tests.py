"""Tests that are wrong on purpose: what a right program must fail, and a program that passes anything cannot.

Each differs from the test in one place that is sure to be reached, so that a right program fails it: another
expected value of the same kind, another exception, or the opposite of what is asserted. Right and wrong tests
are written in the same way, without comments and messages, so that a program which reads them cannot tell one
from the other unless it knows the answer. Where the answer that a program has to give is written out, the
wrong test says nothing of it, and what the program gives there shows whether it knows.
"""

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from score.doubt.expressions import RAISES, Edit, Expressions, Secret, sure
from score.doubt.literals import last_name

MOST_VARIANTS = 48
KEEP = "_answer_"            # of the lane: keeps what it is called with, and gives it back
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)


def without_messages(source: str) -> str:
    """The source as Python itself writes it, without what asserts would say."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.msg = None
    return ast.unparse(tree)


@dataclass(frozen=True)
class WrongTest:
    """A source, and where a right program is seen to give what the test hides, the secret that this is."""

    source: str
    secret: Secret | None = None
    more: Callable[[], list[str]] = list        # many further variants, wrong at the same place


class Doubts:
    """A test of the function `own_name`, and wrong variants of it; the last resort ends in `assert False`.

    `family` are all tests of the task: what one of them expects is a likely answer to another.
    """

    def __init__(self, source: str, own_name: str, family: tuple[str, ...] = ()) -> None:
        self.tree, self.family, draw = ast.parse(source), family, random.Random(source)
        self.sites = Sites(self.tree, own_name, draw)
        edits = list(self.sites.edits_in(self.tree.body))
        self.right = self.write({})
        secrets = self.sites.expressions.secrets
        wrong = {}
        for edit in draw.sample(edits, min(len(edits), MOST_VARIANTS)):
            secret = next((secrets[place] for place in edit if place in secrets), None)
            test = WrongTest(self.write(edit), secret, partial(self.many, edit, secret))
            wrong[test.source] = test
        self.wrong = [test for text, test in sorted(wrong.items()) if text != self.right] or [
            WrongTest(f"{self.right}\nassert False")]

    def many(self, edit: Edit, secret: Secret | None) -> list[str]:
        """The source with many values in the place of a secret."""
        known = [value for source in self.family for value in values_of(source)]
        return [self.write({**edit, id(secret.node): other})
                for other in self.sites.expressions.more(secret, known)] if secret else []

    def write(self, edit: Edit) -> str:
        """The source with an edit; answers that are compared with what is written out are kept."""
        kept: Edit = {key: ast.Call(ast.Name(KEEP, ast.Load()), [answer], [])
                      for key, answer in self.sites.expressions.answers.items()}
        return ast.unparse(ast.fix_missing_locations(apply_edit(self.tree, {**kept, **edit})))


def values_of(source: str) -> list[Any]:
    """The texts and numbers that a source writes out; none of a source that cannot be read."""
    try:
        return [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def apply_edit(node: Any, edit: Edit) -> Any:
    """A copy of a tree with some nodes replaced."""
    if isinstance(node, list):
        return [apply_edit(item, edit) for item in node]
    if not isinstance(node, ast.AST):
        return node
    if id(node) in edit:
        return edit[id(node)]
    return type(node)(**{name: apply_edit(value, edit) for name, value in ast.iter_fields(node)})


class Sites:
    """Places of a test where it can be made wrong, of those that are reached whatever the program does."""

    def __init__(self, tree: ast.Module, own_name: str, draw: random.Random) -> None:
        self.expressions = Expressions(tree, own_name, draw)
        defined: dict[str, list[Any]] = {}
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                defined.setdefault(node.name, []).append(node)
        self.functions = {name: nodes[0] for name, nodes in defined.items() if len(nodes) == 1}

    def edits_in(self, statements: list[ast.stmt]) -> Iterator[Edit]:
        """One edit for each way to make these statements fail, in the functions that they call too."""
        for statement in statements:
            yield from self.edits_of(statement)
            if any(isinstance(node, LEAVES) for node in walk_outside_functions(statement)):
                return

    def edits_of(self, statement: ast.stmt) -> Iterator[Edit]:
        """Edits of one statement."""
        if isinstance(statement, ast.Assert):
            yield from self.expressions.wrong(statement.test)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from self.expressions.wrong_call(statement.value)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            calls = [item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)]
            raising = [call for call in calls if last_name(call.func) in RAISES]
            yield from (edit for call in raising for edit in self.expressions.other_error(call))
            if not raising:
                yield from self.edits_in(statement.body)
            return
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            yield from self.expressions.guard(self.edits_in(statement.body), statement.iter)
            return
        elif isinstance(statement, ast.If):
            yield from ({**edit, **sure(statement.test)} for edit in self.edits_in(statement.body))
            return
        elif isinstance(statement, ast.Try):
            yield from self.edits_of_try(statement)
            return
        elif not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
            return
        for name in names_called(statement):
            if (function := self.functions.pop(name, None)) is not None:
                yield from self.edits_in(function.body)

    def edits_of_try(self, statement: ast.Try) -> Iterator[Edit]:
        """Of `try: f(); assert False; except E:` another E, as what is asserted below it; else of the end."""
        if any(always_fails(last) for last in (statement.body[-1:] + statement.orelse[-1:])):
            for handler in statement.handlers[:1]:
                if isinstance(handler.type, (ast.Name, ast.Attribute)):
                    yield from self.expressions.replace_error(handler.type)
                    yield from self.edits_in(handler.body)
        elif not statement.handlers:
            yield from self.edits_in(statement.body)
        yield from self.edits_in(statement.finalbody)


def walk_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, but for the inside of functions and classes."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk_outside_functions(child)


def names_called(statement: ast.stmt) -> list[str]:
    """Names, attributes and texts of a statement, any of which may be a function that it calls."""
    names = []
    for node in ast.walk(statement):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(name, str):
            names.append(name)
    return names


def always_fails(statement: ast.stmt) -> bool:
    """True of `assert False`, `raise ..` and `fail()`."""
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and not statement.test.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Raise) or (isinstance(call, ast.Call) and last_name(call.func) == "fail")
