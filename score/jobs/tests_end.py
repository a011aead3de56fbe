"""The tests' end of the link: runs tests that have stand-ins for the program, and says how each ended."""

import ast
import builtins
import contextlib
import copy
import json
import operator
import os
import re
import sys
import types
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from score.jobs import evaluation
from score.jobs.link import Link, LinkLost
from score.jobs.modules import failed_at, message_of
from score.jobs.peer import Peer, special
from score.jobs.program_end import MIRRORED
from score.jobs.stand_ins import Failed, ProgramClass, is_stand_in
from score.protocol.crossing import BadMessage, Crossing, TooLarge

TEXT_CAPS = (500, 100, 20, 0)        # characters of a test's message: as many as leave room for all tests
# What leads from an object of the tests to their text and their values.
INNER = re.compile(r"__|(gi|cr|ag|f|tb|co|func)_")
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType,
             types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType)
# Errors that iterating and `hasattr` take for an ordinary end, in the methods of tests that they call.
SWALLOWED: tuple[tuple[type[Exception], str], ...] = (
    (IndexError, "__getitem__"), (AttributeError, "__getattr__"))
MODULES = {"np": "numpy"}
PATCHED = ("builtins", "time", "random", "os", "math", "datetime", "secrets", "uuid")
SOURCES = ("setup", "test")          # what the code of tests is compiled as


class Names(dict[str, Any]):
    """The names of the tests; those that they lack are the program's, but for builtins and modules."""

    def __init__(self, peer: Peer, entry_point: str, classes: list[str]) -> None:
        super().__init__(__name__="tests")
        self.classes = classes       # of the program, or their methods, whose objects the tests use as such
        self.was_asked = False       # for a name: one that is not there is the program's fault
        self.peer, self.entry_point = peer, entry_point.partition(".")[0]

    def __missing__(self, name: str) -> Any:
        if name != self.entry_point:
            if name.startswith("__") or hasattr(builtins, name):
                raise KeyError(name)
            module = MODULES.get(name, name)
            if module in sys.modules and not module.startswith(("score", "tests")):
                return sys.modules[module]
        self.was_asked = True
        value = self.peer.ask("entry") if name == "candidate" else self.peer.ask("name", name)
        if name in ("candidate", self.entry_point) and not callable(value):
            raise blamed(TypeError(f"{name} is no function"))
        if is_stand_in(value):
            self[name] = value
            if isinstance(value, ProgramClass):
                value._rh_trusted = name in self.classes and value._rh_trusted is not False
                value._rh_makers = self.classes
        return value


def parts_of_modules() -> dict[tuple[str, str], Any]:
    """What there is in the modules that tests patch."""
    parts = {(module, name): value for module in PATCHED if module in sys.modules
             for name, value in vars(sys.modules[module]).items() if not name.startswith("_")}
    return parts | {("os", "environ"): dict(os.environ)}


