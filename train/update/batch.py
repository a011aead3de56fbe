"""The rows of one stage as tensors: advantages, masks, importance weights, drops, the split into steps."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.model.packs import PromptGroup
from train.model.token_logprobs import Support
from train.objective.advantages import group_advantages, regression_advantages
from train.objective.correction import importance_weights, second_moment_mask, veto_mask
from train.objective.loss_table import LOSSES
from train.objective.losses import entropy_mask, loss_scales
from train.rows.groups import Group, Rollout
from train.rows.own_advantages import own_advantages
from train.rows.settings import Settings, correction_of
from train.rows.turns import shared_prefixes

M2PO_LIMIT = 0.04
LEFT_OUT = ("empty", "truncated", "not_right")      # reasons for which the loss mask has no token of a row
UNKNOWN = torch.empty(0)


@dataclass
class Row:
    """One completion and all that the loss needs of it; tensors of its tokens, [n].

    What the rollout holds is made a tensor where it is asked for: numbers of all tokens are in memory once.
    """

    rollout: Rollout
    policy_version: int                         # that is trained
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
        """log mu, nats; pi_old itself of what another model said: nll alone takes it, and weighs nothing."""
        stored = torch.tensor(self.rollout.behaviour_logprobs)
        return self.old_logprobs if stored.isnan().any() else stored

    @property
    def staleness(self) -> Tensor:
        """How many policy versions ago each token was drawn."""
        return (self.policy_version - torch.tensor(self.rollout.versions)).expand(self.num_tokens)

    @property
    def support(self) -> Support | None:
        """What its tokens were drawn from; None where that is the whole vocabulary."""
        stored = self.rollout.support
        return stored and Support(*(torch.tensor(part, dtype=torch.long) for part in stored))

    @property
    def advantage(self) -> float:
        """Mean advantage of the tokens: all have the same but where --advantages says otherwise."""
        return float(self.advantages.double().mean()) if len(self.advantages) else 0.0

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
    parent: int | None = None       # number in the batch of the group that the prompt goes on from
    num_shared: int = 0             # tokens of the prompt there and of the completion that is continued

    @property
    def prompt_ids(self) -> Tensor:
        return torch.tensor(self.stored.prompt_ids, dtype=torch.long)

    @property
    def forwardable(self) -> list[Row]:
        """Rows that have a token."""
        return [row for row in self.rows if row.num_tokens]


def forwardable(batch: list[RowGroup]) -> list[Row]:
    """Rows of all groups that have a token, one group after the other."""
    return [row for group in batch for row in group.forwardable]


def prompt_groups(batch: list[RowGroup], chosen: dict[int, list[Row]]) -> list[PromptGroup]:
    """What the model is to forward: these rows of the groups of these numbers, in this order.

    Behind them come the groups that their prompts go on from, without rows, where those are not among them.
    """
    made: dict[int, PromptGroup] = {}

    def make(number: int) -> PromptGroup:
        if number not in made:
            group, rows = batch[number], chosen.get(number, [])
            parent = None if group.parent is None else make(group.parent)
            made[number] = PromptGroup(group.prompt_ids, [row.completion_ids for row in rows],
                                       group.stored.temperature, parent, group.num_shared,
                                       [row.support for row in rows])
        return made[number]

    wanted = [make(number) for number in chosen]
    return wanted + [group for number, group in made.items() if number not in chosen]


def conversations(batch: list[RowGroup], numbers: Iterable[int]) -> list[list[int]]:
    """Groups of these numbers, those together whose prompts begin with one another."""
    members: dict[int, list[int]] = {}
    for number in numbers:
        first = number
        while (parent := batch[first].parent) is not None:
            first = parent
        members.setdefault(first, []).append(number)
    return list(members.values())


def build_batch(groups: list[Group], policy_version: int, settings: Settings) -> list[RowGroup]:
    """Groups with advantages and loss masks, in the order given."""
    batch = [RowGroup(group, [Row(rollout, policy_version) for rollout in group.rollouts],
                      policy_version - group.policy_version, *shared)
             for group, shared in zip(groups, shared_prefixes(groups), strict=True)]
    rows = [row for group in batch for row in group.rows]
    for row, advantage in zip(rows, advantages_of(batch, settings), strict=True):
        row.advantages = advantage.expand(row.num_tokens)
        row.drop_reason = _drop_reason(row, settings)
        row.trainable = row.drop_reason not in LEFT_OUT
    return batch


def advantages_of(batch: list[RowGroup], settings: Settings) -> list[Tensor]:
    """The advantage of every completion: a number, or one per token where --advantages gives that."""
    rows = [row for group in batch for row in group.rows]
    if LOSSES[settings.loss].correct_only:
        return [torch.tensor(float(row.rollout.correct)) for row in rows]
    if settings.advantages:
        given = own_advantages(settings.advantages, [group.stored for group in batch],
                               [group.staleness for group in batch])
        return [torch.tensor(value, dtype=torch.float32) for value in given]
    rewards = torch.tensor([row.rollout.reward for row in rows], dtype=torch.float64)
    group_index = torch.repeat_interleave(torch.arange(len(batch)),
                                          torch.tensor([len(group.rows) for group in batch]))
    if settings.loss == "oapl":
        return list(regression_advantages(rewards, group_index, beta=settings.oapl_beta or 1.0).float())
    return list(group_advantages(rewards, group_index, scale=settings.scale_rewards).float())


def split_into_steps(batch: list[RowGroup], settings: Settings, seed: str) -> list[list[int]]:
    """Indices of the groups of each optimizer step: shuffled by the seed, of nearly equal number.

    What shares a prefix stays together but where a step ends.
    """
    together, num_groups = conversations(batch, range(len(batch))), len(batch)
    random.Random(seed).shuffle(together)
    order = list(itertools.chain.from_iterable(together))
    if settings.tasks_per_step:
        num_steps = -(-num_groups // settings.tasks_per_step)
    else:
        num_steps = min(settings.updates_per_batch or 1, num_groups)
    bounds = [round(step * num_groups / num_steps) for step in range(num_steps + 1)]
    return [sorted(order[start:stop]) for start, stop in itertools.pairwise(bounds)]


def weigh_rows(rows: list[Row], settings: Settings) -> None:
    """Fill in the importance weights of rows whose pi_old is known; note which ones are dropped by them."""
    if not rows:
        return
    correction, low, high = correction_of(settings)
    log_ratio = pad_sequence([row.log_ratio for row in rows], batch_first=True)
    mask = pad_sequence([torch.ones(row.num_tokens) for row in rows], batch_first=True)
    weights, kept = importance_weights(log_ratio, mask, correction=correction, low=low, high=high)
    veto = torch.zeros(len(rows), dtype=torch.bool)
    if settings.veto:
        veto = veto_mask(log_ratio, mask, threshold=settings.veto)
    weights, kept = weights * ~veto[:, None], kept & ~veto[:, None]
    for row, row_weights, row_kept, is_vetoed in zip(rows, weights, kept, veto.tolist(), strict=True):
        row.weights, row.kept = row_weights[:row.num_tokens].clone(), row_kept[:row.num_tokens].clone()
        if row.drop_reason is None and not row.weights.any() and not has_other_terms(settings):
            row.drop_reason = "vetoed" if is_vetoed else "importance_mask"


def plan_step(batch: list[RowGroup], groups: list[int], step: int, settings: Settings) -> int:
    """Denominators and token masks of one step, over all its completions; its trainable tokens come back."""
    rows = [row for index in groups for row in batch[index].rows]
    num_tokens = torch.tensor([row.num_trainable_tokens for row in rows])
    total = int(num_tokens.sum())
    longest = settings.max_completion_length or max(row.num_tokens for row in rows)
    scales = loss_scales(settings.loss, num_tokens, num_completions=len(rows), total_trainable_tokens=total,
                         max_completion_length=longest)
    for row, scale in zip(rows, scales.tolist(), strict=True):
        row.scale, row.step, row.mask = scale, step, torch.ones(()).expand(row.num_tokens)
    trainable = [row for row in rows if row.trainable]
    if trainable and settings.loss == "m2po":
        log_ratio = torch.cat([row.log_ratio for row in trainable])
        _mask_tokens(trainable, second_moment_mask(log_ratio, limit=M2PO_LIMIT))
    if trainable and settings.entropy_quantile < 1:
        entropy = torch.cat([row.entropy for row in trainable])
        _mask_tokens(trainable, entropy_mask(entropy, quantile=settings.entropy_quantile))
    num_unmasked = sum(float(row.mask.sum()) for row in trainable)
    for row in trainable:
        row.bonus_scale = 1 / max(num_unmasked, 1)
    return total


def has_gradient(row: Row, settings: Settings) -> bool:
    """False if leaving the completion out of the forward changes no gradient at all."""
    if not row.trainable:
        return False
    if has_other_terms(settings):
        return True
    weighed = len(row.weights) > 0      # an online step learns the weights from its own forward
    return bool(row.advantages.any()) and (not weighed or bool((row.weights * row.mask).any()))


def has_other_terms(settings: Settings) -> bool:
    """Whether the loss has a term that needs no advantage: a KL, an entropy bonus, a regression."""
    return bool(settings.kl_beta or settings.entropy_coef or settings.loss == "oapl")


def _mask_tokens(rows: list[Row], mask: Tensor) -> None:
    for row, row_mask in zip(rows, mask.split([row.num_tokens for row in rows]), strict=True):
        row.mask = row.mask * row_mask


def _drop_reason(row: Row, settings: Settings) -> str | None:
    if not row.num_tokens:
        return "empty"
    if settings.mask_truncated and row.rollout.truncated:
        return "truncated"
    if LOSSES[settings.loss].correct_only and not row.rollout.correct:
        return "not_right"
    if row.advantages.any() or has_other_terms(settings):
        return None
    return "missing_reward" if row.rollout.reward != row.rollout.reward else "zero_variance"
