"""The rows of one stage as tensors: advantages, masks, importance weights, drops, the split into steps."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.objective.advantages import group_advantages
from train.objective.correction import importance_weights, second_moment_mask, vetoed
from train.objective.losses import entropy_mask, loss_scales
from train.rows.groups import Group, Rollout
from train.rows.settings import Settings, correction_of

M2PO_LIMIT = 0.04


@dataclass
class Row:
    """One completion and all that the loss needs of it; tensors of its tokens, [n]."""

    rollout: Rollout
    completion_ids: Tensor
    behaviour_logprobs: Tensor
    advantage: float = 0.0
    drop_reason: str | None = None
    trainable: bool = True                      # its tokens are in the loss mask
    old_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    entropy: Tensor = field(default_factory=lambda: torch.empty(0))
    ref_logprobs: Tensor | None = None
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    kept: Tensor = field(default_factory=lambda: torch.empty(0))   # 0 where the surrogate is masked, else 1
    vetoed: bool = False
    scale: float = 0.0                          # see losses.loss_scales
    step: int | None = None

    @property
    def num_trainable_tokens(self) -> int:
        return len(self.completion_ids) if self.trainable else 0

    @property
    def log_ratio(self) -> Tensor:
        """log rho = log pi_old - log mu of the tokens, nats."""
        return self.old_logprobs - self.behaviour_logprobs


@dataclass
class RowGroup:
    """A group as tensors, its rows, and its staleness in policy versions."""

    group: Group
    prompt_ids: Tensor
    rows: list[Row]
    staleness: int

    @property
    def forwardable(self) -> list[Row]:
        """Rows that have a token to score."""
        return [row for row in self.rows if len(row.completion_ids)]


def build_shard(groups: list[Group], policy_version: int, settings: Settings) -> list[RowGroup]:
    """Groups with advantages and loss masks, in the order given."""
    shard = [RowGroup(group, torch.from_numpy(group.prompt_ids),
                      [Row(rollout, torch.from_numpy(rollout.completion_ids),
                           torch.tensor(rollout.behaviour_logprobs)) for rollout in group.rollouts],
                      policy_version - group.policy_version) for group in groups]
    rows = [row for one in shard for row in one.rows]
    rewards = torch.tensor([row.rollout.reward for row in rows], dtype=torch.float64)
    group_index = torch.repeat_interleave(torch.arange(len(shard)),
                                          torch.tensor([len(one.rows) for one in shard]))
    advantages = group_advantages(rewards, group_index, scale=settings.scale_rewards)
    for row, advantage in zip(rows, advantages.tolist(), strict=True):
        row.advantage = advantage
        masked = settings.mask_truncated and row.rollout.truncated
        row.trainable = len(row.completion_ids) > 0 and not masked
        row.drop_reason = _drop_reason(row, settings)
    return shard


def split_into_steps(num_groups: int, settings: Settings, seed: str) -> list[list[int]]:
    """Indices of the groups of each optimizer step: shuffled by the seed, of nearly equal number."""
    order = list(range(num_groups))
    random.Random(seed).shuffle(order)
    if settings.tasks_per_step:
        num_steps = -(-num_groups // settings.tasks_per_step)
    else:
        num_steps = min(settings.updates_per_shard or 1, num_groups)
    bounds = [round(step * num_groups / num_steps) for step in range(num_steps + 1)]
    return [sorted(order[start:stop]) for start, stop in itertools.pairwise(bounds)]


def weigh(shard: list[RowGroup], settings: Settings) -> None:
    """Fill in the importance weights of all rows, once pi_old is known."""
    for one in shard:
        weigh_rows(one.forwardable, settings)


def weigh_rows(rows: list[Row], settings: Settings) -> None:
    """Fill in the importance weights of rows; note which ones the correction or the veto drops."""
    if not rows:
        return
    correction, low, high = correction_of(settings)
    log_ratio = pad_sequence([row.log_ratio for row in rows], batch_first=True)
    mask = pad_sequence([torch.ones(len(row.completion_ids)) for row in rows], batch_first=True)
    weights = importance_weights(log_ratio, mask, correction=correction, low=low, high=high)
    veto = vetoed(log_ratio, mask,
                  threshold=settings.veto) if settings.veto else torch.zeros(len(rows)).bool()
    for row, row_weights, is_vetoed in zip(rows, weights, veto.tolist(), strict=True):
        row.vetoed, row.kept = is_vetoed, torch.full((len(row.completion_ids),), float(not is_vetoed))
        row.weights = row_weights[:len(row.completion_ids)] * row.kept
        if row.drop_reason is None and not row.weights.any():
            row.drop_reason = "vetoed" if is_vetoed else "importance_mask"


def plan_step(shard: list[RowGroup], groups: list[int], step: int, settings: Settings) -> int:
    """Denominators and token masks of one step, over all its completions; its trainable tokens come back."""
    rows = [row for index in groups for row in shard[index].rows]
    num_tokens = torch.tensor([row.num_trainable_tokens for row in rows])
    total = int(num_tokens.sum())
    longest = settings.max_completion_length or max(len(row.completion_ids) for row in rows)
    scales = loss_scales(settings.loss, num_tokens, num_completions=len(rows), total_trainable_tokens=total,
                         max_completion_length=longest)
    for row, scale in zip(rows, scales.tolist(), strict=True):
        row.scale, row.step = scale, step
        row.kept = torch.full((len(row.completion_ids),), float(not row.vetoed))
    trainable = [row for row in rows if row.trainable]
    if trainable and settings.loss == "m2po":
        _mask_tokens(trainable, second_moment_mask(torch.cat([row.log_ratio for row in trainable]),
                                                   torch.ones(total), limit=M2PO_LIMIT))
    if trainable and settings.entropy_quantile < 1:
        _mask_tokens(trainable, entropy_mask(torch.cat([row.entropy for row in trainable]), torch.ones(total),
                                             quantile=settings.entropy_quantile))
    return total


def has_gradient(row: Row, settings: Settings) -> bool:
    """False if leaving the completion out of the forward changes no gradient at all."""
    if not row.trainable:
        return False
    if settings.kl_beta or settings.entropy_coef:
        return True
    weighed = len(row.weights) > 0      # an online step learns the weights from its own forward
    return row.advantage != 0 and (not weighed or bool((row.weights * row.kept).any()))


def _mask_tokens(rows: list[Row], mask: Tensor) -> None:
    for row, kept in zip(rows, mask.split([len(row.completion_ids) for row in rows]), strict=True):
        row.kept = row.kept * kept


def _drop_reason(row: Row, settings: Settings) -> str | None:
    if not len(row.completion_ids):
        return "empty"
    if not row.trainable:
        return "truncated"
    if row.advantage != 0 or settings.kl_beta or settings.entropy_coef:
        return None
    return "missing_reward" if row.rollout.reward != row.rollout.reward else "zero_variance"
