"""Running a program's top level, finding what it defines, and the text of what it raises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any


class MissingFunction(Exception):
    """The program defines no function of the name asked for."""


def run_module(code: CodeType, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute the program's top level as module `name`; its namespace comes back."""
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__.update(names)
    exec(code, module.__dict__)
    return module.__dict__


def function_of(namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """The function called `name`; MissingFunction if there is none."""
    function = namespace.get(name)
    if not callable(function):
        raise MissingFunction(f"the program defines no function {name}")
    return function


def message_of(error: BaseException) -> str:
    """The text of an error, asked for only once and under guard, for it is foreign code too."""
    try:
        return str(error)
    except BaseException:
        return "(no message)"
