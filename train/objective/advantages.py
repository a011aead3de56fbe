"""Group advantages: each reward compared with the mean of its group."""

import torch
from torch import Tensor

STD_EPSILON = 1e-4


def group_advantages(rewards: Tensor, group_index: Tensor, *, scale: str = "group") -> Tensor:
    """Advantage of every completion, [B]: GRPO (arXiv 2402.03300) and, without std, Dr. GRPO (2503.20783).

    `rewards` [B], NaN for a missing reward: it does not count in its group's statistics and gets advantage 0.
    `group_index` [B] holds integers from 0. `scale`: divide by the sample std of the 'group' or the 'batch',
    or by nothing ('none'). A group of equal rewards has advantages of exactly 0.
    """
    present = ~rewards.isnan()
    centered = rewards - group_means(rewards, group_index)[group_index]
    centered = torch.where(equal_groups(rewards, group_index)[group_index], 0.0, centered)
    if scale == "none":
        scaled = centered
    elif scale == "batch":
        spread = rewards[present].std() if present.sum() > 1 else 0.0       # the sample std, n - 1
        scaled = centered / (spread + STD_EPSILON)
    else:
        scaled = centered / (group_stds(rewards, group_index)[group_index] + STD_EPSILON)
    return torch.where(present, scaled, 0.0)


def group_means(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Mean of the rewards that are present, per group [G]; NaN for a group without any."""
    present = ~rewards.isnan()
    sums = _group_sums(rewards.nan_to_num(), group_index)
    return sums / _group_sums(present.to(rewards.dtype), group_index)


def group_stds(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Sample std (n - 1) of the rewards that are present, per group [G]; 0 with fewer than two."""
    present = ~rewards.isnan()
    counts = _group_sums(present.to(rewards.dtype), group_index)
    deviations = (rewards - group_means(rewards, group_index)[group_index]).nan_to_num()
    return (_group_sums(deviations.square(), group_index) / (counts - 1).clamp(min=1)).sqrt()


def equal_groups(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Which groups have no two different rewards, [G]: exact, where a computed std may round to 1e-17."""
    size = int(group_index.max()) + 1
    present = ~rewards.isnan()
    index, values = group_index[present], rewards[present]
    lowest = values.new_full((size,), torch.inf).scatter_reduce(0, index, values, "amin")
    highest = values.new_full((size,), -torch.inf).scatter_reduce(0, index, values, "amax")
    return lowest >= highest


def _group_sums(values: Tensor, group_index: Tensor) -> Tensor:
    return values.new_zeros(int(group_index.max()) + 1).index_add(0, group_index, values)
