"""The program's end of the link: answers its tests until they end."""

import builtins
import contextlib
import copy
import functools
import io
import json
import sys
import types
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any

from score.jobs.evaluation import evaluated
from score.jobs.link import Link, LinkLost
from score.jobs.modules import function_of, run_module
from score.jobs.peer import Peer, special
from score.jobs.stand_ins import is_stand_in, specials_of

# Functions that are called in both processes, because they change how both go on.
MIRRORED = {("random", "seed"), ("random", "setstate"), ("numpy.random", "seed"),
            ("sys", "setrecursionlimit")}

# What containers hold, by no code of a class derived from them.
CONTENTS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (list, list.copy), (dict, dict.copy), (set, lambda value: set.union(set(), value)),
    (bytearray, bytearray.copy))


class Stream(io.TextIOBase):
    """A stream of the program, which is the one of its tests."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer, self.stream = peer, name

    def write(self, text: str) -> int:
        note(self.peer, [self.stream, str.__str__(text)])
        return len(text)

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return str(self.peer.ask("stdin", "readline", size))

    def read(self, size: int | None = -1) -> str:
        return str(self.peer.ask("stdin", "read", -1 if size is None else size))

    @property
    def buffer(self) -> "Bytes":
        return Bytes(self)

    def reconfigure(self, **_options: Any) -> None:
        """Nothing: text crosses as text."""

    def readable(self) -> bool:
        return self.stream == "stdin"

    def writable(self) -> bool:
        return self.stream != "stdin"


class Bytes(io.BufferedIOBase):
    """The bytes of a stream of the program."""

    def __init__(self, text: Stream) -> None:
        self.text = text

    def write(self, data: Any) -> int:
        self.text.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        return self.text.read(size).encode()

    def readline(self, size: int | None = -1) -> bytes:
        return self.text.readline(-1 if size is None else size).encode()


def note(peer: Peer, event: list[Any]) -> None:
    """Send an event to the tests with the next message; what is printed goes on with what was."""
    if event[0] in ("stdout", "stderr") and peer.events and peer.events[-1][0] == event[0]:
        peer.events[-1].append(event[1])
    else:
        peer.events.append(event)


def serve_tests(code: CodeType, payload: bytes) -> bytes:
    """Load the program, then answer its tests until they close the link."""
    order = json.loads(payload)
    namespace: dict[str, Any] = {}
    operations: dict[str, Callable[..., Any]] = {
        "call": lambda it, /, *arguments, **keywords: it(*arguments, **keywords), "special": special,
        "getattr": getattr, "setattr": set_attribute, "delattr": delattr, "dir": dir,
        "isinstance": isinstance, "issubclass": issubclass,
        "method": call_method,
        "plain": lambda value: next(copied(value) for kind, copied in CONTENTS if isinstance(value, kind)),
        "name": lambda name: namespace[name],
        "entry": lambda: function_of(namespace, order["entry_point"]), "signature": signature_of,
        "copy": copy.copy, "deepcopy": copy.deepcopy, "code": code_of,
        "finish": finish, "elsewhere": elsewhere, "patch": patch,
        "evaluate": lambda text, mode, names: evaluated(text, mode, {**namespace, **names}),
        "loads": lambda data: sys.modules["pickle"].loads(data),
        "dumps": lambda value: sys.modules["pickle"].dumps(value)}
    peer = Peer(Link(), operations)
    operations |= {"subclass": functools.partial(subclass, peer), "dataclass": as_dataclass}
    sys.stdout, sys.stderr, sys.stdin = (Stream(peer, name) for name in ("stdout", "stderr", "stdin"))
    builtins.input = lambda prompt="": peer.ask("input", str(prompt))
    hear_warnings(peer)
    try:
        namespace = run_module(code, "program", {}, order.get("setup", ""))
        function_of(namespace, order["entry_point"])
        peer.events.clear()
        peer.link.send(["ready"])
        while True:
            peer.answer(peer.link.receive())
    except LinkLost:        # the tests ended, or took too long
        return b""


def call_method(kind: type, name: str, owner: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Call the method of a class, or what the object has in its place; `super()` names another class."""
    is_first = next((base for base in type(owner).__mro__ if name in vars(base)), None) is kind
    if is_first and type(owner).__getattribute__ is not object.__getattribute__:
        return getattr(owner, name)(*arguments, **keywords)
    own = getattr(owner, "__dict__", {}).get(name) if is_first else None
    if own is None or is_stand_in(own):                 # the tests' own would ask here again
        return getattr(kind, name)(owner, *arguments, **keywords)
    return own(*arguments, **keywords)


