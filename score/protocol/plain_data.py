"""Plain Python data as JSON: what JSON lacks is tagged, and nothing else passes."""

import math
import sys
from collections import deque
from typing import Any

TAG = "$"                   # {"$": kind, "v": value} stands for what JSON does not have
BIG_INTEGER = 1 << 60
MAX_DEPTH = 64


class NotPlain(TypeError):
    """A value that is not plain data: a function, an object of a class that the code itself defines."""


def tag(value: Any, depth: int = 0) -> Any:
    """What is written for a result; a subclass of a plain type as what its base holds, whatever it says."""
    if depth > MAX_DEPTH:
        raise NotPlain(f"data nested more than {MAX_DEPTH} deep")
    kind = type(value)                      # `__class__` may be another
    if value is None or kind is bool:
        return value
    if issubclass(kind, str):
        return str.__str__(value)           # of a member of an enumeration, too, its text and not its name
    if issubclass(kind, int):
        number = int.__int__(value)
        return number if -BIG_INTEGER < number < BIG_INTEGER else {TAG: "int", "v": hex(number)}
    if issubclass(kind, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else {TAG: "float", "v": repr(real)}
    if sequence := next((base for base in (list, deque, tuple) if issubclass(kind, base)), None):
        items = [tag(item, depth + 1) for item in sequence.__iter__(value)]
        return {TAG: "tuple", "v": items} if sequence is tuple else items
    if issubclass(kind, dict):
        pairs = [[tag(key, depth + 1), tag(item, depth + 1)] for key, item in dict.items(value)]
        return {TAG: "dict", "v": pairs}
    if issubclass(kind, (complex, bytes, bytearray, range, set, frozenset)):       # equal to nothing in JSON
        return {TAG: "shown", "v": repr(value)}
    if is_librarys(kind) and hasattr(value, "tolist"):              # numpy's arrays and scalars
        return tag(value.tolist(), depth + 1)
    if is_librarys(kind) and hasattr(value, "as_integer_ratio"):    # Decimal and Fraction
        try:
            above, below = value.as_integer_ratio()
        except (ValueError, OverflowError):
            return tag(float(value), depth)
        return tag(above if below == 1 else above / below, depth)
    raise NotPlain(f"a value of type {kind.__name__} is not plain data")


def is_librarys(kind: type) -> bool:
    """Whether a class is that of a loaded module by its name, and not the program's."""
    if kind.__module__ in ("program", "__main__"):
        return False
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


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
