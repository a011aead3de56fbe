"""Values as JSON between two processes: plain data by value, other objects by number.

A message numbers its mutable containers in the order in which they are met, so that two names of one list
stay two names of one list, and data may be deep or cyclic. Nothing that is read can run code of the other
process.
"""

import gc
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from operator import attrgetter, is_
from typing import Any

import numpy as np

BIG_INTEGER = 1 << 60
ARRAY_TYPE = re.compile(r"[<>|=][biufcSUmM]\d+(\[\w+\])?")     # numpy's words for types that are bytes
MOST_FOLLOWED = 320          # lists and items of containers that both ends keep alike while a call goes on
DEEPEST = 100                # nested tuples, which are written in place; lists may be deeper
Row = list[Any]              # type name, contents, and further arguments of the type

PLAIN_TYPES = {(kind.__module__, kind.__name__): kind for kind in (
    int, float, complex, bool, str, bytes, bytearray, memoryview, list, tuple, dict, set, frozenset, range,
    slice, object, type(None), type(...), type(NotImplemented), Counter, OrderedDict, defaultdict, deque)}
PLAIN_TYPES |= {("builtins", name): kind for name, kind in vars(sys.modules["builtins"]).items()
                if isinstance(kind, type) and issubclass(kind, BaseException)}
CONTAINERS = {list, dict, set, bytearray, deque, Counter, OrderedDict, defaultdict, np.ndarray}
BY_NAME = {kind.__name__: kind for kind in CONTAINERS}
SPAN = attrgetter("start", "stop", "step")
CLOCK = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
# What types that do not change are called with to make a value again, by module and name: lanes have not
# imported all of them.
PARTS: dict[tuple[str, str], Callable[[Any], tuple[Any, ...]]] = {
    ("builtins", "complex"): attrgetter("real", "imag"), ("builtins", "range"): SPAN,
    ("builtins", "slice"): SPAN, ("builtins", "memoryview"): lambda value: (value.tobytes(),),
    ("builtins", "ellipsis"): lambda _value: (), ("builtins", "NotImplementedType"): lambda _value: (),
    ("decimal", "Decimal"): lambda value: (str(value),), ("uuid", "UUID"): lambda value: (str(value),),
    ("pathlib", "PurePosixPath"): lambda value: (str(value),),
    ("pathlib", "PosixPath"): lambda value: (str(value),), ("re", "Pattern"): attrgetter("pattern", "flags"),
    ("fractions", "Fraction"): attrgetter("numerator", "denominator"),
    ("datetime", "timedelta"): attrgetter("days", "seconds", "microseconds"),
    ("datetime", "date"): attrgetter("year", "month", "day"), ("datetime", "time"): attrgetter(*CLOCK),
    ("datetime", "datetime"): attrgetter("year", "month", "day", *CLOCK),
    ("datetime", "timezone"): lambda value: value.__getinitargs__()}
VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class TooLarge(TypeError):
    """Data of more bytes than a message holds, or tuples nested too deep."""


class BadMessage(ValueError):
    """A message that an honest process does not write."""


