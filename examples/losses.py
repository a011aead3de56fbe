"""Losses for `train --loss`, each a function of the user's: what tokens lose, [B, T], logprobs in nats.

    train RUN --loss examples/losses.py:sapo
    train RUN --loss examples/losses.py:vespo --correction none

Each gets log pi, log pi_old, log mu, the advantages and the loss mask, all [B, T]. It says with its attribute
`reduction` how tokens add up: token (mean over the tokens of the step, the default), completion (mean over
completions of the mean over tokens) or fixed (sum over tokens / (completions * --max-completion-length)).
Those with a ratio against mu want `--correction none`, or rho would weigh twice.
With `--correction bypass` log pi_old is log mu. `--kl-beta` is added to any of them.
"""

import math

import torch
from torch import Tensor


def sapo(policy: Tensor, old: Tensor, _behaviour: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-A (4 / tau) sigmoid(tau (pi / pi_old - 1)): a gate that closes smoothly; arXiv 2511.20347."""
    tau = torch.where(advantages > 0, 1.0, 1.05)
    ratio = torch.where(mask.bool(), policy - old, 0.0).exp()
    return -advantages * 4 / tau * torch.sigmoid(tau * (ratio - 1))


sapo.reduction = "completion"       # type: ignore[attr-defined]


def vespo(policy: Tensor, old: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-phi(W) A log pi, phi = W^k e^(lam (1 - W)) detached, W the product of pi/mu over the completion.

    (k, lam) is (2, 3) where A >= 0 and (3, 2) elsewhere: one peak at W = k / lam, and none of a product's
    explosions.
    """
    floor = math.log(1e-8)
    drift = ((policy - old).clamp(-20, 20) * mask).sum(dim=1, keepdim=True)
    mismatch = ((old - behaviour).clamp(floor, 20.0) * mask).sum(dim=1, keepdim=True)
    log_weight = (drift + mismatch).detach().clamp(floor, 20.0)
    power, rate = torch.where(advantages >= 0, 2.0, 3.0), torch.where(advantages >= 0, 3.0, 2.0)
    return -(rate + power * log_weight - rate * log_weight.exp()).exp() * advantages * policy


def dppo(policy: Tensor, _old: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Binary total variation: -(pi/mu) A, 0 where pi(token) - mu(token) has A's sign and exceeds 0.2."""
    moved = policy.detach().exp() - behaviour.exp()
    masked = ((advantages > 0) & (moved > 0.2)) | ((advantages < 0) & (moved < -0.2))
    return torch.where(masked, 0.0, -torch.where(mask.bool(), policy - behaviour, 0.0).exp() * advantages)


def topr(policy: Tensor, _old: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-A log pi, for A < 0 times clip(prod_t pi/mu, 0, 1): data of any policy; arXiv 2503.14286."""
    log_weight = ((policy - behaviour).detach() * mask).sum(dim=1, keepdim=True)
    return -torch.where(advantages >= 0, 1.0, log_weight.clamp(max=0.0).exp()) * advantages * policy
