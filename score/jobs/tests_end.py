"""The tests' end of the link: runs tests on stand-ins for the program, and reports how each ended."""

import builtins
import contextlib
import copy
import functools
import json
import opcode
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import CodeType
from typing import Any

import numpy as np

from score.jobs import evaluation
from score.jobs.evaluation import ABSENT
from score.jobs.link import Link, LinkLost
from score.jobs.modules import failed_at, lines_of, message_of
from score.jobs.peer import UNPASSED, Peer, special
from score.jobs.program_end import MIRRORED, code_of, signature_of
from score.jobs.stand_ins import (
    PATCHED,
    PATCHED_PARTS,
    TEXTS,
    Failed,
    Given,
    ProgramClass,
    StandIn,
    Untestable,
    check_patch,
    is_constructed,
    is_stand_in,
    slot,
)
from score.jobs.test_runner import (
    Surroundings,
    failures,
    is_collected,
    is_skip,
    is_test_case,
    patch_unittest,
    run_test,
    says_skip,
    skips,
    tests_in,
    warn_as_usual,
)
from score.protocol.crossing import CONTAINERS, VIEWS, BadMessage, Crossing, TooLarge, items_of
from score.protocol.frames import SKIPPED

TEXT_CAPS = (500, 100, 20, 0)        # characters of a test's message: as many as leave room for all tests
# Attributes that lead from an object of the tests to their code and values.
INNER = re.compile(r"__|(gi|cr|ag|f|tb|co|func)_")
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType,
             types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType)
# Errors that iteration and `hasattr` swallow, and the methods of tests in which they do.
SWALLOWED: tuple[tuple[type[Exception], str], ...] = (
    (IndexError, "__getitem__"), (AttributeError, "__getattr__"))
ENDS, FOR_ITER = (StopIteration, StopAsyncIteration), opcode.opmap["FOR_ITER"]
MODULES = {"np": "numpy"}
PASSING = {tuple, frozenset, *VIEWS}         # what holds others and does not change
CLASS = re.compile("[A-Z][A-Za-z0-9]*")      # names of classes


class Names(dict[str, Any]):
    """The tests' globals; a name that is missing is a builtin, a module, or the program's."""

    def __init__(self, peer: Any, entry_point: str, called: list[str]) -> None:
        super().__init__(__name__="tests", __file__="/tests.py")
        self.called = called         # what is not a module
        self.imported = dict[str, Any]()         # what tests read of a module of the program
        self.found = list[Any]()                 # what they found by a name
        self.peer, self.entry_point = peer, entry_point.partition(".")[0]

    def __missing__(self, name: str) -> Any:
        if name != self.entry_point:
            if name.startswith("__") or hasattr(builtins, name):
                raise KeyError(name)
            module = MODULES.get(name, name)
            if module in sys.modules and not module.startswith(("score", "tests")) and (
                    name not in self.called):
                return sys.modules[module]
        value = self.of_program(name)
        if is_stand_in(value):
            self[name] = value
        return value

    def of_program(self, name: str) -> Any:
        """What the program has by a name; KeyError if it has nothing."""
        value = self.peer.ask("entry") if name == "candidate" else self.peer.ask("name", name)
        if name in ("candidate", self.entry_point) and not callable(value):
            raise blamed(TypeError(f"{name} is not a function"))
        self.found.append(value)
        if isinstance(value, ProgramClass):
            called = self.entry_point if name == "candidate" else name
            value._rh_given = bool(value._rh_given)
            value._rh_trusted = bool(CLASS.fullmatch(called)) and not value._rh_given
        return value

    def fetch(self, names: list[str]) -> None:
        """Set names that would be asked for too late."""
        for name in names:
            with contextlib.suppress(Exception):
                self[name] = self[name]


