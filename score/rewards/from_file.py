"""A reward of the user's own: a function in their file, called with whole columns as TRL calls it."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.stages.user_code import line_in, load_function
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
    return UserReward(*load_function(text, "--reward-file"))


def finite_number(value: Any, where: str) -> float:
    """A reward; StageError for text and for what is no finite number."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise StageError(f"{where}: a reward is a finite number, or None where it does not apply.")
    return number
