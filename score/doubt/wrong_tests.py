"""Tests that are wrong on purpose: what a right program must fail, and a program that passes anything cannot.

Each differs from the test in one place that is sure to be reached, so that a right program fails it: another
expected value of the same kind, another exception, or the opposite of what is asserted. Right and wrong tests
are written in the same way, without comments and messages, so that a program which reads them cannot tell one
from the other unless it knows the answer.
"""

from __future__ import annotations

import ast
import builtins
import random
from collections.abc import Iterator
from typing import Any

from score.doubt.likely import likely
from score.doubt.literals import NEAR, altered, last_name
from score.doubt.names import CLOSE_CALLS, EQUAL_CALLS, Names

MOST_VARIANTS = 48
Edit = dict[int, ast.AST]            # what stands in the place of a node, by the node's id
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.In: ast.NotIn, ast.Lt: ast.GtE, ast.Gt: ast.LtE}
OPPOSITE |= {wrong: right for right, wrong in OPPOSITE.items()}
OPPOSITE_CALLS = {"assertTrue": "assertFalse", "assertIn": "assertNotIn", "assertIs": "assertIsNot",
                  "assertIsNone": "assertIsNotNone", "assertIsInstance": "assertNotIsInstance",
                  "assertNotEqual": "assertEqual", "assertGreater": "assertLessEqual",
                  "assertLess": "assertGreaterEqual"}
OPPOSITE_CALLS |= {wrong: right for right, wrong in OPPOSITE_CALLS.items() if wrong != "assertEqual"}
# Of a value that is computed: another of its type, or else what is equal to nothing.
OTHER_VALUE = ("lambda v: not v if isinstance(v, bool) else "
               "(v + abs(v) + 1 if v - v == 0 else -v) if isinstance(v, (int, float)) else "
               "v + v[:1] if isinstance(v, (str, bytes, list, tuple)) and v else (v, None)")
# The same of what is exactly compared: a number that is not far, the same items in another order, or fewer.
NEAR_VALUE = ("lambda v: not v if isinstance(v, bool) else v - 1 if type(v) is int and v > 0 else "
              "(v / 2 or 1) if type(v) is float and v - v == 0 else "
              "v[::-1] if type(v) in (str, bytes, list, tuple) and v[::-1] != v else "
              "type(v)(list(v)[1:]) if type(v) in (set, frozenset) and v else (v, None)")
RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
OTHER_ERRORS = ("ValueError", "TypeError", "KeyError", "IndexError", "ZeroDivisionError", "AttributeError")
ANY_ERROR = frozenset({"Exception", "BaseException", "AssertionError"})


