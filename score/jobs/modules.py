"""Running a program's top level, finding what it defines, and the text of what it raises."""

import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any


class MissingFunction(Exception):
    """The program defines no function of the name asked for."""


def run_module(code: CodeType, name: str, names: dict[str, Any], setup: str = "") -> dict[str, Any]:
    """Execute `setup` and the program's top level as module `name`; its namespace comes back."""
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__.update(names)
    if setup:
        exec(compile(setup, "program_setup", "exec", dont_inherit=True), module.__dict__)
    exec(code, module.__dict__)
    return module.__dict__


def function_of(namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """The function `name`, or `Class.method` of a fresh object per call; else MissingFunction."""
    first, _, method = name.partition(".")
    function = namespace.get(first)
    if not callable(function) or (method and not callable(getattr(function, method, None))):
        raise MissingFunction(f"the program defines no {name}")
    if not method:
        return function
    return lambda *arguments, **keywords: getattr(function(), method)(*arguments, **keywords)


def lines_of(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    """The lines that an error went through, each with its code, the one that raised it last."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next


def failed_at(error: BaseException) -> str:
    """The line of a test, or of its setup, where an error was raised."""
    where = ""
    for code, line in lines_of(error):
        where = f"line {line}{'' if code.co_filename.startswith('test') else ' of the setup'}"
    return where


def message_of(error: BaseException) -> str:
    """The text of an error; `__str__` is foreign code and may raise."""
    try:
        return str(error)
    except BaseException:
        return "(no message)"
