"""How a completion ends: what the engine is asked for next, and why a completion is over."""

import re
from collections.abc import Callable
from dataclasses import replace

from rollout.engines.engine import Request, Sampled, Sampling
from rollout.prompts.plan import seed_of

FENCE = "```"                    # what ends a code block, and what begins it
# The scorer's own expression: what it reads as the program.
CLOSED_CODE = re.compile(r"```python(?![A-Za-z0-9_])[ \t]*+\r?+\n?+(.*?)```", re.DOTALL)
LONGEST_LOOP = 64                # tokens of a repeated piece; the scorer's `loop_tokens` sees as long ones
REASONS = {"stop": "stop", "length": "length", "repetition": "loop"}  # vLLM's word: ours


def next_draw(request: Request, sampling: Sampling) -> tuple[list[int], int, int]:
    """What an engine is asked for: token ids, seed, and how many tokens at most.

    A completion that goes on draws from a seed of its own: the first one again would draw the same numbers.
    """
    num_drawn = len(request.drawn_ids)
    seed = seed_of(request.seed, "from", num_drawn) if num_drawn else request.seed
    return [*request.prompt_ids, *request.drawn_ids], seed, sampling.max_tokens - num_drawn


def after_draw(request: Request, sampling: Sampling, ids: list[int], logprobs: list[float], reason: str,
               decode: Callable[[list[int]], str]) -> Sampled | Request:
    """The whole completion, or the request with what is drawn so far if it has to go on.

    With `stop_when_code_closes` engines stop at every fence; the fence that begins the code ends nothing.
    """
    ids, logprobs = [*request.drawn_ids, *ids], [*request.drawn_logprobs, *logprobs]
    reason, text = REASONS[reason], decode(ids)
    if sampling.stop_when_code_closes and reason == "stop":
        if CLOSED_CODE.search(request.prefill + text):
            reason = "code"
        elif text.count(FENCE) > decode(ids[:-1]).count(FENCE):
            if len(ids) < sampling.max_tokens:
                return replace(request, drawn_ids=ids, drawn_logprobs=logprobs)
            reason = "length"
    return Sampled(request.index, ids, logprobs, text, reason)