class TestsEnd:
    """What tests know of the program: their end of the link, and arguments as they were handed in."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.stops = order["stops"]          # whether the tests expect StopIteration of a call
        self.meant = dict(zip(SOURCES, order["meant"], strict=True))     # lines that raise on purpose
        self.before: dict[int, tuple[Any, Any]] = {}       # what was altered, and a copy of it before, by id
        self.has_kept = False        # in the present call
        self.parts: Any = None       # of modules, as the program has them, where they may be patched
        self.written: set[int] = set()       # ids of objects that had attributes set in the present call
        self.peer = Peer(Link(), {
            "call": self.of_lent(lambda function, operands, keywords: function(*operands, **keywords)),
            "special": self.of_lent(special, 1),
            "getattr": self.of_lent(read_attribute), "setattr": self.of_lent(self.set_attribute),
            "stdin": lambda name, size: {"read": sys.stdin.read, "readline": sys.stdin.readline}[name](size),
            "input": lambda prompt: dict.get(self.names, "input", builtins.input)(prompt),
            "finish": self.of_lent(step_through)}, self)
        self.names = Names(self.peer, order["entry_point"], order["classes"])

    def before_call(self) -> None:
        """Have the other process do what was put in place of parts of modules since."""
        if self.parts is None:
            return
        known, now = self.parts, parts_of_modules()
        self.parts = None            # what this asks for is no news
        try:
            for (module, name), value in now.items():
                before = known.get((module, name))
                if value is not before and not (name == "environ" and value == before):
                    self.peer.ask("patch", module, name, value)
        finally:
            self.parts = now

    def of_lent(self, operation: Callable[..., Any], place: int = 0) -> Callable[..., Any]:
        """The operation on what the tests passed to the program, and on nothing else that it could name."""
        def checked(*operands: Any, **keywords: Any) -> Any:
            what = operands[place]
            is_class_of_it = isinstance(what, type) and what.__module__ != "tests" and (
                id(what) not in self.peer.passed)
            if id(what) not in self.peer.numbers or is_class_of_it:
                raise TypeError("the tests did not pass this")
            return operation(*operands, **keywords)
        return checked

    def keep(self) -> None:
        """Remember what the program was handed, which it altered."""
        peer = self.peer
        table = peer.crossing.table
        arrays = [whole for each in table if type(each) is np.ndarray
                  if (whole := whole_of(each)) is not each and whole.flags.c_contiguous]
        handed = *peer.operands, *table, *arrays
        pairs = zip(flat(handed), flat(self.copied(handed)), strict=True)
        anew = set(map(id, [*flat(peer.operands), *arrays]))
        self.before |= {id(mine): (mine, copy) for mine, copy in pairs
                        if id(mine) in anew or id(mine) not in self.before}
        self.has_kept = True

    def copied(self, value: Any) -> Any:
        """The value with containers of its own, what is no plain data as it is."""
        hand_out = self.peer.hand_out
        return Crossing(hand_out, self.mirrored).read(*Crossing(hand_out, self.mirrored).write(value))

    def mirrored(self, written: list[Any]) -> Any:
        """What this process itself wrote by number."""
        if written[0] == "yours":
            return self.peer.borrowed.get(written[1], self.peer.classes.get(written[1]))
        return self.peer.lent[written[1]] if written[0] in ("object", "class", "value") else None

    def after_call(self) -> None:
        """A call ended: what it was handed and did not alter is as it was."""
        if self.before and not self.has_kept:
            for argument in flat(self.peer.operands):
                if id(argument) not in self.written:
                    self.before.pop(id(argument), None)
        self.has_kept = False
        self.written.clear()

    def as_it_was(self, value: Any, is_read_later: bool = False) -> Any:
        """A value with the arguments in it as they were handed in, to compare an answer with."""
        value = restored(value, self.before, {}) if self.before else value
        return self.copied(value) if is_read_later else value

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Have the program set an attribute, and remember the object as it was."""
        before = owner if isinstance(owner, type) else copy.copy(owner)
        write_attribute(owner, name, value)
        if id(owner) not in self.written:
            self.written.add(id(owner))
            self.before[id(owner)] = owner, before

    def is_meant(self, error: BaseException) -> bool:
        """True of an error that one statement of the tests raises, whatever the program does."""
        frames, trace = [], error.__traceback__
        while trace is not None:
            if (source := trace.tb_frame.f_code.co_filename) in self.meant:
                frames.append(trace.tb_lineno in self.meant[source])
            trace = trace.tb_next
        return frames == [True]

    def fails(self, error: BaseException) -> bool:
        """True of an error by which the tests say that the program is wrong, which is not for it to catch."""
        return isinstance(error, (AssertionError, Failed)) and not (
            hasattr(error, "raised_by_program") or self.is_meant(error))

    def as_expected(self, error: BaseException, operation: str, name: Any) -> BaseException:
        """The program's error, unless it would pass for an ordinary end of what the tests do."""
        if isinstance(error, (StopIteration, StopAsyncIteration)) and not self.stops and (
                operation, name) != ("special", "__next__") and operation != "finish":
            return blamed(RuntimeError(f"the program raised {type(error).__name__}: {message_of(error)}"))
        for kind, method in SWALLOWED:
            frame = sys._getframe(1) if isinstance(error, kind) else None
            while frame is not None:
                if frame.f_code.co_name == method and frame.f_code.co_filename in SOURCES:
                    return blamed(RuntimeError(message_of(error)))
                frame = frame.f_back
        return error


