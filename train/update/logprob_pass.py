"""The logprob pass: logprobs of stored rows under a fixed policy, before the first update."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from train.model.policy import Policy
from train.model.shared_prompt import group_logprobs
from train.rows.settings import Settings
from train.update.accelerator import Processes
from train.update.batch import Row, RowGroup
from warehouse.stages.stop import StageStopped, StopRequest

Logprobs = dict[str, Tensor]


def fill_old_logprobs(policy: Policy, batch: list[RowGroup], processes: Processes, settings: Settings,
                      stop: StopRequest | None = None) -> None:
    """Set old logprobs and entropy of every row that has none yet; StageStopped when told to stop."""
    def missing(group: RowGroup) -> list[Row]:
        return [row for row in group.forwardable if not len(row.old_logprobs)]

    for index, logprobs, entropies in _pass(policy, batch, processes, settings, missing, "old logprobs",
                                            stop):
        for row, row_logprobs, row_entropy in zip(missing(batch[index]), logprobs, entropies, strict=True):
            row.old_logprobs, row.entropy = row_logprobs, row_entropy


def fill_reference_logprobs(policy: Policy, batch: list[RowGroup], processes: Processes, settings: Settings,
                            stop: StopRequest | None = None) -> None:
    """Set reference logprobs of every row; `policy` is the base model. StageStopped when told to stop."""
    for index, logprobs, _ in _pass(policy, batch, processes, settings, lambda group: group.forwardable,
                                    "reference", stop):
        for row, row_logprobs in zip(batch[index].forwardable, logprobs, strict=True):
            row.ref_logprobs = row_logprobs


def collect(batch: list[RowGroup]) -> Logprobs:
    """Logprobs and entropies of all rows, one after the other, to be stored."""
    rows = [row for group in batch for row in group.forwardable]
    values = {"old_logprobs": [row.old_logprobs for row in rows], "entropy": [row.entropy for row in rows]}
    if rows and rows[0].ref_logprobs is not None:
        values["ref_logprobs"] = [row.ref_logprobs for row in rows if row.ref_logprobs is not None]
    return {name: torch.cat([torch.empty(0), *tensors]) for name, tensors in values.items()}


def hand_out(batch: list[RowGroup], stored: Logprobs) -> None:
    """Give what was stored back to its rows: the inverse of `collect`."""
    rows = [row for group in batch for row in group.forwardable]
    lengths = [len(row.completion_ids) for row in rows]
    for name, values in stored.items():
        for row, row_values in zip(rows, values.split(lengths), strict=True):
            setattr(row, name, row_values)


def share(batch: list[RowGroup], groups: list[int], processes: Processes) -> list[int]:
    """The groups of this process, costliest first: if memory is short, it is short at once."""
    costs = {index: len(batch[index].prompt_ids) + sum(len(row.completion_ids) for row in batch[index].rows)
             for index in groups}
    loads = [0] * processes.count
    mine = []
    for index in sorted(groups, key=lambda index: (-costs[index], index)):
        target = loads.index(min(loads))
        loads[target] += costs[index]
        if target == processes.index:
            mine.append(index)
    return mine


def _pass(policy: Policy, batch: list[RowGroup], processes: Processes, settings: Settings,
          rows_of: Callable[[RowGroup], list[Row]], name: str,
          stop: StopRequest | None) -> list[tuple[int, list[Tensor], list[Tensor]]]:
    """(group, logprobs, entropies) of the rows that `rows_of` names, from all processes."""
    wanted = [index for index, group in enumerate(batch) if rows_of(group)]
    passed = []
    for index in tqdm(share(batch, wanted, processes), desc=name, unit="group", disable=not processes.first,
                      leave=False):
        if processes.count == 1 and stop and stop.due():
            raise StageStopped(f"Stopped because {stop.reason}, before the first step: nothing had to be "
                               "saved. Run the same command again.")
        group = batch[index]
        completions = [row.completion_ids.to(policy.device) for row in rows_of(group)]
        logprobs, entropies = group_logprobs(
            policy, group.prompt_ids.to(policy.device), completions, temperature=group.stored.temperature,
            token_budget=settings.tokens_per_batch)
        passed.append((index, [values.cpu() for values in logprobs], [values.cpu() for values in entropies]))
    return processes.gather(passed)
