"""What tests use of pytest, where pytest itself is not allowed.

Imported for what mentions pytest; it then goes by that name.
"""

import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from score.jobs import stand_ins
from score.jobs.stand_ins import Failed, Given, Untestable, is_stand_in


@contextlib.contextmanager
def caught(kinds: Any, match: Any = None, check: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """The context manager behind `raises`."""
    def matches(pattern: Any) -> bool:
        if not re.search(pattern, str(info.value)):
            raise AssertionError(f"{str(info.value)!r} does not match {pattern!r}")
        return True
    info = Given(value=None, type=None, match=matches)
    try:
        yield info
    except kinds as error:
        info.value, info.type, info.typename = error, type(error), type(error).__name__
        if match is not None:
            matches(match)
        if check is not None and not check(error):
            raise AssertionError(f"{error!r} does not pass the check") from error
    else:
        raise Failed(f"DID NOT RAISE {kinds}")


def raises(expected_exception: Any, *call: Any, **keywords: Any) -> Any:
    """A context that expects one of the exceptions; given a function, call it in that context."""
    if not call:
        return caught(expected_exception, **keywords)
    with caught(expected_exception) as info:
        call[0](*call[1:], **keywords)
    return info


class approx:
    """Equal to numbers, lists and dictionaries of numbers that are near."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None               # an array leaves the comparison to this class

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None,
                 nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, value: Any) -> bool:
        return self.is_near(value, self.expected)

    def is_near(self, value: Any, expected: Any) -> bool:
        """True if each number of a value is near the number in its place."""
        if isinstance(expected, dict):
            return value.keys() == expected.keys() and all(
                self.is_near(value[key], expected[key]) for key in expected)
        if hasattr(expected, "__iter__") and not isinstance(expected, str):
            items = list(value)              # `__len__` may lie
            return len(items) == len(expected) and all(map(self.is_near, items, expected))
        if is_stand_in(value) and not isinstance(value, (int, float, complex)):
            return False
        if not isinstance(expected, (int, float, complex)):
            if not all(hasattr(each, "__float__") for each in (value, expected)):
                return bool(value == expected)
            value, expected = float(value), float(expected)
        relative = 1e-6 if self.rel is None and self.abs is None else self.rel or 0
        nearest = max(relative * abs(expected), 1e-12 if self.abs is None else self.abs)
        if value == expected or (self.nan_ok and value != value and expected != expected):
            return True
        try:
            return not math.isinf(abs(expected)) and bool(abs(value - expected) <= nearest)
        except TypeError:                    # no number
            return False


def parametrize(argnames: Any, argvalues: Any, indirect: Any = (), **_options: Any) -> Callable[[Any], Any]:
    """Have a test, or those of a class, run once with each row of arguments; `name=` are for a fixture."""
    is_text = isinstance(argnames, str)
    words = [word.strip() for word in argnames.split(",") if word.strip()] if is_text else list(argnames)
    is_single = is_text and len(words) == 1
    words = [f"{word}=" if indirect is True or (indirect and word in indirect) else word for word in words]
    rows = [dict(zip(words, [row] if is_single else row, strict=True)) for row in argvalues]

    def decorate(test: Any) -> Any:
        test.__rows__ = [*getattr(test, "__rows__", ()), rows]       # which no program can set
        return test
    return decorate


def param(*values: Any, **_options: Any) -> Any:
    """A row of arguments."""
    return values if len(values) > 1 else values[0]


class Fixture(NamedTuple):
    """A function that makes what tests name as a parameter; `owner` is its class."""

    name: str
    owner: str
    make: Callable[..., Any]
    is_automatic: bool
    params: list[Any] | None


def fixture(function: Any = None, name: str | None = None, autouse: bool = False, params: Any = ...,
            **_options: Any) -> Any:
    """Register a fixture."""
    if function is None:
        return functools.partial(fixture, name=name, autouse=autouse, params=params)
    owner, own = function.__qualname__.rpartition(".")[0], function.__name__
    rows = None if params is ... else list(params)
    fixtures[function.__qualname__] = Fixture(name or own, owner, function, autouse, rows)
    return function


def fail(reason: Any = "", **_options: Any) -> None:
    """Fail the test."""
    raise Failed(reason)


class Mark:
    """The marks of tests; one that changes no verdict leaves the test as it is."""

    parametrize = staticmethod(parametrize)

    def skipif(self, condition: Any, **_options: Any) -> Any:
        """Leave the test as it is where it is not to be skipped, whatever the program does."""
        if stand_ins.peer.has_answered or isinstance(condition, str) or condition:
            raise Untestable("pytest.mark.skipif is not here")
        return lambda test: test

    def __getattr__(self, name: str) -> Any:
        if name in ("xfail", "usefixtures"):
            raise Untestable(f"pytest.mark.{name} is not here")

        def marked(*given: Any, **_options: Any) -> Any:
            if not (given and callable(given[0])):
                return marked
            if name == "skip":
                given[0].__unittest_skip__ = True
            return given[0]
        return marked


fixtures: dict[str, Fixture] = {}
mark, nan = Mark(), math.nan
skip = xfail = fail                 # of a test that asks the program first
sys.modules.setdefault("pytest", sys.modules[__name__])
__name__ = "pytest"                 # by which it crosses
