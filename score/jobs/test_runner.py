"""Runs a test function or method as unittest and pytest do: with all that belongs before and after it."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator
from itertools import product
from types import CoroutineType, FunctionType, MethodType
from typing import Any

from score.jobs import stand_ins
from score.jobs.link import LinkLost
from score.jobs.stand_ins import Given, Untestable, is_stand_in

# Kinds of functions, in the flags of their code.
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
UNENDED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
TESTS = (FunctionType, MethodType, functools.partial)        # what pytest would call
SCOPES = ("module", "class", "function")        # of fixtures: those of all come first
failures: list[BaseException] = []          # of parts of the present test
skips: list[BaseException] = []             # of it, or of parts of it


class Surroundings:
    """What is around the tests of a module and a class: from before the first of them to after the last."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names, self.kind, self.has_begun = names, None, False
        self.of_module, self.of_class = contextlib.ExitStack(), contextlib.ExitStack()
        self.made: dict[str, dict[Any, Any]] = {"module": {}, "class": {}}         # fixtures, by their scope

    def begin(self, kind: Any) -> None:
        """Set up what is not yet; leave the class of the test before if this one is of another."""
        names = self.names
        if not self.has_begun:
            surround(self.of_module, names, "setUpModule", "tearDownModule")
            surround(self.of_module, names, "setup_module", "teardown_module", sys.modules["tests"])
            names.update(pair for pair in vars(sys.modules["tests"]).items() if not pair[0].startswith("__"))
            self.has_begun = True
        if kind is not self.kind:
            self.leave_class()
            if is_test_case(kind):
                self.of_class.callback(clean_up, kind)
                surround(self.of_class, kind, "setUpClass", "tearDownClass")
            else:
                surround(self.of_class, kind, "setup_class", "teardown_class", kind)
            self.kind = kind

    def leave_class(self) -> None:
        self.kind = None
        self.made["class"].clear()
        self.of_class.close()

    def end(self) -> None:
        """Tear down all."""
        self.leave_class()
        self.of_module.close()


def run_test(around: Surroundings, ends: bool, path: str) -> None:
    """Run `test` or `Class.test` of the tests' globals; its errors are raised. It may end what is around it.

    A test that the program decorated is the program's: what it says of itself makes it not untestable.
    """
    owner, _, method = path.partition(".")
    kind: Any = around.names[owner] if method else None
    test = getattr(kind, method) if kind else around.names[owner]
    used = [test, *(each.make for each in fixtures_here())]
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(around.end if ends else int)
            run_all(around, path, kind, test)
    except Untestable as error:
        raise AssertionError(str(error)) if any(map(is_programs, used)) else error from None


def run_all(around: Surroundings, path: str, kind: Any, test: Any) -> None:
    """Run a test once per row of arguments, with what belongs to its module and its class."""
    around.begin(kind)
    is_case = is_test_case(kind)
    if is_case and code_of(test).co_flags & UNENDED and not hasattr(kind, "asyncSetUp"):
        raise Untestable(f"{path} is never awaited: IsolatedAsyncioTestCase would do it")
    owners = [*(base.__name__ for base in getattr(kind, "__mro__", ())), ""][::-1]
    fixtures = {each.name: each for owner in owners for each in fixtures_here() if each.owner == owner}
    wanted = [name for name, each in fixtures.items() if each.is_automatic]
    wanted += parameters_of(test)
    for name in wanted:                    # those that they want, too
        wanted += [each for each in parameters_of(fixtures[name].make) if each not in wanted
                   ] if name in fixtures else []
    rows = [] if is_case else [*getattr(test, "__rows__", ()), *getattr(kind, "__rows__", ())]
    rows += [[{f"{name}=": each} for each in fixtures[name].params]
             for name in dict.fromkeys(wanted) if name in fixtures and fixtures[name].params is not None]
    if not all(rows):
        raise AssertionError(f"{path} has no rows of arguments")
    for parts in product(*rows):
        with skippable():
            it = kind(path.partition(".")[2]) if is_case else kind() if kind else None
            run_row(around, it, test, fixtures, dict(pair for part in parts for pair in part.items()))


