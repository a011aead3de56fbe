"""Importance correction: weights on rho = pi_old / mu for rows of another engine or an older policy."""

from __future__ import annotations

import torch
from torch import Tensor

CORRECTIONS = ("none", "token-truncate", "token-mask", "sequence-truncate", "sequence-mask", "geometric-mask",
               "bypass")
MAX_LOG_RATIO = 20.0


def importance_weights(log_ratio: Tensor, loss_mask: Tensor, *, correction: str,
                       low: float | None = None, high: float | None = None) -> Tensor:
    """Detached weights of the tokens, [B, T], 1 outside the mask.

    `log_ratio` [B, T] is log pi_old - log mu in nats. token-truncate clamps rho_t to [low, high] (TIS);
    token-mask keeps rho_t inside and sets 0 outside (IcePop, arXiv 2510.18855); the sequence forms do the
    same with the *product* over the completion, which grows with its length: a mean gap of 1e-3 is a factor
    55 at 4k tokens. geometric-mask keeps a completion, with its rho_t, where the geometric mean lies inside.
    'none' and 'bypass' give 1.
    """
    masked = clamp_log_ratio(log_ratio.detach()) * loss_mask
    if correction in ("none", "bypass"):
        return torch.ones_like(masked)
    if correction.startswith("token-"):
        ratio = masked.exp()
    elif correction.startswith("sequence-"):
        ratio = clamp_log_ratio(masked.sum(dim=1, keepdim=True)).exp().expand_as(masked)
    elif correction == "geometric-mask":
        lengths = loss_mask.sum(dim=1, keepdim=True).clamp(min=1)
        kept = _inside((masked.sum(dim=1, keepdim=True) / lengths).exp(), low, high)
        return torch.where(kept, masked.exp(), 0.0)
    else:
        raise ValueError(f"correction is {correction!r}; it must be one of {', '.join(CORRECTIONS)}")
    if correction.endswith("-truncate"):
        return ratio.clamp(min=low, max=high) if low is not None or high is not None else ratio
    return torch.where(_inside(ratio, low, high), ratio, 0.0)


def vetoed(log_ratio: Tensor, loss_mask: Tensor, *, threshold: float) -> Tensor:
    """Completions, [B], with any rho_t below `threshold`: a token that the trainer holds for impossible."""
    return ((log_ratio < torch.tensor(threshold).log()) & loss_mask.bool()).any(dim=1)


def off_policy_masked(policy_logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor,
                      loss_mask: Tensor, *,
                      threshold: float) -> Tensor:
    """Completions, [B], of negative advantage with mean_t(log mu - log pi) > threshold; 2512.02556."""
    gaps = (behaviour_logprobs - policy_logprobs).detach() * loss_mask
    return (advantages < 0) & (gaps.sum(dim=1) / loss_mask.sum(dim=1).clamp(min=1) > threshold)


def second_moment_mask(log_ratio: Tensor, loss_mask: Tensor, *, limit: float) -> Tensor:
    """Loss mask without the largest |log w|, so that mean_t(log w)^2 <= limit (M2PO, arXiv 2510.01161); [B,
    T].

    Removes as few tokens as possible, over all tokens given, so give it every completion of the optimizer
    step.
    """
    active = loss_mask.bool()
    moments, order = log_ratio.detach()[active].square().sort()
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1, device=moments.device)
    kept_sorted = means <= limit
    kept = torch.zeros_like(kept_sorted).scatter(0, order, kept_sorted)
    result = torch.zeros_like(active)
    result[active] = kept
    return result.to(loss_mask.dtype)


def effective_sample_size(weights: Tensor) -> float:
    """ESS / n = (sum w)^2 / (n sum w^2) of weights [n]; 1 when all are equal, 0 when all are 0."""
    squares = weights.square().sum()
    return float(weights.sum().square() / (len(weights) * squares)) if len(weights) and squares > 0 else 0.0


def k3(log_ratio: Tensor) -> Tensor:
    """Estimator of KL(mu, pi) in nats, elementwise, from log pi - log mu of tokens drawn from mu; >= 0."""
    return log_ratio.exp() - log_ratio - 1


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Log ratio within +-20 nats, so that one absurd token cannot overflow a product."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _inside(ratio: Tensor, low: float | None, high: float | None) -> Tensor:
    inside = torch.ones_like(ratio, dtype=torch.bool)
    if low is not None:
        inside = inside & (ratio >= low)
    return inside & (ratio <= high) if high is not None else inside
