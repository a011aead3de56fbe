"""Which groups share a forward pass, and as which texts: each prompt occurs once."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from train.model.policy import Policy
from train.model.token_logprobs import Support

COPIED_TOKENS_PER_TOKEN = 8     # keys and values alone take about 1/8 of a token's memory
UNSCORED = torch.empty(0, dtype=torch.long)


class PromptGroup(NamedTuple):
    """A prompt and its completions, token ids on the CPU, and the temperature that divides their logits.

    `supports` are the ids kept by truncated sampling, per completion; () if it kept all.
    """

    prompt_ids: Tensor
    completions: Sequence[Tensor]
    temperature: float
    supports: Sequence[Support | None] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) - 1 + sum(len(ids) for ids in self.completions)


class Text(NamedTuple):
    """Tokens to forward behind those of another text, and which of them are scored."""

    inputs: Tensor
    parent: int | None      # index of the preceding text
    ids: Tensor             # the next token of each input
    rows: list[int]         # indices of all equal completions; [] for a prompt
    support: Support | None = None


def pack_groups(policy: Policy, groups: Sequence[PromptGroup], token_budget: int) -> list[list[int]]:
    """Indices of the groups of each forward pass, the largest first: first fit, decreasing."""
    packs: list[list[int]] = []
    free: list[int] = []
    for number in sorted(range(len(groups)), key=lambda number: (-groups[number].num_tokens, number)):
        group, tokens = groups[number], groups[number].num_tokens
        fits = (place for place, room in enumerate(free) if tokens <= room
                and groups[packs[place][0]].temperature == group.temperature)
        alone = not policy.can_pack or len(group.prompt_ids) < 2
        place = None if alone else next(fits, None)
        if place is None:
            packs.append([number])
            free.append(-1 if alone else token_budget - tokens)
        else:
            packs[place].append(number)
            free[place] -= tokens
    return packs


def lay_out(groups: Sequence[PromptGroup]) -> list[Text]:
    """The texts of a pack: the prompts, then the distinct completions behind the first, the second, ..

    A prompt ends before its last token, which begins each of its completions.
    """
    starts = accumulate((len(group.completions) for group in groups), initial=0)
    texts = [Text(group.prompt_ids[:-1], None, UNSCORED, []) for group in groups]
    for prompt, (group, start) in enumerate(zip(groups, starts, strict=False)):
        alike: dict[Any, tuple[Tensor, Support | None, list[int]]] = {}
        supports = group.supports or [None] * len(group.completions)
        for row, (ids, support) in enumerate(zip(group.completions, supports, strict=True), start=start):
            key = _key(ids), support and tuple(map(_key, support))
            alike.setdefault(key, (ids, support, []))[2].append(row)
        texts += [Text(torch.cat([group.prompt_ids[-1:], ids[:-1]]), prompt, ids, rows, support)
                  for ids, support, rows in sorted(alike.values(), key=lambda each: -len(each[0]))]
    return texts


def micro_batches(texts: Sequence[Text], num_copied_tokens: int, token_budget: int) -> list[list[int]]:
    """Indices of the texts behind a single prompt, in batches, the largest first: memory peaks at once.

    Each counts as many tokens as the largest of its batch (as if padded), plus an eighth of the prompt tokens
    that it copies; a batch holds at least one.
    """
    batches: list[list[int]] = []
    for number in sorted(range(1, len(texts)), key=lambda number: (-len(texts[number].inputs), number)):
        cost = (len(texts[batches[-1][0]].inputs) + num_copied_tokens // COPIED_TOKENS_PER_TOKEN
                if batches else 0)
        if batches and (len(batches[-1]) + 1) * cost <= token_budget:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def _key(ids: Tensor) -> tuple[int, ...]:
    return tuple(ids.tolist())