class Crossing:
    """One end of the channel: the containers of the present call, by number.

    `hand_out` writes what is not plain data, `take` reads it; both know objects that stay where they are.
    `instead` gives what is read in place of a type; an end that has it shows no more of a view's dictionary.
    """

    def __init__(self, hand_out: Callable[[Any], Any], take: Callable[[list[Any]], Any],
                 instead: Callable[[Any], Any] | None = None) -> None:
        self.hand_out, self.take, self.instead = hand_out, take, instead
        self.shadows: dict[int, tuple[Any, Any]] = {}     # by id of a container: see `shadow_of`
        self.checked: dict[int, bool] = {}                # whether they are valid, in the present message
        self.forget()

    def forget(self) -> None:
        """Begin a call."""
        self.table: list[Any] = []
        self.places: dict[int, int] = {}
        self.own: list[int] = []                          # places of this end's own containers
        self.altered: set[int] = set()                    # and of others that it altered, until passed
        self.watched: list[tuple[int, Any, Any]] = []     # place, container, its items as the other has them

    def write(self, value: Any) -> tuple[Any, list[Row]]:
        """The value, and a row for each container that has not crossed yet."""
        done, self.checked = len(self.table), {}
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
        if kind is float and (value == value or value is math.nan):
            return value if math.isfinite(value) else ["float", repr(value)]
        # Lists hold a NaN, which equals nothing, if they hold this object.
        if kind is float or (kind in CONTAINERS and (kind is not np.ndarray or value.dtype.hasobject
                                                    or ARRAY_TYPE.fullmatch(value.dtype.str))):
            place = self.places.get(id(value))
            if place is None or (self.table[place] is not value and self.shadow_of(value) is value):
                place = self.places[id(value)] = len(self.table)
                if self.shadows and (shadow := self.shadow_of(value)) is not value:
                    self.table.append(shadow)
                    self.places[id(shadow)] = place
                else:
                    self.table.append(value)
                    self.own.append(place)
            elif self.altered:
                self.claim(value)
            return [place]
        if depth > DEEPEST:
            raise TooLarge(f"tuples nested more than {DEEPEST} deep")
        if kind is tuple or kind is frozenset:
            return [kind.__name__, [self._write(item, depth + 1) for item in value]]
        if kind in VIEWS:
            [owner] = gc.get_referents(value)
            if self.instead or type(owner) not in CONTAINERS:
                owner = dict.fromkeys(value) if VIEWS[kind] == "keys" else dict(
                    value if VIEWS[kind] == "items" else enumerate(value))
            return [VIEWS[kind], self._write(owner, depth)]
        if kind is bytes:
            return ["bytes", value.hex()]
        if isinstance(value, np.generic) and kind.__module__ == "numpy" and (
                ARRAY_TYPE.fullmatch(value.dtype.str)):
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        if isinstance(value, np.dtype) and ARRAY_TYPE.fullmatch(value.str):
            return ["dtype", value.str]
        named = kind.__module__, kind.__name__
        if named in PARTS and known_type(*named) is kind and has_known_zone(value):
            return ["made", *named, [self._write(part, depth + 1) for part in PARTS[named](value)]]
        if isinstance(value, type) and known_type(value.__module__, value.__name__) is value:
            return ["type", value.__module__, value.__name__]
        return self.hand_out(value)

    def claim(self, value: Any) -> None:
        """Count as this end's own what it passes and had altered: the container, with all that it holds."""
        held, places = [value], set[int]()
        for each in held:
            place = self.places.get(id(each)) if type(each) in CONTAINERS else None
            if type(each) is tuple or not (place is None or place in places):
                held += items_of(each)
                places |= set() if place is None else {place}
        if not self.altered.isdisjoint(places):
            self.own += sorted(places.difference(self.own))
            self.altered -= places

    def shadow_of(self, value: Any) -> Any:
        """The other end's version of a container, unless this end has altered it since, or others with it."""
        shadow, kept = self.shadows.get(id(value), (value, ()))
        if id(kept) not in self.checked:
            self.checked[id(kept)] = all(is_unaltered(*each) for each in kept)
        return shadow if self.checked[id(kept)] else value

    def _row(self, value: Any) -> Row:
        kind: Any = type(value)
        extra: Any = None
        if kind is float or kind is bytearray:
            return ["nan", None, None] if kind is float else ["bytearray", value.hex(), None]
        if kind is np.ndarray:
            if not value.dtype.hasobject:
                return ["ndarray", value.tobytes().hex(), [value.dtype.str, list(value.shape)]]
            extra = ["object", list(value.shape)]
            items = value.ravel()
        elif issubclass(kind, dict):
            items = [part for pair in value.items() for part in pair]
            extra = self._write(value.default_factory, 0) if kind is defaultdict else None
        else:
            items, extra = value, value.maxlen if kind is deque else None
        return [kind.__name__, [self._write(item, 0) for item in items], extra]

    def read(self, written: Any, rows: list[Row], altered: Iterable[Row] = ()) -> Any:
        """The value, read in the order of writing; BadMessage for what `write` cannot have given."""
        try:
            first = len(self.table)
            for row in rows:
                container = self._empty(*row)
                self.places[id(container)] = len(self.table)
                self.table.append(container)
            value = self._read(written)
            for place, row in altered:
                self._fill(self.table[place], row)
            for place, row in enumerate(rows, start=first):
                self._fill(self.table[place], row)
                self.watched.append((place, self.table[place], items_of(self.table[place])))
            return value
        except Exception as error:
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

    def _empty(self, name: str, data: Any, extra: Any) -> Any:
        """A container that holds nothing yet, or an array of the form that its row says."""
        if name == "nan":
            return float(name)
        if name == "ndarray":
            word, shape = extra
            return np.empty(shape, object) if word == "object" else array_of(word, data).reshape(shape).copy()
        if name == "defaultdict":
            return defaultdict(self._read(extra))
        return deque(maxlen=extra) if name == "deque" else BY_NAME[name]()

    def _fill(self, container: Any, row: Row) -> None:
        """Give a container what its row holds, in place of what it held."""
        kind, (_name, data, extra) = type(container), row
        if kind is float:
            return
        if kind is bytearray:
            container[:] = bytes.fromhex(data)
        elif kind is np.ndarray and extra[0] != "object":
            container[...] = array_of(extra[0], data).reshape(container.shape)
        elif kind is np.ndarray:
            for place, item in zip(np.ndindex(container.shape), self._read_all(data), strict=True):
                container[place] = item
        else:
            items = self._read_all(data)
            container.clear()
            if kind is list or kind is deque:
                container.extend(items)
            elif kind is set:
                container.update(items)
            else:
                for key, item in zip(items[::2], items[1::2], strict=True):
                    container[key] = item

    def is_small(self, most: int = MOST_FOLLOWED) -> bool:
        """True where all that is watched costs little to look through."""
        return sum(len(before) + 1 for _place, _container, before in self.watched) <= most

    def watch(self) -> None:
        """Take a snapshot of all containers: the other end has them as they are now."""
        self.watched = [(place, container, items_of(container)) for place, container in enumerate(self.table)]

    def alterations(self) -> tuple[list[Row], list[Row]] | None:
        """Rows of containers altered since the snapshot, and of new containers in them."""
        done = len(self.table)
        altered: list[Row] = [[place, self._row(container)] for place, container, before in self.watched
                              if not is_unaltered(container, before)]
        self.altered.update({place for place, _row in altered}.difference(self.own))
        return (altered, self._rows_from(done)) if altered else None