def run_row(around: Surroundings, it: Any, test: Any, fixtures: dict[str, Any], row: dict[str, Any]) -> None:
    """Run a test, maybe of an instance, with these arguments and its fixtures."""
    kind = None if it is None else type(it)
    with contextlib.ExitStack() as stack:
        places: dict[str, tuple[Any, dict[Any, Any]]] = {
            "function": (stack, {}), "module": (around.of_module, around.made["module"])}
        places["class"] = (around.of_class, around.made["class"]) if kind else places["function"]
        if kind:
            surround(stack, it, "setup_method", "teardown_method", test)
        else:
            surround(stack, around.names, "setup_function", "teardown_function", test)

        def call(function: Any, name: str = "", upon: contextlib.ExitStack = stack) -> Any:
            if name in parameters_of(function):
                raise Untestable(f"the fixture {name} that another has in its place is not here")
            width = SCOPES.index(scope_of(fixtures[name]) if name else "function")
            if (name and width < SCOPES.index("function") and f"{name}=" in row) or any(
                    SCOPES.index(scope_of(fixtures[each])) > width
                    for each in parameters_of(function) if each in fixtures and each not in row):
                raise Untestable(f"the fixture {name} of several tests has parameters or wants one of a test")
            missing = {*parameters_of(function)} - {"self", "request"} - fixtures.keys() - row.keys()
            if missing and not hasattr(function, "__wrapped__"):          # a patch has arguments of its own
                raise Untestable(f"no fixture {', '.join(sorted(missing))} is here")
            request = Given(param=row.get(f"{name}="), addfinalizer=upon.callback, getfixturevalue=make)
            known = {each: request if each == "request" else make(each) for each in parameters_of(function)
                     if each in fixtures or each in row or each == "request"}
            takes_it = kind and code_of(function).co_varnames[:1] == ("self",)
            return function(*([it] if takes_it else []), **known)

        def make(name: str) -> Any:
            if name in row:
                return row[name]
            if name not in fixtures:
                raise Untestable(f"no fixture {name} is here")
            upon, made = places[scope_of(fixtures[name])]
            key = name, fixtures[name].owner
            if key not in made:
                value, flags = call(fixtures[name].make, name, upon), flags_of(fixtures[name].make)
                if flags & CO_GENERATOR:
                    upon.callback(next, value, None)
                    value = next(value)
                made[key] = finished(value, flags) if flags & UNENDED > CO_GENERATOR else value
            return made[key]

        first = [name for name, each in fixtures.items() if each.is_automatic]
        first += [name for name in parameters_of(test) if name in fixtures]
        for name in sorted(first, key=lambda name: SCOPES.index(scope_of(fixtures[name]))):
            make(name)
        finished(it.debug() if is_test_case(kind) else call(test), code_of(test).co_flags)


def warn_as_usual(in_pytest: bool) -> None:
    """Have tests get each warning once, as Python does, or as pytest does; nothing is printed."""
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning) if in_pytest else ():
        warnings.simplefilter("always", category)
    vars(warnings)["_showwarnmsg_impl"] = lambda _message: None


def patch_unittest(runs: bool) -> None:
    """Have unittest start no tests if they are run here, and parts of a test fail as `failures`."""
    if runs and "unittest" in sys.modules:
        sys.modules["unittest"].main = lambda *_words, **_options: None  # type: ignore[attr-defined]
    if "unittest.case" in sys.modules:
        kind: Any = sys.modules["unittest.case"].TestCase
        kind.subTest, kind.doCleanups = sub_test, clean_up_now


def says_skip(error: BaseException) -> bool:
    """True for an error by which unittest or pytest skip a test."""
    kinds = [vars(sys.modules[name]).get("SkipTest") for name in ("unittest.case", "pytest")
             if name in sys.modules]
    return type(error) in kinds and not hasattr(error, "raised_by_program")


def is_skip(error: BaseException) -> bool:
    """True for a skip whatever the program does."""
    peer = stand_ins.peer
    return says_skip(error) and not (peer.has_answered or peer.is_of_checker)


@contextlib.contextmanager
def skippable() -> Iterator[None]:
    """A part of a test, which may be skipped unless the program has answered before."""
    try:
        yield
    except BaseException as error:
        if not is_skip(error):
            raise
        skips.append(error)


@contextlib.contextmanager
def sub_test(_self: Any, *_words: Any, **_parameters: Any) -> Iterator[None]:
    """`subTest` of unittest: after a failure the test goes on, and fails at its end."""
    try:
        with skippable():
            yield
    except (LinkLost, Untestable):
        raise
    except BaseException as error:
        failures.append(error)