def signature_of(function: Any) -> list[Any]:
    """Name, kind, default and annotation of each parameter, and of what it returns."""
    import inspect  # loaded beforehand where it is used
    found = inspect.signature(function)
    given = inspect.Parameter("given", inspect.Parameter.POSITIONAL_ONLY, annotation=found.return_annotation)
    return [(each.name, int(each.kind), {name: value for name, value in (
        ("default", each.default), ("annotation", each.annotation)) if value is not each.empty})
        for each in (*found.parameters.values(), given)]


def code_of(function: Any) -> dict[str, Any]:
    """What its code says of the kind of a function."""
    return {name: getattr(function.__code__, name)
            for name in ("co_flags", "co_name", "co_argcount", "co_kwonlyargcount", "co_varnames")}


async def awaited(value: Any) -> Any:
    """The result of an awaitable."""
    return await value


def finish(value: Any) -> Any:
    """Run an awaitable in this process's event loop."""
    loop = sys.modules["asyncio"].get_event_loop_policy().get_event_loop()
    return loop.run_until_complete(awaited(value))


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Set an attribute; a static or class method that tests replaced is one again when they put it back."""
    own = vars(owner).get(name) if isinstance(owner, type) else None
    if isinstance(own, (staticmethod, classmethod)):
        replaced.setdefault((owner, name), own)
    former = replaced.get((owner, name)) if isinstance(owner, type) else None
    setattr(owner, name, former if former and former.__get__(None, owner) == value else value)


def subclass(peer: Peer, name: str, bases: tuple[type, ...], body: dict[str, Any],
             options: dict[str, Any]) -> tuple[int, list[str]]:
    """Derive a class with methods of the tests; its number, and its special methods."""
    def called(function: Any) -> Any:
        return lambda *arguments, **keywords: function(*arguments, **keywords)

    def member(value: Any) -> Any:
        if isinstance(value, property):
            return property(*(each and called(each) for each in (value.fget, value.fset, value.fdel)))
        is_function = is_stand_in(value) and callable(value) and not isinstance(value, type)
        return called(value) if is_function else value
    names = {key: member(value) for key, value in body.items()}
    made = types.new_class(name, bases, options, exec_body=lambda space: space.update(names))
    peer.described.add(number := peer.lend(made))
    return number, specials_of(made)


def as_dataclass(kind: type, options: dict[str, Any]) -> list[str]:
    """Make a dataclass of a class that the tests derived; its special methods."""
    return specials_of(sys.modules["dataclasses"].dataclass(kind, **options))


def elsewhere(module: str, name: str, /, *arguments: Any, **keywords: Any) -> None:
    """Call a function that takes effect in both processes."""
    if (module, name) in MIRRORED and module in sys.modules:
        with contextlib.suppress(ValueError):
            getattr(sys.modules[module], name)(*arguments, **keywords)


def patch(module: str, name: str, value: Any) -> None:
    """Patch a module as the tests did; an object of this process replaces its own stand-in."""
    if module in sys.modules:
        parts = vars(sys.modules[module])
        own = originals.setdefault((module, name), parts.get(name))
        is_builtin = vars(builtins).get(getattr(value, "__name__", "")) is value
        parts[name] = value if is_stand_in(value) or not callable(value) or is_builtin else own


originals: dict[tuple[str, str], Any] = {}
replaced: dict[tuple[type, str], Any] = {}           # methods of classes, by class and name


def hear_warnings(peer: Peer) -> None:
    """Send warnings and log records to the tests."""
    def warned(message: Any, category: type, *_more: Any, **_options: Any) -> None:
        known = next(kind.__name__ for kind in category.__mro__ if vars(builtins).get(kind.__name__) is kind)
        note(peer, ["warning", known, str(message), [peer.lend(kind) for kind in category.__mro__]])
    warnings.simplefilter("always")
    warnings.showwarning = warned
    if logging := sys.modules.get("logging"):
        def handled(logger: Any, record: Any) -> None:          # also of a logger that propagates nothing
            note(peer, ["log", record.name, record.levelno, record.getMessage()])
            handle(logger, record)
        handle, logging.Logger.callHandlers = logging.Logger.callHandlers, handled
        logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger().setLevel(logging.DEBUG)          # the tests' loggers filter
