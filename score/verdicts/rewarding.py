"""From measures to rewards: the registered or the user's function, then shaping."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from score.rewards.from_file import UserReward
from score.rewards.scorer import Scorer
from score.verdicts.completions import Item
from score.verdicts.samples import Scored


def rewarded(scored: Sequence[Scored], items: Sequence[Item], completions: pa.Table, scorer: Scorer,
             ngram4_unique_ratio: np.ndarray) -> list[Scored]:
    """The rows of one part with their final parts; what could not be measured stays without."""
    parts = [row.parts for row in scored]
    if scorer.user is not None:
        given = user_rewards(scorer.user, scored, items, completions)
        parts = [None if row.parts is None or value is None else {scorer.user.name: value}
                 for row, value in zip(scored, given, strict=True)]
    truncated = np.array(completions.column("finish_reason").to_pylist(), dtype=object) == "length"
    shaped = scorer.shaping.apply(
        parts, truncated=truncated, ngram4_unique_ratio=ngram4_unique_ratio,
        correct=[row.measures.correct for row in scored], groups=completions.column("group_id").to_pylist(),
        lengths=completions.column("num_completion_tokens").to_numpy())
    return [replace(row, parts=each) for row, each in zip(scored, shaped, strict=True)]


def user_rewards(reward: UserReward, scored: Sequence[Scored], items: Sequence[Item],
                 completions: pa.Table) -> list[float | None]:
    """What the user's function gives; it sees the task's columns and what was measured, by name."""
    columns: dict[str, list[Any]] = {name: [item.payload.get(name) for item in items]
                                     for name in {name for item in items for name in item.payload}}
    columns |= {"task_id": [item.task_id for item in items], "split": [item.split for item in items],
                "kind": [item.kind_name for item in items], "payload": [item.payload for item in items],
                "code": [row.answer.code for row in scored],
                "correct": [row.measures.correct for row in scored],
                "valid_outputs": [row.measures.valid_outputs for row in scored],
                "correct_share": [row.measures.correct_share for row in scored],
                "pixel_score": [row.measures.pixel_score for row in scored],
                "outputs": [json.loads(row.measures.outputs or "null") for row in scored],
                "error_class": [row.outcome.error_class and str(row.outcome.error_class) for row in scored]}
    for name in ("finish_reason", "num_completion_tokens", "sample_index", "group_id", "policy_version"):
        columns[name] = completions.column(name).to_pylist()
    return reward.rewards([item.prompt for item in items], [row.answer.text for row in scored],
                          completions.column("completion_ids").to_pylist(), columns)
