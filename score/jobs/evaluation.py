"""`eval`, `exec`, `compile` and `pickle` of tests: what a program wrote runs in the program's process."""

import builtins
import contextlib
import sys
from types import CodeType, SimpleNamespace
from typing import Any

from score.jobs.peer import Peer
from score.jobs.stand_ins import ProgramClass, as_dataclass, is_stand_in

ABSENT = object()


def patch(peer: Peer, names: dict[str, Any], tests: list[CodeType]) -> None:
    """Have tests call what is here in place of these; text that is no literal of theirs runs elsewhere.

    Of the tests' own names it reads those that they write in a literal, for others may hold what is expected,
    and sets none that they have.
    """
    given: set[str] = set()                  # names that text set

    def is_own(text: Any) -> bool:
        return isinstance(text, CodeType) or any(text == literal for literal in literals_of(tests))

    def run_elsewhere(text: Any, mode: str, scopes: list[Any]) -> Any:
        code = builtins.compile(text, "text", mode, dont_inherit=True)
        wanted = {name for each in nested([code]) for name in each.co_names}
        if any(scope is names for scope in scopes):
            wanted &= given | names_told(tests)
        read = {name: scope[name] for scope in scopes for name in wanted if name in scope}
        return peer.ask("evaluate", text, mode, read)

    def evaluate(text: Any, *scopes: Any) -> Any:
        scopes = scopes or scopes_of(sys._getframe(1))
        return builtins.eval(text, *scopes) if is_own(text) else run_elsewhere(
            text, "eval", [scope for scope in scopes if scope is not None])

    def execute(text: Any, *scopes: Any) -> None:
        scopes = scopes or scopes_of(sys._getframe(1))
        if is_own(text):
            builtins.exec(text, *scopes)
            return
        found = [scope for scope in scopes if scope is not None]
        is_free = all(scope is not names for scope in found)
        new = {name: value for name, value in run_elsewhere(text, "exec", found).items()
               if is_free or name in given or not (hasattr(builtins, name) or any(
                   name in scope and not is_stand_in(scope[name]) for scope in found))}
        given.update(new)
        found[-1].update(new)

    def compiled(text: Any, name: Any, mode: str, *more: Any, **options: Any) -> Any:
        code = builtins.compile(text, name, mode, *more, **options)
        return text if isinstance(code, CodeType) and not is_own(text) else code

    names.update(eval=evaluate, exec=execute, compile=compiled)
    for module in ("typing", "inspect"):         # which evaluate annotations
        if module in sys.modules:
            vars(sys.modules[module]).update(eval=evaluate, compile=compiled)
    if timeit := sys.modules.get("timeit"):      # which runs text in this process
        plain_timer = timeit.Timer

        def timer(stmt: Any = "pass", setup: Any = "pass", *more: Any, **options: Any) -> Any:
            for text in (stmt, setup):
                if isinstance(text, str) and text != "pass" and not is_own(text):
                    raise ValueError("Only text that the tests write out is timed; pass a function.")
            return plain_timer(stmt, setup, *more, **options)
        timeit.Timer = timer                     # type: ignore[attr-defined]
    if dataclasses := sys.modules.get("dataclasses"):
        plain_dataclass = dataclasses.dataclass

        def dataclass(kind: Any = None, /, **options: Any) -> Any:
            def made(kind: Any) -> Any:
                return (as_dataclass(kind, options) if isinstance(kind, ProgramClass)
                        else plain_dataclass(kind, **options))
            return made if kind is None else made(kind)
        dataclasses.dataclass = dataclass        # type: ignore[attr-defined]
    if pickle := sys.modules.get("pickle"):
        pickle.loads = lambda data, **_options: peer.ask("loads", bytes(data))  # type: ignore[attr-defined]
        pickle.load = lambda file, **_options: pickle.loads(file.read())  # type: ignore[attr-defined]
        pickle.Unpickler = lambda file, **_options: SimpleNamespace(  # type: ignore[attr-defined]
            load=lambda: pickle.load(file))


def scopes_of(frame: Any) -> tuple[Any, ...]:
    """Globals and locals of a frame."""
    return frame.f_globals, frame.f_locals


def nested(codes: list[CodeType]) -> list[CodeType]:
    """Code, and that of the functions in it."""
    found = list(codes)
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def literals_of(codes: list[CodeType]) -> list[Any]:
    """What is written out in code, also within tuples."""
    found = [each for code in nested(codes) for each in code.co_consts]
    for each in found:
        found += each if isinstance(each, tuple) else ()
    return found


def names_told(codes: list[CodeType]) -> set[str]:
    """Names in the literals that are an expression: what a program can know of the names of tests."""
    told: set[str] = set()
    for literal in literals_of(codes):
        if isinstance(literal, str) and literal == literal.strip() and "," not in literal:
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                told.update(builtins.compile(literal, "literal", "eval").co_names)
    return told


def evaluated(text: Any, mode: str, names: dict[str, Any]) -> Any:
    """In the program's process: the value of an expression, or the names that statements set."""
    before = dict(names)
    if mode == "eval":
        return eval(text, names)
    exec(text, names)
    return {name: value for name, value in names.items()
            if name != "__builtins__" and before.get(name, ABSENT) is not value}
