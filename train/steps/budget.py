"""Default tokens per forward pass: few on a CPU, what its memory holds on a GPU."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from train.inputs.groups import Group
from train.model.packs import PromptGroup
from train.model.policy import Policy
from train.model.sharding import GRADIENT, local
from train.model.shared_prompt import backward_pack, passes_of
from warehouse.store.errors import StageError

ON_CPU, LEAST, MOST = 1024, 512, 32768      # beyond MOST a forward gains nothing
WARM_UP, *PROBES = 64, 1024, 2048       # the first allocates library workspaces, which stay
SHARE = 0.75                    # of the free memory; the rest is for fragmentation and unusual rows
MOMENT_BYTES = 8                # of AdamW, per trained parameter


def choose_tokens(policy: Policy, groups: Sequence[Group]) -> int:
    """The budget for these groups; on a GPU from the memory that gradients of two small packs take.

    StageError if they do not fit while other processes, which share the weights, wait in the same pass.
    """
    if policy.device.type != "cuda":
        return ON_CPU
    try:
        _, less, more = (_peak(policy, tokens) for tokens in (WARM_UP, *PROBES))
    except torch.OutOfMemoryError as error:
        if policy.shards and policy.shards.sharding.num_processes > 1:     # they would wait forever
            raise StageError(f"{PROBES[-1]:,} tokens do not fit a GPU together with its weights. "
                             f"Start with --tokens-per-batch {LEAST}, with more GPUs, or with "
                             "examples/many-gpus/offload.yaml.") from error
        return LEAST
    per_token = max((more - less) / (PROBES[1] - PROBES[0]), 1.0)
    fixed = less - per_token * PROBES[0]
    free, _ = torch.cuda.mem_get_info(policy.device)
    offloaded = policy.shards is not None and policy.shards.sharding.offload
    moments = 0 if offloaded else MOMENT_BYTES * sum(local(parameter).numel()
                                                     for parameter in policy.trainable().values())
    longest = max(len(group.prompt_ids) for group in groups)
    largest = max(len(group.prompt_ids) + sum(len(rollout.completion_ids) for rollout in group.rollouts)
                  for group in groups)
    return tokens_that_fit((SHARE * free - fixed - moments) / per_token, largest, longest)


def tokens_that_fit(room: float, largest_group: int, longest_prompt: int) -> int:
    """The budget, given room for the activations of so many tokens.

    For a group beyond the budget, a prompt and a micro-batch hold activations at once, each up to the budget.
    """
    alone = max(room / 2, room - longest_prompt)
    return int(min(max(room if largest_group <= min(room, MOST) else alone, LEAST), MOST))


def _peak(policy: Policy, num_tokens: int) -> int:
    """Additional bytes for the gradients of a pack of so many tokens; no gradient stays."""
    length = min(num_tokens, getattr(policy.config, "max_position_embeddings", None) or num_tokens) // 4
    ids = (torch.arange(num_tokens) % policy.vocabulary_size).split(length)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(policy.device)
    before = torch.cuda.memory_allocated(policy.device)
    pack = [PromptGroup(ids[0], ids[1:], 1.0)]
    in_step: AbstractContextManager[None] = nullcontext()
    if policy.shards:   # one more pass, so that gradients are kept as in a step
        passes = passes_of(policy, pack, num_tokens, backward=True)
        in_step = policy.shards.in_step([passes + GRADIENT])
    with in_step:
        backward_pack(policy, pack, lambda rows, logprobs, entropy: logprobs.sum(), token_budget=num_tokens)
    peak = torch.cuda.max_memory_allocated(policy.device) - before
    policy.model.zero_grad()
    torch.cuda.empty_cache()
    return peak
