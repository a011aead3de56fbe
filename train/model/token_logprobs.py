"""Logprobs and entropies of sampled tokens from hidden states, without the [tokens, vocabulary] matrix.

Logits exist in float32 for a chunk of tokens at a time; backward computes a chunk again and writes the
gradient of its logits down in closed form: with p = softmax(logits / t), that of a logprob is
(onehot - p) / t, and that of the entropy H is -p (log p + H) / t.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**27}     # float32 logits held at a time: 128 and 512 MiB

Head = Callable[[Tensor], Tensor]


def token_logprobs(hidden: Tensor, head: Head, targets: Tensor, *, temperature: float, vocabulary_size: int
                   ) -> tuple[Tensor, Tensor]:
    """Logprob of each target [M] and entropy of its distribution, nats, float32, from hidden states [M, D].

    Backward adds to the gradients of the head's parameters, and returns that of the hidden states.
    """
    size = max(1, CHUNK_ELEMENTS.get(hidden.device.type, 2**25) // vocabulary_size)
    # A tensor that wants a gradient, so that backward is called where the hidden states want none.
    wanted = torch.zeros((), requires_grad=True)
    chunks = [_ChunkLogprobs.apply(wanted, chunk, head, chunk_targets, temperature)
              for chunk, chunk_targets in zip(hidden.split(size), targets.split(size), strict=True)]
    return torch.cat([chunk[0] for chunk in chunks]), torch.cat([chunk[1] for chunk in chunks])


class _ChunkLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wanted: Tensor, hidden: Tensor, head: Head, targets: Tensor, temperature: float
                ) -> tuple[Tensor, Tensor]:
        log_p = _scores(head(hidden), temperature).log_softmax(dim=-1)
        logprobs = log_p.gather(-1, targets[:, None]).squeeze(-1)
        entropy = -torch.linalg.vecdot(log_p.exp(), log_p)
        ctx.save_for_backward(hidden, targets, entropy)
        ctx.head, ctx.temperature = head, temperature
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None
                 ) -> tuple[Tensor | None, ...]:
        hidden, targets, entropy = ctx.saved_tensors
        with torch.enable_grad():
            hidden = hidden.detach().requires_grad_()
            logits = ctx.head(hidden)
        with torch.no_grad():
            log_p = _scores(logits.detach(), ctx.temperature).log_softmax(dim=-1)
            gradient = log_p.exp()
            if of_entropy is None:
                gradient *= -(of_logprobs / ctx.temperature)[:, None]
            else:
                factor = (log_p + entropy[:, None]) * of_entropy[:, None]
                gradient *= -(factor + (0 if of_logprobs is None else of_logprobs[:, None])) / ctx.temperature
            if of_logprobs is not None:
                gradient.scatter_add_(1, targets[:, None], (of_logprobs / ctx.temperature)[:, None])
        torch.autograd.backward([logits], [gradient.to(logits.dtype)])
        return None, hidden.grad, None, None, None


def _scores(logits: Tensor, temperature: float) -> Tensor:
    scores = logits.float()
    return scores if temperature == 1 else scores / temperature