def restored(value: Any, before: dict[int, tuple[Any, Any]], seen: dict[int, bool]) -> Any:
    """The value, or a copy of it where containers in it have been altered since."""
    if id(value) in before:
        return before[id(value)][1]
    if type(value) is np.ndarray and id(whole := whole_of(value)) in before:
        start = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        return np.ndarray(value.shape, value.dtype, before[id(whole)][1], start, value.strides)
    if type(value) not in (list, tuple, dict) or seen.setdefault(id(value), False):
        return value
    seen[id(value)] = True
    items = list(value.values() if type(value) is dict else value)
    now = [restored(item, before, seen) for item in items]
    if all(map(operator.is_, now, items)):
        return value
    return dict(zip(value, now, strict=True)) if type(value) is dict else type(value)(now)


def whole_of(array: np.ndarray) -> np.ndarray:
    """The array that holds the memory of a view."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def blamed(error: BaseException) -> BaseException:
    """An error that the program raised."""
    error.raised_by_program = True  # type: ignore[attr-defined]
    return error


def flat(values: Any) -> list[Any]:
    """The items of tuples, and of tuples in them."""
    if type(values) is not tuple:
        return [values]
    return [values, *(each for value in values for each in flat(value))]


def is_function(value: Any) -> bool:
    """True of what may be called and no more."""
    return isinstance(value, FUNCTIONS) or type(value).__module__ == "functools"


def read_attribute(owner: Any, name: str, *default: Any) -> Any:
    """An attribute of what the tests passed, but none that leads to the tests themselves."""
    if name == "__name__" and isinstance(owner, (type, *FUNCTIONS)):
        return str(owner.__name__)
    of_mock = is_mock(owner) and name in dir(sys.modules["unittest.mock"].Mock)
    hidden = of_mock or INNER.match(name) or is_function(owner) or (
        name.startswith("_") and (owner if isinstance(owner, type) else type(owner)).__module__ != "tests")
    if hidden:
        raise AttributeError(name)
    return getattr(owner, name, *default)


def is_mock(value: Any) -> bool:
    """True of a mock, of a class of mocks and of an object of a class that derives from one."""
    kind = value if isinstance(value, type) else type(value)
    return any(base.__module__ == "unittest.mock" for base in kind.__mro__)


def write_attribute(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of an object of the tests, or one that a class of theirs lacks, but no method."""
    kind = owner if isinstance(owner, type) else type(owner)
    is_closed = is_mock(owner) or is_function(owner) or kind.__module__ != "tests"
    is_set = hasattr(owner, name) if kind is owner else callable(getattr(kind, name, None))
    if INNER.match(name) or is_closed or is_set:
        raise AttributeError(name)
    if kind is owner and is_stand_in(value) and not isinstance(value, type):
        setattr(owner, name, lambda *arguments, **keywords: value(*arguments, **keywords))       # a method
    else:
        setattr(owner, name, value)