def items_of(container: Any) -> Any:
    """A snapshot that tells later whether a container was altered."""
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    if isinstance(container, np.ndarray) and not container.dtype.hasobject:
        return container.tobytes()
    if isinstance(container, (bytearray, float)):
        return bytes(container) if isinstance(container, bytearray) else b""
    return list(container.ravel() if isinstance(container, np.ndarray) else container)


def is_unaltered(container: Any, before: Any) -> bool:
    """True where a container holds the very objects that it held."""
    now = items_of(container)
    if isinstance(now, bytes):
        return bool(now == before)
    return len(now) == len(before) and all(map(is_, now, before))


def has_known_zone(value: Any) -> bool:
    """False of a time in a zone that is an object of some other class."""
    zone = getattr(value, "tzinfo", None)
    return zone is None or type(zone) is known_type("datetime", "timezone")


def known_type(module: str, name: str) -> type | None:
    """A type that both processes have, where it is loaded; None for any other name."""
    if (module, name) in PLAIN_TYPES:
        return PLAIN_TYPES[module, name]
    if (module, name) in PARTS:
        return getattr(sys.modules.get(module), name, None)
    kind = getattr(np, name, None) if module == "numpy" and name.isidentifier() else None
    return kind if isinstance(kind, type) and issubclass(kind, (np.generic, np.ndarray, np.dtype)) else None


def read_made(crossing: Crossing, module: str, name: str, parts: list[Any]) -> Any:
    if (module, name) not in PARTS:
        raise BadMessage(f"no value of {name}")
    kind: Any = named_type(module, name) if name != "Pattern" else re.compile
    parts = crossing._read_all(parts)
    return kind(*parts[:-1], fold=parts[-1]) if name in ("datetime", "time") else kind(*parts)


def read_type(crossing: Crossing, module: str, name: str) -> Any:
    kind = named_type(module, name)
    return crossing.instead(kind) if crossing.instead else kind


def named_type(module: str, name: str) -> Any:
    kind = known_type(module, name)
    if kind is None:
        raise BadMessage(f"no type {name}, or it is not loaded")
    return kind


def array_of(word: str, data: str) -> np.ndarray:
    """The items of an array, one after the other."""
    return np.frombuffer(bytes.fromhex(data), dtype_of(word))


def dtype_of(text: str) -> np.dtype[Any]:
    if not ARRAY_TYPE.fullmatch(text):
        raise BadMessage("no type of an array")
    return np.dtype(text)


READERS: dict[str, Callable[..., Any]] = {
    "int": lambda _, text: int(text, 16),
    "tuple": lambda crossing, items: tuple(crossing._read_all(items)),
    "frozenset": lambda crossing, items: frozenset(crossing._read_all(items)),
    "float": lambda _, text: math.nan if text == "nan" else float(text),
    "bytes": lambda _, text: bytes.fromhex(text),
    "keys": lambda crossing, owner: dict.keys(crossing._read(owner)),
    "values": lambda crossing, owner: dict.values(crossing._read(owner)),
    "items": lambda crossing, owner: dict.items(crossing._read(owner)),
    "scalar": lambda _, word, data: array_of(word, data)[0], "dtype": lambda _, word: dtype_of(word),
    "type": read_type, "made": read_made}
