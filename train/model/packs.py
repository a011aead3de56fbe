"""Which groups go through the model together, and as which texts: what several begin with is there once."""

from __future__ import annotations

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
    """A prompt and its completions, token ids on the CPU, and what their logits are divided by.

    `supports` are what truncated sampling left for the tokens of each completion; () where it left all. The
    first `num_shared` tokens of a prompt that goes on from a completion are the prompt of the group
    `parent` and that completion, which need not be one of those that are asked for.
    """

    prompt_ids: Tensor
    completions: Sequence[Tensor]
    temperature: float
    parent: PromptGroup | None = None
    num_shared: int = 0
    supports: Sequence[Support | None] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model where nothing is shared but the prompt."""
        return len(self.prompt_ids) - 1 + sum(len(ids) for ids in self.completions)

    @property
    def continued(self) -> Tensor:
        """The completion of `parent` that the prompt goes on from."""
        assert self.parent is not None
        return self.prompt_ids[len(self.parent.prompt_ids):self.num_shared]


class Text(NamedTuple):
    """Tokens that go through the model behind those of another text, and what is scored of them."""

    inputs: Tensor
    parent: int | None      # number of the text before
    ids: Tensor             # the tokens that follow each of the inputs
    rows: list[int]         # the completions that these are: of equal ones each; none for what is not scored
    support: Support | None = None


def pack_groups(policy: Policy, groups: Sequence[PromptGroup], token_budget: int) -> list[list[int]]:
    """Indices of the groups that go through in one forward, the largest first: first fit, decreasing.

    A group goes along with its parent where all that goes on from the same completion fits the budget.
    """
    packs: list[list[int]] = []
    free: list[int] = []
    for tokens, members in sorted(_trees(groups, token_budget, policy.can_pack),
                                  key=lambda tree: (-tree[0], tree[1][0])):
        root = groups[members[0]]
        fits = (place for place, room in enumerate(free) if tokens <= room
                and groups[packs[place][0]].temperature == root.temperature)
        alone = not policy.can_pack or len(root.prompt_ids) < 2
        place = None if alone else next(fits, None)
        if place is None:
            packs.append(members)
            free.append(-1 if alone else token_budget - tokens)
        else:
            packs[place] += members
            free[place] -= tokens
    return packs


def _trees(groups: Sequence[PromptGroup], token_budget: int, can_pack: bool) -> list[tuple[int, list[int]]]:
    """Groups that go on from each other, the first of all first, and the tokens that go through for them."""
    parents = parents_of(groups) if can_pack else [None] * len(groups)
    children = _inverse(parents)
    behind: dict[int, int] = {}             # tokens behind the prompt of each group
    members: dict[int, list[int]] = {}      # and the groups there; without those that ask for nothing
    first = {number for number, parent in enumerate(parents) if parent is None}
    for number in sorted(range(len(groups)), key=lambda number: -len(groups[number].prompt_ids)):
        behind[number], members[number] = sum(map(len, groups[number].completions)), [number]
        own = set(map(_key, groups[number].completions))
        branches: dict[tuple[int, ...], list[int]] = {}
        for child in children[number]:
            if members[child]:
                branches.setdefault(_key(groups[child].continued), []).append(child)
        for continued, chosen in branches.items():
            tokens = sum(len(groups[child].prompt_ids) - groups[child].num_shared + behind[child]
                         for child in chosen)
            if len(continued) + tokens > token_budget:
                first.update(chosen)
                continue
            behind[number] += tokens + (0 if continued in own else len(continued))
            members[number] += [member for child in chosen for member in members[child]]
        if not groups[number].completions and members[number] == [number]:
            members[number] = []
    return [(len(groups[number].prompt_ids) - 1 + behind[number], members[number]) for number in first
            if members[number]]


def lay_out(groups: Sequence[PromptGroup]) -> list[Text]:
    """The texts of a pack: the prompts that go on from nothing, then all behind the first, the second, ..

    A text comes after its parent. A prompt ends before its last token, which begins each of its completions.
    """
    children = _inverse(parents := parents_of(groups))
    starts = list(accumulate(map(len, (group.completions for group in groups)), initial=0))
    first = [number for number, parent in enumerate(parents) if parent is None]
    texts = [Text(groups[number].prompt_ids[:-1], None, UNSCORED, []) for number in first]
    for place, root in enumerate(first):
        generation = {root: place}          # groups, and the texts of their prompts
        while generation:
            following: dict[int, int] = {}
            for number, prompt in generation.items():
                group = groups[number]
                rows: dict[tuple[int, ...], dict[Any, tuple[Tensor, Support | None, list[int]]]] = {}
                supports = group.supports or [None] * len(group.completions)
                for row, (ids, support) in enumerate(zip(group.completions, supports, strict=True),
                                                     start=starts[number]):
                    alike = rows.setdefault(_key(ids), {})
                    alike.setdefault(support and tuple(map(_key, support)), (ids, support, []))[2].append(row)
                for child in children[number]:
                    ids = groups[child].continued
                    rows.setdefault(_key(ids), {None: (ids, None, [])})
                text_of = {}
                for key, alike in sorted(rows.items(), key=lambda item: -len(item[0])):
                    for ids, support, same in alike.values():
                        text_of[key] = len(texts)
                        texts.append(Text(torch.cat([group.prompt_ids[-1:], ids[:-1]]), prompt, ids, same,
                                          support))
                for child in children[number]:
                    rest = groups[child].prompt_ids[groups[child].num_shared - 1:-1]
                    following[child] = len(texts)
                    texts.append(Text(rest, text_of[_key(groups[child].continued)], UNSCORED, []))
            generation = following
    return texts


def micro_batches(texts: Sequence[Text], num_copied_tokens: int, token_budget: int) -> list[list[int]]:
    """Numbers of the texts behind the only prompt in batches, the largest first: memory peaks at once.

    What goes on from a completion stays with it. With that it counts as many tokens as the largest of its
    batch, as if padded, plus an eighth of the prompt tokens that it copies; a batch holds at least one.
    """
    top: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for number, text in enumerate(texts[1:], start=1):
        top[number] = top[text.parent] if text.parent else number
        members.setdefault(top[number], []).append(number)
    sizes = {number: sum(len(texts[member].inputs) for member in inside)
             for number, inside in members.items()}
    batches: list[list[int]] = []
    for number in sorted(sizes, key=lambda number: (-sizes[number], number)):
        cost = sizes[batches[-1][0]] + num_copied_tokens // COPIED_TOKENS_PER_TOKEN if batches else 0
        if batches and (len(batches[-1]) + 1) * cost <= token_budget:
            batches[-1].append(number)
        else:
            batches.append([number])
    return [[member for number in batch for member in members[number]] for batch in batches]


def parents_of(groups: Sequence[PromptGroup]) -> list[int | None]:
    """The number of the group that each goes on from, where that is among them."""
    numbers = {id(group): number for number, group in enumerate(groups)}
    return [None if group.parent is None else numbers.get(id(group.parent)) for group in groups]


def _inverse(parents: Sequence[int | None]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for number, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(number)
    return children


def _key(ids: Tensor) -> tuple[int, ...]:
    return tuple(ids.tolist())
