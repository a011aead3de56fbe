"""Logprobs and entropies of sampled tokens from hidden states, without the [tokens, vocabulary] matrix.

Logits exist in float32 for one chunk of tokens at a time, and their gradient has a closed form:
with p = softmax(logits / t), that of a logprob is (onehot - p) / t, and that of the entropy H is
-p (log p + H) / t. If truncated sampling restricted a token to a few ids, p is over these ids, with the same
formulas. With a frozen head, forward already carries the gradients of logprobs through the head, and
backward only scales them; otherwise, and for the entropy, backward recomputes each chunk.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IMPOSSIBLE = -1e30                                 # a score whose probability is 0, and p log p too
CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**27}     # float32 logits held at a time: 128 and 512 MiB

Head = Callable[[Tensor], Tensor]


class Support(NamedTuple):
    """The ids from which tokens were sampled: concatenated over M tokens [S], and their number per token [M].

    A token with 0 ids was sampled from the whole vocabulary. On the CPU.
    """

    ids: Tensor
    sizes: Tensor


def token_logprobs(hidden: Tensor, head: Head, targets: Tensor, *, temperature: float, vocabulary_size: int,
                   head_is_frozen: bool = False, support: Support | None = None) -> tuple[Tensor, Tensor]:
    """Logprob of each target [M] and entropy of its distribution, nats, float32, from hidden states [M, D].

    With `support`, distributions are renormalised over it, and targets must be in it. Backward adds to the
    gradients of the head's parameters, and returns that of the hidden states.
    """
    size = max(1, CHUNK_ELEMENTS.get(hidden.device.type, 2**25) // vocabulary_size)
    # Requires a gradient, so that backward is called even if the hidden states need none.
    wanted = torch.zeros((), requires_grad=True)
    # Float16 needs the loss scale, known only in backward, to keep small gradients.
    at_once = head_is_frozen and hidden.requires_grad and hidden.dtype != torch.float16
    chunks = [_ChunkLogprobs.apply(wanted, chunk, head, chunk_targets, temperature, at_once, chunk_support)
              for chunk, chunk_targets, chunk_support in zip(hidden.split(size), targets.split(size),
                                                             _split(support, size), strict=False)]
    return torch.cat([chunk[0] for chunk in chunks]), torch.cat([chunk[1] for chunk in chunks])


class _ChunkLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wanted: Tensor, hidden: Tensor, head: Head, targets: Tensor, temperature: float,
                at_once: bool, support: Support | None) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(at_once):
            leaf = hidden.detach().requires_grad_(at_once)
            logits = head(leaf)
        log_p = _log_softmax(logits.detach(), temperature, support)
        logprobs = log_p.gather(-1, targets[:, None]).squeeze(-1)
        p = log_p.exp()
        entropy = -torch.linalg.vecdot(p, log_p)
        of_hidden = None
        if at_once:
            gradient = p.neg_().scatter_add_(1, targets[:, None], torch.ones_like(logprobs)[:, None])
            of_hidden, = torch.autograd.grad(logits, leaf, gradient.to(logits.dtype))
        ctx.save_for_backward(hidden, targets, entropy, of_hidden)
        ctx.head, ctx.temperature, ctx.support = head, temperature, support
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None
                 ) -> tuple[Tensor | None, ...]:
        hidden, targets, entropy, of_hidden = ctx.saved_tensors
        if of_hidden is not None and of_entropy is None:
            gradient = of_hidden * (of_logprobs / ctx.temperature)[:, None]
            return None, gradient.to(hidden.dtype), None, None, None, None, None
        with torch.enable_grad():
            hidden = hidden.detach().requires_grad_()
            logits = ctx.head(hidden)
        with torch.no_grad():
            log_p = _log_softmax(logits.detach(), ctx.temperature, ctx.support)
            gradient = log_p.exp()
            if of_entropy is None:
                gradient *= -(of_logprobs / ctx.temperature)[:, None]
            else:
                factor = (log_p + entropy[:, None]) * of_entropy[:, None]
                gradient *= -(factor + (0 if of_logprobs is None else of_logprobs[:, None])) / ctx.temperature
            if of_logprobs is not None:
                gradient.scatter_add_(1, targets[:, None], (of_logprobs / ctx.temperature)[:, None])
        torch.autograd.backward([logits], [gradient.to(logits.dtype)])
        return None, hidden.grad, None, None, None, None, None


def _split(support: Support | None, size: int) -> Iterable[Support | None]:
    """The support of each chunk of `size` tokens."""
    if support is None:
        return repeat(None)
    sizes = support.sizes.split(size)
    return map(Support, support.ids.split([int(each.sum()) for each in sizes]), sizes)


def _log_softmax(logits: Tensor, temperature: float, support: Support | None) -> Tensor:
    scores = logits if temperature == 1 else logits.float() / temperature
    if support is not None:
        left_out = (support.sizes > 0)[:, None].repeat(1, logits.shape[1])
        left_out[torch.repeat_interleave(support.sizes), support.ids] = False
        scores = scores.float().masked_fill(left_out.to(scores.device), IMPOSSIBLE)
    return scores.log_softmax(dim=-1, dtype=torch.float32)
