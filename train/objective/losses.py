"""Advantages, losses per token, and how these add up to the loss of an optimizer step; logprobs in nats."""

import math

import torch
from torch import Tensor

from train.objective.correction import k3
from train.objective.loss_table import LOSSES, find_loss
from warehouse.stages.user_code import UserFunction
from warehouse.store.errors import StageError

STD_EPSILON = 1e-4
TIE = 1e-4  # entropies this near to the threshold, relative to it, are equal: packing changes the rounding


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


def token_losses(loss: str, policy_logprobs: Tensor, old_logprobs: Tensor, behaviour_logprobs: Tensor,
                 advantages: Tensor, loss_mask: Tensor, *, clip_low: float, clip_high: float,
                 delta: float | None = None, level: str = "token") -> tuple[Tensor, Tensor]:
    """Surrogate per token and whether it was clipped, both [B, T]; advantages [B] or [B, T], the rest [B, T].

    Values outside of `loss_mask` are meaningless. Importance weights, KL and reduction come after.
    """
    advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
    if own := find_loss(loss).own:
        token_loss = own_losses(own, policy_logprobs, old_logprobs, behaviour_logprobs,
                                advantages.expand_as(policy_logprobs), loss_mask)
        return token_loss, torch.zeros_like(token_loss)
    ratio = importance_ratio(policy_logprobs, old_logprobs, loss_mask, level=level)
    if loss == "cispo":
        result = capped_policy_gradient(ratio, policy_logprobs, advantages, cap=clip_high)
    elif loss in ("reinforce", "nll"):
        result = -advantages * policy_logprobs, torch.zeros_like(policy_logprobs)
    else:
        assert "delta" in LOSSES[loss].takes, f"the loss {loss} has no formula here"
        result = clipped_surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high, delta=delta)
    token_loss, clipped = result
    return token_loss.expand_as(policy_logprobs), clipped.expand_as(policy_logprobs)


def importance_ratio(policy_logprobs: Tensor, old_logprobs: Tensor, loss_mask: Tensor, *,
                     level: str) -> Tensor:
    """pi / pi_old per token [B, T], or its geometric mean over the completion [B, 1] for level 'sequence'."""
    log_ratio = torch.where(loss_mask.bool(), policy_logprobs - old_logprobs, 0.0)
    if level == "token":
        return log_ratio.exp()
    return (log_ratio.sum(dim=1, keepdim=True) / loss_mask.sum(dim=1, keepdim=True).clamp(min=1)).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float,
                      delta: float | None = None) -> tuple[Tensor, Tensor]:
    """-min(min(r, delta) A, clip(r, 1 - low, 1 + high) A); arXiv 1707.06347 eq. 7, delta from 2505.07291."""
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    unclipped, clipped = bounded * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(unclipped, clipped), (ratio * advantages > clipped).float()


def capped_policy_gradient(ratio: Tensor, policy_logprobs: Tensor, advantages: Tensor, *,
                           cap: float) -> tuple[Tensor, Tensor]:
    """-stopgrad(min(r, cap)) A log pi: every token keeps a gradient; arXiv 2506.13585 eq. 4."""
    return -ratio.detach().clamp(max=cap) * advantages * policy_logprobs, (ratio > cap).float()


def own_losses(own: UserFunction, *tensors: Tensor) -> Tensor:
    """The loss of each token from the user's function, [B, T]; StageError if it returns anything else."""
    given = own.call(f"--loss {own.path}:{own.name}", "Nothing of the step was applied.", *tensors)
    if not isinstance(given, Tensor) or given.shape != tensors[0].shape:
        shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise StageError(f"--loss {own.path}:{own.name} returned {shape}. Return the loss of each token, a "
                         f"tensor {tuple(tensors[0].shape)}.")
    return given


def kl_to_reference(policy_logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor | None = None) -> Tensor:
    """k3 estimator of KL(pi, ref) per token, [B, T]; times `ratio`, unbiased once pi has left pi_old."""
    divergence = k3(ref_logprobs - policy_logprobs)
    return divergence if ratio is None else divergence * ratio


def entropy_mask(entropy: Tensor, *, quantile: float) -> Tensor:
    """1 for the `quantile` share of tokens [n] with the highest entropy (arXiv 2506.01939), else 0.

    The threshold is over all given tokens: pass every trainable one of the optimizer step. The first tokens
    of a group have equal entropies except for rounding: ties are all in or all out.
    """
    ordered, place = entropy.double().sort().values, (1 - quantile) * (len(entropy) - 1)
    threshold = torch.lerp(ordered[math.floor(place)], ordered[math.ceil(place)], place % 1)
    return (entropy >= threshold * (1 - TIE)).to(entropy.dtype)


def loss_scales(loss: str, num_trainable_tokens: Tensor, *, num_completions: int, total_trainable_tokens: int,
                max_completion_length: int) -> Tensor:
    """Factor of each completion's summed token losses, [B], so that the sum over all is the loss of the step.

    The denominators belong to the whole optimizer step, over all processes: packing cannot change the loss.
    completion: mean over completions of the mean over tokens; token: mean over tokens; fixed: sum over tokens
    / (B * max_completion_length).
    """
    reduction, ones = find_loss(loss).reduction, torch.ones_like(num_trainable_tokens, dtype=torch.float64)
    if reduction == "completion":
        return ones / num_trainable_tokens.clamp(min=1) / num_completions
    if reduction == "token":
        return ones / max(total_trainable_tokens, 1)
    return ones / (num_completions * max_completion_length)
