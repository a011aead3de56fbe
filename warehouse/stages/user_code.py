"""A function in a user's file: FILE.py:NAME, imported with error handling, identified by its hash."""

import asyncio
import hashlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.store.errors import StageError, check_file, counted, first_line


class UserFunction(NamedTuple):
    """A user's function, its name and file, and the file's content with its hash."""

    name: str
    path: Path
    function: Callable[..., Any]
    content_hash: str
    text: str

    def call(self, where: str, after: str, /, *arguments: Any, **named: Any) -> Any:
        """The function's result, awaited if it is async; StageError with the line of an exception."""
        gets = f"It gets {', '.join(named) or counted(len(arguments), 'argument')}"
        try:
            inspect.signature(self.function).bind(*arguments, **named)
        except ValueError:                            # functions written in C have none
            pass
        except TypeError as error:
            raise StageError(f"{where} cannot be called: {error}. {gets}"
                             + (", and needs **columns for those that it does not name" if named else "")
                             + f". {after}") from error
        try:
            given = self.function(*arguments, **named)
            return asyncio.run(given) if inspect.iscoroutine(given) else given
        except (Exception, SystemExit) as error:      # a user's exit would look like the stage's
            has = f"{gets}. " if named and isinstance(error, KeyError) else ""    # a missing column?
            if "prompts" in named and isinstance(error, (TypeError, KeyError, AttributeError)):
                has += "Prompts and completions are texts, also of chats. "
            raise StageError(f"{where} raised {first_line(error)}{line_in(error, self.path)}. "
                             f"{has}{after}") from error


def load_function(text: str, option: str) -> UserFunction:
    """The function FILE.py:NAME; StageError, which names the option, if there is none."""
    file_name, _, name = text.rpartition(":")
    path = Path(file_name)
    if not file_name or not name.isidentifier() or path.suffix != ".py":
        raise StageError(f"{option} {text} is not FILE.py:NAME, for example {option} mine.py:name.")
    check_file(path, named_by=f"{option} {text}")
    spec = importlib.util.spec_from_file_location(f"user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        alone = (isinstance(error, ImportError) and " It stands alone: copy what it needs into it.") or ""
        raise StageError(f"{path} cannot be imported: {first_line(error)}{line_in(error, path)}.{alone}"
                         ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise StageError(f"{path} defines no function '{name}'.")
    source = path.read_bytes()
    return UserFunction(name, path, function, hashlib.sha256(source).hexdigest()[:16],
                        source.decode(errors="replace"))


def line_in(error: BaseException, path: Path) -> str:
    """The place in the user's file where an error came from, in words; empty if none."""
    numbers = [number for frame, number in traceback.walk_tb(error.__traceback__)
               if frame.f_code.co_filename == str(path.absolute())]
    return f" (line {numbers[-1]})" if numbers else ""
