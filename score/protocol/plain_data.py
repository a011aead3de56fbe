"""Plain Python data as JSON: what JSON lacks is tagged, and nothing else passes."""

import math
from collections import deque
from typing import Any

TAG = "$"                   # {"$": kind, "v": value} stands for what JSON does not have
BIG_INTEGER = 1 << 60
MAX_DEPTH = 64


class NotPlain(TypeError):
    """A value that is not plain data: a function, an object of a class that the code itself defines."""


def tag(value: Any, depth: int = 0) -> Any:
    """What is written for a result, subclasses of the plain types as their base."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"data nested more than {MAX_DEPTH} deep")
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
    if isinstance(value, tuple):
        return {TAG: "tuple", "v": [tag(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        pairs = [[tag(key, depth + 1), tag(item, depth + 1)] for key, item in value.items()]
        return {TAG: "dict", "v": pairs}
    if isinstance(value, (complex, bytes, bytearray, range, set, frozenset)):      # equal to nothing in JSON
        return {TAG: "shown", "v": repr(value)}
    if hasattr(value, "tolist") and type(value).__module__.startswith("numpy"):     # arrays and scalars
        return tag(value.tolist(), depth + 1)
    if hasattr(value, "as_integer_ratio"):          # Decimal and Fraction, which lanes have not imported
        try:
            above, below = value.as_integer_ratio()
        except (ValueError, OverflowError):
            return tag(float(value), depth)
        return tag(above if below == 1 else above / below, depth)
    raise NotPlain(f"a value of type {type(value).__name__} is not plain data")


def untag(value: Any) -> Any:
    """The value behind its tagged form; nothing is hashed, so keys are text. What JSON lacks is bytes."""
    if isinstance(value, list):
        return [untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value[TAG], value["v"]
    if kind == "dict":
        by_text = {str(key): item for key, item in untag(inner)}
        if len(by_text) < len(inner):
            raise ValueError("keys of the same text")
        return by_text
    if kind == "tuple":
        return tuple(untag(inner))
    return int(inner, 16) if kind == "int" else float(inner) if kind == "float" else str(inner).encode()


def restored(value: Any) -> Any:
    """A value of a payload, with the integers that were too long for JSON."""
    if isinstance(value, list):
        return [restored(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {TAG, "v"} and value[TAG] == "int":
            return int(value["v"], 16)
        return {key: restored(item) for key, item in value.items()}
    return value
