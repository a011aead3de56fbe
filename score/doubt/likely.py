"""Wrong values that are made of what a test holds already.

An object can be equal to each of its arguments, to all that has their items, or to whatever lies within
bounds. To such a program values that stand nowhere in the test are as wrong as they are, and these are not.
"""

import ast
import random
from typing import Any

from score.doubt.literals import last_name

Values = list[Any]                   # of the constants of a test
# What a function that answers in words is often asked to say.
WORDS = ("yes", "no", "true", "false", "even", "odd", "valid", "invalid", "found", "not found", "matched!",
         "not matched!", "found a match!", "equal", "not equal", "possible", "impossible", "prime",
         "not prime", "positive", "negative", "accepted", "rejected", "none", "error", "win", "lose")
NUMBERS = (0, 0.5, 1, 2, 3, 10, 100)
MOST_KNOWN = 16
SEQUENCES = frozenset({"array", "asarray", "deque", "list", "tuple"})


def likely(node: ast.expr, present: Values, draw: random.Random, *, ordered: bool) -> list[ast.expr]:
    """Other values of a literal, of items that the test holds; none where there is none for certain.

    Items change places only if the order of items matters to whoever compares.
    """
    if isinstance(node, ast.Call):
        other = other_order(node, draw) if ordered and len(node.args) == 1 and not node.keywords else None
        return [] if other is None else [other]
    return [other for other in (
        reorder(node, draw) if ordered else None, replace_constant(node, present, draw), shorten(node, draw))
        if other is not None and is_other(node, other)]


def likely_others(node: ast.expr, value: Any, known: Values) -> list[ast.expr]:
    """Expressions of other values than that of a literal, of a list or tuple in its first place."""
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        return [type(node)([first, *node.elts[1:]], node.ctx)
                for first in likely_others(node.elts[0], value[0], known)]
    return [ast.Constant(other) for other in likely_values(value, known)]


def likely_values(value: Any, known: Values) -> list[Any]:
    """Other texts or numbers than what is expected: those `known`, and what is often answered."""
    if type(value) not in (str, int, float):
        return []
    others = sorted(each for each in known if type(each) is type(value))[:MOST_KNOWN]
    if isinstance(value, str):
        write = str.upper if value.isupper() else str.lower if value.islower() else str.capitalize
        others += map(write, WORDS)
    else:
        others += map(type(value), NUMBERS)
    return [other for other in dict.fromkeys(others) if other != value]


def other_order(call: ast.Call, draw: random.Random) -> ast.expr | None:
    """What makes a sequence of literals, to make it of the same in another order."""
    [items], name = call.args, last_name(call.func)
    if name == "sorted":
        try:
            values = sorted(ast.literal_eval(items))
        except (ValueError, TypeError, RecursionError):
            return None
        backwards = ast.keyword("reverse", ast.Constant(True))
        return ast.Call(call.func, call.args, [backwards]) if values != values[::-1] else None
    other = reorder(items, draw) if name in SEQUENCES and isinstance(items, (ast.List, ast.Tuple)) else None
    return ast.Call(call.func, [other], []) if other is not None and is_other(items, other) else None


def is_other(node: ast.expr, other: ast.expr) -> bool:
    """True if these are literals of different values."""
    try:
        return bool(ast.literal_eval(node) != ast.literal_eval(other))
    except (ValueError, TypeError, RecursionError):
        return False


def reorder(node: ast.expr, draw: random.Random) -> ast.expr | None:
    """Two items of a list or tuple, two values of a dictionary or two letters of a text the other way."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        letters = list(node.value)
        return ast.Constant("".join(letters)) if exchange(letters, draw) else None
    if isinstance(node, (ast.List, ast.Tuple)):
        items = list(node.elts)
        return type(node)(items, node.ctx) if exchange(items, draw) else None
    if isinstance(node, ast.Dict):
        values = list(node.values)
        return ast.Dict(node.keys, values) if exchange(values, draw) else None
    return None


def exchange(items: list[Any], draw: random.Random) -> bool:
    """Exchange two items that differ; False where there are none."""
    texts = [ast.dump(item) if isinstance(item, ast.AST) else item for item in items]
    first = draw.randrange(len(items)) if items else 0
    places = [place for place, text in enumerate(texts) if text != texts[first]]
    if places:
        second = draw.choice(places)
        items[first], items[second] = items[second], items[first]
    return bool(places)


def replace_constant(node: ast.expr, present: Values, draw: random.Random) -> ast.expr | None:
    """A constant of the literal replaced by another of its type."""
    if isinstance(node, ast.Constant):
        values = [each for each in present if type(each) is type(node.value) and each != node.value]
        is_certain = isinstance(node.value, (int, float, str)) and not isinstance(node.value, bool)
        return ast.Constant(draw.choice(values)) if values and is_certain else None
    if isinstance(node, (ast.List, ast.Tuple)):
        for place in draw.sample(range(len(node.elts)), len(node.elts)):
            if (item := replace_constant(node.elts[place], present, draw)) is not None:
                return type(node)([*node.elts[:place], item, *node.elts[place + 1:]], node.ctx)
    return None


def shorten(node: ast.expr, draw: random.Random) -> ast.expr | None:
    """A set without one of its items."""
    if not isinstance(node, ast.Set) or len(node.elts) < 2:
        return None
    place = draw.randrange(len(node.elts))
    return ast.Set([*node.elts[:place], *node.elts[place + 1:]])