def clean_up_now(self: Any) -> None:
    """`doCleanups` of unittest, which raises."""
    while self._cleanups:
        function, arguments, keywords = self._cleanups.pop()
        self._callCleanup(function, *arguments, **keywords)


def clean_up(kind: Any) -> None:
    """Call what `addClassCleanup` was given, and raise the first error."""
    kind.doClassCleanups()
    for _kind, error, _trace in kind.tearDown_exceptions:
        raise error


def finished(value: Any, flags: int) -> Any:
    """What a function of this code gave, awaited; nothing goes on with one that yields."""
    if flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise Untestable("a test that yields is not run to its end")
    return sys.modules["asyncio"].run(value) if type(value) is CoroutineType else value


def surround(stack: contextlib.ExitStack, owner: Any, before: str, after: str, *given: Any) -> None:
    """Call the function `before` now and `after` at the end, with as many arguments as they take."""
    for name, use in ((after, stack.callback), (before, lambda function, *some: function(*some))):
        function = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
        if function is not None:
            use(function, *given[:code_of(function).co_argcount - isinstance(function, MethodType)])


def scope_of(fixture: Any) -> str:
    """The scope of a fixture: that of a package or session is the module."""
    return fixture.scope if fixture.scope in ("function", "class") else "module"


def fixtures_here() -> list[Any]:
    """The fixtures of the tests."""
    return list(getattr(sys.modules.get("pytest"), "fixtures", {}).values())


def is_programs(function: Any) -> bool:
    """True of a function that the program made, or decorated before the tests did."""
    while not is_stand_in(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return is_stand_in(function)


def flags_of(function: Any) -> int:
    """What kind of function it is itself, whatever it gives."""
    return getattr(getattr(function, "__code__", None), "co_flags", 0)


def code_of(function: Any) -> Any:
    """The code of a function behind its decorators."""
    while hasattr(function, "__wrapped__") or type(function) is MethodType:
        function = getattr(function, "__wrapped__", None) or function.__func__
    return function.__code__


def parameters_of(function: Any) -> list[str]:
    """The parameters of a function that have no default."""
    code, inner = code_of(function), getattr(function, "__wrapped__", function)
    names, defaults = code.co_varnames, inner.__defaults__ or ()
    return [*names[isinstance(function, MethodType):code.co_argcount - len(defaults)],
            *(name for name in names[code.co_argcount:code.co_argcount + code.co_kwonlyargcount]
              if name not in (inner.__kwdefaults__ or ()))]


def is_test_case(kind: Any) -> bool:
    """True for a class of unittest."""
    unittest = sys.modules.get("unittest.case")
    return unittest is not None and isinstance(kind, type) and issubclass(kind, unittest.TestCase)


def tests_in(names: dict[str, Any]) -> Iterator[str]:
    """The tests that unittest or pytest would find in the tests' globals, but for those to be skipped."""
    for name, found in names.items():
        if is_left_out(found):
            continue
        if name.startswith("test") and type(found) in TESTS:
            yield name
        elif is_collected(name, found):
            inside = {each: getattr(found, each) for each in dir(found)
                      if each.startswith(("test", "Test", "runTest"))}
            tests = [each for each, test in inside.items() if each.startswith("test") and type(test) in TESTS]
            if is_test_case(found) and not tests and "runTest" in inside:
                tests = ["runTest"]
            yield from (f"{name}.{each}" for each in tests if not is_left_out(inside[each]))
            yield from () if is_test_case(found) else (f"{name}.{each}" for each in tests_in(
                {each: kind for each, kind in inside.items() if is_collected(each, kind)}))


def is_left_out(test: Any) -> bool:
    """True of a test that is skipped, or expected to fail."""
    return hasattr(test, "__unittest_skip__") or hasattr(test, "__unittest_expecting_failure__")


def is_collected(name: str, found: Any) -> bool:
    """True of a class in which unittest or pytest would look for tests."""
    return isinstance(found, type) and not is_stand_in(found) and getattr(found, "__test__", True) and (
        is_test_case(found) or (name.startswith("Test") and not getattr(found, "__abstractmethods__", ())
                                and getattr(found, "__init__", ...) is object.__init__))
