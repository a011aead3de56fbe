"""The group's advantage, and more of it where the sampler was surprised: one number per token.

    train RUN --advantages examples/advantages/surprise.py:surprise
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

BONUS = 0.01            # of a token's advantage, per nat


def surprise(rows: Sequence[dict[str, Any]]) -> list[np.ndarray]:
    """Reward less the mean of the group, plus `BONUS` times -log mu of the token."""
    rewards: dict[str, list[float]] = {}
    for row in rows:
        rewards.setdefault(row["group_id"], []).append(row["reward"])
    return [row["reward"] - sum(paid := rewards[row["group_id"]]) / len(paid)
            - BONUS * np.asarray(row["behaviour_logprobs"]) for row in rows]
