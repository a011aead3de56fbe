"""Values as JSON between two processes: plain data as itself, anything else by a name that its owner knows.

A message numbers its mutable containers in the order in which they are met, so that two names of one list
stay two names of one list, and data may be deep or cyclic. Nothing that is read can run code of the other
process.
"""

import functools
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np

BIG_INTEGER = 1 << 60
ARRAY_TYPE = re.compile(r"[<>|=][biufcSUmM]\d+(\[\w+\])?")     # numpy's words for types that are bytes
DEEPEST = 100                # tuples in tuples, which are written in place; lists may go as deep as they like
Row = list[Any]

BUILTINS = vars(sys.modules["builtins"])
PLAIN_TYPES = {kind.__name__: kind for kind in (
    int, float, complex, bool, str, bytes, bytearray, memoryview, list, tuple, dict, set, frozenset, range,
    slice, object, type(None), type(...), type(NotImplemented))}
PLAIN_TYPES |= {name: kind for name, kind in BUILTINS.items()
                if isinstance(kind, type) and issubclass(kind, BaseException)}
OTHER_TYPES = {"collections": ("Counter", "OrderedDict", "defaultdict", "deque"), "decimal": ("Decimal",),
               "fractions": ("Fraction",), "datetime": ("date", "datetime", "time", "timedelta", "timezone")}
VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class TooLarge(TypeError):
    """Data of more bytes than a message holds, or tuples nested too deep."""


class BadMessage(ValueError):
    """What the other process cannot have written."""


class Crossing:
    """One end of the channel: what has crossed during the present call, by number.

    `hand_out` writes what is no plain data, `take` reads it; both know objects that stay where they are.
    """

    def __init__(self, hand_out: Callable[[Any], Any], take: Callable[[list[Any]], Any]) -> None:
        self.hand_out, self.take = hand_out, take
        self.forget()

    def forget(self) -> None:
        """Begin a call: nothing has crossed."""
        self.table: list[Any] = []
        self.places: dict[int, int] = {}
        self.watched: list[tuple[int, Any, Any]] = []     # place, container, its items as the other has them

    def write(self, value: Any) -> tuple[Any, list[Row]]:
        """The value, and a row for each container that has not crossed yet."""
        done = len(self.table)
        written = self._write(value, 0)
        return written, self._rows_from(done)

    def _rows_from(self, done: int) -> list[Row]:
        rows: list[Row] = []
        while done + len(rows) < len(self.table):            # writing a row may add containers
            rows.append(self._row(self.table[done + len(rows)]))
        return rows

    def _write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -BIG_INTEGER < value < BIG_INTEGER else ["int", hex(value)]
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind in CONTAINERS and is_simple(value):
            place = self.places.get(id(value))
            if place is None:
                place = self.places[id(value)] = len(self.table)
                self.table.append(value)
            return [place]
        if depth > DEEPEST:
            raise TooLarge(f"tuples nested more than {DEEPEST} deep")
        if kind is tuple or kind is frozenset:
            return [kind.__name__, [self._write(item, depth + 1) for item in value]]
        if kind in SCALARS:
            return [kind.__name__, *(self._write(part, depth + 1) for part in SCALARS[kind](value))]
        if kind in VIEWS:
            items = [self._write(item, depth + 1) for item in value]
            return [VIEWS[kind], items]
        if isinstance(value, np.generic) and kind.__module__ == "numpy" and (
                ARRAY_TYPE.fullmatch(value.dtype.str)):
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        parts = parts_of(value)
        if parts is not None:
            return [kind.__name__, *(self._write(part, depth + 1) for part in parts)]
        if isinstance(value, type) and known_type(value.__module__, value.__name__) is value:
            return ["type", value.__module__, value.__name__]
        return self.hand_out(value)

    def _row(self, value: Any) -> Row:
        """What a container holds."""
        kind = type(value)
        if kind is list or kind is set or kind is deque:
            extra = [value.maxlen] if kind is deque else []
            return [kind.__name__, [self._write(item, 0) for item in value], *extra]
        if kind is bytearray:
            return ["bytearray", value.hex()]
        if kind is np.ndarray:
            if value.dtype.hasobject:
                return ["objects", list(value.shape), [self._write(item, 0) for item in value.ravel()]]
            return ["array", list(value.shape), value.dtype.str, value.tobytes().hex()]
        items = [self._write(part, 0) for pair in value.items() for part in pair]
        extra = [self._write(value.default_factory, 0)] if kind is defaultdict else []
        return [kind.__name__, items, *extra]

    def read(self, written: Any, rows: list[Row]) -> Any:
        """The value; BadMessage for anything that `write` cannot have given."""
        try:
            first = len(self.table)
            for row in rows:
                container = EMPTY[row[0]](self, row)
                self.places[id(container)] = len(self.table)
                self.table.append(container)
            for place, row in enumerate(rows, start=first):
                self._fill(self.table[place], row)
                self.watched.append((place, self.table[place], items_of(self.table[place])))
            return self._read(written)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError,
                ArithmeticError) as error:
            raise BadMessage(f"{type(error).__name__}: {str(error)[:200]}") from None

    def _read(self, written: Any) -> Any:
        if type(written) is not list:
            if type(written) is dict:
                raise BadMessage("an object of JSON")
            return written
        if type(written[0]) is int:
            return self.table[written[0]] if written[0] >= 0 else 1 // 0
        reader = READERS.get(written[0])
        return reader(self, *written[1:]) if reader else self.take(written)

    def _read_all(self, written: list[Any]) -> list[Any]:
        return [each if type(each) is not list else self._read(each) for each in written]

    def _fill(self, container: Any, row: Row) -> None:
        """Give a container what its row holds, in place of what it held."""
        kind = type(container)
        if kind is list:
            container[:] = self._read_all(row[1])
        elif kind is np.ndarray:
            container[...] = (self._objects(row) if row[0] == "objects" else array_of(row)).reshape(
                container.shape)
        elif kind is bytearray:
            container[:] = bytes.fromhex(row[1])
        elif kind is deque:
            items = self._read_all(row[1])
            container.clear()
            container.extend(items)
        else:
            items = self._read_all(row[1])
            container.clear()
            if kind is set:
                container.update(items)
            else:
                for key, item in zip(items[::2], items[1::2], strict=True):
                    container[key] = item

    def _objects(self, row: Row) -> np.ndarray:
        items = np.empty(len(row[2]), object)
        items[:] = self._read_all(row[2])
        return items.reshape(row[1])

    def watch(self) -> None:
        """From here on, notice what becomes of all that has crossed: the other end has it as it is now."""
        self.watched = [(place, container, items_of(container)) for place, container in enumerate(self.table)]

    def alterations(self) -> tuple[list[Row], list[Row]] | None:
        """Rows of the containers that differ from what the other end has, and of new ones in them."""
        done = len(self.table)
        altered: list[Row] = [[place, self._row(container)] for place, container, before in self.watched
                              if not is_unaltered(container, before)]
        return (altered, self._rows_from(done)) if altered else None

    def alter(self, altered: list[Row], rows: list[Row]) -> None:
        """Bring containers of this end to what the other end made of them."""
        self.read(None, rows)
        try:
            for place, row in altered:
                self._fill(self.table[place], row)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            raise BadMessage(f"{type(error).__name__}") from None


