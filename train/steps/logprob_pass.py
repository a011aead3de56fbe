"""The logprob pass: logprobs of stored rows under a fixed policy, before the first update."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from train.model.packs import PromptGroup, pack_groups
from train.model.policy import Policy
from train.model.shared_prompt import pack_logprobs, passes_of
from train.steps.accelerator import Processes
from train.steps.row import Row, RowGroup, forwardable
from warehouse.stages.clock import bar_options
from warehouse.stages.stop import StageStopped, StopRequest

COLUMNS = ("old_logprobs", "entropy", "ref_logprobs")
STEP_COLUMNS = ("log_drift", "clipped")
PROBE, PROBE_LENGTH = "probe.json", 1024        # most tokens of a probe's prompt and completion
Place = tuple[int, int]                         # of a row: its group, and its place there
Pack = tuple[list[PromptGroup], list[Place]]


def fill_logprobs(policy: Policy, batch: list[RowGroup], processes: Processes, tokens_per_batch: int,
                  column: str, stop: StopRequest | None = None) -> None:
    """Set old_logprobs and entropy, or ref_logprobs, of every row without them; processes share the work."""
    missing = {index: [place for place, row in enumerate(group.rows)
                       if row.num_tokens and not len(getattr(row, column))]
               for index, group in enumerate(batch)}
    packs, filled = packs_to_forward(policy, batch, missing, processes, tokens_per_batch), list[Place]()
    with (in_step(policy, packs, processes, tokens_per_batch, backward=False),
          tqdm(total=sum(len(groups) for groups, _ in packs), desc=column.replace("_", " "), unit="group",
               leave=False, **bar_options(), disable=not (processes.first and packs)) as bar):
        for groups, places in packs:
            if processes.count == 1 and stop and stop.due():
                raise StageStopped(f"Stopped because {stop.reason}, before the first step: nothing had to be "
                                   "saved. Run the same command again.")
            logprobs, entropies = pack_logprobs(policy, groups, token_budget=tokens_per_batch)
            for (index, place), row_logprobs, entropy in zip(places, logprobs, entropies, strict=True):
                row = batch[index].rows[place]
                setattr(row, column, row_logprobs)
                if column == "old_logprobs":
                    row.entropy = entropy
            filled += places
            bar.update(len(groups))
    exchange(batch, filled, processes, (column, "entropy") if column == "old_logprobs" else (column,))


def packs_to_forward(policy: Policy, batch: list[RowGroup], wanted: dict[int, list[int]],
                     processes: Processes, tokens_per_batch: int) -> list[Pack]:
    """What this process forwards of the wanted rows, by group: its groups in packs, with their places."""
    mine = share(batch, [index for index, places in wanted.items() if places], processes)
    groups = [batch[index].with_rows(wanted[index]) for index in mine]
    return [([groups[number] for number in pack],
             [(mine[number], place) for number in pack for place in wanted[mine[number]]])
            for pack in pack_groups(policy, groups, tokens_per_batch)]


def exchange(batch: list[RowGroup], places: list[Place], processes: Processes,
             columns: tuple[str, ...]) -> None:
    """Send what each process computed for its rows, by group and place, to all others.

    One tensor per column: a thousand small ones would take longer to send than an adapter's step.
    """
    if processes.count == 1:
        return
    rows = [batch[index].rows[place] for index, place in places]
    mine = (places, [row.drop_reason for row in rows],
            {name: torch.cat([getattr(row, name) for row in rows]) for name in columns if rows})
    for theirs, reasons, values in processes.gather([mine]):
        rows = [batch[index].rows[place] for index, place in theirs]
        for row, reason in zip(rows, reasons, strict=True):
            row.drop_reason = reason
        hand_out(rows, values)


def in_step(policy: Policy, packs: list[Pack], processes: Processes, tokens_per_batch: int, *,
            backward: bool) -> AbstractContextManager[None]:
    """All processes of a sharded model make the passes of each other's packs together."""
    if policy.shards is None:
        return nullcontext()
    passes = [passes_of(policy, groups, tokens_per_batch, backward=backward) for groups, _ in packs]
    return policy.shards.in_step(processes.gather(["".join(passes)]))


def collect(batch: list[RowGroup], columns: tuple[str, ...] = COLUMNS) -> dict[str, Tensor]:
    """Values of all rows, concatenated, to be stored; NaN for rows that no step has used yet."""
    rows = forwardable(batch)
    for row in rows if columns == STEP_COLUMNS else ():
        if not len(row.log_drift):
            row.log_drift = row.clipped = torch.full((row.num_tokens,), torch.nan)
    values = {name: torch.cat([torch.empty(0), *(getattr(row, name) for row in rows)]) for name in columns}
    return {name: tensor for name, tensor in values.items() if len(tensor)}


def hand_out(rows: list[Row], columns: dict[str, Tensor]) -> None:
    """Give each of `rows` its slice of columns over all their tokens."""
    lengths = [row.num_tokens for row in rows]
    for name, values in columns.items():
        for row, row_values in zip(rows, values.split(lengths), strict=True):
            setattr(row, name, row_values)


def share(batch: list[RowGroup], groups: list[int], processes: Processes) -> list[int]:
    """The groups of this process, the most expensive first: if memory is short, it is short at once."""
    loads, mine = [0] * processes.count, []
    costs = [(len(batch[index].stored.prompt_ids) + sum(row.num_tokens for row in batch[index].rows), index)
             for index in groups]
    for cost, index in sorted(costs, key=lambda each: (-each[0], each[1])):
        target = loads.index(min(loads))
        loads[target] += cost
        if target == processes.index:
            mine.append(index)
    return mine


def make_probe(policy: Policy, batch: list[RowGroup], token_budget: int) -> dict[str, Any] | None:
    """Logprobs of a row, in nats, by a new policy and by the one before: engines have to reproduce them.

    The row is the longest completion that fits PROBE_LENGTH with its prompt; None without rows.
    """
    rows = [(group, row) for group in batch for row in group.rows if len(row.old_logprobs)]
    if not rows:
        return None
    group, row = min(rows, key=lambda each: (
        max(PROBE_LENGTH, len(each[0].stored.prompt_ids) + each[1].num_tokens), -each[1].num_tokens))
    [logprobs], _ = pack_logprobs(policy, [PromptGroup(group.prompt_ids, [row.completion_ids], 1.0)],
                                  token_budget=token_budget)
    return {"prompt_ids": group.prompt_ids.tolist(), "completion_ids": row.completion_ids.tolist(),
            "logprobs": logprobs.tolist(), "logprobs_before": row.old_logprobs.tolist()
            if group.stored.temperature == 1 and row.support is None else None}
