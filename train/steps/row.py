"""Completions and their groups as tensors: advantages, masks, importance weights, the split into steps."""

import itertools
import random
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.inputs.groups import Group, Rollout
from train.inputs.options import TrainOptions
from train.inputs.settings import correction_of
from train.inputs.signal import LEFT_OUT, WEIGHED_OUT, drop_reason, has_other_terms
from train.model.packs import PromptGroup
from train.model.token_logprobs import Support
from train.objective.correction import importance_weights, veto_mask
from train.objective.loss_table import find_loss
from train.objective.losses import entropy_mask, group_advantages, loss_scales

UNKNOWN = torch.empty(0)


@dataclass
class Row:
    """One completion with everything the loss needs; tensors over its tokens, [n].

    Arrays of the rollout become tensors on access, so that all tokens are in memory only once.
    """

    rollout: Rollout
    policy_version: int                         # the one being trained
    advantages: Tensor = UNKNOWN
    drop_reason: str | None = None
    trainable: bool = True                      # its tokens are in the loss mask
    old_logprobs: Tensor = UNKNOWN
    entropy: Tensor = UNKNOWN
    ref_logprobs: Tensor = UNKNOWN
    weights: Tensor = UNKNOWN
    kept: Tensor = UNKNOWN                      # weight neither 0 nor changed by a bound
    mask: Tensor = UNKNOWN                      # 0 where the loss leaves the token out
    log_drift: Tensor = UNKNOWN                 # log pi - log pi_old at its step; NaN: not used yet
    clipped: Tensor = UNKNOWN                   # 1 where that step's clip took the gradient
    scale: float = 0.0                          # see losses.loss_scales
    bonus_scale: float = 0.0                    # the same of the entropy bonus, whatever the loss
    step: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.rollout.completion_ids)

    @property
    def completion_ids(self) -> Tensor:
        return torch.tensor(self.rollout.completion_ids, dtype=torch.long)

    @property
    def behaviour_logprobs(self) -> Tensor:
        """log mu, nats; for rows of another model pi_old, since only nll takes them and weighs nothing."""
        stored = torch.tensor(self.rollout.behaviour_logprobs)
        return self.old_logprobs if stored.isnan().any() else stored

    @property
    def staleness(self) -> Tensor:
        """The number of policy versions since each token was sampled."""
        return (self.policy_version - torch.tensor(self.rollout.versions)).expand(self.num_tokens)

    @property
    def support(self) -> Support | None:
        """The ids from which its tokens were sampled; None if that is the whole vocabulary."""
        stored = self.rollout.support
        return stored and Support(*(torch.tensor(part, dtype=torch.long) for part in stored))

    @property
    def num_trainable_tokens(self) -> int:
        return self.num_tokens if self.trainable else 0

    @property
    def log_ratio(self) -> Tensor:
        """log rho = log pi_old - log mu of the tokens, nats."""
        return self.old_logprobs - self.behaviour_logprobs


@dataclass
class RowGroup:
    """A stored group as tensors, its rows, and its staleness in policy versions."""

    stored: Group
    rows: list[Row]
    staleness: int

    @property
    def prompt_ids(self) -> Tensor:
        return torch.tensor(self.stored.prompt_ids, dtype=torch.long)

    def with_rows(self, places: list[int]) -> PromptGroup:
        rows = [self.rows[place] for place in places]
        return PromptGroup(self.prompt_ids, [row.completion_ids for row in rows], self.stored.temperature,
                           [row.support for row in rows])


def forwardable(batch: list[RowGroup]) -> list[Row]:
    """Rows of all groups that have a token, one group after the other."""
    return [row for group in batch for row in group.rows if row.num_tokens]


def build_batch(groups: list[Group], policy_version: int, settings: TrainOptions,
                own: list[Tensor] | None = None) -> list[RowGroup]:
    """Groups with advantages and loss masks, in the given order; `own` are the advantages of --advantages."""
    batch = [RowGroup(group, [Row(rollout, policy_version) for rollout in group.rollouts],
                      policy_version - group.policy_version) for group in groups]
    rows = [row for group in batch for row in group.rows]
    for row, advantage in zip(rows, own or advantages_of(batch, settings), strict=True):
        row.advantages = advantage.expand(row.num_tokens)
        row.drop_reason = drop_reason(row.rollout, settings, has_advantage=bool(row.advantages.any()))
        row.trainable = row.drop_reason not in LEFT_OUT
    return batch


