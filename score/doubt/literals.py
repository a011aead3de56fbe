"""Other values and exceptions than a test expects, of the same kind: for one that is wrong on purpose."""

import ast
import builtins
import copy
import random
import string
from typing import Any

# Of these a change of a literal argument makes another value.
MAKERS = frozenset({
    "array", "asarray", "bytearray", "bytes", "approx", "complex", "date", "datetime", "deque", "dict", "eye",
    "frozenset", "full", "list", "ones", "range", "set", "sorted", "time", "timedelta", "tuple", "zeros"})
NEAR = frozenset({"approx"})         # whose argument may be off by a little
# What makes an object of the items of a literal, and the plain data that it is then.
SAME_ITEMS: dict[str, Any] = {"array": list, "asarray": list, "deque": list, "list": list, "sorted": sorted,
                              "tuple": tuple, "set": set, "frozenset": frozenset, "approx": lambda each: each}
ALPHABETS = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
OTHER_ERRORS = ("ValueError", "TypeError", "KeyError", "IndexError", "ZeroDivisionError", "AttributeError",
                "RuntimeError", "EOFError", "ImportError", "BufferError")
ANY_ERROR = frozenset({"Exception", "BaseException", "AssertionError"})


def alter(node: ast.expr, draw: random.Random, *, far: bool = False) -> ast.expr | None:
    """An expression of another value, as like it as can be; None where that cannot be told from the text.

    With `far`, numbers differ by more than their size.
    """
    if isinstance(node, ast.Constant):
        return other_constant(node.value, draw, far=far)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = alter(node.operand, draw, far=True)
        return None if operand is None else ast.UnaryOp(node.op, operand)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return other_items(node, draw, far=far)
    if isinstance(node, ast.Dict):
        return other_dict(node, draw, far=far)
    if isinstance(node, ast.Call):
        return other_call(node, draw, far=far)
    return None


def unrelated(node: ast.expr, draw: random.Random) -> ast.expr | None:
    """What has a `value_of`, with larger numbers and other letters, which say nothing of that value.

    None where there is none that is another for certain, however they are compared.
    """
    if alter(node, draw) is None:
        return None
    if isinstance(node, ast.Call):
        inner = unrelated(node.args[0], draw)
        return None if inner is None else ast.Call(node.func, [inner, *node.args[1:]], node.keywords)
    other = copy.deepcopy(node)
    for each in ast.walk(other):
        if isinstance(each, ast.Constant):
            each.value = unrelated_value(each.value, draw)
    return other if constants_of(other) != constants_of(node) else alter(node, draw, far=True)


def unrelated_value(value: Any, draw: random.Random) -> Any:
    """Another constant of the same type: a larger number, other letters."""
    if isinstance(value, str):
        # Of any length: its own would tell YES from NO.
        letters = draw.choices(value, k=draw.randint(1, 12)) if value else []
        return "".join(next((draw.choice(kind) for kind in ALPHABETS if letter in kind), letter)
                       for letter in letters)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        further = abs(value) + draw.randint(1, 99 + 9 * int(min(abs(value), 1e15)))
        return type(value)(round(value + further + draw.random(), 4) if isinstance(value, float)
                           else value + further)
    other = other_constant(value, draw, far=True)
    return other.value if isinstance(other, ast.Constant) else value


def constants_of(node: ast.expr) -> list[str]:
    """The constants of a literal, sorted."""
    return sorted(ast.dump(each) for each in ast.walk(node) if isinstance(each, ast.Constant))


