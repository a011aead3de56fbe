"""Logprobs and exact gradients of a group with its prompt forwarded once: the prompt's keys and values are
leaves.

The prompt but for its last token goes through the model once, with a graph. Each row is the last prompt token
followed by the completion but for its last token, and attends to the prompt's keys and values, which are cut
off the graph: micro-batches of rows add up their gradients there, and one backward pass carries the sum
through the prompt. Work falls by N (P + C) / (P - 1 + N C) for N completions of C tokens after P prompt
tokens, memory to one micro-batch. A group within the budget goes through as one row, forward and back once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.model.attention import PromptKV
from train.model.policy import Policy
from train.model.token_logprobs import token_logprobs

COPIED_TOKENS_PER_TOKEN = 8     # keys and values alone take about 1/8 of a token's memory

RowsLoss = Callable[[list[int], Tensor, Tensor], Tensor]


def group_logprobs(policy: Policy, prompt_ids: Tensor, completions: Sequence[Tensor], *, temperature: float,
                token_budget: int) -> tuple[list[Tensor], list[Tensor]]:
    """Logprobs and entropies of every completion's tokens, nats, float32, without gradients."""
    logprobs: list[Tensor] = [torch.empty(0)] * len(completions)
    entropies = list(logprobs)
    group = _Group(policy, prompt_ids, completions, temperature, token_budget)
    with torch.no_grad():
        if group.in_one_row:
            hidden_of = partial(policy.packed_hidden, group.prefix)
        else:
            prompt_kv = prompt_kv_of(policy, group.prefix, token_budget)
            hidden_of = partial(policy.completion_hidden, prompt_kv=prompt_kv)
        for batch in group.batches:
            flat = group.score(batch, hidden_of)
            lengths = [group.lengths[index] for index in batch]
            for index, row_logprobs, row_entropy in zip(batch, flat[0].split(lengths), flat[1].split(lengths),
                                                        strict=True):
                for row in group.same[index]:
                    logprobs[row], entropies[row] = row_logprobs, row_entropy
    return logprobs, entropies


def backward_group(policy: Policy, prompt_ids: Tensor, completions: Sequence[Tensor], rows_loss: RowsLoss, *,
                   temperature: float, token_budget: int) -> None:
    """Add the gradients of the group's loss to the parameters' `.grad`.

    `rows_loss(rows, logprobs, entropy)` is called once per micro-batch with the indices of its completions
    and the padded [B, T] results in that order (0 past the end of a row); what it returns must add up to the
    group's loss, so its denominators must be known beforehand.
    """
    group = _Group(policy, prompt_ids, completions, temperature, token_budget)
    if group.in_one_row:
        group.backward(group.batches[0], partial(policy.packed_hidden, group.prefix), rows_loss)
        return
    in_one_piece = len(group.prefix) <= token_budget
    with torch.set_grad_enabled(in_one_piece):
        prompt_kv = prompt_kv_of(policy, group.prefix, token_budget)
    leaves = _leaves(prompt_kv, len(group.prefix))
    for batch in group.batches:
        group.backward(batch, partial(policy.completion_hidden, prompt_kv=leaves), rows_loss)
    if in_one_piece:
        _backward_through(prompt_kv, leaves, 0)
    else:
        _backward_in_pieces(policy, group.prefix, leaves, token_budget)


class _Group:
    """A prompt and its distinct completions, in micro-batches, or in one row where all fits the budget."""

    def __init__(self, policy: Policy, prompt_ids: Tensor, completions: Sequence[Tensor], temperature: float,
                 token_budget: int):
        self.policy, self.temperature = policy, temperature
        self.prefix, self.last_prompt_id = prompt_ids[:-1], prompt_ids[-1:]
        self.same = equal_completions(completions)
        self.distinct = [completions[rows[0]] for rows in self.same]
        self.lengths = [len(ids) for ids in self.distinct]
        self.batches = micro_batches(self.lengths, policy.prompt_copied(prompt_ids), token_budget)
        num_tokens = len(self.prefix) + len(self.lengths) * max(self.lengths)
        self.in_one_row = policy.can_pack and len(self.prefix) > 0 and num_tokens <= token_budget

    def score(self, batch: list[int], hidden_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies of the batch's tokens one after the other, without padding."""
        chosen = [self.distinct[index] for index in batch]
        inputs = pad_sequence([torch.cat([self.last_prompt_id, ids[:-1]]) for ids in chosen],
                              batch_first=True)
        lengths = torch.tensor([len(ids) for ids in chosen], device=inputs.device)
        real = torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]
        return token_logprobs(hidden_of(inputs)[real], self.policy.logits, torch.cat(chosen),
                              temperature=self.temperature, vocabulary_size=self.policy.vocabulary_size)

    def backward(self, batch: list[int], hidden_of: Callable[[Tensor], Tensor], rows_loss: RowsLoss) -> None:
        """Add the gradients of the batch's loss, also to the prompt's leaves if there are any."""
        flat, lengths = self.score(batch, hidden_of), [self.lengths[index] for index in batch]
        logprobs, entropy = (pad_sequence(values.split(lengths), batch_first=True) for values in flat)
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
