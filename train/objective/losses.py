"""Losses per token, and how they add up to the loss of one optimizer step; pure, logprobs in nats."""

import math

import torch
from torch import Tensor

from train.objective.correction import clamp_log_ratio, k3
from train.objective.loss_table import LOSSES

TIE = 1e-4  # entropies this near to the threshold, relative to it, are equal: packing changes the rounding


def token_losses(loss: str, policy_logprobs: Tensor, old_logprobs: Tensor, behaviour_logprobs: Tensor,
                 advantages: Tensor, loss_mask: Tensor, *, clip_low: float, clip_high: float,
                 delta: float | None = None, level: str = "token") -> tuple[Tensor, Tensor]:
    """Surrogate per token and whether it was clipped, both [B, T]; advantages [B] or [B, T], the rest [B, T].

    Nothing outside `loss_mask` means anything in the result. Importance weights, KL and reduction come after.
    """
    advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
    if loss in ("dppo", "m2po"):
        ratio = importance_ratio(policy_logprobs, behaviour_logprobs, loss_mask, level="token")
    else:
        ratio = importance_ratio(policy_logprobs, old_logprobs, loss_mask, level=level)
    if loss == "cispo":
        result = capped_policy_gradient(ratio, policy_logprobs, advantages, cap=clip_high)
    elif loss == "sapo":
        result = soft_gate(ratio, advantages)
    elif loss == "vespo":
        result = shaped_policy_gradient(policy_logprobs, old_logprobs, behaviour_logprobs,
                                        advantages, loss_mask)
    elif loss == "dppo":
        result = divergence_mask(ratio, policy_logprobs, behaviour_logprobs, advantages)
    elif loss == "topr":
        result = taper(policy_logprobs, behaviour_logprobs, advantages, loss_mask)
    elif loss in ("reinforce", "nll"):
        result = -advantages * policy_logprobs, torch.zeros_like(policy_logprobs)
    elif loss == "oapl":
        result = regression(policy_logprobs, behaviour_logprobs, advantages, loss_mask)
    elif loss == "m2po":
        result = -ratio * advantages, torch.zeros_like(ratio)
    elif "delta" in LOSSES[loss].takes:
        result = clipped_surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high, delta=delta)
    else:
        raise AssertionError(f"the loss {loss} has no formula here")
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


def soft_gate(ratio: Tensor, advantages: Tensor, *, tau_positive: float = 1.0,
              tau_negative: float = 1.05) -> tuple[Tensor, Tensor]:
    """-A (4 / tau) sigmoid(tau (r - 1)): a gate that closes smoothly; arXiv 2511.20347."""
    tau = torch.where(advantages > 0, torch.full_like(advantages, tau_positive), tau_negative)
    return -advantages * 4 / tau * torch.sigmoid(tau * (ratio - 1)), torch.zeros_like(ratio)


def shaped_policy_gradient(policy_logprobs: Tensor, old_logprobs: Tensor, behaviour_logprobs: Tensor,
                           advantages: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """VESPO: -phi(W) A log pi with phi = W^k e^(lam (1 - W)), detached; W is the product of pi/mu over the
    completion.

    (k, lam) is (2, 3) where A >= 0 and (3, 2) elsewhere: one peak at W = k / lam, and none of a product's
    explosions.
    """
    floor = torch.tensor(1e-8).log().item()
    drift = (clamp_log_ratio(policy_logprobs - old_logprobs) * loss_mask).sum(dim=1, keepdim=True)
    mismatch = ((old_logprobs - behaviour_logprobs).clamp(floor, 20.0) * loss_mask).sum(dim=1, keepdim=True)
    log_weight = (drift + mismatch).detach().clamp(floor, 20.0)
    power, rate = torch.where(advantages >= 0, 2.0, 3.0), torch.where(advantages >= 0, 3.0, 2.0)
    shape = (rate + power * log_weight - rate * log_weight.exp()).exp()
    return -shape * advantages * policy_logprobs, torch.zeros_like(policy_logprobs)


def divergence_mask(ratio: Tensor, policy_logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor, *,
                    limit: float = 0.2) -> tuple[Tensor, Tensor]:
    """DPPO, binary total variation: -w A, 0 where pi(token) - mu(token) has A's sign and exceeds `limit`."""
    moved = policy_logprobs.detach().exp() - behaviour_logprobs.exp()
    masked = ((advantages > 0) & (moved > limit)) | ((advantages < 0) & (moved < -limit))
    return torch.where(masked, 0.0, -ratio * advantages), masked.float()


def taper(policy_logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor,
          loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """TOPR: -A log pi, for A < 0 times clip(prod_t pi/mu, 0, 1): data of any policy; arXiv 2503.14286."""
    log_weight = ((policy_logprobs - behaviour_logprobs).detach() * loss_mask).sum(dim=1, keepdim=True)
    weight = torch.where(advantages >= 0, 1.0, log_weight.clamp(max=0.0).exp())
    return -weight * advantages * policy_logprobs, torch.zeros_like(policy_logprobs)


def regression(policy_logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor,
               loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """OAPL: (log prod pi/mu - A)^2 of a completion, shared out to its tokens: no ratio, no clip.

    A is that of `regression_advantages`, in nats: what the log ratio of the best policy near mu would be.
    """
    length = loss_mask.sum(dim=1, keepdim=True).clamp(min=1)
    log_weight = ((policy_logprobs - behaviour_logprobs) * loss_mask).sum(dim=1, keepdim=True)
    return (log_weight - advantages).square() / length, torch.zeros_like(policy_logprobs)


def kl_to_reference(policy_logprobs: Tensor, ref_logprobs: Tensor, ratio: Tensor | None = None) -> Tensor:
    """k3 estimator of KL(pi, ref) per token, [B, T]; times `ratio`, unbiased once pi has left pi_old."""
    divergence = k3(ref_logprobs - policy_logprobs)
    return divergence if ratio is None else divergence * ratio


def entropy_mask(entropy: Tensor, *, quantile: float) -> Tensor:
    """1 for the `quantile` share of tokens [n] with the highest entropy (arXiv 2506.01939), else 0.

    The threshold is taken over all tokens given: give it every trainable one of the optimizer step. First
    tokens of a group have one entropy but for rounding: ties are in together or out together.
    """
    ordered, place = entropy.double().sort().values, (1 - quantile) * (len(entropy) - 1)
    threshold = torch.lerp(ordered[math.floor(place)], ordered[math.ceil(place)], place % 1)
    return (entropy >= threshold * (1 - TIE)).to(entropy.dtype)


def loss_scales(loss: str, num_trainable_tokens: Tensor, *, num_completions: int, total_trainable_tokens: int,
                max_completion_length: int) -> Tensor:
    """Factor of each completion's summed token losses, [B], so that the sum over all is the loss of the step.

    The denominators belong to the whole optimizer step, over all processes: packing cannot change the loss.
    completion: mean over completions of the mean over tokens; token: mean over tokens; fixed: sum over tokens
    / (B * max_completion_length); sum: mean over completions of the sum over tokens.
    """
    reduction, ones = LOSSES[loss].reduction, torch.ones_like(num_trainable_tokens, dtype=torch.float64)
    if reduction == "completion":
        return ones / num_trainable_tokens.clamp(min=1) / num_completions
    if reduction == "token":
        return ones / max(total_trainable_tokens, 1)
    if reduction == "fixed":
        return ones / (num_completions * max_completion_length)
    return ones / num_completions
