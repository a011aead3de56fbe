"""Parts of a rollout: which completions each holds, and sampling and writing those that are missing."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from rollout.engine import Engine, Request, Sampled, Sampling
from rollout.plan import seed_of
from warehouse.schema import arrow_schema
from warehouse.store import Warehouse


@dataclass(frozen=True)
class Part:
    """One part to sample: its number and its (prompt row, sample index) pairs."""

    number: int
    members: list[tuple[dict[str, Any], int]]


def missing_parts(warehouse: Warehouse, prompts: list[dict[str, Any]], part_size: int, iteration: int,
                   purpose: str) -> list[Part]:
    """Parts that do not exist yet.

    Which completions a part holds depends on the plan alone, never on which finished first, so that those
    that survive a kill are not the short ones.
    """
    per_part = max(1, part_size // prompts[0]["group_size"])
    parts = []
    for number, first in enumerate(range(0, len(prompts), per_part)):
        path = warehouse.part_path("completions", number, iteration=iteration, purpose=purpose)
        if not path.exists():
            members = [(prompt, prompt["group_index"] * prompt["group_size"] + sample)
                       for prompt in prompts[first:first + per_part]
                       for sample in range(prompt["group_size"])]
            parts.append(Part(number, members))
    return parts


def sample_parts(warehouse: Warehouse, engine: Engine, parts: list[Part], sampling: Sampling,
                 policy: dict[str, Any], *, iteration: int, purpose: str) -> float:
    """Sample all parts in one engine run and write each as soon as it is whole; seconds spent writing."""
    members = [(part.number, prompt, sample) for part in parts for prompt, sample in part.members]
    waiting = {part.number: len(part.members) for part in parts}
    done: dict[int, dict[int, dict[str, Any]]] = {part.number: {} for part in parts}
    constants = {
        "iteration": iteration, "purpose": purpose, "policy_version": policy["policy_version"],
        "policy_sha256": policy["sha256"], **asdict(sampling), "engine": engine.engine,
        "logprobs_mode": engine.logprobs_mode, "dtype": engine.dtype, "device": engine.device,
        "host": platform.node()}
    written = 0.0
    with tqdm(total=len(members), unit="completion", desc=f"rollout {iteration} {purpose}") as progress:
        for sampled in engine.sample(_requests(members), sampling):
            number, prompt, sample = members[sampled.index]
            done[number][sampled.index] = _completion_row(prompt, sample, sampled, constants)
            progress.update()
            waiting[number] -= 1
            if not waiting[number]:
                began = time.perf_counter()
                rows = [row for _, row in sorted(done.pop(number).items())]
                table = pa.Table.from_pylist(rows, schema=arrow_schema("completions"))
                warehouse.write_part("completions", number, table, iteration=iteration, purpose=purpose)
                written += time.perf_counter() - began
    assert not any(waiting.values()), "the engine ended with completions missing"
    return written


def _requests(members: list[tuple[int, dict[str, Any], int]]) -> Iterator[Request]:
    for index, (_, prompt, sample) in enumerate(members):
        yield Request(index, prompt["prompt_ids"], _completion_seed(prompt, sample))


def _completion_seed(prompt: dict[str, Any], sample: int) -> int:
    return seed_of(prompt["seed"], "completion", sample)


def _completion_row(prompt: dict[str, Any], sample: int, sampled: Sampled,
                    constants: dict[str, Any]) -> dict[str, Any]:
    return {
        **constants, "task_id": prompt["task_id"], "sample_index": sample, "group_id": prompt["group_id"],
        "completion": sampled.completion, "completion_ids": sampled.completion_ids,
        "behaviour_logprobs": sampled.logprobs, "num_prompt_tokens": prompt["num_prompt_tokens"],
        "num_completion_tokens": len(sampled.completion_ids), "finish_reason": sampled.finish_reason,
        "seed": _completion_seed(prompt, sample), "finished_at": datetime.now(UTC)}


def rollout_facts(warehouse: Warehouse, iteration: int, purpose: str, too_long: int) -> dict[str, Any]:
    """Counts over the whole rollout, parts of earlier runs included."""
    columns = ["task_id", "group_id", "num_completion_tokens", "finish_reason"]
    rows = warehouse.read("completions", columns, iteration=iteration, purpose=purpose)
    tokens, reasons = rows["num_completion_tokens"].to_pylist(), rows["finish_reason"].to_pylist()
    return {"num_completions": len(tokens), "num_tokens": sum(tokens), "prompts_too_long": too_long,
            "num_groups": len(set(rows["group_id"].to_pylist())),
            "num_tasks": len(set(rows["task_id"].to_pylist())), "num_truncated": reasons.count("length")}
