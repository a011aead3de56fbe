"""How a completion ends: what the engine is asked for next, and why a completion is over."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from rollout.engines.engine import Request, Sampled, Sampling
from rollout.prompts.plan import seed_of

FINAL_ONLY = 2                   # of vLLM's RequestOutputKind: no answer before the last token
REASONS = ("stop", "length")


class Drawn(NamedTuple):
    """What an engine drew at one go: ids, their logprobs (nats), its own finish reason.

    And the ids that truncation left for each token; none where it leaves all.
    """

    ids: list[int]
    logprobs: list[float]
    reason: str
    support: list[list[int]]


def next_draw(request: Request, sampling: Sampling) -> tuple[list[int], int, int]:
    """What an engine is asked for: token ids, seed, and how many tokens at most.

    A completion that goes on draws from a seed of its own: the first seed again would draw the same numbers.
    """
    num_drawn = len(request.drawn_ids)
    seed = seed_of(request.seed, "from", num_drawn) if num_drawn else request.seed
    return [*request.prompt_ids, *request.drawn_ids], seed, sampling.max_tokens - num_drawn


def draw_parameters(sampling: Sampling, seed: int, max_tokens: int) -> dict[str, Any]:
    """vLLM's parameters of one draw: its own seed, the sampled token's logprob, ids only.

    With --top-k the logprobs of all that could have been sampled.
    """
    return {**vars(sampling), "max_tokens": max_tokens, "seed": seed, "logprobs": sampling.num_likely(),
            "detokenize": False, "output_kind": FINAL_ONLY}


def likely(logprobs: Iterable[tuple[int, float]], least: float = -math.inf) -> tuple[list[int], float]:
    """Of (id, logprob) the ids that can be drawn, those above `least`, and the logprob of all of them.

    That is 0 but where more are equally likely at the edge of truncation than the engine names; a token's
    logprob less it is exact among those that are named.
    """
    left = {token: logprob for token, logprob in logprobs if logprob > least}
    return [*left], math.log(math.fsum(map(math.exp, left.values())))


def gone_on(request: Request, drawn: Drawn) -> Request:
    """The request with what was drawn more."""
    return replace(request, drawn_ids=[*request.drawn_ids, *drawn.ids],
                   drawn_logprobs=[*request.drawn_logprobs, *drawn.logprobs],
                   drawn_support=[*request.drawn_support, *drawn.support])


def after_draw(request: Request, sampling: Sampling, drawn: Drawn,
               decode: Callable[[list[int]], str]) -> Sampled | Request:
    """The whole completion, or, where the draw was broken off, the request with what is drawn so far."""
    request = gone_on(request, drawn)
    if drawn.reason not in REASONS:
        return request
    return Sampled(request.index, request.drawn_ids, request.drawn_logprobs, decode(request.drawn_ids),
                   drawn.reason, support=request.drawn_support if sampling.num_likely() else None)
