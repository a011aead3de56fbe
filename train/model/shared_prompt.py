"""Logprobs and exact gradients of groups whose prompts are forwarded once.

Groups within the budget go through together as one long row without padding: the prompts but for their last
tokens, then rows, each the last prompt token followed by the completion but for its last token.

A group beyond the budget goes alone: its prompt goes through the model once, with a graph, and its keys and
values are leaves, cut off the graph: micro-batches of rows add up their gradients there, and one backward
pass carries the sum through the prompt. Work falls by N (P + C) / (P - 1 + N C) for N completions of C tokens
after P prompt tokens, memory to one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.model.attention import PromptKV
from train.model.policy import Policy
from train.model.token_logprobs import token_logprobs

COPIED_TOKENS_PER_TOKEN = 8     # keys and values alone take about 1/8 of a token's memory

RowsLoss = Callable[[list[int], Tensor, Tensor], Tensor]
HiddenOf = Callable[[list[int]], Tensor]


class PromptGroup(NamedTuple):
    """A prompt and its completions, token ids on the CPU, and what their logits are divided by."""

    prompt_ids: Tensor
    completions: Sequence[Tensor]
    temperature: float

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model where no two completions are equal."""
        return len(self.prompt_ids) - 1 + sum(len(ids) for ids in self.completions)


def pack_groups(policy: Policy, groups: Sequence[PromptGroup], token_budget: int) -> list[list[int]]:
    """Indices of the groups that go through in one forward, the largest first: first fit, decreasing."""
    packs: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(groups)), key=lambda index: (-groups[index].num_tokens, index)):
        group = groups[index]
        fits = (place for place, room in enumerate(free) if group.num_tokens <= room
                and groups[packs[place][0]].temperature == group.temperature)
        alone = not policy.can_pack or len(group.prompt_ids) < 2
        place = None if alone else next(fits, None)
        if place is None:
            packs.append([index])
            free.append(-1 if alone else token_budget - group.num_tokens)
        else:
            packs[place].append(index)
            free[place] -= group.num_tokens
    return packs


def pack_logprobs(policy: Policy, groups: Sequence[PromptGroup], *, token_budget: int
                  ) -> tuple[list[Tensor], list[Tensor]]:
    """Logprobs and entropies of the tokens of all completions of a pack, nats, float32, on the CPU."""
    rows = _Rows(policy, groups, token_budget)
    logprobs: list[Tensor] = [torch.empty(0)] * sum(map(len, rows.same))
    entropies = list(logprobs)
    with torch.no_grad():
        hidden_of = rows.hidden_behind_prompts
        if not rows.in_one_forward:
            prompt_kv = prompt_kv_of(policy, rows.prefixes[0], token_budget)
            hidden_of = partial(rows.hidden_behind, prompt_kv)
        for batch in rows.batches:
            lengths = [len(rows.ids[index]) for index in batch]
            flat = [values.cpu().split(lengths) for values in rows.score(batch, hidden_of)]
            for index, row_logprobs, row_entropy in zip(batch, *flat, strict=True):
                for row in rows.same[index]:
                    logprobs[row], entropies[row] = row_logprobs, row_entropy
    return logprobs, entropies


def backward_pack(policy: Policy, groups: Sequence[PromptGroup], rows_loss: RowsLoss, *, token_budget: int
                  ) -> None:
    """Add the gradients of a pack's loss to the parameters' `.grad`.

    `rows_loss(rows, logprobs, entropy)` is called once per micro-batch with the indices of its completions,
    counted through all groups, and the padded [B, T] results in that order (0 past the end of a row); what it
    returns must add up to the loss, so its denominators must be known beforehand.
    """
    rows = _Rows(policy, groups, token_budget)
    if rows.in_one_forward:
        rows.backward(rows.batches[0], rows.hidden_behind_prompts, rows_loss)
        return
    prefix = rows.prefixes[0]
    in_one_piece = len(prefix) <= token_budget
    with torch.set_grad_enabled(in_one_piece):
        prompt_kv = prompt_kv_of(policy, prefix, token_budget)
    leaves = _leaves(prompt_kv, len(prefix))
    for batch in rows.batches:
        rows.backward(batch, partial(rows.hidden_behind, leaves), rows_loss)
    if in_one_piece:
        _backward_through(prompt_kv, leaves, 0)
    else:
        _backward_in_pieces(policy, prefix, leaves, token_budget)


