"""Which groups go through the model together, and as which texts: a prompt is there once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from train.model.policy import Policy
from train.model.token_logprobs import Support

COPIED_TOKENS_PER_TOKEN = 8     # keys and values alone take about 1/8 of a token's memory
UNSCORED = torch.empty(0, dtype=torch.long)


class PromptGroup(NamedTuple):
    """A prompt and its completions, token ids on the CPU, and what their logits are divided by.

    `supports` are what truncated sampling left for the tokens of each completion; () where it left all.
    """

    prompt_ids: Tensor
    completions: Sequence[Tensor]
    temperature: float
    supports: Sequence[Support | None] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model where nothing is shared but the prompt."""
        return len(self.prompt_ids) - 1 + sum(len(ids) for ids in self.completions)


class Text(NamedTuple):
    """Tokens that go through the model behind those of another text, and what is scored of them."""

    inputs: Tensor
    parent: int | None      # number of the text before
    ids: Tensor             # the tokens that follow each of the inputs
    rows: list[int]         # the completions that these are: of equal ones each; none for what is not scored
    support: Support | None = None


def pack_groups(policy: Policy, groups: Sequence[PromptGroup], token_budget: int) -> list[list[int]]:
    """Indices of the groups that go through in one forward, the largest first: first fit, decreasing."""
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
    """The texts of a pack: all prompts, then the rows behind the first, the second, ..

    A prompt ends before its last token, which begins each of its completions. Equal rows are one text.
    """
    texts, first = [Text(group.prompt_ids[:-1], None, UNSCORED, []) for group in groups], 0
    for number, group in enumerate(groups):
        distinct: dict[Any, tuple[Tensor, Support | None, list[int]]] = {}
        supports = group.supports or [None] * len(group.completions)
        for row, (ids, support) in enumerate(zip(group.completions, supports, strict=True), start=first):
            key = _key(ids), support and tuple(map(_key, support))
            distinct.setdefault(key, (ids, support, []))[2].append(row)
        first += len(group.completions)
        texts += [Text(torch.cat([group.prompt_ids[-1:], ids[:-1]]), number, ids, rows, support)
                  for ids, support, rows in sorted(distinct.values(), key=lambda each: -len(each[0]))]
    return texts


def micro_batches(texts: Sequence[Text], num_copied_tokens: int, token_budget: int) -> list[list[int]]:
    """Numbers of the texts behind the only prompt in batches, the largest first: memory peaks at once.

    Each counts as many tokens as the largest of its batch, as if padded, plus an eighth of the prompt tokens
    that it copies; a batch holds at least one.
    """
    sizes = {number: len(text.inputs) for number, text in enumerate(texts[1:], start=1)}
    batches: list[list[int]] = []
    for number in sorted(sizes, key=lambda number: (-sizes[number], number)):
        cost = sizes[batches[-1][0]] + num_copied_tokens // COPIED_TOKENS_PER_TOKEN if batches else 0
        if batches and (len(batches[-1]) + 1) * cost <= token_budget:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def _key(ids: Tensor) -> tuple[int, ...]:
    return tuple(ids.tolist())
