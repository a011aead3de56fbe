"""Expressions of a test made false on purpose: what stands in the place of which node."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from score.doubt.likely import likely, likely_others
from score.doubt.literals import ANY_ERROR, NEAR, alter, last_name, unrelated, unrelated_errors, value_of
from score.doubt.names import CLOSE_CALLS, EQUAL_CALLS, Names

Edit = dict[int, ast.AST]            # what stands in the place of a node, by the node's id
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
MOST_VALUES, MANY_VALUES = 5, 64      # in the place of the value that is expected


@dataclass(frozen=True)
class Secret:
    """What a test expects at a place, and a wrong test says nothing of: a value, or an exception by name."""

    node: ast.expr
    value: Any = None
    error: str = ""
    far: bool = False            # a value that is near is as good


class Expressions:
    """What is asserted in a test, and the ways to make it wrong.

    `secrets` are the places of edits after which only a program that knows the answer gives it; `answers` are
    the expressions that are compared there.
    """

    def __init__(self, tree: ast.Module, own_name: str, draw: random.Random) -> None:
        self.own_names, self.draw = {own_name.partition(".")[0], "candidate"}, draw
        self.names, self.secrets, self.answers = Names(tree), dict[int, Secret](), dict[int, ast.expr]()
        constants = {ast.dump(node): node for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        self.present, self.values = set(constants), [node.value for node in constants.values()]
        self.ordered = not any(isinstance(node, ast.Attribute) and node.attr == "assertCountEqual"
                               for node in ast.walk(tree))

    def wrong(self, test: ast.expr) -> Iterator[Edit]:
        """Edits that make an expression false which is true."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for value in test.values:
                yield from self.wrong(value)
        elif isinstance(test, ast.BoolOp):
            parts = [next(self.wrong(value), {}) for value in test.values]
            yield {key: node for part in parts for key, node in part.items()} if all(parts) else negate(test)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield {id(test): test.operand}
        elif isinstance(test, ast.Compare):
            yield from self.wrong_compare(test)
        elif isinstance(test, ast.Call):
            yield from self.wrong_truth(test)
        elif not isinstance(test, ast.Constant):
            yield negate(test)

    def wrong_truth(self, call: ast.Call) -> Iterator[Edit]:
        """Edits of a call whose result is true: of what it compares, where it does."""
        name = last_name(call.func)
        inner = call.args[0] if len(call.args) == 1 else None
        if name == "all" and isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and not (
                inner.generators[1:] or inner.generators[0].ifs):
            yield from self.guard(self.wrong(inner.elt), inner.generators[0].iter)
        elif name == "all" and isinstance(inner, (ast.List, ast.Tuple)):
            for item in inner.elts:
                yield from self.wrong(item)
        elif name == "all" and not call.args and isinstance(call.func, ast.Attribute):
            yield from self.wrong(call.func.value)
        elif name in EQUAL_CALLS and (edits := self.other_value(call.args[:2], far=name in CLOSE_CALLS)):
            yield from edits
        else:
            yield negate(call)

    def wrong_call(self, call: ast.Call) -> Iterator[Edit]:
        """Edits of a call that raises where it finds something wrong, as the methods of unittest do."""
        name = last_name(call.func)
        if name in EQUAL_CALLS:
            sides = call.args[:2]
            far = name in CLOSE_CALLS or name == "assertCountEqual"
            yield from self.other_value(sides, far=name in CLOSE_CALLS) or self.recompute(sides, far=far)
        elif name in RAISES:
            yield from self.other_error(call)
        elif name in OPPOSITE_CALLS and isinstance(call.func, ast.Attribute):
            yield {id(call.func): ast.Attribute(call.func.value, OPPOSITE_CALLS[name], ast.Load())}

    def wrong_compare(self, test: ast.Compare) -> Iterator[Edit]:
        """Edits of a comparison: another expected value, else the opposite."""
        operator, sides = test.ops[0], [test.comparators[-1], test.left]
        if isinstance(operator, ast.Eq) and all(isinstance(each, ast.Eq) for each in test.ops):
            yield from self.other_value(sides, far=False) or self.recompute(sides, far=has_approx(sides))
        elif len(test.ops) > 1:
            yield negate(test)
        elif isinstance(operator, ast.Is) and isinstance(sides[0], ast.Constant):
            others = [value for value in (True, False, None) if value is not sides[0].value]
            yield {id(sides[0]): ast.Constant(self.draw.choice(others))}
        else:
            opposite = ast.Compare(test.left, [OPPOSITE[type(operator)]()], test.comparators)
            yield self.other_members(test) or self.other_distance(test) or {id(test): opposite}

    def other_value(self, sides: list[ast.expr], *, far: bool) -> list[Edit]:
        """Another value, on the first side where it can be told from the value that is there."""
        far = far or has_approx(sides)
        both = [[side] for side in sides] + [self.names.values_behind(side) for side in sides]
        for literals, answer in zip(both, sides[::-1] * 2, strict=True):
            edits: list[Edit] = [{id(each): other} for each in literals
                                 for other in self.unseen(each, answer, far=far)
                                 or self.others(each, far=far)]
            if edits and len({key for edit in edits for key in edit}) == len(literals):
                return edits
        return []

    def unseen(self, literal: ast.expr, answer: ast.expr, *, far: bool) -> list[ast.expr]:
        """A value that says nothing of the literal's, which is then a secret of the test."""
        try:
            value = value_of(literal)
        except ValueError:
            return []
        other = None if answer is literal else unrelated(literal, self.draw)
        if other is None or value_of(other) == value:       # set("ab") and set("ba")
            return []
        self.secrets[id(literal)] = Secret(literal, value, far=far)
        self.answers[id(answer)] = answer
        return [other]

    def others(self, literal: ast.expr, *, far: bool, most: int = MOST_VALUES) -> list[ast.expr]:
        """Other values if possible: of constants that the test does not hold, and of those it holds.

        A program that reads what is expected, and answers that or not as a coin falls, has to be lucky with
        the right test and against each of these.
        """
        own = set(map(id, ast.walk(literal)))
        tries = (alter(literal, self.draw, far=far) for _ in range(2 * most))
        drawn = [other for other in tries if other is not None]
        fresh = [other for other in drawn if not any(
            ast.dump(node) in self.present and id(node) not in own
            for node in ast.walk(other) if isinstance(node, ast.Constant))]
        distinct = {ast.dump(other): other for other in fresh or drawn}
        known = [] if far else likely(literal, self.values, self.draw, ordered=self.ordered)
        return [*list(distinct.values())[:most - len(known)], *known]

    def more(self, secret: Secret, known: list[Any]) -> list[ast.expr]:
        """Many others, of those `known` too, where nobody can say whether a program knows the answer."""
        if secret.error:
            return [ast.Name(name, ast.Load()) for name in unrelated_errors(secret.error)]
        answers = [] if secret.far else likely_others(secret.node, secret.value, known)
        near = self.others(secret.node, far=secret.far, most=MANY_VALUES // 2)
        further = (unrelated(secret.node, self.draw) for _ in range(MANY_VALUES))
        distinct = {ast.dump(other): other for other in (*answers, *near, *further) if other is not None}
        return list(distinct.values())[:MANY_VALUES]

    def guard(self, edits: Iterator[Edit], items: ast.expr) -> Iterator[Edit]:
        """Edits below a loop, which fails where there is nothing to loop over."""
        as_list = ast.Call(ast.Name("list", ast.Load()), [items], [])
        guard = {} if self.names.has_items(items) else sure(as_list, items)
        yield from ({**edit, **guard} for edit in edits)

    def recompute(self, sides: list[ast.expr], *, far: bool) -> Iterator[Edit]:
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
            others = [alter(item, self.draw, far=True) for item in inside.elts]
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
                    answer = difference.left if side is difference.right else difference.right
                    for other in self.unseen(side, answer, far=True):
                        return {id(side): other}
        return None

    def other_error(self, call: ast.Call) -> Iterator[Edit]:
        """`raises(E)` with another exception."""
        if call.args and isinstance(call.args[0], (ast.Name, ast.Attribute)):
            yield from self.replace_error(call.args[0])

    def replace_error(self, kind: ast.expr) -> Iterator[Edit]:
        """Another exception that is no base and no subclass of this one."""
        if last_name(kind) in ANY_ERROR:
            return
        names = unrelated_errors(last_name(kind))
        if names:
            self.secrets[id(kind)] = Secret(kind, error=last_name(kind))
        # of a class of the tests' or the program's own nothing is known
        yield {id(kind): ast.Name(self.draw.choice(names or ["BufferError"]), ast.Load())}


def has_approx(sides: list[ast.expr]) -> bool:
    """True if something that is near is equal enough."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in NEAR
               for side in sides for node in ast.walk(side))


def sure(value: ast.expr, place: ast.expr | None = None) -> Edit:
    """An error in the place of a value that is false or empty."""
    error = ast.BinOp(ast.Constant(1), ast.FloorDiv(), ast.Constant(0))
    return {id(place or value): ast.BoolOp(ast.Or(), [value, error])}


def negate(test: ast.expr) -> Edit:
    """The opposite of an expression."""
    return {id(test): ast.UnaryOp(ast.Not(), test)}
