"""How a completion ends: the next draw to request, and why a completion is over."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from rollout.engines.engine import Request, Sampled, Sampling
from rollout.prompts.plan import seed_of

FINAL_ONLY = 2                   # vLLM's RequestOutputKind: one answer, after the last token
REASONS = ("stop", "length")


class Drawn(NamedTuple):
    """The result of one draw: ids, their logprobs (nats), the engine's finish reason.

    And the ids that truncation kept for each token; empty if it kept all.
    """

    ids: list[int]
    logprobs: list[float]
    reason: str
    support: list[list[int]]


def next_draw(request: Request, sampling: Sampling) -> tuple[list[int], int, int]:
    """What to request from an engine: token ids, seed, and the maximum number of tokens.

    A continued completion needs another seed: the first seed would repeat the same random numbers.
    """
    num_drawn = len(request.drawn_ids)
    seed = seed_of(request.seed, "from", num_drawn) if num_drawn else request.seed
    return [*request.prompt_ids, *request.drawn_ids], seed, sampling.max_tokens - num_drawn


def draw_parameters(sampling: Sampling, seed: int, max_tokens: int) -> dict[str, Any]:
    """vLLM's parameters of one draw: seed, the sampled token's logprob, ids only.

    With --top-k also the logprobs of all candidates.
    """
    return {**vars(sampling), "max_tokens": max_tokens, "seed": seed, "logprobs": sampling.num_likely(),
            "detokenize": False, "output_kind": FINAL_ONLY}


def likely(logprobs: Iterable[tuple[int, float]], least: float = -math.inf) -> tuple[list[int], float]:
    """Ids of (id, logprob) pairs that can be sampled, those above `least`, and their total logprob.

    The total is 0 unless more tokens tie at the edge of truncation than the engine returns. Subtracting it
    from a token's logprob renormalises over the returned tokens.
    """
    left = {token: logprob for token, logprob in logprobs if logprob > least}
    return [*left], math.log(math.fsum(map(math.exp, left.values())))


def after_draw(request: Request, sampling: Sampling, drawn: Drawn,
               decode: Callable[[list[int]], str]) -> Sampled | Request:
    """The whole completion or, if the draw was aborted, the request with its tokens so far."""
    request = replace(request, drawn_ids=[*request.drawn_ids, *drawn.ids],
                      drawn_logprobs=[*request.drawn_logprobs, *drawn.logprobs],
                      drawn_support=[*request.drawn_support, *drawn.support])
    if drawn.reason not in REASONS:
        return request
    return Sampled(request.index, request.drawn_ids, request.drawn_logprobs, decode(request.drawn_ids),
                   drawn.reason, support=request.drawn_support if sampling.num_likely() else None)
