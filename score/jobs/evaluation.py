"""`eval`, `exec`, `compile` and `pickle` of tests: what a program wrote runs in the program's process."""

import builtins
import sys
from types import CodeType
from typing import Any

from score.jobs.peer import Peer

ABSENT = object()


def patch(peer: Peer, names: dict[str, Any], tests: list[CodeType]) -> None:
    """Have tests call what is here in place of these; text that is no literal of theirs runs elsewhere."""
    def is_own(text: Any) -> bool:
        return isinstance(text, CodeType) or any(
            text == literal for code in nested(tests) for literal in code.co_consts)

    def run_elsewhere(text: Any, mode: str, scopes: tuple[Any, ...]) -> Any:
        code = builtins.compile(text, "text", mode, dont_inherit=True)
        wanted = {name for each in nested([code]) for name in each.co_names}
        read = {name: scope[name] for scope in scopes for name in wanted if name in scope}
        return peer.ask("evaluate", text, mode, read)

    def evaluate(text: Any, *scopes: Any) -> Any:
        scopes = scopes or scopes_of(sys._getframe(1))
        return builtins.eval(text, *scopes) if is_own(text) else run_elsewhere(text, "eval", scopes)

    def execute(text: Any, *scopes: Any) -> None:
        scopes = scopes or scopes_of(sys._getframe(1))
        if is_own(text):
            builtins.exec(text, *scopes)
        else:
            scopes[-1].update(run_elsewhere(text, "exec", scopes))

    def compiled(text: Any, name: Any, mode: str, *more: Any, **options: Any) -> Any:
        code = builtins.compile(text, name, mode, *more, **options)
        return text if isinstance(code, CodeType) and not is_own(text) else code

    names.update(eval=evaluate, exec=execute, compile=compiled)
    if pickle := sys.modules.get("pickle"):
        pickle.loads = lambda data, **_options: peer.ask("loads", bytes(data))  # type: ignore[attr-defined]
        pickle.load = lambda file, **_options: pickle.loads(file.read())  # type: ignore[attr-defined]


def scopes_of(frame: Any) -> tuple[Any, ...]:
    """Globals and locals of a frame."""
    return frame.f_globals, frame.f_locals


def nested(codes: list[CodeType]) -> list[CodeType]:
    """Code, and that of the functions in it."""
    found = list(codes)
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def evaluated(text: Any, mode: str, names: dict[str, Any]) -> Any:
    """In the program's process: the value of an expression, or the names that statements set."""
    before = dict(names)
    if mode == "eval":
        return eval(text, names)
    exec(text, names)
    return {name: value for name, value in names.items()
            if name != "__builtins__" and before.get(name, ABSENT) is not value}