class ProgramModule(types.ModuleType):
    """A module from which tests import the program."""

    def __init__(self, name: str, names: Names) -> None:
        super().__init__(name)
        self._rh_names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_rh_")):
            raise AttributeError(name)
        imported = self._rh_names.imported
        try:
            value = imported[name] if name in imported else self._rh_names.of_program(name)
        except KeyError:
            raise AttributeError(f"the program has no {name}") from None
        if is_stand_in(value) and callable(value):
            imported[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith(("__", "_rh_")):
            raise Untestable(f"a patch of {self.__name__}.{name} is not here")
        super().__setattr__(name, value)


def parts_of_modules() -> dict[tuple[str, str], Any]:
    """The contents of modules that tests patch."""
    parts = {(module, name): value for module in PATCHED if module in sys.modules
             for name, value in vars(sys.modules[module]).items() if not name.startswith("_")}
    return parts | {("os", "environ"): dict(os.environ), ("sys", "argv"): sys.argv}


class TestsEnd:
    """The state of a run of tests, and what the program may ask of them."""

    def __init__(self, order: dict[str, Any]) -> None:
        # By what a source is compiled as: lines that raise on purpose; where functions that claim something
        # begin, and the lines that raise; by line, what is called there without using what it returns.
        self.meant, self.claims, self.drops = (
            {f"test {place}" if place else "setup": each for place, each in enumerate(order[key])}
            for key in ("meant", "claims", "drops"))
        # Whether tests see all that the program changes, and if not, whether copies hide it from them.
        self.in_place, self.copies = order["in_place"], order["copies"]
        # Where the test drops what this call returns: by id, what the call was given, with all that this
        # holds; the tests see it change.
        self.shown: dict[int, Any] = {}
        # Whether the program changed what it may have to leave, and whether text ran that is not written out.
        self.has_altered = self.has_built = False
        self.parts: Any = None       # contents of patched modules, as the program has them
        # What the program set in this call and tests do not see: by id, an object and its attributes.
        self.unseen: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.got: dict[int, str] = {}        # by number of the program's objects, the attribute they were
        self.late: dict[int, dict[int, Any]] = {}      # by number of an awaitable, what its call showed
        has_doc = any("__doc__" in source for source in order["sources"])
        shown = "__name__", "__qualname__", "__annotations__", "__doc__" if has_doc else ""
        self.peer = Peer(Link(), {
            "call": self.of_lent(lambda it, /, *operands, **keywords: it(*operands, **keywords)),
            "special": self.of_lent(special_of_lent, 1), "copy": self.of_lent(self.copied),
            "deepcopy": self.of_lent(copy.deepcopy), "code": self.of_lent(code_of), "dir": self.of_lent(dir),
            "signature": self.of_lent(lambda it: [               # without values of defaults
                (*most, more | dict.fromkeys({"default"} & more.keys()))
                for *most, more in signature_of(it)]),
            "getattr": self.of_lent(functools.partial(read_attribute, shown, self.unseen_of)),
            "setattr": self.of_lent(self.set_attribute),
            "stdin": lambda name, size: {"read": sys.stdin.read, "readline": sys.stdin.readline}[name](size),
            "input": lambda prompt: dict.get(self.names, "input", builtins.input)(prompt),
            "finish": self.of_lent(step_through)}, self)
        self.peer.handed.update([BaseException] if order["catches"] else [])
        self.entry_point, self.is_checker = order["entry_point"], "names" in order
        self.names = Names(self.peer, order["entry_point"], order["called"])

    def before_call(self) -> None:
        """Pass on what the tests patched in modules since the last call."""
        if self.parts is None:
            return
        known, now = self.parts, parts_of_modules()
        self.parts = None            # asking does not recurse
        try:
            for (module, name), value in now.items():
                before = known.get((module, name))
                if value is not before and not (name == "environ" and value == before):
                    self.peer.ask("patch", module, name, value)
        finally:
            self.parts = now

    def of_lent(self, operation: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
        """Restrict an operation to objects that the tests passed to the program."""
        def checked(*operands: Any, **keywords: Any) -> Any:
            what = operands[place]
            is_class_of_it = isinstance(what, type) and what.__module__ != "tests" and (
                id(what) not in self.peer.passed)
            if id(what) not in self.peer.numbers or is_class_of_it:
                raise TypeError(f"{UNPASSED}: what the tests did not pass")
            return operation(*operands, **keywords)
        return checked

    def before_question(self, operation: str, operands: tuple[Any, ...]) -> dict[int, Any]:
        """Decide whether the test sees what a call changes in its arguments: where it drops the answer.

        Returns what was shown before, to be set again after the call.
        """
        if self.peer.told is not None and not self.peer.depth and self.tells(operation, operands):
            self.peer.told.update(each for each in held_by(operands) if type(each) is str)
        former, is_dropped = self.shown, False
        frame: Any = next(self.frames(), None) if any(self.drops.values()) else None
        asked = operands[1] if operation in ("method", "special") else operands[0] if operands else None
        name = None
        if frame is not None:
            _, line, _, column = position(frame)
            name = self.drops[frame.f_code.co_filename].get(f"{line}:{column}")
        number = number_of(asked)
        if name and "." in name:
            owner, _, name = name.rpartition(".")
            is_dropped = (asked == name if operation == "method" else self.got.get(number) == name or (
                asked is not None and asked is self.names.imported.get(name))) and self.may_lead(frame, owner)
        elif name:
            is_dropped = asked is not None and any(asked is each for each in (
                frame.f_locals.get(name, dict.get(self.names, name)), self.names.imported.get(name)))
        self.shown = self.late.pop(number, {}) if operation == "finish" else {}
        if is_dropped and not self.shown:
            self.shown = {id(each): each for each in held_by(operands)}
        for each in self.shown.keys() & self.peer.crossing.shadows.keys():
            del self.peer.crossing.shadows[each]
        return former

    def tells(self, operation: str, operands: tuple[Any, ...]) -> bool:
        """True for a call of what the tests name, or of a method of what they constructed."""
        if operation == "method":
            return is_constructed(operands[2])
        if operation == "call" or operands[:1] == ("__call__",):
            called = operands[operation != "call"]
            return any(called is each for each in self.names.found)
        return False

    def may_lead(self, frame: Any, path: str) -> bool:
        """True where a method of this is the program's, not one of a library that calls the program."""
        variable, *names = path.split(".")
        value = frame.f_locals.get(variable, dict.get(self.names, variable, ABSENT))
        for name in names:
            value = attributes_of(value).get(name, ABSENT)
        kind = value if isinstance(value, type) else type(value)
        return value is ABSENT or is_stand_in(value) or kind.__module__ == "tests" or kind is ProgramModule

    def after_answer(self, operation: str, operands: tuple[Any, ...], answer: Any) -> Any:
        """An answer as tests see it; note what it is an attribute of, and what it is still to change."""
        if operation == "getattr" and number_of(answer) >= 0:
            self.got[number_of(answer)] = operands[1]
        if self.shown and id(answer) in self.peer.coroutines:
            self.late[self.peer.coroutines[id(answer)]] = self.shown
        return self.detached(answer)

    def before_alteration(self, places: Iterable[Any]) -> None:
        """Note that the program altered containers; those that tests do not see change give way to copies."""
        crossing, places = self.peer.crossing, list(dict.fromkeys(places))
        if self.in_place:
            return
        if all(id(crossing.table[place]) in self.shown for place in places):
            return
        self.has_altered = True
        if not self.copies:
            return
        own = [place for place in crossing.own if id(crossing.table[place]) not in self.shown]
        mine = tuple(crossing.table[place] for place in own)
        new = {id(each): copied for each, copied in zip(mine, deep_copies(mine), strict=True)}
        own += self.replaced(places, new)     # nor does what the program gave become another
        kept = [(crossing.table[place], items_of(crossing.table[place])) for place in own]
        for place, (each, _items) in zip(own, kept, strict=True):
            crossing.table[place] = copied = new[id(each)]
            crossing.places[id(copied)] = place
            crossing.shadows[id(each)] = copied, kept
        crossing.own = [place for place in crossing.own if place not in own]

    def replaced(self, places: list[Any], new: dict[int, Any]) -> list[int]:
        """Places of the program's containers to replace, and of those that hold such; copies go to `new`."""
        table, found, before = self.peer.crossing.table, list[int](), -1
        rest = [place for place in range(len(table))
                if place not in self.peer.crossing.own and id(table[place]) not in self.shown]
        while len(found) > before:
            before = len(found)
            for place in rest:
                if id(table[place]) not in new and (place in places or any(
                        id(part) in new for part in parts_of(table[place]))):
                    found.append(place)
                    new[id(table[place])] = copy.copy(table[place])
        for place in found:
            exchange(new[id(table[place])], new)
        return found

    def before_callback(self, written: Any) -> None:
        """Count what a library's function may do to containers of the tests as done by the program."""
        own = self.peer.crossing.own
        parts = [written] if own else []
        for part in parts:
            parts += [each for each in part if type(each) is list]
        passed = [part[0] for part in parts if len(part) == 1 and part[0] in own]
        if passed and any(is_librarys(self.peer.lent[part[1]]) for part in parts if part[:1] == ["yours"]):
            self.before_alteration(passed)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object of the tests, or one that a class of theirs lacks, but no method."""
        is_class = isinstance(owner, type)
        kind, before = owner if is_class else type(owner), getattr(owner, name, ABSENT)
        is_whole = is_class or is_own_function(owner)        # nothing takes its place
        is_closed = is_mock(owner) or (is_function(owner) and not is_own_function(owner)) or (
            kind.__module__ != "tests" and kind is not types.SimpleNamespace and not is_whole) or (
            is_class and name.startswith(("test", "runTest")) and is_collected(owner.__name__, owner))
        is_set = before is not ABSENT if is_whole else callable(before)
        if INNER.match(name) or is_closed or is_set or is_of_test_case(owner, name):
            raise AttributeError(f"{UNPASSED}: {name}")
        is_seen = id(owner) in self.shown
        if is_class and is_stand_in(value) and not isinstance(value, type):
            function = value
            value = lambda *arguments, **keywords: function(*arguments, **keywords)  # noqa: E731  a method
        is_property = hasattr(getattr(kind, name, None), "__set__") and name not in slots_of(kind)
        is_seen |= self.in_place or is_property or any(
            "__setattr__" in vars(base) for base in kind.__mro__ if base.__module__ == "tests")
        self.has_altered |= not is_seen
        if is_seen or is_whole or not self.copies:
            setattr(owner, name, value)
        if not is_seen and self.copies:
            self.unseen.setdefault(id(owner), (owner, {}))[1][name] = value

    def unseen_of(self, owner: Any) -> dict[str, Any]:
        """Attributes of an object of the tests that only the program sees."""
        return self.unseen[id(owner)][1] if id(owner) in self.unseen else {}

    def copied(self, owner: Any) -> Any:
        """A copy of an object of the tests, as the program sees it."""
        made = copy.copy(owner)
        for name, value in self.unseen_of(owner).items():
            object.__setattr__(made, name, value)
        return made

    def detached(self, answer: Any) -> Any:
        """An answer with copies of the tests' objects in it, as the program has them, if it altered one."""
        shadows = self.peer.crossing.shadows
        if not self.copies or not (self.unseen or shadows):
            return answer
        held = held_by(answer, self.unseen_of)
        if (shadows.keys() | self.unseen.keys()).isdisjoint(map(id, held)):
            return answer
        instead = {id(each): made for each in held if (made := blank(each)) is not None}
        states = [attributes_of(each) | self.unseen_of(each) for each in held if id(each) in instead]
        answer, *states = deep_copies((answer, *states), instead, shadows)
        for made, state in zip(instead.values(), states, strict=True):
            for name, value in state.items():
                object.__setattr__(made, name, value)
        return answer

    def after_call(self) -> None:
        """Forget the attributes that a call set; a class has them if the call returned it."""
        while self.unseen:
            owner, attributes = self.unseen.popitem()[1]
            is_whole = isinstance(owner, type) or is_own_function(owner)
            if is_whole and not any(each is owner for each in self.peer.gave_back):
                for name in attributes:              # which it lacked
                    delattr(owner, name)

    def is_meant(self, error: BaseException) -> bool:
        """True for an error that a single statement of the tests raises whatever the program does."""
        return [line in self.meant[code.co_filename] for code, line in lines_of(error)
                if code.co_filename in self.meant] == [True]

    def fails(self, error: BaseException) -> bool:
        """True for a failed assertion or a skip of the tests, which the program may not catch."""
        is_one = isinstance(error, (AssertionError, Failed, Untestable)) or says_skip(error)
        return is_one and not hasattr(error, "raised_by_program")

    def is_unclaimed(self, error: BaseException) -> bool:
        """True for an error that a function which claims something does not raise itself."""
        claims = raises = False
        for code, line in lines_of(error):
            if code.co_filename in self.claims:
                functions, lines = self.claims[code.co_filename]
                claims, raises = claims or code.co_firstlineno in functions, line in lines
        return claims and not raises

    def as_expected(self, error: BaseException, operation: str, name: Any) -> BaseException:
        """The program's error; one of no other kind if Python would take it for the end of an iteration."""
        is_end = isinstance(error, ENDS) and (operation, name) != ("special", "__next__") and (
            operation != "finish") and (any(is_iterating(each) for each in self.frames()) or not any(
                # where code names it, or expects it by a variable
                kind.__name__ in each.f_code.co_names or any(kind is it for it in each.f_locals.values())
                for each in self.frames() for kind in ENDS))
        is_swallowed = any(isinstance(error, kind) and any(
            each.f_code.co_name == method for each in self.frames()) for kind, method in SWALLOWED)
        kinds = {each.__name__ for each in type(error).__mro__}
        is_silent = "CancelledError" in kinds and not any(               # it ends a task without a word
            kinds.intersection(each.f_code.co_names) for each in self.frames())
        return blamed(renamed(error)) if is_end or is_swallowed or is_silent else error

    def frames(self) -> Iterator[Any]:
        """The frames of the tests' functions that wait for the program."""
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename in self.meant:
                yield frame
            frame = frame.f_back


def is_iterating(frame: Any) -> bool:
    """Whether a frame waits for the next item of a `for` loop."""
    return bool(frame.f_code.co_code[frame.f_lasti] == FOR_ITER)


def held_by(value: Any, more: Callable[[Any], dict[str, Any]] = lambda _: {}) -> list[Any]:
    """A value, and what it holds in containers, in tuples and in objects of the tests.

    `more` are attributes of an object that only the program sees.
    """
    found, seen = [value], {id(value)}
    for each in found:
        if type(each) in CONTAINERS or type(each) in PASSING:
            held = [] if isinstance(items := items_of(each), bytes) else items
        else:
            held = [*(attributes_of(each) | more(each)).values(),
                    *(tuple.__iter__(each) if isinstance(each, tuple) else ())]
        new = {id(item): item for item in held if id(item) not in seen}
        seen.update(new)
        found += new.values()
    return found


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object of the tests has in its dictionary and its slots."""
    kind = type(value)
    if is_stand_in(value) or not (kind.__module__ == "tests" or kind is types.SimpleNamespace):
        return {}
    return {name: object.__getattribute__(value, name) for name in slots_of(kind) if hasattr(
        value, name)} | getattr(value, "__dict__", {})


def slots_of(kind: type) -> list[str]:
    """The names in `__slots__` of a class and of its bases."""
    slots: list[Any] = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    return [name for each in slots for name in ([each] if isinstance(each, str) else each)]


def blank(value: Any) -> Any:
    """An object to take the place of an object of the tests, once its attributes are set; None of others."""
    kind = type(value)
    if kind is types.SimpleNamespace:
        return kind()
    if is_stand_in(value) or kind.__module__ != "tests":
        return None
    with contextlib.suppress(TypeError):
        return object.__new__(kind)
    with contextlib.suppress(Exception):         # derived from a builtin
        if (made := copy.copy(value)) is value:
            make, arguments = value.__reduce_ex__(4)[:2]
            made = make(*arguments)
        return made
    return None


def parts_of(container: Any) -> list[Any]:
    """What a container holds, also in tuples."""
    items = items_of(container)
    found: list[Any] = [] if isinstance(items, bytes) else list(items)
    for each in found:
        found += each if type(each) is tuple else ()
    return found


def exchange(container: Any, new: dict[int, Any]) -> None:
    """Put what is new, by the id of what it replaces, into a container."""
    def changed(item: Any) -> Any:
        return tuple(map(changed, item)) if type(item) is tuple else new.get(id(item), item)
    if isinstance(container, dict):
        for key, value in container.items():
            container[key] = changed(value)          # the keys stay
    elif isinstance(container, np.ndarray):
        if container.dtype.hasobject:
            for place in np.ndindex(container.shape):
                container[place] = changed(container[place])
    elif not isinstance(container, (set, bytearray, float)):
        for number, item in enumerate(container):
            container[number] = changed(item)


def position(frame: Any) -> tuple[int, int, int, int]:
    """Line, last line, column and last column of what a frame is at."""
    found = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return tuple(each or 0 for each in found)  # type: ignore[return-value]


def deep_copies(values: tuple[Any, ...], instead: dict[int, Any] | None = None,
                shadows: dict[int, Any] | None = None) -> tuple[Any, ...]:
    """Copies of containers, or of their `shadows`, and of those in them; of other objects `instead`."""
    others: list[Any] = []

    def hand_out(value: Any) -> list[Any]:
        others.append((instead or {}).get(id(value), value))
        return ["other", len(others) - 1]
    writer = Crossing(hand_out, list)
    writer.shadows = shadows or {}
    written = writer.write(values)
    return tuple(Crossing(hand_out, lambda found: others[found[1]]).read(*written))


def renamed(error: BaseException) -> BaseException:
    """An error of this name and text, of no kind that Python swallows or a test expects."""
    return type(type(error).__name__, (Exception,), {})(message_of(error))


def blamed(error: BaseException) -> BaseException:
    """Mark an error as raised by the program."""
    error.raised_by_program = True  # type: ignore[attr-defined]
    return error


def number_of(value: Any) -> int:
    """The number of an object of the program; -1 of any other."""
    return slot(value, "_rh_number") if isinstance(value, StandIn) else -1


def is_own_function(value: Any) -> bool:
    """True for a function that the tests define."""
    return type(value) is types.FunctionType and value.__module__ == "tests"


def is_function(value: Any) -> bool:
    """True for plain callables."""
    return isinstance(value, FUNCTIONS) or type(value).__module__ in ("functools", "operator")


def is_librarys(value: Any) -> bool:
    """True for what may be called, and that the tests do not define."""
    return callable(value) and getattr(value, "__module__", None) != "tests"


def special_of_lent(name: str, owner: Any, /, *operands: Any, **keywords: Any) -> Any:
    """Call a special method of an object of the tests; no text but their own shows what functions hold."""
    texts = [getattr(type(owner), each, None) for each in (name, "__repr__")]
    is_own = any(getattr(it, "__module__", "") == "tests" and not hasattr(it, "__wrapped__")
                 for it in texts)                # a dataclass wraps its own
    if name in TEXTS and not is_own and any(map(is_function, held_by(owner, dictionary_of))):
        return object.__repr__(owner)
    return special(name, owner, *operands, **keywords)


def dictionary_of(value: Any) -> dict[str, Any]:
    """The attributes of an object of this process that is no class, function or module."""
    is_plain = is_stand_in(value) or isinstance(value, (type, types.ModuleType)) or is_function(value)
    return {} if is_plain else getattr(value, "__dict__", {})


def read_attribute(shown: Iterable[str], unseen: Callable[[Any], dict[str, Any]], owner: Any, name: str,
                   *default: Any) -> Any:
    """Read an attribute of an object of the tests, unless it leads to the tests themselves.

    Of functions and classes `shown` may be read, of dataclasses what `dataclasses.replace` and the like read.
    What the program itself set is `unseen` by the tests.
    """
    if name in (own := unseen(owner)):
        return own[name]
    if (name in shown and isinstance(owner, (type, *FUNCTIONS))) or name == "__dataclass_fields__" or (
            name == "_field_type" and type(owner).__module__ == "dataclasses"):
        return getattr(owner, name)
    if name == "__doc__" and is_function(owner):
        return None
    if name == "__dict__" and type(owner).__module__ == "tests" and not (
            is_mock(owner) or is_of_test_case(owner, "run")):
        return vars(owner) | own
    of_mock = is_mock(owner) and name in dir(sys.modules["unittest.mock"].Mock())
    is_set = is_own_function(owner) and name in vars(owner)
    hidden = of_mock or is_of_test_case(owner, name) or INNER.match(name) or (
        is_function(owner) and not is_set) or (
        isinstance(owner, Given)) or (
        name.startswith("_") and (owner if isinstance(owner, type) else type(owner)).__module__ != "tests")
    if hidden:
        raise AttributeError(f"{UNPASSED}: {name}")
    return getattr(owner, name, *default)


def is_mock(value: Any) -> bool:
    """True for mocks and for classes of mocks."""
    kind = value if isinstance(value, type) else type(value)
    return any(base.__module__ == "unittest.mock" for base in kind.__mro__)


def is_of_test_case(owner: Any, name: str) -> bool:
    """True for what a TestCase has by itself: methods that decide what is equal, and its state."""
    kind = owner if isinstance(owner, type) else type(owner)
    return is_test_case(kind) and name in dir(sys.modules["unittest.case"].TestCase())


def step_through(coroutine: Any) -> Any:
    """Run a coroutine of the tests, in a loop of its own: theirs waits for the program."""
    asyncio = sys.modules["asyncio"]
    loop, waits = asyncio.new_event_loop(), asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return loop.run_until_complete(coroutine)
    finally:
        asyncio._set_running_loop(waits)


def mirror(peer: Peer) -> None:
    """Make seeds and the like take effect in both processes."""
    def both(module: str, name: str, here: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **keywords: Any) -> Any:
            peer.ask("elsewhere", module, name, *arguments, **keywords)
            return here(*arguments, **keywords)
        return called
    for module, name in MIRRORED:
        if module in sys.modules:
            setattr(sys.modules[module], name, both(module, name, getattr(sys.modules[module], name)))


def watch_patches(mocks: Any) -> None:
    """Have mocks refuse to patch modules where that would not reach the program."""
    def enter(self: Any) -> Any:
        check_patch(self.getter(), self.attribute)
        return plain(self)
    plain, mocks._patch.__enter__ = mocks._patch.__enter__, enter


def refuse_empty_arrays() -> None:
    """Have numpy compare an empty array with empty ones only: it is near all that it is broadcast against."""
    def arrays_of(*values: Any) -> list[Any]:        # read once: they may answer each look differently
        a, b = arrays = [*map(np.asanyarray, values)]
        if (a.size > 0) is not (b.size > 0):
            raise AssertionError(f"{a!r} is not {b!r}")
        return arrays

    def held(near: Callable[..., Any]) -> Callable[..., Any]:
        def compared(a: Any, b: Any, *more: Any, **options: Any) -> Any:
            return near(*arrays_of(a, b), *more, **options)
        return compared

    def asserted(comparison: Any, x: Any, y: Any, *more: Any, **options: Any) -> Any:
        return plain(comparison, *arrays_of(x, y), *more, **options)
    for name in ("allclose", "isclose", "array_equiv"):
        setattr(np, name, held(getattr(np, name)))
    if testing := sys.modules.get("numpy.testing._private.utils"):
        plain = vars(testing)["assert_array_compare"]
        vars(testing).update(assert_array_compare=asserted)
        for name in ("assert_array_almost_equal_nulp", "assert_array_max_ulp"):
            vars(testing)[name] = held(vars(testing)[name])
            setattr(np.testing, name, vars(testing)[name])


def run_tests(_code: CodeType, payload: bytes, room: int) -> bytes:
    """Run tests against the program behind the link; the report has `room` bytes."""
    order = json.loads(payload)
    end = TestsEnd(order)
    peer, names, num_units, has_spoken = end.peer, end.names, len(order["sources"]) - 1, False
    try:
        while (message := peer.link.receive())[:1] == ["?"]:        # the program reads stdin at its top level
            has_spoken = True
            peer.answer(message)
        if message != ["ready"]:
            raise LinkLost("no program")
    except (LinkLost, BadMessage):
        return encode_units([["", "the program did not start", "lost"]] * num_units, room)
    mirror(peer)
    refuse_empty_arrays()
    warn_as_usual(bool(order["run"]))
    try:
        lacks = [*order["lacks"], *(f"a patch of {each}" for each in order["patches"]
                                    if each.rpartition(".")[0] not in PATCHED and each not in PATCHED_PARTS),
                 *(each for each in order["imports"] if each.partition(".")[0] not in (
                     *sys.modules, *sys.builtin_module_names))]
        if lacks:
            raise Untestable(f"{lacks[0]} is not here")
        code, *units = [compile(source, name, "exec", dont_inherit=True)
                        for source, name in zip(order["sources"], end.meant, strict=True)]
        given = order.get("names", {})
        names.update(given)
        for module in (each for each in order["program"] if each.partition(".")[0] not in sys.modules):
            sys.modules[module] = ProgramModule(module, names)
        theirs = [text for name, text in given.items() if name != "_output_"]
        evaluation.patch(peer, names, [code, *units], theirs, order["here"])
        may_patch = "unittest.mock" in sys.modules or order["patches"] or any(
            "monkeypatch" in each for each in order["sources"])
        end.parts = parts_of_modules() if may_patch else None
        if mocks := sys.modules.get("unittest.mock"):
            watch_patches(mocks)
        begin(names, code, order, ends=True)
        if order["run"]:
            check_all_run(names, order["run"], peer.numbers)
    except BaseException as error:
        may_have_filled = has_spoken and isinstance(error, MemoryError)
        is_theirs = not (peer.has_asked or may_have_filled)
        whose = "lost" if peer.is_lost else "tests" if is_theirs else whose_fault(error, peer)
        failed = [type(error).__name__, message_of(error), whose]
        return encode_units([failed] * num_units, room)
    refused = peer.is_unpassed
    verdicts = [run_unit(unit, refused, end) for unit in units]
    said = end.has_altered + 2 * end.has_built
    return encode_units([each + said if isinstance(each, int) else each for each in verdicts], room)


def begin(names: Names, setup: CodeType, order: dict[str, Any], *, ends: bool) -> Surroundings:
    """Execute what comes before the tests; they are run by `__run__`, which may end what is around each."""
    sys.modules["tests"] = types.ModuleType("tests")
    names.fetch(order["in_classes"])
    patch_unittest(bool(order["run"]))
    exec(setup, names)
    shadow = dict.get(names, names.entry_point)          # from a library, as of `from math import *`
    if not order["program"] and getattr(shadow, "__module__", None) not in ("tests", "program"):
        names.pop(names.entry_point, None)
    around = Surroundings(names)
    if order["run"]:
        names["__run__"] = functools.partial(run_test, around, ends)
    return around


def check_all_run(names: Names, calls: list[str], lent: dict[int, int]) -> None:
    """Untestable where tests were made in a way that their text does not tell: nothing would run them.

    What the program was lent it may have given back by this name.
    """
    found = [path for path in tests_in(names) if f"__run__({path!r})" not in calls
             and id(names[path.partition(".")[0]]) not in lent]
    if found:
        raise Untestable(f"{found[0]} is defined where it is not found: write it out at the top level")


def run_unit(unit: CodeType, refused: bool, end: TestsEnd) -> Any:
    """Run one test: 1 if it passed, SKIPPED, or [error name, message, at fault: program, assertion, lost]."""
    peer = end.peer
    peer.is_lost, peer.has_asked, peer.last = False, False, ()
    peer.is_unpassed, peer.refusal = refused, ""
    failures.clear()
    skips.clear()
    verdict: Any = 1
    try:
        exec(unit, end.names)
    except BaseException as error:
        message = message_of(error) or account_of(error, peer)
        message += f" ({peer.refusal})" if peer.refusal and peer.refusal not in message else ""
        verdict = [type(error).__name__, message, whose_fault(error, peer)]
        if is_skip(error):
            skips.append(error)
            verdict = 1
    verdict = SKIPPED if verdict == 1 and skips else verdict
    if isinstance(verdict, int) and failures:            # of its parts, whatever became of these errors
        verdict = [type(failures[0]).__name__, message_of(failures[0]) or account_of(failures[0], peer),
                   whose_fault(failures[0], peer)]
    if isinstance(verdict, int) and peer.is_unpassed:       # its error is none that a test can expect
        verdict = ["RuntimeError", peer.refusal or UNPASSED, "program"]
    return ["", "the program ended during the test", "lost"] if peer.is_lost else verdict


def account_of(error: BaseException, peer: Peer) -> str:
    """For an assertion without a message: its line, and the program's last answer."""
    if not isinstance(error, AssertionError):
        return ""
    with contextlib.suppress(BaseException):      # repr may fail
        return failed_at(error) + "".join(f", {value!r}" for value in peer.last)
    return failed_at(error)


def whose_fault(error: BaseException, peer: Peer) -> str:
    """Whose fault an error is: `program` (it raised it), `assertion`, or `tests` (they cannot run)."""
    if hasattr(error, "raised_by_program"):
        return "program"
    is_theirs = isinstance(error, (ImportError, TooLarge, Untestable)) or (
        isinstance(error, PermissionError) and error.errno == 1 and error.filename is not None)
    # After an answer, or in a checker, it may be the program that led the test there.
    return "tests" if is_theirs and not (peer.has_answered or peer.is_of_checker) else "assertion"


def encode_units(units: list[Any], room: int) -> bytes:
    """The report as JSON, with messages cut so that it fits."""
    for cap in TEXT_CAPS:
        cut = [unit if isinstance(unit, int) else [unit[0], unit[1][:cap], unit[2]] for unit in units]
        if len(body := json.dumps(cut).encode()) <= room:
            return body
    return json.dumps([unit if isinstance(unit, int) else 0 for unit in units]).encode()
