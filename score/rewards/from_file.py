"""A reward of the user's own: a function in their file, called with whole columns as TRL calls it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import inspect
import math
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
            if inspect.isawaitable(given):
                given = asyncio.run(awaited(given))
        except Exception as error:
            line = line_in(error, self.path)
            raise StageError(f"{where} raised {type(error).__name__}: {error}{line}. Nothing of this part "
                             "was written; correct it and run `score` again.") from error
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise StageError(f"{where} returned {type(given).__name__}, not a list with one number per "
                             "completion.")
        if len(given) != len(completions):
            raise StageError(f"{where} returned {len(given)} rewards for {len(completions)} completions.")
        return [self._checked(value, index, where) for index, value in enumerate(given)]

    @staticmethod
    def _checked(value: Any, index: int, where: str) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, str) or not math.isfinite(number):
            raise StageError(f"{where} returned {value!r} for completion {index} of the part: a reward is "
                             "a finite number, or None where it does not apply.")
        return number


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


def line_in(error: BaseException, path: Path) -> str:
    """Where in the user's file an error came from, in words; empty if nowhere."""
    numbers = []
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            numbers.append(trace.tb_lineno)
        trace = trace.tb_next
    return f" (line {numbers[-1]})" if numbers else ""


async def awaited(value: Any) -> Any:
    """The result of an awaitable."""
    return await value
