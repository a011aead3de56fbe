"""How a completion ends: what the engine is asked for next, and why a completion is over."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rollout.engines.engine import Request, Sampled, Sampling
from rollout.prompts.plan import seed_of

LONGEST_LOOP = 64                # tokens of a repeated piece; the scorer's `loop_tokens` sees pieces as long
FINAL_ONLY = 2                   # of vLLM's RequestOutputKind: no answer before the last token
REASONS = {"stop": "stop", "length": "length", "repetition": "loop"}  # vLLM's word: ours


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
    values = {name: value for name, value in vars(sampling).items() if value is not None}
    if loops := values.pop("stop_loops", None):
        values["repetition_detection"] = {"max_pattern_size": LONGEST_LOOP, "min_pattern_size": 1,
                                          "min_count": loops}
    return {**values, "max_tokens": max_tokens, "seed": seed, "logprobs": sampling.num_likely(),
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
    """The whole completion, or, where the draw was broken off, the request with what is drawn so far.

    An engine sees loops in its own draw alone: a completion that was gone on from may have been over before.
    """
    begun, request = bool(request.drawn_ids), gone_on(request, drawn)
    reason = REASONS.get(drawn.reason)
    if begun and sampling.stop_loops and (end := end_of_loop(request.drawn_ids, sampling.stop_loops)):
        reason = "loop"
        request = replace(request, drawn_ids=request.drawn_ids[:end],
                          drawn_logprobs=request.drawn_logprobs[:end],
                          drawn_support=request.drawn_support[:end])
    if reason is None:
        return request
    return Sampled(request.index, request.drawn_ids, request.drawn_logprobs, decode(request.drawn_ids),
                   reason, support=request.drawn_support if sampling.num_likely() else None)


def end_of_loop(ids: Sequence[int], times: int) -> int | None:
    """Tokens after which the rule ends a completion; None if it never does."""
    tokens, ends = np.asarray(ids), []
    for period in range(1, min(LONGEST_LOOP, len(tokens) // times) + 1):
        needed = period * (times - 1)    # positions in a row that equal the position a period earlier
        differs = np.concatenate([[True], tokens[period:] != tokens[:-period]])
        position = np.arange(len(differs))
        run = position - np.maximum.accumulate(np.where(differs, position, 0))
        if run.max() >= needed:
            ends.append(period + int(np.argmax(run >= needed)))
    return min(ends, default=None)
