"""How a completion ends: what the engine is asked for next, and why a completion is over."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rollout.engines.engine import Request, Sampled, Sampling
from rollout.prompts.plan import seed_of
from warehouse.tasks.answers import first_code_block

FENCE = "```"                    # what ends a code block, and what begins it
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

    With --top-k the logprobs of all that could have been sampled. A fence that ends a draw is seen in the
    text, so vLLM has to make text while it samples.
    """
    values = {name: value for name, value in vars(sampling).items() if value is not None}
    loops, fences = values.pop("stop_loops", None), values.pop("stop_when_code_closes", False)
    if loops:
        values["repetition_detection"] = {"max_pattern_size": LONGEST_LOOP, "min_pattern_size": 1,
                                          "min_count": loops}
    if fences:
        values |= {"stop": [FENCE], "include_stop_str_in_output": True}
    return {**values, "max_tokens": max_tokens, "seed": seed, "logprobs": sampling.num_likely(),
            "detokenize": fences, "output_kind": FINAL_ONLY}


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
    """The whole completion, or the request with what is drawn so far if it has to go on.

    With `stop_when_code_closes` engines stop at every fence; the fence that begins the code ends nothing. Nor
    does a draw that was broken off, but where the completion was over before, which engines do not see.
    """
    before, request = request, gone_on(request, drawn)
    ids = request.drawn_ids
    if before.drawn_ids and (earlier := _overlooked(request, sampling, decode)):
        end, reason = earlier
        request = replace(request, drawn_ids=ids[:end], drawn_logprobs=request.drawn_logprobs[:end],
                          drawn_support=request.drawn_support[:end])
        return _whole(request, sampling, reason, decode(ids[:end]))
    if drawn.reason not in REASONS:
        return request
    text, reason = decode(ids), REASONS[drawn.reason]
    if sampling.stop_when_code_closes and reason == "stop":
        if first_code_block(request.prefill + text) is not None:
            reason = "code"
        elif text.count(FENCE) > decode(ids[:-1]).count(FENCE):
            if len(ids) < sampling.max_tokens:
                return request
            reason = "length"
    return _whole(request, sampling, reason, text)


def _whole(request: Request, sampling: Sampling, reason: str, text: str) -> Sampled:
    return Sampled(request.index, request.drawn_ids, request.drawn_logprobs, text, reason,
                   support=request.drawn_support if sampling.num_likely() else None)


def _overlooked(request: Request, sampling: Sampling,
                decode: Callable[[list[int]], str]) -> tuple[int, str] | None:
    """Where a completion that was gone on from would have ended had it been drawn in one go, and why.

    An engine sees loops and fences in its own draw alone. What it drew beyond changes nothing before it.
    """
    ids, ends = request.drawn_ids, []
    if sampling.stop_loops and (end := end_of_loop(ids, sampling.stop_loops)):
        ends.append((end, "loop"))

    def is_closed(end: int) -> bool:
        return first_code_block(request.prefill + decode(ids[:end])) is not None
    if sampling.stop_when_code_closes and is_closed(len(ids)):
        ends.append((bisect_left(range(len(ids)), True, key=is_closed), "code"))
    return min(ends, default=None)


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
