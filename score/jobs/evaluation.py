"""`eval`, `exec`, `compile` and `pickle` of tests: text that they do not write out may be the program's."""

import ast
import builtins
import contextlib
import io
import pickletools
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from score.jobs.peer import Peer
from score.jobs.stand_ins import ProgramClass, Untestable, as_dataclass, is_stand_in

# Modules that evaluate text for their callers; of those of annotations it is always the program's.
ANNOTATIONS = ("typing", "inspect")
FOR_OTHERS = (*ANNOTATIONS, "timeit", "doctest", "numpy.testing._private.utils")
CALLERS = ("score.", "pytest", "unittest.case")
EVALUATING = {"eval", "exec", "compile", *FOR_OTHERS}
ABSENT = object()
PLAIN_EVAL, PLAIN_COMPILE = eval, compile
BLANKS = " \t"                            # which `eval` takes off
# Of expressions that numbers alone make; large powers and shifts are made of little text.
ARITHMETIC = (ast.Expression, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator,
              ast.unaryop, ast.boolop, ast.cmpop)
# Codes of pickles that name an object, and those that name a place, whose table grows with it.
OBJECT_CODES = ("GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
MEMO_CODES = ("PUT", "BINPUT", "LONG_BINPUT")


class Example(str):
    """Text of a doctest, which shows values."""


def patch(peer: Peer, names: dict[str, Any], tests: list[CodeType], theirs: list[str], here: bool) -> None:
    """Run text that the tests do not write out in the program's process, where a program may have made it.

    Such text reads of the tests what the program gave, and names in a literal and in a text that they passed
    to the program, as others may hold what is expected; it sets none that they have. The tests may have made
    such text, too: in a run of its own it stays `here`, where no program can answer in its place. Data is
    read where it is, as its value is the same anywhere; `theirs` is further text that is no program's.
    """
    given: dict[str, Any] = {}               # what such text set
    literals = literals_of(tests)
    if any(EVALUATING.intersection(each.co_names) for each in nested(tests)):
        peer.told = set()

    plain: dict[str, Any] = {name: getattr(builtins, name) for name in ("eval", "exec", "compile")}
    plain["single"] = plain["exec"]

    def is_own(text: Any) -> bool:           # what a program gives is equal at most, unless of one character
        return isinstance(text, CodeType) or any(text is each for each in (*literals, *theirs))

    def is_written(line: str) -> bool:
        return any(line in literal for literal in literals if type(literal) is str)

    def unless_library(name: str) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            scopes = sys._getframe(1)
            function = (plain if is_library(scopes.f_globals) else evaluating)[name]
            if name != "compile" and len(arguments) == 1:
                arguments += scopes.f_globals, scopes.f_locals
            return function(*arguments, **options)
        return called

    def run(mode: str, text: Any, *scopes: Any) -> Any:
        caller, mode = sys._getframe(1), "single" if type(text) is Example else mode
        found = [each for each in scopes or (caller.f_globals, caller.f_locals) if each is not None]
        written = text.lstrip(BLANKS) if mode == "eval" and type(text) is str else text
        code = text if isinstance(text, CodeType) else plain["compile"](
            written, "text", mode, dont_inherit=True)
        if mode == "eval" and type(text) is str and (data := data_in(text)) is not ABSENT:
            return data
        wanted = {name for each in nested([code]) for name in each.co_names}
        is_built = caller.f_globals.get("__name__") not in ANNOTATIONS
        if is_own(text) or (is_built and here):
            own = [each for each in found if each.get("__name__") == "tests"]         # or copies of it
            for name in wanted - set[str]().union(*found) if own and found[-1] is not names else ():
                with contextlib.suppress(Exception):       # Python would not ask for it
                    value = names[name]
                    own[0].update({name: value} if own[0] is not names else {})
            return plain[mode](text, *scopes or found)
        peer.tests.has_built |= is_built
        of_tests = any(scope is names for scope in found)
        known = names_in(literals) & names_in(peer.told or ()) if of_tests else None

        def may_read(name: str, scope: Any) -> bool:
            return name in scope and (is_stand_in(scope[name]) or is_given(name, scope) or isinstance(
                scope[name], ModuleType) or (mode != "single" and (known is None or name in known)))
        value = peer.ask("evaluate", text, mode, {
            name: scope[name] for scope in found for name in wanted if may_read(name, scope)})
        if mode == "eval":
            return value
        new = {name: each for name, each in value.items() if not of_tests
               or is_given(name, found[-1]) or (is_free(name) and not any(
                   name in scope and not is_stand_in(scope[name]) for scope in found))}
        given.update(new)
        found[-1].update(new)

    def is_given(name: str, scope: Any) -> bool:
        return name in given and name in scope and scope[name] is given[name]

    def compiled(text: Any, name: Any, mode: str, *more: Any, **options: Any) -> Any:
        code = plain["compile"](text, name, mode, *more, **options)
        if type(text).__module__ == "ast":
            text = sys.modules["ast"].unparse(text)
        if here:
            return code
        if mode == "single":
            lines = [line for line in text.splitlines() if not is_written(line)]
            return Example(text) if lines else code
        return text if isinstance(code, CodeType) and not is_own(text) else code

    evaluating: dict[str, Any] = {"eval": partial(run, "eval"), "exec": partial(run, "exec"),
                                  "compile": compiled}
    names.update(evaluating)
    for module in FOR_OTHERS:
        if module in sys.modules:
            vars(sys.modules[module]).update(evaluating)
    vars(builtins).update((name, unless_library(name)) for name in evaluating)
    patch_dataclass()
    patch_pickle(peer, is_own)


def data_in(text: str) -> Any:
    """The value of text that holds literals or arithmetic of numbers, which may be anyone's; else ABSENT."""
    with contextlib.suppress(Exception):
        return ast.literal_eval(text)
    expression = ast.parse(text := text.lstrip(BLANKS), mode="eval")
    if all(isinstance(node, ARITHMETIC) and not isinstance(node, (ast.Pow, ast.LShift)) and not isinstance(
            getattr(node, "value", None), (str, bytes)) for node in ast.walk(expression)):
        return PLAIN_EVAL(text, {})
    return ABSENT


def patch_dataclass() -> None:
    """Have `dataclass` take classes of the program, too."""
    dataclasses = sys.modules.get("dataclasses")
    if dataclasses is None:
        return
    plain_dataclass = dataclasses.dataclass

    def dataclass(kind: Any = None, /, **options: Any) -> Any:
        def made(kind: Any) -> Any:
            return (as_dataclass if isinstance(kind, ProgramClass) else plain_dataclass)(kind, **options)
        return made if kind is None else made(kind)
    dataclasses.dataclass = dataclass        # type: ignore[attr-defined]


def patch_pickle(peer: Peer, is_own: Callable[[Any], bool]) -> None:
    """Have `pickle` read in the program's process what the tests neither wrote nor spell out."""
    pickle = sys.modules.get("pickle")
    if pickle is None:
        return
    plain_loads = pickle.loads
    written = set[bytes]()               # by the tests, of their own objects

    class Pickler(pickle.Pickler):       # type: ignore[misc, name-defined]
        def __init__(self, file: Any, *more: Any, **options: Any) -> None:
            self.of_tests = io.BytesIO()
            super().__init__(self.of_tests, *more, **options)
            self.written_to = file

        def dump(self, value: Any) -> None:
            if is_stand_in(value):
                data = peer.ask("dumps", value)
            else:
                start = self.of_tests.tell()
                super().dump(value)
                written.add(data := self.of_tests.getvalue()[start:])
            self.written_to.write(data)

    def dump(value: Any, file: Any, *more: Any, **options: Any) -> None:
        Pickler(file, *more, **options).dump(value)

    def dumps(value: Any, *more: Any, **options: Any) -> bytes:
        dump(value, file := io.BytesIO(), *more, **options)
        return file.getvalue()

    def read(data: Any, end: int, is_plain: bool, options: dict[str, Any]) -> Any:
        is_the_tests = is_own(data) or is_plain or bytes(data)[:end] in written
        return plain_loads(data, **options) if is_the_tests else peer.ask("loads", bytes(data))

    def loads(data: Any, **options: Any) -> Any:
        return read(data, *extent_of(bytes(data)), options)

    def load(file: Any, **options: Any) -> Any:
        data = file.read()
        end, is_plain = extent_of(data)
        with contextlib.suppress(AttributeError, OSError):      # what cannot seek has one pickle
            file.seek(end - len(data), 1)                       # to the pickle behind it
        return read(data, end, is_plain, options)

    class Unpickler:
        def __init__(self, file: Any, **options: Any) -> None:
            self.file, self.options = file, options

        def __init_subclass__(cls) -> None:
            raise Untestable("a class derived from Unpickler is not here")

        def load(self) -> Any:
            return load(self.file, **self.options)
    instead = {"dumps": dumps, "loads": loads, "dump": dump, "load": load, "Pickler": Pickler,
               "Unpickler": Unpickler}
    vars(pickle).update(instead | {f"_{name}": each for name, each in instead.items()})
    vars(sys.modules["_pickle"]).update(instead)


def extent_of(pickled: bytes) -> tuple[int, bool]:
    """The length of a pickle, and whether it makes plain data alone, the same wherever it is read."""
    end, is_plain = len(pickled), True
    try:
        for code, at, place in pickletools.genops(pickled):
            is_plain &= not (code.name in OBJECT_CODES or (
                code.name in MEMO_CODES and int(at or 0) > len(pickled)))
            end = int(place or 0) + 1
    except (ValueError, IndexError):
        return len(pickled), False
    return end, is_plain


def is_free(name: str) -> bool:
    """False for a name by which tests find a builtin or a module."""
    return not (hasattr(builtins, name) or name in sys.modules or name == "np")


def is_library(scope: dict[str, Any]) -> bool:
    """True of the globals of a module that runs text of its own, and does not call what it is given."""
    name = str(scope.get("__name__"))
    return name in sys.modules and vars(sys.modules[name]) is scope and not name.startswith(CALLERS)


def nested(codes: list[CodeType]) -> list[CodeType]:
    """Code objects, with those of the functions in them."""
    found = list(codes)
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def literals_of(codes: list[CodeType]) -> list[Any]:
    """The literals of code, also those inside tuples."""
    found = [each for code in nested(codes) for each in code.co_consts]
    for each in found:
        found += each if isinstance(each, tuple) else ()
    return found


def names_in(literals: Iterable[Any]) -> set[str]:
    """Names in literals that are expressions: the names of tests that a program can know."""
    told: set[str] = set()
    for literal in literals:
        if isinstance(literal, str) and literal == literal.strip() and "," not in literal:
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                told.update(PLAIN_COMPILE(literal, "literal", "eval").co_names)
    return told


def evaluated(text: Any, mode: str, names: dict[str, Any]) -> Any:
    """In the program's process: the value of an expression, or the names that statements set."""
    before = dict(names)
    if mode == "eval":
        return eval(text, names)
    exec(compile(text, "text", mode), names)
    return {name: value for name, value in names.items()
            if name != "__builtins__" and before.get(name, ABSENT) is not value}