def advantages_of(batch: list[RowGroup], settings: TrainOptions) -> list[Tensor]:
    rows = [row for group in batch for row in group.rows]
    if find_loss(settings.loss).correct_only:
        return [torch.tensor(float(row.rollout.correct)) for row in rows]
    rewards = torch.tensor([row.rollout.reward for row in rows], dtype=torch.float64)
    sizes = [len(group.rows) for group in batch]
    return list(group_advantages(rewards, sizes, scale=settings.scale_rewards).float())


def split_into_steps(batch: list[RowGroup], settings: TrainOptions, seed: str) -> list[list[int]]:
    """Indices of the groups of each optimizer step: shuffled by the seed, nearly equal in number."""
    order, num_groups = list(range(len(batch))), len(batch)
    random.Random(seed).shuffle(order)
    num_steps = min(settings.updates_per_batch or 1, num_groups)
    bounds = [round(step * num_groups / num_steps) for step in range(num_steps + 1)]
    return [sorted(order[start:stop]) for start, stop in itertools.pairwise(bounds)]


def weigh_rows(rows: list[Row], settings: TrainOptions) -> None:
    """Fill in the importance weights of rows with a known pi_old; record which rows they drop."""
    if not rows:
        return
    correction, low, high = correction_of(settings)
    log_ratio = pad_sequence([row.log_ratio for row in rows], batch_first=True)
    mask = pad_sequence([torch.ones(row.num_tokens) for row in rows], batch_first=True)
    weights, kept = importance_weights(log_ratio, mask, correction=correction, low=low, high=high)
    veto = veto_mask(log_ratio, mask, threshold=settings.veto or 0.0)
    weights, kept = weights * ~veto[:, None], kept & ~veto[:, None]
    for row, row_weights, row_kept, is_vetoed in zip(rows, weights, kept, veto.tolist(), strict=True):
        row.weights, row.kept = row_weights[:row.num_tokens].clone(), row_kept[:row.num_tokens].clone()
        if row.drop_reason is None and not row.weights.any() and not has_other_terms(settings):
            row.drop_reason = WEIGHED_OUT[is_vetoed]


def plan_step(batch: list[RowGroup], groups: list[int], step: int, settings: TrainOptions) -> int:
    """Set denominators and token masks of one step, over all its completions; return its trainable tokens."""
    rows = [row for index in groups for row in batch[index].rows]
    num_tokens = torch.tensor([row.num_trainable_tokens for row in rows])
    total = int(num_tokens.sum())
    longest = settings.max_completion_length or max(row.num_tokens for row in rows)
    scales = loss_scales(settings.loss, num_tokens, num_completions=len(rows), total_trainable_tokens=total,
                         max_completion_length=longest)
    for row, scale in zip(rows, scales.tolist(), strict=True):
        row.scale, row.step, row.mask = scale, step, torch.ones(()).expand(row.num_tokens)
    trainable, num_unmasked = [row for row in rows if row.trainable], total
    if trainable and settings.entropy_quantile < 1:
        entropy = torch.cat([row.entropy for row in trainable])
        mask = entropy_mask(entropy, quantile=settings.entropy_quantile)
        num_unmasked = int(mask.sum())
        for row, row_mask in zip(trainable, mask.split([row.num_tokens for row in trainable]), strict=True):
            row.mask = row_mask
    for row in trainable:
        row.bonus_scale = 1 / max(num_unmasked, 1)
    return total


def has_gradient(row: Row, settings: TrainOptions) -> bool:
    """False if leaving the completion out of the forward changes no gradient."""
    if not row.trainable or row.drop_reason == "missing_reward":
        return False
    if has_other_terms(settings):
        return True
    weighed = len(row.weights) > 0      # an online step has the weights only after its forward
    return bool(row.advantages.any()) and (not weighed or bool((row.weights * row.mask).any()))
