"""A reward of the user's own: a function in their file, called with whole columns as TRL calls it."""

import math
from collections.abc import Sequence
from typing import Any

from warehouse.stages.user_code import UserFunction
from warehouse.store.errors import StageError


def rewards_of(user: UserFunction, prompts: list[str], completions: list[str],
               completion_ids: list[list[int]], columns: dict[str, list[Any]]) -> list[float | None]:
    """What `f(prompts, completions, completion_ids=None, **columns)` gives, sync or async: a number each.

    None where the reward does not apply; StageError for anything else.
    """
    where = f"The reward {user.name} in {user.path}"
    given = user.call(where, "Nothing of this part was written; correct it and run `score` again.",
                      prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise StageError(f"{where} returned {type(given).__name__}, not a list with one number per "
                         "completion.")
    if len(given) != len(completions):
        raise StageError(f"{where} returned {len(given)} rewards for {len(completions)} completions.")
    numbers: list[float | None] = []
    for index, value in enumerate(given):
        try:
            number = math.nan if isinstance(value, str) else None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if number is not None and not math.isfinite(number):
            raise StageError(f"{where} returned {value!r} for completion {index} of the part: a reward is a "
                             "finite number, or None where it does not apply.")
        numbers.append(number)
    return numbers