def value_of(node: ast.expr) -> Any:
    """The value of a literal, and of a list, tuple, set or array made of literals; else ValueError."""
    try:
        if isinstance(node, ast.Call) and node.args and last_name(node.func) in SAME_ITEMS:
            return SAME_ITEMS[last_name(node.func)](value_of(node.args[0]))
        return ast.literal_eval(node)
    except (TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("no literal") from error


def other_constant(value: Any, draw: random.Random, *, far: bool) -> ast.expr | None:
    """Another constant of the same type."""
    if value is None or isinstance(value, bool):
        return ast.Constant(not value if isinstance(value, bool) else draw.choice([False, 0, True]))
    if isinstance(value, int):
        step = draw.randint(1, draw.choice([2, 9 + abs(value)])) + (abs(value) if far else 0)
        return ast.Constant(value - step if value > step and draw.random() < 0.5 else value + step)
    if isinstance(value, float):
        digits = len(repr(value).partition(".")[2]) if "e" not in repr(value) else 3
        if not far and "e" not in repr(value):
            return ast.Constant(near_number(value, digits, draw))
        return ast.Constant(round(value + (1 + abs(value)) * draw.choice([1.25, 1.5, 2.75]), digits + 1))
    if isinstance(value, complex):
        return ast.Constant(value + draw.choice([1, 2]))
    if isinstance(value, str):
        return ast.Constant(other_text(value, draw))
    return ast.Constant(other_text(value.decode("latin-1"), draw).encode("latin-1")) if isinstance(
        value, bytes) else None


def near_number(value: float, digits: int, draw: random.Random) -> float:
    """A number as long as this and not far from it: what is true of this may be true of that too."""
    step = draw.choice([1, 2, 3]) * max(10.0 ** -digits, abs(value) / 50)
    return round(value - step if value > step and draw.random() < 0.5 else value + step, digits)


def other_text(text: str, draw: random.Random) -> str:
    """The text with another character of the same class in some place, or a character more."""
    places = [(index, letters) for index, letter in enumerate(text) for letters in ALPHABETS
              if letter in letters]
    if not places:
        return text + draw.choice(text or string.ascii_lowercase)
    index, letters = draw.choice(places)
    letter = draw.choice(letters.replace(text[index], ""))
    return text[:index] + letter + text[index + 1:]


def other_items(node: Any, draw: random.Random, *, far: bool) -> ast.expr | None:
    """A list, tuple or set with a literal altered, to what is not in it; what is empty gets items."""
    if not node.elts:
        # two items, because arrays of one item are equal to those of none
        return type(node)([ast.Constant(0), ast.Constant(1)], *([node.ctx] if hasattr(node, "ctx") else []))
    present = {ast.dump(item) for item in node.elts}
    for place in draw.sample(range(len(node.elts)), len(node.elts)):
        for _ in range(20):
            item = alter(node.elts[place], draw, far=far)
            if item is not None and (ast.dump(item) not in present or not isinstance(node, ast.Set)):
                items = [*node.elts[:place], item, *node.elts[place + 1:]]
                return type(node)(items, *([node.ctx] if hasattr(node, "ctx") else []))
    return None


def other_dict(node: ast.Dict, draw: random.Random, *, far: bool) -> ast.expr | None:
    """A dictionary with one value altered."""
    if not node.keys:
        return ast.Dict([ast.Constant(0)], [ast.Constant(0)])
    for place in draw.sample(range(len(node.values)), len(node.values)):
        if (item := alter(node.values[place], draw, far=far)) is not None:
            return ast.Dict(node.keys, [*node.values[:place], item, *node.values[place + 1:]])
    return None


def other_call(node: ast.Call, draw: random.Random, *, far: bool) -> ast.expr | None:
    """What makes another object: a constructor called with a literal altered."""
    name = last_name(node.func)
    if name not in MAKERS and not name[:1].isupper():
        return None
    if name in ("set", "frozenset") and node.args:
        return larger_set(node, draw)
    far = far or name in NEAR
    places = range(1) if name in NEAR else draw.sample(range(len(node.args)), len(node.args))
    for place in places:
        if place < len(node.args) and (item := alter(node.args[place], draw, far=far)) is not None:
            return ast.Call(node.func, [*node.args[:place], item, *node.args[place + 1:]], node.keywords)
    for place, keyword in enumerate(node.keywords if name not in NEAR else []):
        if (item := alter(keyword.value, draw, far=far)) is not None:
            changed = ast.keyword(keyword.arg, item)
            return ast.Call(node.func, node.args,
                            [*node.keywords[:place], changed, *node.keywords[place + 1:]])
    return None


def larger_set(node: ast.Call, draw: random.Random) -> ast.expr | None:
    """`set([..])` with one more item: what is altered could be there twice."""
    [items, *_rest] = node.args
    if isinstance(items, (ast.List, ast.Tuple, ast.Set)) and items.elts:
        present = {ast.dump(item) for item in items.elts}
        for item in (alter(draw.choice(items.elts), draw) for _ in range(20)):
            if item is not None and ast.dump(item) not in present:
                return ast.Call(node.func, [ast.List([*items.elts, item], ast.Load())], node.keywords)
    if isinstance(items, ast.Constant) and isinstance(items.value, str):
        letter = draw.choice([each for each in string.ascii_lowercase if each not in items.value] or ["?"])
        return ast.Call(node.func, [ast.Constant(items.value + letter)], node.keywords)
    return None


def unrelated_errors(name: str) -> list[str]:
    """Exceptions that are no base and no subclass of a builtin one."""
    known = getattr(builtins, name, None)
    return [other for other in OTHER_ERRORS if isinstance(known, type) and not issubclass(
        known, getattr(builtins, other)) and not issubclass(getattr(builtins, other), known)]


def last_name(node: ast.expr) -> str:
    """`f` of f, a.f and a.b.f; '' of anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
