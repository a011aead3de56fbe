"""Completions and their groups as tensors: what the model forwards and what the loss needs of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from train.inputs.groups import Group, Rollout
from train.model.packs import PromptGroup
from train.model.token_logprobs import Support

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
    def advantage(self) -> float:
        """Mean advantage of the tokens: they are equal unless --advantages says otherwise."""
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

    @property
    def prompt_ids(self) -> Tensor:
        return torch.tensor(self.stored.prompt_ids, dtype=torch.long)

    def with_rows(self, places: list[int]) -> PromptGroup:
        rows = [self.rows[place] for place in places]
        return PromptGroup(self.prompt_ids, [row.completion_ids for row in rows], self.stored.temperature,
                           [row.support for row in rows])

    @property
    def forwardable(self) -> list[Row]:
        """Rows that have a token."""
        return [row for row in self.rows if row.num_tokens]


def forwardable(batch: list[RowGroup]) -> list[Row]:
    """Rows of all groups that have a token, one group after the other."""
    return [row for group in batch for row in group.forwardable]
