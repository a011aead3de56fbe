"""A reward of the user's own: a function in their file, called with whole columns as TRL calls it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import inspect
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError


@dataclass(frozen=True)
class UserReward:
    """`f(prompts, completions, completion_ids=None, **columns) -> list[float | None]`, sync or async."""

    name: str
    path: Path
    function: Callable[..., Any]
    content_hash: str

    def rewards(self, prompts: list[str], completions: list[str], completion_ids: list[list[int]],
                columns: dict[str, list[Any]]) -> list[float | None]:
        """One number per completion, None where the reward does not apply; StageError for anything else."""
        where = f"The reward {self.name} in {self.path}"
        try:
            given = self.function(prompts=prompts, completions=completions, completion_ids=completion_ids,
                                  **columns)
            if inspect.iscoroutine(given):
                given = asyncio.run(given)
        except Exception as error:
            line = line_in(error, self.path)
            raise StageError(f"{where} raised {type(error).__name__}: {error}{line}. Nothing of this part "
                             "was written; correct it and run `score` again.") from error
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise StageError(f"{where} returned {type(given).__name__}, not a list with one number per "
                             "completion.")
        if len(given) != len(completions):
            raise StageError(f"{where} returned {len(given)} rewards for {len(completions)} completions.")
        return [None if value is None else finite_number(value, f"{where} returned {value!r} for completion "
                                                                f"{index} of the part")
                for index, value in enumerate(given)]


def load_user_reward(text: str) -> UserReward:
    """The function that FILE.py:NAME names; StageError when there is none."""
    file_name, _, name = text.rpartition(":")
    path = Path(file_name)
    if not file_name or not name.isidentifier() or path.suffix != ".py":
        raise StageError(f"--reward-file {text} is not FILE.py:NAME, for example "
                         "--reward-file rewards.py:brevity.")
    if not path.is_file():
        raise StageError(f"--reward-file {text}: there is no file {path}.")
    spec = importlib.util.spec_from_file_location(f"user_reward_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = line_in(error, path)
        raise StageError(f"{path} cannot be imported: {type(error).__name__}: {error}{line}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise StageError(f"{path} defines no function '{name}'.")
    return UserReward(name, path, function, hashlib.sha256(path.read_bytes()).hexdigest()[:16])


def finite_number(value: Any, where: str) -> float:
    """A reward; StageError for text and for what is no finite number."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise StageError(f"{where}: a reward is a finite number, or None where it does not apply.")
    return number


def line_in(error: BaseException, path: Path) -> str:
    """Where in the user's file an error came from, in words; empty if nowhere."""
    numbers = [number for frame, number in traceback.walk_tb(error.__traceback__)
               if frame.f_code.co_filename == str(path)]
    return f" (line {numbers[-1]})" if numbers else ""