def is_simple(container: Any) -> bool:
    """False of an array whose type cannot be written in one word."""
    return type(container) is not np.ndarray or container.dtype.hasobject or bool(
        ARRAY_TYPE.fullmatch(container.dtype.str))


def items_of(container: Any) -> Any:
    """What tells later whether a container was altered: its items, or its bytes."""
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    if isinstance(container, np.ndarray) and not container.dtype.hasobject:
        return container.tobytes()
    if isinstance(container, bytearray):
        return bytes(container)
    return list(container.ravel() if isinstance(container, np.ndarray) else container)


def is_unaltered(container: Any, before: Any) -> bool:
    """True where a container holds the very objects that it held."""
    now = items_of(container)
    if isinstance(now, bytes):
        return bool(now == before)
    return len(now) == len(before) and all(map(is_, now, before))


def parts_of(value: Any) -> tuple[Any, ...] | None:
    """What makes a date or a number of a library, which lanes have not imported; None of anything else."""
    kind = type(value)
    if kind.__module__ not in OTHER_TYPES or known_type(kind.__module__, kind.__name__) is not kind:
        return (value.str,) if isinstance(value, np.dtype) and ARRAY_TYPE.fullmatch(value.str) else None
    match kind.__name__:
        case "Decimal":
            return (str(value),)
        case "Fraction":
            return value.numerator, value.denominator
        case "timedelta":
            return value.days, value.seconds, value.microseconds
        case "date":
            return value.year, value.month, value.day
        case "datetime" | "time" if value.tzinfo is None or type(value.tzinfo).__name__ == "timezone":
            return (value.isoformat(),)
        case "timezone":
            return (value.utcoffset(None),)
    return None


