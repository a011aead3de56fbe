"""The user's own advantages: a function in their file, called with all rows of the stage; no torch."""

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from train.inputs.groups import Group, Rollout
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
    rows = [_row(group, rollout, age) for group, age in zip(groups, staleness, strict=True)
            for rollout in group.rollouts]
    measured = [row for row in rows if not np.isnan(row["reward"])]
    user = load_function(text, OPTION)
    listed = user._replace(function=lambda rows: list(user.function(rows)))     # generators raise late
    given = listed.call(f"--advantages {text}", "Nothing was written.", measured) if measured else []
    if len(given) != len(measured):
        raise StageError(f"--advantages {text} returned {len(given)} values for {len(measured)} rows.")
    values = iter(given)
    return [np.zeros(()) if np.isnan(row["reward"]) else _check_numbers(next(values), row, text)
            for row in rows]


def _row(group: Group, rollout: Rollout, staleness: int) -> dict[str, Any]:
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
