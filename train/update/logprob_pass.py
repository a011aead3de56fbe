"""The logprob pass: logprobs of stored rows under a fixed policy, before the first update."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from tqdm import tqdm

from train.model.packs import PromptGroup, pack_groups
from train.model.policy import Policy
from train.model.shared_prompt import pack_logprobs, passes_of
from train.rows.settings import Settings
from train.update.accelerator import Processes
from train.update.batch import Row, RowGroup, conversations, prompt_groups
from warehouse.stages.clock import bar_interval
from warehouse.stages.stop import StageStopped, StopRequest

COLUMNS = ("old_logprobs", "entropy", "ref_logprobs")
STEP_COLUMNS = ("log_drift", "clipped")


def fill_logprobs(policy: Policy, batch: list[RowGroup], processes: Processes, settings: Settings,
                  column: str, stop: StopRequest | None = None) -> None:
    """Set old_logprobs, with the entropy, or ref_logprobs of every row that has none; all processes share it.

    StageStopped when told to stop.
    """
    def missing(group: RowGroup) -> list[Row]:
        return [row for row in group.forwardable if not len(getattr(row, column))]

    mine = share(batch, [index for index, group in enumerate(batch) if missing(group)], processes)
    groups = prompt_groups(batch, {index: missing(batch[index]) for index in mine})
    packs, passed = pack_groups(policy, groups, settings.tokens_per_batch), []
    members = [[groups[number] for number in pack] for pack in packs]
    with (in_step(policy, members, processes, settings, backward=False),
          tqdm(total=len(mine), desc=column.replace("_", " "), unit="group", leave=False,
               mininterval=bar_interval(), disable=not (processes.first and mine)) as bar):
        for pack, pack_members in zip(packs, members, strict=True):
            if processes.count == 1 and stop and stop.due():
                raise StageStopped(f"Stopped because {stop.reason}, before the first step: nothing had to be "
                                   "saved. Run the same command again.")
            logprobs, entropies = pack_logprobs(policy, pack_members, token_budget=settings.tokens_per_batch)
            asked = [mine[number] for number in pack if number < len(mine)]
            passed.append((asked, logprobs, entropies))
            bar.update(len(asked))
    for indices, logprobs, entropies in processes.gather(passed):
        rows = [row for index in indices for row in missing(batch[index])]
        for row, row_logprobs, row_entropy in zip(rows, logprobs, entropies, strict=True):
            setattr(row, column, row_logprobs)
            if column == "old_logprobs":
                row.entropy = row_entropy


def in_step(policy: Policy, packs: list[list[PromptGroup]], processes: Processes, settings: Settings, *,
            backward: bool) -> AbstractContextManager[None]:
    """Of a sharded model, all processes make the passes that the packs of each of them take together."""
    if policy.shards is None:
        return nullcontext()
    passes = [passes_of(policy, pack, settings.tokens_per_batch, backward=backward) for pack in packs]
    return policy.shards.in_step(processes.gather(["".join(passes)]))


def collect(batch: list[RowGroup], columns: tuple[str, ...] = COLUMNS) -> dict[str, Tensor]:
    """Values of all rows, one after the other, to be stored; NaN for rows that no step has used yet."""
    rows = [row for group in batch for row in group.forwardable]
    for row in rows if columns == STEP_COLUMNS else ():
        if not len(row.log_drift):
            row.log_drift = row.clipped = torch.full(row.completion_ids.shape, torch.nan)
    values = {name: torch.cat([torch.empty(0), *(getattr(row, name) for row in rows)]) for name in columns}
    return {name: tensor for name, tensor in values.items() if len(tensor)}


def hand_out(batch: list[RowGroup], stored: dict[str, Tensor]) -> None:
    """Give what was stored back to its rows: the inverse of `collect`."""
    rows = [row for group in batch for row in group.forwardable]
    lengths = [len(row.completion_ids) for row in rows]
    for name, values in stored.items():
        for row, row_values in zip(rows, values.split(lengths), strict=True):
            setattr(row, name, row_values)


def share(batch: list[RowGroup], groups: list[int], processes: Processes) -> list[int]:
    """The groups of this process, costliest first: if memory is short, it is short at once.

    Those whose prompts begin with one another are one process's.
    """
    loads, mine = [0] * processes.count, []
    costs = [(sum(len(batch[index].prompt_ids) - batch[index].num_shared
                  + sum(len(row.completion_ids) for row in batch[index].rows) for index in members), members)
             for members in conversations(batch, groups)]
    for cost, members in sorted(costs, key=lambda each: (-each[0], each[1])):
        target = loads.index(min(loads))
        loads[target] += cost
        if target == processes.index:
            mine += members
    return mine
