"""Group advantages: each reward compared with the mean of its group."""

import torch
from torch import Tensor

STD_EPSILON = 1e-4


def group_advantages(rewards: Tensor, sizes: list[int], *, scale: str = "group") -> Tensor:
    """Advantage of every completion, [B]: GRPO (arXiv 2402.03300) and, without std, Dr. GRPO (2503.20783).

    `rewards` [B] of groups of these sizes; NaN for a missing reward: it does not count in its group's
    statistics and gets advantage 0. `scale`: divide by the sample std of the 'group' or the 'batch', or by
    nothing ('none'). A group of equal rewards has advantages of exactly 0.
    """
    batch = rewards[~rewards.isnan()]
    advantages = torch.zeros_like(rewards)
    for group, own in zip(rewards.split(sizes), advantages.split(sizes), strict=True):
        present = ~group.isnan()
        values = group[present]
        if len(values.unique()) > 1:        # exact, where a computed std may round to 1e-17
            std = (values if scale == "group" else batch).std()         # the sample std, n - 1
            own[present] = (values - values.mean()) / (1 if scale == "none" else std + STD_EPSILON)
    return advantages
