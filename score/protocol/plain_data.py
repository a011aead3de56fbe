"""Plain Python data as tagged JSON: tuples, sets, bytes and odd numbers survive, nothing else passes."""

import json
import math
from collections import deque
from typing import Any

TAG = "$"                   # {"$": kind, "v": value} stands for what JSON does not have
BIG_INTEGER = 1 << 60
MAX_DEPTH = 64


class NotPlain(TypeError):
    """A value that is no plain data: a function, an object of a class that the code itself defines."""


class TooLarge(NotPlain):
    """Plain data, but nested deeper or longer than what may cross."""


class Unordered(list[Any]):
    """The items of a set: the scorer hashes nothing that a program chose, its keys may all collide."""


def dumps(value: Any) -> bytes:
    """The value as tagged JSON; NotPlain for what has no plain form."""
    return json.dumps(tag(value), separators=(",", ":"), allow_nan=False).encode()


def loads(content: bytes) -> Any:
    """The value that `dumps` was given; ValueError for anything that it cannot have written."""
    try:
        return untag(json.loads(content))
    except (TypeError, KeyError, AttributeError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"not plain data: {type(error).__name__}") from None


def tag(value: Any, depth: int = 0) -> Any:
    """What is written for a value, subclasses of the plain types as their base."""
    if depth > MAX_DEPTH:
        raise TooLarge(f"data nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)           # of a member of an enumeration, too, its text and not its name
    if isinstance(value, int):
        return int(value) if -BIG_INTEGER < value < BIG_INTEGER else {TAG: "int", "v": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {TAG: "float", "v": repr(float(value))}
    if isinstance(value, (list, deque)):
        return [tag(item, depth + 1) for item in list(value)]
    for kind, name in ((tuple, "tuple"), (frozenset, "frozenset"), (set, "set")):
        if isinstance(value, kind):
            return {TAG: name, "v": [tag(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[tag(key, depth + 1), tag(item, depth + 1)] for key, item in value.items()]
        return {TAG: "dict", "v": pairs}
    if isinstance(value, complex):
        return {TAG: "complex", "v": [tag(value.real, depth + 1), tag(value.imag, depth + 1)]}
    if isinstance(value, (bytes, bytearray)):
        return {TAG: "bytes", "v": bytes(value).hex()}
    if hasattr(value, "tolist") and type(value).__module__.startswith("numpy"):     # arrays and scalars
        return tag(value.tolist(), depth + 1)
    if isinstance(value, range):
        return {TAG: "range", "v": [value.start, value.stop, value.step]}
    if hasattr(value, "as_integer_ratio"):          # Decimal and Fraction, which lanes have not imported
        try:
            above, below = value.as_integer_ratio()
        except (ValueError, OverflowError):
            return tag(float(value), depth)
        return tag(above if below == 1 else above / below, depth)
    raise NotPlain(f"a value of type {type(value).__name__} is no plain data")


def untag(value: Any, depth: int = 0, *, hashing: bool = True) -> Any:
    """The value behind its tagged form; without hashing, sets are Unordered and keys text."""
    if depth > 2 * MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [untag(item, depth + 1, hashing=hashing) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value[TAG], value["v"]
    if kind in SCALARS:
        return SCALARS[kind](inner)
    if kind == "dict":
        pairs = [untag(pair, depth + 1, hashing=hashing) for pair in inner]
        return dict(pairs) if hashing else dict_by_text(pairs)
    items = (untag(item, depth + 1, hashing=hashing) for item in inner)
    if kind == "complex":
        return complex(*items)
    return COLLECTIONS[kind](items) if hashing or kind == "tuple" else Unordered(items)


def dict_by_text(pairs: list[Any]) -> dict[str, Any]:
    """A dictionary with its keys as text; ValueError where two of them are the same text."""
    by_text = {str(key): item for key, item in pairs}
    if len(by_text) < len(pairs):
        raise ValueError("keys of the same text")
    return by_text


COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
SCALARS: dict[str, Any] = {"int": lambda text: int(text, 16), "float": float, "bytes": bytes.fromhex,
                           "range": lambda numbers: range(*numbers)}
