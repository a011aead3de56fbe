"""Importance correction: weights on rho = pi_old / mu for rows of another engine or an older policy."""

import math

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


def importance_weights(log_ratio: Tensor, loss_mask: Tensor, *, correction: str, low: float | None = None,
                       high: float | None = None) -> tuple[Tensor, Tensor]:
    """Detached weights of the tokens, and which tokens no bound changed, both [B, T].

    `log_ratio` [B, T] is log pi_old - log mu in nats. token-truncate clamps rho_t to [low, high] (TIS);
    token-mask keeps rho_t inside and sets 0 outside (IcePop, arXiv 2510.18855); the sequence forms do the
    same with the *product* over the completion, which grows with its length: a mean gap of 1e-3 is a factor
    55 at 4k tokens. 'none' and 'bypass' give 1.
    """
    masked = clamp_log_ratio(log_ratio.detach()) * loss_mask
    if correction in ("none", "bypass"):
        return torch.ones_like(masked), torch.ones_like(masked, dtype=torch.bool)
    ratio = masked.exp()
    if correction.startswith("sequence-"):
        ratio = clamp_log_ratio(masked.sum(dim=1, keepdim=True)).exp().expand_as(masked)
    bounded = ratio.clamp(min=low, max=math.inf if high is None else high)
    inside = bounded == ratio
    return (bounded if correction.endswith("-truncate") else torch.where(inside, ratio, 0.0)), inside


def veto_mask(log_ratio: Tensor, loss_mask: Tensor, *, threshold: float) -> Tensor:
    """Completions, [B], with any rho_t below `threshold`: the trainer considers such a token impossible."""
    return ((log_ratio < torch.tensor(threshold).log()) & loss_mask.bool()).any(dim=1)


def off_policy_mask(policy_logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor,
                    loss_mask: Tensor, *, threshold: float) -> Tensor:
    """Completions, [B], of negative advantage with mean_t(log mu - log pi) > threshold; 2512.02556.

    With advantages per token, [B, T], their mean counts.
    """
    advantages = advantages if advantages.dim() == 1 else (advantages * loss_mask).sum(dim=1)
    gaps = (behaviour_logprobs - policy_logprobs).detach() * loss_mask
    return (advantages < 0) & (gaps.sum(dim=1) / loss_mask.sum(dim=1).clamp(min=1) > threshold)


def effective_sample_size(log_ratio: Tensor) -> float:
    """ESS / n = (sum w)^2 / (n sum w^2) of the weights w = exp(log_ratio) [n]: 1 when all are equal."""
    weights = clamp_log_ratio(log_ratio).double().exp()
    return float(weights.sum().square() / (len(weights) * weights.square().sum())) if len(weights) else 1.0


def k3(log_ratio: Tensor) -> Tensor:
    """Estimator of KL(mu, pi) in nats, elementwise, from log pi - log mu of tokens drawn from mu; >= 0.

    expm1, because in float32 exp(d) - 1 would lose all of a d below 1e-4.
    """
    return log_ratio.expm1() - log_ratio


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Log ratio within +-20 nats, so that one absurd token cannot overflow a product."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
