"""`eval`, `exec`, `compile` and `pickle` of tests: what a program wrote runs in the program's process."""

import builtins
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from score.jobs.peer import Peer

ABSENT = object()


class Evaluation:
    """What tests have in place of these builtins; text that is no literal of theirs runs elsewhere."""

    def __init__(self, peer: Peer, names: dict[str, Any], tests: list[CodeType]) -> None:
        self.peer, self.names, self.tests = peer, names, tests

    def patch(self) -> None:
        """Have the tests call these."""
        for name in ("eval", "exec", "compile"):
            self.names[name] = getattr(self, name)
        if pickle := sys.modules.get("pickle"):
            pickle.loads = lambda data, **_options: self.peer.ask("loads", bytes(data))  # type: ignore[attr-defined]
            pickle.load = lambda file, **_options: pickle.loads(file.read())  # type: ignore[attr-defined]

    def is_own(self, text: Any) -> bool:
        """True of what the tests compiled or wrote themselves."""
        return isinstance(text, CodeType) or any(
            text == literal for code in nested(self.tests) for literal in code.co_consts)

    def eval(self, text: Any, *scopes: Any) -> Any:
        """The value of an expression."""
        scopes = scopes or scopes_of(sys._getframe(1))
        return builtins.eval(text, *scopes) if self.is_own(text) else self.peer.ask(
            "eval", text, read_by(text, "eval", scopes))

    def exec(self, text: Any, *scopes: Any) -> None:
        """Run statements; the names that they set are set in the innermost scope."""
        scopes = scopes or scopes_of(sys._getframe(1))
        if self.is_own(text):
            builtins.exec(text, *scopes)
        else:
            scopes[-1].update(self.peer.ask("exec", text, read_by(text, "exec", scopes)))

    def compile(self, text: Any, name: Any, mode: str, *more: Any, **options: Any) -> Any:
        """What `eval` and `exec` take: of a program's text, the text itself if it is well formed."""
        code = builtins.compile(text, name, mode, *more, **options)
        return text if isinstance(code, CodeType) and not self.is_own(text) else code


def scopes_of(frame: Any) -> tuple[Any, ...]:
    """Globals and locals of a frame."""
    return frame.f_globals, frame.f_locals


def nested(codes: list[CodeType]) -> list[CodeType]:
    """Code, and that of the functions in it."""
    found = list(codes)
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def read_by(text: Any, mode: str, scopes: tuple[Any, ...]) -> dict[str, Any]:
    """What a text reads of the scopes."""
    code = builtins.compile(text, "text", mode, dont_inherit=True)
    wanted = {name for each in nested([code]) for name in each.co_names}
    return {name: scope[name] for scope in scopes for name in wanted if name in scope}


def operations(namespace: Callable[[], dict[str, Any]]) -> dict[str, Callable[..., Any]]:
    """What the program's process does for them, with the names of the program."""
    def execute(text: Any, names: dict[str, Any]) -> dict[str, Any]:
        before = {**namespace(), **names}
        scope = dict(before)
        exec(text, scope)
        return {name: value for name, value in scope.items()
                if name != "__builtins__" and before.get(name, ABSENT) is not value}
    return {"eval": lambda text, names: eval(text, {**namespace(), **names}), "exec": execute,
            "loads": lambda data: sys.modules["pickle"].loads(data)}