class _Rows:
    """The distinct completions of a pack, and the micro-batches they go through in: one if all fits."""

    def __init__(self, policy: Policy, groups: Sequence[PromptGroup], token_budget: int):
        self.policy, self.temperature = policy, groups[0].temperature
        self.prefixes = [group.prompt_ids[:-1] for group in groups]
        self.same: list[list[int]] = []     # of each distinct completion, those that are equal to it
        self.ids, self.inputs, self.group_of = [], [], []
        start = 0
        for number, group in enumerate(groups):
            for same in equal_completions(group.completions):
                ids = group.completions[same[0]]
                self.same.append([start + row for row in same])
                self.ids.append(ids)
                self.inputs.append(torch.cat([group.prompt_ids[-1:], ids[:-1]]))
                self.group_of.append(number)
            start += len(group.completions)
        num_tokens = sum(map(len, self.prefixes)) + sum(map(len, self.ids))
        self.in_one_forward = policy.can_pack and num_tokens <= token_budget and all(map(len, self.prefixes))
        if self.in_one_forward:
            order = sorted(range(len(self.ids)), key=lambda row: (self.group_of[row], -len(self.ids[row])))
            self.batches = [order]
        else:
            assert len(groups) == 1, "only a group that goes alone may be larger than the budget"
            self.batches = micro_batches([len(ids) for ids in self.ids],
                                         policy.prompt_copied(groups[0].prompt_ids), token_budget)

    def hidden_behind_prompts(self, batch: list[int]) -> Tensor:
        """Last hidden states [T, D] of all rows, which go through with their prompts."""
        rows = [[self.inputs[index] for index in indices]
                for _, indices in groupby(batch, key=lambda index: self.group_of[index])]
        return self.policy.packed_hidden(self.prefixes, rows)

    def hidden_behind(self, prompt_kv: PromptKV, batch: list[int]) -> Tensor:
        """Last hidden states [T, D] of rows of the only group, behind its prompt's keys and values."""
        return self.policy.completion_hidden([self.inputs[index] for index in batch], prompt_kv)

    def score(self, batch: list[int], hidden_of: HiddenOf) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of the batch's tokens one after the other, without padding."""
        targets = torch.cat([self.ids[index] for index in batch]).to(self.policy.device)
        return token_logprobs(hidden_of(batch), self.policy.logits, targets, temperature=self.temperature,
                              vocabulary_size=self.policy.vocabulary_size,
                              head_is_frozen=self.policy.head_is_frozen)

    def backward(self, batch: list[int], hidden_of: HiddenOf, rows_loss: RowsLoss) -> None:
        """Add the gradients of the batch's loss, also to the prompt's leaves if there are any."""
        lengths = [len(self.ids[index]) for index in batch]
        logprobs, entropy = (pad_sequence(values.split(lengths), batch_first=True)
                             for values in self.score(batch, hidden_of))
        rows = [row for index in batch for row in self.same[index]]
        source = torch.tensor([place for place, index in enumerate(batch) for _ in self.same[index]],
                              device=logprobs.device)
        self.policy.backward(rows_loss(rows, logprobs[source], entropy[source]))


def prompt_kv_of(policy: Policy, prompt_ids: Tensor, token_budget: int) -> PromptKV:
    """Keys and values of a prompt, at most `token_budget` of its tokens forwarded at a time."""
    prompt_kv: PromptKV = []
    for piece in prompt_ids.split(token_budget):
        prompt_kv = policy.prompt_kv(piece, prompt_kv)
    return prompt_kv


def equal_completions(completions: Sequence[Tensor]) -> list[list[int]]:
    """Indices of completions that are the same tokens: one forward serves them, and its gradients add up."""
    same: dict[tuple[int, ...], list[int]] = {}
    for row, ids in enumerate(completions):
        same.setdefault(tuple(ids.tolist()), []).append(row)
    return list(same.values())


def micro_batches(lengths: Sequence[int], num_copied_tokens: int, token_budget: int) -> list[list[int]]:
    """Indices of completions in batches, the longest first so that memory peaks at once and padding stays
    small.

    A row counts its padded tokens plus an eighth of the prompt tokens that it copies; a batch holds at least
    one row.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    for row in order:
        cost = lengths[batches[-1][0]] + num_copied_tokens // COPIED_TOKENS_PER_TOKEN if batches else 0
        if batches and (len(batches[-1]) + 1) * cost <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _backward_in_pieces(policy: Policy, prompt_ids: Tensor, leaves: PromptKV, token_budget: int) -> None:
    """Carry the gradients of the leaves through a long prompt, the last piece first.

    Each piece is forwarded again over the leaves before it, where it adds its own gradients: activations
    exist for one piece at a time, as with checkpointing, for one more forward of the prompt.
    """
    starts = range(0, len(prompt_ids), token_budget)
    for start in reversed(starts):
        before = _leaves(leaves, start) if start else []
        piece_kv = policy.prompt_kv(prompt_ids[start:start + token_budget], before)
        _backward_through(piece_kv, leaves, start)
        for pair, earlier in zip(leaves, before, strict=False):
            for leaf, part in zip(pair, earlier, strict=True):
                if leaf.grad is not None and part.grad is not None:
                    leaf.grad[:, :, :start] += part.grad


def _leaves(prompt_kv: PromptKV, length: int) -> PromptKV:
    """The first `length` positions of keys and values, cut off the graph, to collect gradients."""
    return [(keys[:, :, :length].detach().requires_grad_(), values[:, :, :length].detach().requires_grad_())
            for keys, values in prompt_kv]


def _backward_through(prompt_kv: PromptKV, leaves: PromptKV, start: int) -> None:
    """Backward from keys and values, those from position `start` on, with the gradients of their leaves."""
    pairs = [(tensor[:, :, start:], leaf.grad[:, :, start:tensor.shape[2]])
             for computed, leaf_pair in zip(prompt_kv, leaves, strict=True)
             for tensor, leaf in zip(computed, leaf_pair, strict=True)
             if leaf.grad is not None and tensor.requires_grad]
    if pairs:
        torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
