"""A value head as baseline: the reward less what the prefix before each token already promised.

    train RUN --advantages examples/advantages/value_head.py:value_head

The group's mean says what a prompt is worth; the head learns what the tokens so far change about that, from
the completions of the stage alone. Each half of the groups is judged by a head fitted to the other half: none
sees its own reward, and the baseline of a token depends on nothing that comes after it: the
gradient stays unbiased. Plug-ins are given token ids and no hidden states, so the head is a small GRU.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

WIDTH, EPOCHS = 32, 60


class ValueHead(nn.Module):
    """Value [B, T] of what stands before each of T tokens, beside the group's mean."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary + 1, WIDTH)
        self.network = nn.GRU(WIDTH + 1, WIDTH, batch_first=True)
        self.last = nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.last.weight)           # untrained, it is the mean of the others of the group
        nn.init.zeros_(self.last.bias)

    def forward(self, before: Tensor, mean: Tensor) -> Tensor:
        """`before` are ids [B, T] moved by a place, `mean` [B] is that of the others of the group."""
        told = mean[:, None, None].expand(*before.shape, 1)
        states, _ = self.network(torch.cat([self.embedding(before), told], dim=-1))
        return mean[:, None] + self.last(states)[..., 0]


def value_head(rows: list[dict[str, Any]]) -> list[Tensor]:
    """Reward minus value, for every token of every completion."""
    torch.manual_seed(0)
    reward = torch.tensor([row["reward"] for row in rows])
    names = sorted({row["group_id"] for row in rows})
    group = torch.tensor([names.index(row["group_id"]) for row in rows])
    size, total = (torch.zeros(len(names)).index_add(0, group, each)
                   for each in (torch.ones_like(reward), reward))
    mean = (total[group] - reward) / (size[group] - 1).clamp(min=1)
    ids = [torch.tensor(row["completion_ids"], dtype=torch.long) for row in rows]
    mask = pad_sequence([torch.ones(len(each)) for each in ids], batch_first=True)
    start = 1 + max(int(each.max()) for each in ids if len(each))           # an id that no token has
    before = pad_sequence([torch.cat([torch.tensor([start]), each])[:len(each)] for each in ids],
                          batch_first=True)
    values = torch.zeros_like(mask)
    for half in (0, 1):
        judged = group % 2 == half
        head = fitted(start, *(each[~judged] for each in (before, mean, reward, mask, group // 2 % 4 == 0)))
        with torch.no_grad():
            values[judged] = head(before[judged], mean[judged])
    left, plain = (((reward[:, None] - each) ** 2 * mask).sum() for each in (values, mean[:, None]))
    print(f"value head: variance left {float(left / plain):.0%} of what the group's mean leaves")
    return [(reward[row] - values[row, :len(each)]) for row, each in enumerate(ids)]


def fitted(vocabulary: int, before: Tensor, mean: Tensor, reward: Tensor, mask: Tensor,
           kept_out: Tensor) -> ValueHead:
    """A head fitted by least squares, for as long as the groups kept out of that gain by it."""
    def loss_of(rows: Tensor) -> Tensor:
        miss = (head(before[rows], mean[rows]) - reward[rows, None]) ** 2
        return (miss * mask[rows]).sum() / mask[rows].sum()
    head = ValueHead(vocabulary)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.1)
    best, least = deepcopy(head.state_dict()), torch.inf
    for _ in range(EPOCHS if 0 < kept_out.sum() < len(kept_out) else 0):
        with torch.no_grad():
            if (now := float(loss_of(kept_out))) < least:
                best, least = deepcopy(head.state_dict()), now
        loss = loss_of(~kept_out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    head.load_state_dict(best)
    return head
