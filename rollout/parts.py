"""Parts of a rollout: the completions of each, which are missing, and counts over all."""

import math
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
    per_part = _prompts_per_part(prompts, part_size)
    return [Part(number, [(prompt, prompt["group_index"] * prompt["group_size"] + sample)
                          for prompt in prompts[first:first + per_part]
                          for sample in range(prompt["group_size"])])
            for number, first in enumerate(range(0, len(prompts), per_part)) if shard.holds(number)]


def carried_in_part(warehouse: Warehouse, number: int, **keys: Any) -> set[str]:
    """Groups of a part that the rollout left to the next iteration."""
    paths = [path for path in warehouse.parts("carried", **keys) if part_number(path) == number]
    ensure_local(paths)
    return set(read_parts(paths, "carried", ["group_id"])["group_id"].to_pylist())


def num_parts(prompts: list[dict[str, Any]], part_size: int) -> int:
    return math.ceil(len(prompts) / _prompts_per_part(prompts, part_size))


def _prompts_per_part(prompts: list[dict[str, Any]], part_size: int) -> int:
    return max(1, part_size // prompts[0]["group_size"])


def rollout_facts(warehouse: Warehouse, **keys: Any) -> dict[str, Any]:
    columns = ["task_id", "group_id", "num_completion_tokens", "finish_reason"]
    rows = warehouse.read("completions", columns, **keys)
    tokens, reasons = rows["num_completion_tokens"].to_pylist(), rows["finish_reason"].to_pylist()
    return {"num_completions": len(tokens), "num_tokens": sum(tokens),
            "num_groups": len(set(rows["group_id"].to_pylist())),
            "num_tasks": len(set(rows["task_id"].to_pylist())),
            "num_truncated": sum(reason in CUT_OFF for reason in reasons),
            **_carried_facts(warehouse, **keys)}


def _carried_facts(warehouse: Warehouse, **keys: Any) -> dict[str, Any]:
    """What is left to the next iteration: groups, their unfinished completions and all their tokens."""
    rows = warehouse.read("carried", ["group_id", "finish_reason", "num_completion_tokens"], **keys)
    if not rows.num_rows:
        return {}
    return {"num_carried_groups": len(rows["group_id"].unique()),
            "num_carried_unfinished": rows["finish_reason"].null_count,
            "num_carried_tokens": sum(rows["num_completion_tokens"].to_pylist())}
