"""What tests use of pytest, where pytest itself is not allowed.

Imported for what mentions pytest; it then goes by that name.
"""

import contextlib
import functools
import io
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from numbers import Complex
from typing import Any, NamedTuple

import numpy as np

from score.jobs import stand_ins
from score.jobs.stand_ins import Failed, Given, Untestable, check_patch, is_stand_in


@contextlib.contextmanager
def caught(kinds: Any, match: Any = None, check: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """The context manager behind `raises`."""
    def matches(pattern: Any) -> bool:
        said = "\n".join([str(info.value), *getattr(info.value, "__notes__", ())])
        if not re.search(pattern, said):
            raise AssertionError(f"{said!r} does not match {pattern!r}")
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


def warns(expected_warning: Any = Warning, *call: Any, match: str | None = None, **keywords: Any) -> Any:
    """A context that expects one of the warnings; given a function, call it in that context."""
    if not call:
        return heard(expected_warning, match)
    with heard(expected_warning, match):
        return call[0](*call[1:], **keywords)


@contextlib.contextmanager
def heard(expected_warning: Any, match: str | None) -> Iterator[list[Any]]:
    """The context manager behind `warns`, which is given all that was warned of.

    As in pytest it asks for the warning also where an error ends the block, and warns again of all others.
    """
    kinds = expected_warning if isinstance(expected_warning, tuple) else (expected_warning,)
    ended: Exception | None = None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            yield seen
        except Untestable:
            raise
        except Exception as error:
            ended = error
    others = [each for each in seen if not (
        issubclass(each.category, kinds) and re.search(match or "", str(each.message)))]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if len(others) == len(seen):
        raise Failed(f"DID NOT WARN {kinds}, {match or 'whatever it says'}") from ended
    if ended:
        raise ended


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
        """True if each number of a value is near the number in its place, as pytest has it.

        An AssertionError where the program's own object, or no number at all, would decide it.
        """
        if isinstance(expected, dict):
            return hasattr(value, "keys") and value.keys() == expected.keys() and all(
                self.is_near(value[key], expected[key]) for key in expected)
        if hasattr(expected, "__len__") and not isinstance(expected, (str, bytes)):
            if not hasattr(expected, "__getitem__"):
                raise TypeError("approx of what has no order")
            if hasattr(expected, "shape"):
                if is_stand_in(value) or np.shape(value) == ():
                    raise AssertionError("approx of an array, with what is none")
                if np.shape(value) != expected.shape:
                    return False
            if not hasattr(value, "__len__"):
                return False
            items = list(value)              # `__len__` may lie
            return len(value) == len(items) == len(expected) and all(map(self.is_near, items, expected))
        if isinstance(value, np.ndarray):
            if not value.size:
                raise AssertionError("approx of a number, with an empty array")
            return all(self.is_near(each, expected) for each in value.flat)
        if is_stand_in(value) and not isinstance(value, (int, float, complex)):
            raise AssertionError("approx of what is no object, with an object")
        if isinstance(expected, (bool, np.bool_)):
            return isinstance(value, (bool, np.bool_)) and bool(value == expected)
        if value == expected or not all(isinstance(each, (Complex, Decimal)) for each in (value, expected)):
            return bool(value == expected)
        if math.isnan(abs(expected)) or math.isinf(abs(expected)):
            return self.nan_ok and math.isnan(abs(expected)) and math.isnan(abs(value))
        kind: Any = Decimal if isinstance(expected, Decimal) else lambda each: each
        nearest = kind(1e-12 if self.abs is None else self.abs)
        if self.rel is not None or self.abs is None:
            nearest = max(nearest, kind(1e-6 if self.rel is None else self.rel) * abs(expected))
        return bool(abs(expected - value) <= nearest)


def parametrize(argnames: Any, argvalues: Any, indirect: Any = (), **options: Any) -> Callable[[Any], Any]:
    """Have a test, or those of a class, run once with each row of arguments; `name=` are for a fixture."""
    if "scope" in options:
        raise Untestable("rows that several tests share are not here")
    is_text = isinstance(argnames, str)
    words = [word.strip() for word in argnames.split(",") if word.strip()] if is_text else list(argnames)
    is_single = is_text and len(words) == 1
    words = [f"{word}=" if indirect is True or (indirect and word in indirect) else word for word in words]
    rows = [dict(zip(words, [row] if is_single else row, strict=True))
            for row in argvalues if row is not SkipTest]

    def decorate(test: Any) -> Any:
        test.__rows__ = [*getattr(test, "__rows__", ()), rows]       # which no program can set
        return test
    return decorate


def param(*values: Any, marks: Any = (), **_options: Any) -> Any:
    """A row of arguments; SkipTest of one to skip."""
    of_row = marks if isinstance(marks, (tuple, list)) else [marks]
    if any(getattr(each, "skips", False) for each in of_row):
        return SkipTest
    return values if len(values) > 1 else values[0]


class Fixture(NamedTuple):
    """A function that makes what tests name as a parameter; `owner` is its class."""

    name: str
    owner: str
    make: Callable[..., Any]
    is_automatic: bool
    params: list[Any] | None
    scope: str


fixtures: dict[str, Fixture] = {}


def fixture(function: Any = None, name: str | None = None, autouse: bool = False, params: Any = ...,
            scope: str = "function", **_options: Any) -> Any:
    """Register a fixture."""
    if function is None:
        return functools.partial(fixture, name=name, autouse=autouse, params=params, scope=scope)
    owner, own = function.__qualname__.rpartition(".")[0], function.__name__
    rows = None if params is ... else [each for each in params if each is not SkipTest]
    fixtures[function.__qualname__] = Fixture(name or own, owner, function, autouse, rows, scope)
    return function


class Captured(NamedTuple):
    """What was written since it was asked for last."""

    out: str
    err: str


class Patches:
    """The fixture `monkeypatch`: what it sets and deletes is as it was when the test ends."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack, self.undo = stack, stack.close

    def setattr(self, target: Any, name: Any, value: Any = ..., raising: bool = True) -> None:
        """Set an attribute of an object; given "module.name" and a value, of a module."""
        if value is ...:
            (module, _, name), value = target.rpartition("."), name
            target = sys.modules.get(module)
            if target is None:
                raise Untestable(f"{module} is not here")
        check_patch(target, name)
        before = getattr(target, name, ...) if not raising else getattr(target, name)
        self.stack.callback(*(delattr, target, name) if before is ... else (setattr, target, name, before))
        setattr(target, name, value)

    def delattr(self, target: Any, name: str, raising: bool = True) -> None:
        """Delete an attribute."""
        check_patch(target, name)
        if raising or hasattr(target, name):
            self.stack.callback(setattr, target, name, getattr(target, name))
            delattr(target, name)

    @contextlib.contextmanager
    def context(self) -> Iterator[Any]:
        """Patches that end with the context."""
        with contextlib.ExitStack() as stack:
            yield Patches(stack)

    def setitem(self, target: Any, key: Any, value: Any) -> None:
        """Set an item."""
        self.stack.callback(*(target.__setitem__, key, target[key]) if key in target
                            else (target.pop, key, None))
        target[key] = value

    def delitem(self, target: Any, key: Any, raising: bool = True) -> None:
        """Delete an item."""
        if raising or key in target:
            self.stack.callback(target.__setitem__, key, target[key])
            del target[key]

    def setenv(self, name: str, value: Any, prepend: str | None = None) -> None:
        """Set a variable of the environment, maybe to this before what it is."""
        before = [os.environ[name]] if prepend and name in os.environ else []
        self.setitem(os.environ, name, (prepend or "").join([str(value), *before]))

    def delenv(self, name: str, raising: bool = True) -> None:
        """Delete a variable of the environment."""
        self.delitem(os.environ, name, raising)


@fixture
def capsys() -> Iterator[Any]:
    """What the program and the test print."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _stream in "oe")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        def readouterr() -> Captured:
            said = Captured(*(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
            for stream in (out, err):
                stream.seek(0)
                stream.truncate()
            return said
        yield Given(readouterr=readouterr)


@fixture
def monkeypatch() -> Iterator[Patches]:
    """Sets attributes, items and variables for the time of a test."""
    with contextlib.ExitStack() as stack:
        yield Patches(stack)


def fail(reason: Any = "", **_options: Any) -> None:
    """Fail the test."""
    raise Failed(reason)


class SkipTest(BaseException):
    """What `skip` raises."""


def skip(reason: Any = "", **_options: Any) -> None:
    """Skip the test, unless the program has answered before: then it fails."""
    raise SkipTest(reason)


class Mark:
    """The marks of tests; one that changes no verdict leaves the test as it is."""

    parametrize = staticmethod(parametrize)

    def skipif(self, condition: Any, **_options: Any) -> Any:
        """Leave the test as it is where it is not to be skipped, whatever the program does."""
        if condition and stand_ins.peer.has_asked:              # a name tells what kind of object it is
            raise AssertionError("a test that may be skipped by what the program is")
        if stand_ins.peer.has_answered or isinstance(condition, str) or condition:
            raise Untestable("pytest.mark.skipif is not here")
        return lambda test: test

    def __getattr__(self, name: str) -> Any:
        if name in ("xfail", "usefixtures", "filterwarnings"):
            raise Untestable(f"pytest.mark.{name} is not here")

        def marked(*given: Any, **_options: Any) -> Any:
            if not (given and callable(given[0])):
                return marked
            if name == "skip":
                given[0].__unittest_skip__ = True
            return given[0]
        marked.skips = name == "skip"  # type: ignore[attr-defined]
        return marked


mark, nan = Mark(), math.nan
xfail = fail                        # of a test that asks the program first
sys.modules.setdefault("pytest", sys.modules[__name__])
__name__ = "pytest"                 # by which it crosses
