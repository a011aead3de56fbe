"""Parts of a rollout: the completions of each, which are missing, and counts over all."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Self

from warehouse.ledger.state import TRAIN
from warehouse.stages.shard import Shard
from warehouse.store.commit import ensure_local
from warehouse.store.parts import part_number, read_parts
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import CUT_OFF

Member = tuple[dict[str, Any], int]  # (row of prompts, sample_index)


@dataclass(frozen=True)
class Part:
    """One part to sample: its number, its completions, and whether its carried-over groups are settled."""

    number: int
    members: list[Member]
    decided: bool = False

    def without(self, groups: Collection[str]) -> Self:
        return replace(self, members=[member for member in self.members
                                      if member[0]["group_id"] not in groups])


def missing_parts(warehouse: Warehouse, prompts: list[dict[str, Any]], part_size: int, shard: Shard,
                  **keys: Any) -> list[Part]:
    """Parts of this worker's share that do not exist yet, without groups already carried over."""
    present = {part_number(path) for path in warehouse.parts("completions", **keys)}
    later = warehouse.state.taken_groups(keys["iteration"]) if keys["purpose"] == TRAIN else {}
    decided = {part_number(path) for path in warehouse.parts("carried", **keys)}
    parts = []
    for part in split_parts(prompts, part_size, shard):
        if part.number not in present:
            parts.append(replace(part.without(later.keys() | carried_in_part(warehouse, part.number, **keys)),
                                 decided=part.number in decided))
    return parts


def split_parts(prompts: list[dict[str, Any]], part_size: int, shard: Shard) -> list[Part]:
    """All parts of a worker's share.

    The plan alone decides which part a completion belongs to, never the order of arrival, so a kill does not
    keep only the short ones.
    """
    per_part = max(1, part_size // prompts[0]["group_size"])
    return [Part(number, [(prompt, prompt["group_index"] * prompt["group_size"] + sample)
                          for prompt in prompts[first:first + per_part]
                          for sample in range(prompt["group_size"])])
            for number, first in enumerate(range(0, len(prompts), per_part)) if shard.holds(number)]


def carried_in_part(warehouse: Warehouse, number: int, **keys: Any) -> set[str]:
    """Groups of a part that the rollout left to the next iteration."""
    paths = [path for path in warehouse.parts("carried", **keys) if part_number(path) == number]
    ensure_local(paths)
    return set(read_parts(paths, "carried", ["group_id"])["group_id"].to_pylist())


def rollout_facts(warehouse: Warehouse, **keys: Any) -> dict[str, Any]:
    columns = ["task_id", "group_id", "num_completion_tokens", "finish_reason"]
    rows = warehouse.read("completions", columns, **keys)
    left = warehouse.read("carried", columns[1:], **keys)
    facts = {"num_completions": rows.num_rows, "num_tokens": sum(rows["num_completion_tokens"].to_pylist()),
             "num_groups": len(rows["group_id"].unique()), "num_tasks": len(rows["task_id"].unique()),
             "num_truncated": sum(reason in CUT_OFF for reason in rows["finish_reason"].to_pylist())}
    return facts if not left.num_rows else facts | {
        "num_carried_groups": len(left["group_id"].unique()),
        "num_carried_unfinished": left["finish_reason"].null_count,
        "num_carried_tokens": sum(left["num_completion_tokens"].to_pylist())}
