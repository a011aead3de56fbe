"""What tests use of pytest, where pytest itself is not allowed.

Imported for what mentions pytest; it then goes by that name.
"""

import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
from types import GeneratorType, SimpleNamespace
from typing import Any

from score.jobs.stand_ins import Failed


@contextlib.contextmanager
def caught(kinds: Any, match: str | None) -> Iterator[SimpleNamespace]:
    """The context manager behind `raises`."""
    info = SimpleNamespace(value=None, type=None)
    info.match = lambda pattern: bool(re.search(pattern, str(info.value)))
    try:
        yield info
    except kinds as error:
        info.value, info.type = error, type(error)
        if match is not None and not re.search(match, str(error)):
            raise AssertionError(f"{str(error)!r} does not match {match!r}") from error
    else:
        raise Failed(f"DID NOT RAISE {kinds}")


def raises(kinds: Any, *call: Any, match: str | None = None, **keywords: Any) -> Any:
    """A context that expects one of the exceptions; given a function, call it in that context."""
    if not call:
        return caught(kinds, match)
    with caught(kinds, match) as info:
        call[0](*call[1:], **keywords)
    return info


class approx:
    """Equal to numbers, lists and dictionaries of numbers that are near."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected, self.rel, self.abs = expected, rel, abs

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
        if not isinstance(expected, (int, float, complex)):
            return bool(value == expected)
        relative = 1e-6 if self.rel is None and self.abs is None else self.rel or 0
        nearest = max(relative * abs(expected), 1e-12 if self.abs is None else self.abs)
        return bool(value == expected or abs(value - expected) <= nearest)


def parametrize(names: Any, rows: Any, **_options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test once with each row of arguments."""
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run_rows(*itself: Any, **others: Any) -> None:
            for row in rows:
                test(*itself, **others, **dict(zip(words, row if len(words) > 1 else [row], strict=True)))
        return run_rows
    return decorate


def fixture(function: Any = None, **options: Any) -> Any:
    """Register a function that makes what tests name as a parameter."""
    if function is None:
        return functools.partial(fixture, **options)
    fixtures[function.__name__] = function, bool(options.get("autouse"))
    return function


def run(test: Any) -> Any:
    """Call a test with the fixtures that it wants."""
    made: dict[str, Any] = {}

    def call(function: Any) -> Any:
        code = getattr(function, "__wrapped__", function).__code__
        names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
        itself = [test.__self__] if names[:1] == ("self",) and function is not test else []
        return function(*itself, **{name: make(name) for name in names if name in fixtures})

    def make(name: str) -> Any:
        if name not in made:
            value = call(fixtures[name][0])
            made[name] = next(value) if isinstance(value, GeneratorType) else value
        return made[name]

    for name, (_function, is_automatic) in fixtures.items():
        if is_automatic:
            make(name)
    return call(test)


def fail(reason: str = "") -> None:
    """Fail the test."""
    raise Failed(reason)


fixtures: dict[str, Any] = {}       # with whether every test wants it
mark, nan = SimpleNamespace(parametrize=parametrize), math.nan
sys.modules.setdefault("pytest", sys.modules[__name__])