def without_messages(source: str) -> str:
    """The source as Python itself writes it, without what asserts would say."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.msg = None
    return ast.unparse(tree)


def wrong_tests(source: str, own_name: str) -> list[str]:
    """Wrong variants of a test of the function `own_name`; the last resort ends in `assert False`."""
    tree, draw = ast.parse(source), random.Random(source)
    edits = list(Sites(tree, own_name, draw).edits_in(tree.body))
    chosen = draw.sample(edits, min(len(edits), MOST_VARIANTS))
    variants = [ast.unparse(ast.fix_missing_locations(replaced(tree, edit))) for edit in chosen]
    return sorted(set(variants) - {source}) or [f"{source}\nassert False"]


def replaced(node: Any, edit: Edit) -> Any:
    """A copy of a tree with some nodes replaced."""
    if isinstance(node, list):
        return [replaced(item, edit) for item in node]
    if not isinstance(node, ast.AST):
        return node
    if id(node) in edit:
        return edit[id(node)]
    return type(node)(**{name: replaced(value, edit) for name, value in ast.iter_fields(node)})


class Sites:
    """Places of a test where it can be made wrong, of those that are reached whatever the program does."""

    def __init__(self, tree: ast.Module, own_name: str, draw: random.Random) -> None:
        self.own_names, self.draw = {own_name.partition(".")[0], "candidate"}, draw
        defined: dict[str, list[Any]] = {}
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                defined.setdefault(node.name, []).append(node)
        self.functions = {name: nodes[0] for name, nodes in defined.items() if len(nodes) == 1}
        self.names = Names(tree)
        constants = {ast.dump(node): node for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        self.present, self.values = set(constants), [node.value for node in constants.values()]
        self.ordered = not any(isinstance(node, ast.Attribute) and node.attr == "assertCountEqual"
                               for node in ast.walk(tree))

    def edits_in(self, statements: list[ast.stmt]) -> Iterator[Edit]:
        """One edit for each way to make these statements fail, in the functions that they call too."""
        for statement in statements:
            yield from self.edits_of(statement)
            if any(isinstance(node, LEAVES) for node in walk_outside_functions(statement)):
                return

    def edits_of(self, statement: ast.stmt) -> Iterator[Edit]:
        """Edits of one statement."""
        if isinstance(statement, ast.Assert):
            yield from self.wrong(statement.test)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield from self.wrong_call(statement.value)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            calls = [item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)]
            raising = [call for call in calls if last_name(call.func) in RAISES]
            yield from (edit for call in raising for edit in self.other_error(call))
            if not raising:
                yield from self.edits_in(statement.body)
            return
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            yield from self.guarded(self.edits_in(statement.body), statement.iter)
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
                    yield from self.replaced_error(handler.type)
                    yield from self.edits_in(handler.body)
        elif not statement.handlers:
            yield from self.edits_in(statement.body)
        yield from self.edits_in(statement.finalbody)

    def wrong(self, test: ast.expr) -> Iterator[Edit]:
        """Edits that make an expression false which is true."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                yield from self.wrong(value)
        elif isinstance(test, ast.BoolOp):
            parts = [next(self.wrong(value), {}) for value in test.values]
            yield {key: node for part in parts for key, node in part.items()} if all(parts) else negated(test)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield {id(test): test.operand}
        elif isinstance(test, ast.Compare):
            yield from self.wrong_compare(test)
        elif isinstance(test, ast.Call):
            yield from self.wrong_truth(test)
        elif not isinstance(test, ast.Constant):
            yield negated(test)

    def wrong_truth(self, call: ast.Call) -> Iterator[Edit]:
        """Edits of a call whose result is true: of what it compares, where it does."""
        name = last_name(call.func)
        inner = call.args[0] if len(call.args) == 1 else None
        if name == "all" and isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and not (
                inner.generators[1:] or inner.generators[0].ifs):
            yield from self.guarded(self.wrong(inner.elt), inner.generators[0].iter)
        elif name == "all" and isinstance(inner, (ast.List, ast.Tuple)):
            for item in inner.elts:
                yield from self.wrong(item)
        elif name == "all" and not call.args and isinstance(call.func, ast.Attribute):
            yield from self.wrong(call.func.value)
        elif name in EQUAL_CALLS and (edits := self.other_value(call.args[:2], far=name in CLOSE_CALLS)):
            yield from edits
        else:
            yield negated(call)

    def wrong_call(self, call: ast.Call) -> Iterator[Edit]:
        """Edits of a call that raises where it finds something wrong, as the methods of unittest do."""
        name = last_name(call.func)
        if name in EQUAL_CALLS:
            sides = call.args[:2]
            far = name in CLOSE_CALLS or name == "assertCountEqual"
            yield from self.other_value(sides, far=name in CLOSE_CALLS) or self.recomputed(sides, far=far)
        elif name in RAISES:
            yield from self.other_error(call)
        elif name in OPPOSITE_CALLS and isinstance(call.func, ast.Attribute):
            yield {id(call.func): ast.Attribute(call.func.value, OPPOSITE_CALLS[name], ast.Load())}

    def wrong_compare(self, test: ast.Compare) -> Iterator[Edit]:
        """Edits of a comparison: another expected value, else the opposite."""
        operator, sides = test.ops[0], [test.comparators[-1], test.left]
        if isinstance(operator, ast.Eq) and all(isinstance(each, ast.Eq) for each in test.ops):
            yield from self.other_value(sides, far=False) or self.recomputed(sides, far=has_approx(sides))
        elif len(test.ops) > 1:
            yield negated(test)
        elif isinstance(operator, ast.Is) and isinstance(sides[0], ast.Constant):
            others = [value for value in (True, False, None) if value is not sides[0].value]
            yield {id(sides[0]): ast.Constant(self.draw.choice(others))}
        else:
            opposite = ast.Compare(test.left, [OPPOSITE[type(operator)]()], test.comparators)
            yield self.other_members(test) or self.other_distance(test) or {id(test): opposite}

    def other_value(self, sides: list[ast.expr], *, far: bool) -> list[Edit]:
        """Another value on the first side of which it can be told that it is one."""
        far = far or has_approx(sides)
        for literals in [*([side] for side in sides), *map(self.names.values_behind, sides)]:
            edits: list[Edit] = [{id(each): other} for each in literals
                                 for other in self.others(each, far=far)]
            if edits and len({key for edit in edits for key in edit}) == len(literals):
                return edits
        return []

    def others(self, literal: ast.expr, *, far: bool) -> list[ast.expr]:
        """Two other values if possible: of constants that the test does not hold, and of those it holds."""
        drawn = [other for _ in range(12) if (other := altered(literal, self.draw, far=far)) is not None]
        fresh = [other for other in drawn if not any(
            ast.dump(node) in self.present and node not in list(ast.walk(literal))
            for node in ast.walk(other) if isinstance(node, ast.Constant))]
        distinct = {ast.dump(other): other for other in fresh or drawn}
        known = None if far else likely(literal, self.values, self.draw, ordered=self.ordered)
        return [*list(distinct.values())[:1 if known else 2], *([known] if known else [])]

    def guarded(self, edits: Iterator[Edit], items: ast.expr) -> Iterator[Edit]:
        """Edits below a loop, which fails where there is nothing to loop over."""
        as_list = ast.Call(ast.Name("list", ast.Load()), [items], [])
        guard = {} if self.names.has_items(items) else sure(as_list, items)
        yield from ({**edit, **guard} for edit in edits)

    def recomputed(self, sides: list[ast.expr], *, far: bool) -> Iterator[Edit]:
        """Two other values of the side without the program, or else of each."""
        others = [side for side in sides if not self.own_names & {
            node.id for node in ast.walk(side) if isinstance(node, ast.Name)}]
        for side in others[:1] if len(others) < len(sides) else sides:
            for value in self.names.values_behind(side) or [side]:
                for other in (OTHER_VALUE, "lambda v: (v, None)" if far else NEAR_VALUE):
                    yield {id(value): ast.Call(ast.parse(other, mode="eval").body, [value], [])}

    def other_members(self, test: ast.Compare) -> Edit | None:
        """`x in [..]` with every member altered, or a literal x with a text that is nowhere."""
        inside = test.comparators[0]
        if not isinstance(test.ops[0], ast.In):
            return None
        if isinstance(inside, (ast.List, ast.Tuple, ast.Set)) and inside.elts:
            members = {ast.dump(item) for item in inside.elts}
            others = [altered(item, self.draw, far=True) for item in inside.elts]
            if all(other is not None and ast.dump(other) not in members for other in others):
                return dict(zip(map(id, inside.elts), others, strict=True))  # type: ignore[arg-type]
        if isinstance(test.left, ast.Constant) and isinstance(test.left.value, str):
            return {id(test.left): ast.Constant("".join(self.draw.choices("bcdfghjklmnpqrstvwxz", k=9)))}
        return None

    def other_distance(self, test: ast.Compare) -> Edit | None:
        """`abs(x - 2) < 0.1` with another number in the place of 2, further off than any such tolerance."""
        distance, limit = test.left, test.comparators[0]
        if not isinstance(test.ops[0], (ast.Lt, ast.LtE)) or not (
                isinstance(limit, ast.Constant) and isinstance(limit.value, float) and limit.value < 0.5):
            return None
        if isinstance(distance, ast.Call) and last_name(distance.func) == "abs" and len(distance.args) == 1:
            [difference] = distance.args
            if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub):
                for side in (difference.right, difference.left):
                    if isinstance(side, (ast.Constant, ast.UnaryOp)) and (
                            other := altered(side, self.draw, far=True)):
                        return {id(side): other}
        return None

    def other_error(self, call: ast.Call) -> Iterator[Edit]:
        """`raises(E)` with another exception."""
        if call.args and isinstance(call.args[0], (ast.Name, ast.Attribute)):
            yield from self.replaced_error(call.args[0])

    def replaced_error(self, kind: ast.expr) -> Iterator[Edit]:
        """Another exception that is no base and no subclass of this one."""
        known = getattr(builtins, last_name(kind), None)
        if last_name(kind) in ANY_ERROR:
            return
        names = ["BufferError"]          # of a class of the tests' or the program's own nothing is known
        if isinstance(known, type):
            unrelated = [other for other in OTHER_ERRORS if not issubclass(known, getattr(builtins, other))
                         and not issubclass(getattr(builtins, other), known)]
            names = self.draw.sample(unrelated, 3)
        for name in names:
            yield {id(kind): ast.Name(name, ast.Load())}


def has_approx(sides: list[ast.expr]) -> bool:
    """True if something that is near is equal enough."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in NEAR
               for side in sides for node in ast.walk(side))


def sure(value: ast.expr, place: ast.expr | None = None) -> Edit:
    """An error in the place of a value that is false or empty."""
    error = ast.BinOp(ast.Constant(1), ast.FloorDiv(), ast.Constant(0))
    return {id(place or value): ast.BoolOp(ast.Or(), [value, error])}


def negated(test: ast.expr) -> Edit:
    """The opposite of an expression."""
    return {id(test): ast.UnaryOp(ast.Not(), test)}


def walk_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, but for the inside of functions and classes."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk_outside_functions(child)


def names_called(statement: ast.stmt) -> list[str]:
    """Names, attributes and texts of a statement, any of which may be a function that it calls."""
    found = []
    for node in ast.walk(statement):
        name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
        if isinstance(name, str):
            found.append(name)
    return found


def always_fails(statement: ast.stmt) -> bool:
    """True of `assert False`, `raise ..` and `fail()`."""
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and not statement.test.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Raise) or (isinstance(call, ast.Call) and last_name(call.func) == "fail")