def step_through(coroutine: Any) -> Any:
    """Run a coroutine of the tests that waits for nothing."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value


def mirror(peer: Peer) -> None:
    """Have seeds and the like take effect in both processes."""
    def both(module: str, name: str, here: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            peer.ask("elsewhere", module, name, arguments)
            return here(*arguments)
        return called
    for module, name in MIRRORED:
        if module in sys.modules:
            setattr(sys.modules[module], name, both(module, name, getattr(sys.modules[module], name)))


class HandedIn(ast.NodeTransformer):
    """Has some nodes read as the program was handed them; of each, whether it is read later."""

    def __init__(self, later: dict[ast.AST, bool]) -> None:
        self.later = later

    def visit(self, node: ast.AST) -> Any:
        seen: Any = node if isinstance(node, ast.pattern) else self.generic_visit(node)
        if node not in self.later:
            return seen
        call = ast.Call(ast.Name("_as_it_was_", ast.Load()), [seen, ast.Constant(self.later[node])], [])
        return ast.copy_location(call, node)


def compiled(source: str, name: str, handed_in: list[tuple[int, bool]]) -> CodeType:
    """A source of the tests, which reads the nodes at these places of `ast.walk` as they were handed in."""
    if not handed_in:
        return compile(source, name, "exec", dont_inherit=True)
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    tree = HandedIn({nodes[place]: later for place, later in handed_in}).visit(tree)
    return compile(ast.fix_missing_locations(tree), name, "exec", dont_inherit=True)


def run_tests(_code: CodeType, payload: bytes, room: int) -> bytes:
    """Run tests against the program behind the link; `room` bytes are there to say how each of them ended."""
    order = json.loads(payload)
    end = TestsEnd(order)
    peer, names, num_units = end.peer, end.names, len(order["sources"]) - 1
    try:
        while (message := peer.link.receive())[:1] == ["?"]:        # it reads its stdin before any test
            peer.answer(message)
        if message != ["ready"]:
            raise LinkLost("no program")
    except (LinkLost, BadMessage):
        return encode_units([["", "the program did not start", "lost"]] * num_units, room)
    mirror(peer)
    end.parts = parts_of_modules() if "unittest.mock" in sys.modules else None
    try:
        code, *units = [compiled(source, SOURCES[place > 0], handed_in) for place, (source, handed_in) in
                        enumerate(zip(order["sources"], order["handed_in"], strict=True))]
        names.update(order.get("names", {}), _as_it_was_=end.as_it_was)
        evaluation.patch(peer, names, [code, *units])
        sys.modules["tests"] = types.ModuleType("tests")
        exec(code, names)
    except BaseException as error:
        has_asked = peer.has_answered or names.was_asked
        whose = "lost" if peer.is_lost else whose_fault(error, peer) if has_asked else "tests"
        failed = [type(error).__name__, message_of(error), whose]
        return encode_units([failed] * num_units, room)
    return encode_units([run_unit(unit, end) for unit in units], room)


def run_unit(unit: CodeType, end: TestsEnd) -> Any:
    """One test: 1 if it passed, else [error name, message, whose fault it is], `lost` where the link is."""
    peer = end.peer
    peer.is_lost, peer.last = False, ()
    verdict: Any = 1
    try:
        exec(unit, end.names)
    except BaseException as error:
        message = message_of(error) or account_of(error, peer)
        verdict = [type(error).__name__, message, whose_fault(error, peer)]
    return ["", "the program ended during the test", "lost"] if peer.is_lost else verdict


def account_of(error: BaseException, peer: Peer) -> str:
    """Of an assertion that says nothing itself: its line, and what the program had answered last."""
    if not isinstance(error, AssertionError):
        return ""
    with contextlib.suppress(BaseException):      # more digits than Python writes, an object's repr
        return failed_at(error) + "".join(f", {value!r}" for value in peer.last)
    return failed_at(error)


def whose_fault(error: BaseException, peer: Peer) -> str:
    """The program's, by raising it or by what it answered, or that of tests which cannot be run from here."""
    if isinstance(error, TooLarge):
        return "assertion" if peer.has_answered else "tests"
    return "program" if hasattr(error, "raised_by_program") else "assertion"


def encode_units(units: list[Any], room: int) -> bytes:
    """The verdicts as JSON with messages as long as there is room for; a program cannot make it too long."""
    for cap in TEXT_CAPS:
        cut = [unit if unit == 1 else [unit[0], unit[1][:cap], unit[2]] for unit in units]
        if len(body := json.dumps(cut).encode()) <= room:
            return body
    return json.dumps([int(unit == 1) for unit in units]).encode()
