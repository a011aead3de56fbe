"""Rewards per token from outcomes alone: PRIME's implicit process rewards, arXiv 2502.01456.

    PRIME_MODEL=BASE PRIME_FOLDER=runs/mine-prime train RUN --advantages examples/advantages/prime.py:prime

A second model learns to tell right completions from wrong ones by beta times the sum of log p / p_base; what
a token adds to that sum is its reward. The model goes on from stage to stage: after iteration I it lies in
PRIME_FOLDER/I+1, and a stage that is run again begins from the same PRIME_FOLDER/I. Plug-ins are not told the
folder of the run or its base; hence the two variables. For models that fit beside the trained one on a CPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForCausalLM

BETA, RATE, TOGETHER = 0.05, 1e-4, 64      # weight of a nat; learning rate; completions in a step


def prime(rows: list[dict[str, Any]]) -> list[Tensor]:
    """Advantage of every token: outcome and what is still to come of its rewards, less the others' mean."""
    torch.manual_seed(0)
    folder, iteration = Path(os.environ["PRIME_FOLDER"]), max((row["iteration"] for row in rows), default=0)
    base = AutoModelForCausalLM.from_pretrained(os.environ["PRIME_MODEL"], dtype=torch.float32)
    before = folder / str(iteration)
    judge = AutoModelForCausalLM.from_pretrained(before if before.exists() else os.environ["PRIME_MODEL"],
                                                 dtype=torch.float32)
    with torch.no_grad():
        of_base = [logprobs for part in parts(rows) for logprobs in logprobs_of(base, part)]
    learn(judge, rows, of_base)
    judge.save_pretrained(folder / str(iteration + 1))
    with torch.no_grad():
        of_judge = [logprobs for part in parts(rows) for logprobs in logprobs_of(judge, part)]
    tokens = [BETA * (own - other) for own, other in zip(of_judge, of_base, strict=True)]
    outcome = torch.tensor([float(row["correct"]) for row in rows])
    outcome -= others(rows, outcome)
    usual = others(rows, torch.tensor([float(each.mean()) if len(each) else 0.0 for each in tokens]))
    return [outcome[row] + (each - usual[row]).flip(0).cumsum(0).flip(0) for row, each in enumerate(tokens)]


def learn(judge: Any, rows: list[dict[str, Any]], of_base: list[Tensor]) -> None:
    """One pass of cross entropy over completions: does what their tokens add up to say which are right?"""
    optimizer = torch.optim.AdamW(judge.parameters(), lr=RATE, weight_decay=0.0)
    order = torch.randperm(len(rows)).tolist()
    for places in parts(order):
        chosen = [rows[place] for place in places]
        added = [BETA * (own - of_base[place]).sum()
                 for own, place in zip(logprobs_of(judge, chosen), places, strict=True)]
        loss = binary_cross_entropy_with_logits(
            torch.stack(added), torch.tensor([float(row["correct"]) for row in chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def logprobs_of(model: Any, rows: list[dict[str, Any]]) -> list[Tensor]:
    """Log-probability of every completion token, [n] for each row."""
    full = [torch.tensor([*row["prompt_ids"], *row["completion_ids"]]) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(full, batch_first=True)       # causal: padding behind is not seen
    logprobs = model(ids).logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    return [logprobs[place, len(row["prompt_ids"]) - 1:len(full[place]) - 1]
            for place, row in enumerate(rows)]


def parts(items: list[Any]) -> list[list[Any]]:
    """Stretches of what fits together into a step."""
    return [items[first:first + TOGETHER] for first in range(0, len(items), TOGETHER)]


def others(rows: list[dict[str, Any]], values: Tensor) -> Tensor:
    """For every row the mean of the other rows of its group; of a group of one, nothing."""
    same = torch.tensor([[a["group_id"] == b["group_id"] for b in rows] for a in rows]).float()
    same.fill_diagonal_(0)
    return same @ values / same.sum(1).clamp(min=1)
