"""The user's own advantages: a function in their file, called with all rows of the stage; no torch."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from train.inputs.groups import Group
from warehouse.stages.user_code import load_function
from warehouse.store.errors import StageError
from warehouse.store.names import turn_of

OPTION = "--advantages"


def own_advantages(text: str, groups: Sequence[Group], staleness: Sequence[int]) -> list[np.ndarray]:
    """The result of the function FILE.py:NAME for every completion: a number, or [n] for its n tokens.

    It is called with a list of dicts, one per completion that has a reward, in the order of the groups; the
    others get 0. StageError where it raises, or returns anything but a finite number or one per token for
    every row.
    """
    measured = [not np.isnan(rollout.reward) for group in groups for rollout in group.rollouts]
    rows = [_row(group, place, age) for group, age in zip(groups, staleness, strict=True)
            for place, rollout in enumerate(group.rollouts) if not np.isnan(rollout.reward)]
    user = load_function(text, OPTION)
    listed = user._replace(function=lambda rows: list(user.function(rows)))     # generators raise late
    given = listed.call(f"--advantages {text}", "Nothing was written.", rows) if rows else []
    if len(given) != len(rows):
        raise StageError(f"--advantages {text} returned {len(given)} values for {len(rows)} rows.")
    checked = iter([_check_numbers(value, row, text) for value, row in zip(given, rows, strict=True)])
    return [next(checked) if known else np.zeros(()) for known in measured]


def _row(group: Group, place: int, staleness: int) -> dict[str, Any]:
    rollout = group.rollouts[place]
    return {"iteration": group.iteration, "purpose": group.purpose, "turn": turn_of(group.purpose),
            "parent": group.parent, "group_id": group.group_id, "task_id": rollout.task_id,
            "sample_index": rollout.sample_index, "staleness": staleness,
            "reward": rollout.reward, "correct": rollout.correct,
            "truncated": rollout.truncated, "prompt_ids": group.prompt_ids.astype(np.int64),
            "completion_ids": rollout.completion_ids.astype(np.int64),  # products of two ids do not fit int32
            "behaviour_logprobs": rollout.behaviour_logprobs}


def _check_numbers(value: Any, row: dict[str, Any], text: str) -> np.ndarray:
    where = f"for completion {row['sample_index']} of task {row['task_id']}, iteration {row['iteration']}"
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array(np.nan)
    if not (np.abs(numbers) < np.finfo(np.float32).max).all():
        raise StageError(f"--advantages {text} returned {reprlib.repr(value)} {where}, which is not a "
                         "finite number of float32.")
    if numbers.ndim and numbers.shape != row["completion_ids"].shape:
        raise StageError(f"--advantages {text} returned {numbers.size} numbers {where}, which has "
                         f"{len(row['completion_ids'])} tokens. Return one number, or one per token.")
    return numbers
