"""Plain Python data as tagged JSON: tuples, sets, bytes and odd numbers survive, nothing else passes."""

from __future__ import annotations

import json
import math
from typing import Any

TAG = "$"                   # {"$": kind, "v": value} stands for what JSON does not have
BIG_INTEGER = 1 << 60
MAX_DEPTH = 64


class NotPlain(TypeError):
    """A value that is no plain data: a function, an object of a class of one's own."""


def dumps(value: Any) -> bytes:
    """The value as tagged JSON; NotPlain for what has no plain form."""
    return json.dumps(tagged(value, 0), separators=(",", ":"), allow_nan=False).encode()


def loads(content: bytes) -> Any:
    """The value that `dumps` was given; ValueError for anything that it cannot have written."""
    try:
        return untagged(json.loads(content), 0)
    except (TypeError, KeyError, AttributeError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"not plain data: {type(error).__name__}") from None


def tagged(value: Any, depth: int) -> Any:
    """What is written for a value, subclasses of the plain types as their base."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"data nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value) if -BIG_INTEGER < value < BIG_INTEGER else {TAG: "int", "v": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {TAG: "float", "v": repr(float(value))}
    if isinstance(value, list):
        return [tagged(item, depth + 1) for item in list(value)]
    for kind, name in ((tuple, "tuple"), (frozenset, "frozenset"), (set, "set")):
        if isinstance(value, kind):
            return {TAG: name, "v": [tagged(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[tagged(key, depth + 1), tagged(item, depth + 1)] for key, item in value.items()]
        return {TAG: "dict", "v": pairs}
    if isinstance(value, complex):
        return {TAG: "complex", "v": [tagged(value.real, depth + 1), tagged(value.imag, depth + 1)]}
    if isinstance(value, (bytes, bytearray)):
        return {TAG: "bytes", "v": bytes(value).hex()}
    if hasattr(value, "tolist") and type(value).__module__.startswith("numpy"):     # arrays and scalars
        return tagged(value.tolist(), depth + 1)
    if isinstance(value, range):
        return {TAG: "range", "v": [value.start, value.stop, value.step]}
    raise NotPlain(f"a value of type {type(value).__name__} is no plain data")


def untagged(value: Any, depth: int) -> Any:
    """The value behind its tagged form."""
    if depth > 2 * MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, list):
        return [untagged(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value[TAG], value["v"]
    if kind == "dict":
        return {untagged(key, depth + 1): untagged(item, depth + 1) for key, item in inner}
    if kind in COLLECTIONS:
        return COLLECTIONS[kind](untagged(item, depth + 1) for item in inner)
    if kind == "complex":
        return complex(*(untagged(part, depth + 1) for part in inner))
    return SCALARS[kind](inner)


COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
SCALARS: dict[str, Any] = {"int": lambda text: int(text, 16), "float": float, "bytes": bytes.fromhex,
                           "range": lambda numbers: range(*numbers)}