def known_type(module: str, name: str) -> type | None:
    """A type that both processes have, where it is loaded; None for any other name."""
    if module == "builtins":
        return PLAIN_TYPES.get(name)
    if name in OTHER_TYPES.get(module, ()) and module in sys.modules:
        return getattr(sys.modules[module], name, None)
    kind = getattr(np, name, None) if module == "numpy" and name.isidentifier() else None
    return kind if isinstance(kind, type) and issubclass(kind, (np.generic, np.ndarray, np.dtype)) else None


def made(module: str, name: str) -> Callable[..., Any]:
    """A reader that calls a type of a library; BadMessage where that is not loaded."""
    def read(crossing: Crossing, *parts: Any) -> Any:
        kind = known_type(module, name)
        if kind is None:
            raise BadMessage(f"{module} is not loaded")
        arguments = crossing._read_all(list(parts))
        return kind.fromisoformat(*arguments) if name in ("datetime", "time") else kind(*arguments)  # type: ignore[attr-defined]
    return read


def read_type(_crossing: Crossing, module: str, name: str) -> type:
    """A type by its name."""
    kind = known_type(module, name)
    if kind is None:
        raise BadMessage(f"no type {name}")
    return kind


def array_of(row: Row) -> np.ndarray:
    """An array that may be written to."""
    return np.frombuffer(bytes.fromhex(row[3]), dtype_of(row[2])).reshape(row[1]).copy()


def dtype_of(text: str) -> np.dtype[Any]:
    """A type of numpy by its word."""
    if not ARRAY_TYPE.fullmatch(text):
        raise BadMessage("no type of an array")
    return np.dtype(text)


def empty(kind: type, _crossing: Crossing, _row: Row) -> Any:
    """A container that holds nothing."""
    return kind()


def empty_deque(crossing: Crossing, row: Row) -> deque[Any]:
    """A deque of the length that its row says."""
    return deque(maxlen=row[2])


def empty_defaultdict(crossing: Crossing, row: Row) -> defaultdict[Any, Any]:
    """A dictionary with what makes its missing values."""
    return defaultdict(crossing._read(row[2]))


SCALARS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    bytes: lambda value: (value.hex(),), memoryview: lambda value: (value.tobytes().hex(),),
    complex: lambda value: (value.real, value.imag),
    range: lambda value: (value.start, value.stop, value.step),
    slice: lambda value: (value.start, value.stop, value.step), type(...): lambda _value: (),
    type(NotImplemented): lambda _value: ()}
CONTAINERS = {list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict, np.ndarray}
EMPTY: dict[str, Callable[[Crossing, Row], Any]] = {
    **{kind.__name__: functools.partial(empty, kind)
       for kind in (list, dict, set, bytearray, Counter, OrderedDict)},
    "deque": empty_deque, "defaultdict": empty_defaultdict, "array": lambda _crossing, row: array_of(row),
    "objects": lambda _crossing, row: np.empty(row[1], object)}
READERS: dict[str, Callable[..., Any]] = {
    "int": lambda _, text: int(text, 16), "float": lambda _, text: float(text),
    "tuple": lambda crossing, items: tuple(crossing._read_all(items)),
    "frozenset": lambda crossing, items: frozenset(crossing._read_all(items)),
    "bytes": lambda _, text: bytes.fromhex(text),
    "memoryview": lambda _, text: memoryview(bytes.fromhex(text)),
    "complex": lambda crossing, *parts: complex(*crossing._read_all(list(parts))),
    "range": lambda crossing, *parts: range(*crossing._read_all(list(parts))),
    "slice": lambda crossing, *parts: slice(*crossing._read_all(list(parts))),
    "ellipsis": lambda _: ..., "NotImplementedType": lambda _: NotImplemented,
    "keys": lambda crossing, items: dict.fromkeys(crossing._read_all(items)).keys(),
    "values": lambda crossing, items: dict(enumerate(crossing._read_all(items))).values(),
    "items": lambda crossing, items: dict(crossing._read_all(items)).items(),
    "scalar": lambda _, kind, text: np.frombuffer(bytes.fromhex(text), dtype_of(kind))[0],
    "type": read_type, **{name: made(module, name) for module, names in OTHER_TYPES.items() for name in names
                          if module != "collections"},
    **{type(np.dtype(kind)).__name__: lambda _, text: dtype_of(text) for kind in np.sctypeDict.values()
       if not issubclass(kind, (np.void, np.object_))}}
