"""Runs a test function or method as unittest and pytest do: with all that belongs before and after it."""

import contextlib
import sys
from collections.abc import Iterator
from itertools import product
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, MethodType, SimpleNamespace
from typing import Any

from score.jobs.stand_ins import Untestable, is_stand_in


def run_test(names: dict[str, Any], path: str) -> None:
    """Run `test` or `Class.test` of the tests' globals; its errors are raised.

    A test that the program decorated is the program's: what it says of itself makes it not untestable.
    """
    owner, _, method = path.partition(".")
    kind: Any = names[owner] if method else None
    test = getattr(kind, method) if kind else names[owner]
    try:
        run_all(names, path, kind, test)
    except Untestable as error:
        raise AssertionError(str(error)) if is_stand_in(test) else error from None


def run_all(names: dict[str, Any], path: str, kind: Any, test: Any) -> None:
    """Run a test once per row of arguments, with what belongs to its module and its class."""
    with contextlib.ExitStack() as stack:
        surround(stack, names, "setUpModule", "tearDownModule")
        surround(stack, names, "setup_module", "teardown_module", sys.modules["tests"])
        if is_test_case(kind):
            surround(stack, kind, "setUpClass", "tearDownClass")
            if code_of(test).co_flags & 0x2A0 and not hasattr(kind, "asyncSetUp"):
                raise Untestable(f"{path} is never awaited: IsolatedAsyncioTestCase would do it")
            kind(path.partition(".")[2]).debug()
            return
        surround(stack, kind, "setup_class", "teardown_class", kind)
        fixtures = {each.name: each for each in getattr(sys.modules.get("pytest"), "fixtures", {}).values()
                    if each.owner in ("", *(base.__name__ for base in getattr(kind, "__mro__", ())))}
        wanted = [name for name, each in fixtures.items() if each.is_automatic]
        wanted += parameters_of(test)
        for name in wanted:                    # those that they want, too
            wanted += [each for each in parameters_of(fixtures[name].make) if each not in wanted
                       ] if name in fixtures else []
        rows = [*getattr(test, "rows", ()), *getattr(kind, "rows", ())]
        rows += [[{f"{name}=": each} for each in fixtures[name].params]
                 for name in dict.fromkeys(wanted) if name in fixtures and fixtures[name].params]
        if not all(rows):
            raise AssertionError(f"{path} has no rows of arguments")
        for parts in product(*rows):
            run_row(names, kind, test, fixtures, dict(pair for part in parts for pair in part.items()))


def run_row(names: dict[str, Any], kind: Any, test: Any, fixtures: dict[str, Any],
            row: dict[str, Any]) -> None:
    """Run a test with these arguments and its fixtures."""
    made: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        it = kind() if kind else None
        if kind:
            surround(stack, it, "setup_method", "teardown_method", test)
        else:
            surround(stack, names, "setup_function", "teardown_function", test)

        def call(function: Any, name: str = "") -> Any:
            request = SimpleNamespace(param=row.get(f"{name}="), addfinalizer=stack.callback)
            known = {each: request if each == "request" else make(each) for each in parameters_of(function)
                     if each in fixtures or each in row or each == "request"}
            missing = set(parameters_of(function)) - {"self"} - known.keys()
            if missing and not hasattr(function, "__wrapped__"):          # a patch has arguments of its own
                raise Untestable(f"no fixture {', '.join(sorted(missing))} is here")
            takes_it = kind and code_of(function).co_varnames[:1] == ("self",)
            return function(*([it] if takes_it else []), **known)

        def make(name: str) -> Any:
            if name in row:
                return row[name]
            if name not in made:
                value = call(fixtures[name].make, name)
                if type(value) is GeneratorType:
                    stack.callback(next, value, None)
                made[name] = next(value) if type(value) is GeneratorType else finished(value)
            return made[name]

        for name, each in fixtures.items():
            if each.is_automatic:
                make(name)
        finished(call(test))


def finished(value: Any) -> Any:
    """What a function gave, awaited; nothing goes on with one that yields."""
    if type(value) in (GeneratorType, AsyncGeneratorType):
        raise Untestable("a test that yields is not run to its end")
    return sys.modules["asyncio"].run(value) if type(value) is CoroutineType else value


def surround(stack: contextlib.ExitStack, owner: Any, before: str, after: str, *given: Any) -> None:
    """Call the function `before` now and `after` at the end, with as many arguments as they take."""
    for name, use in ((after, stack.callback), (before, lambda function, *some: function(*some))):
        function = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
        if function is not None:
            use(function, *given[:code_of(function).co_argcount - isinstance(function, MethodType)])


def code_of(function: Any) -> Any:
    """The code of a function behind its decorators."""
    while hasattr(function, "__wrapped__") or type(function) is MethodType:
        function = getattr(function, "__wrapped__", None) or function.__func__
    return function.__code__


def parameters_of(function: Any) -> list[str]:
    """The parameters of a function that have no default."""
    code, inner = code_of(function), getattr(function, "__wrapped__", function)
    names, defaults = code.co_varnames, inner.__defaults__ or ()
    return [*names[:code.co_argcount - len(defaults)],
            *(name for name in names[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
              if name not in (inner.__kwdefaults__ or ()))]


def is_test_case(kind: Any) -> bool:
    """True for a class of unittest."""
    unittest = sys.modules.get("unittest.case")
    return unittest is not None and isinstance(kind, type) and issubclass(kind, unittest.TestCase)


def tests_in(names: dict[str, Any]) -> Iterator[str]:
    """The tests that unittest or pytest would find in the tests' globals, but for those to be skipped."""
    for name, found in names.items():
        if type(found) is FunctionType and name.startswith("test"):
            yield from () if hasattr(found, "__unittest_skip__") else (name,)
        elif is_test_case(found) or (name.startswith("Test") and type(found) is type):
            yield from (f"{name}.{each}" for each in dir(found) if each.startswith("test")
                        and type(test := getattr(found, each)) in (FunctionType, MethodType)
                        and not (hasattr(test, "__unittest_skip__") or hasattr(found, "__unittest_skip__")))
