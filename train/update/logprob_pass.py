"""Logprobs of stored rows under a fixed policy, before the first update, spread over the processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from train.model.policy import Policy
from train.model.shared_prompt import score_group
from train.rows.settings import Settings
from train.update.accelerator import Processes
from train.update.batch import Row, RowGroup
from warehouse.stages.stop import StageStopped, StopRequest

Scores = dict[str, Tensor]


def score_old(policy: Policy, shard: list[RowGroup], processes: Processes, settings: Settings,
              stop: StopRequest | None = None) -> None:
    """Set old logprobs and entropy of every row that has none yet; StageStopped when told to stop."""
    def missing(one: RowGroup) -> list[Row]:
        return [row for row in one.forwardable if not len(row.old_logprobs)]

    for index, logprobs, entropies in _score(policy, shard, processes, settings, missing, "old logprobs",
                                             stop):
        for row, row_logprobs, row_entropy in zip(missing(shard[index]), logprobs, entropies, strict=True):
            row.old_logprobs, row.entropy = row_logprobs, row_entropy


def score_reference(policy: Policy, shard: list[RowGroup], processes: Processes, settings: Settings,
                    stop: StopRequest | None = None) -> None:
    """Set reference logprobs of every row; `policy` is the base model. StageStopped when told to stop."""
    for index, logprobs, _ in _score(policy, shard, processes, settings, lambda one: one.forwardable,
                                     "reference", stop):
        for row, row_logprobs in zip(shard[index].forwardable, logprobs, strict=True):
            row.ref_logprobs = row_logprobs


def collect(shard: list[RowGroup]) -> Scores:
    """Scores of all rows, one after the other, to be stored."""
    rows = [row for one in shard for row in one.forwardable]
    scores = {"old_logprobs": [row.old_logprobs for row in rows], "entropy": [row.entropy for row in rows]}
    if rows and rows[0].ref_logprobs is not None:
        scores["ref_logprobs"] = [row.ref_logprobs for row in rows if row.ref_logprobs is not None]
    return {name: torch.cat([torch.empty(0), *values]) for name, values in scores.items()}


def hand_out(shard: list[RowGroup], scores: Scores) -> None:
    """Give stored scores back to their rows: the inverse of `collect`."""
    rows = [row for one in shard for row in one.forwardable]
    lengths = [len(row.completion_ids) for row in rows]
    for name, values in scores.items():
        for row, row_values in zip(rows, values.split(lengths), strict=True):
            setattr(row, name, row_values)


def share(shard: list[RowGroup], groups: list[int], processes: Processes) -> list[int]:
    """The groups of this process, costliest first: if memory is short, it is short at once."""
    costs = {index: len(shard[index].prompt_ids) + sum(len(row.completion_ids) for row in shard[index].rows)
             for index in groups}
    loads = [0] * processes.count
    mine = []
    for index in sorted(groups, key=lambda index: (-costs[index], index)):
        target = loads.index(min(loads))
        loads[target] += costs[index]
        if target == processes.index:
            mine.append(index)
    return mine


def _score(policy: Policy, shard: list[RowGroup], processes: Processes, settings: Settings,
           rows_of: Callable[[RowGroup], list[Row]], name: str,
           stop: StopRequest | None) -> list[tuple[int, list[Tensor], list[Tensor]]]:
    """(group, logprobs, entropies) of the rows that `rows_of` names, from all processes."""
    wanted = [index for index, one in enumerate(shard) if rows_of(one)]
    found = []
    for index in tqdm(share(shard, wanted, processes), desc=name, unit="group", disable=not processes.first,
                      leave=False):
        if processes.count == 1 and stop and stop.due():
            raise StageStopped(f"Stopped because {stop.reason}, before the first step: nothing had to be "
                               "saved. Run the same command again.")
        one, rows = shard[index], rows_of(shard[index])
        logprobs, entropies = score_group(
            policy, one.prompt_ids.to(policy.device), [row.completion_ids.to(policy.device) for row in rows],
            temperature=one.group.temperature, token_budget=settings.tokens_per_batch)
        found.append((index, [values.cpu() for values in logprobs], [values.cpu() for values in entropies]))
    return processes.gather(found)
