"""Parts of a rollout: which completions each holds, and sampling and writing those that are missing."""

import math
import platform
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from rollout.engines.engine import Engine, Request, Sampled, Sampling
from rollout.prompts.plan import seed_of
from rollout.spill import Spill
from warehouse.stages.clock import bar_interval
from warehouse.stages.shard import Shard
from warehouse.stages.space import check_space
from warehouse.stages.stop import StageStopped, StopRequest, first_line
from warehouse.store.parts import part_number
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import CUT_OFF, arrow_schema

Member = tuple[dict[str, Any], int]  # (row of prompts, sample_index)


@dataclass(frozen=True)
class Part:
    """One part to sample: its number and which completions it holds."""

    number: int
    members: list[Member]


def missing_parts(warehouse: Warehouse, prompts: list[dict[str, Any]], part_size: int, shard: Shard,
                  **keys: Any) -> list[Part]:
    """Parts of this worker's share that do not exist yet.

    Which completions a part holds depends on the plan alone, never on which finished first, so that those
    that survive a kill are not the short ones.
    """
    per_part = _prompts_per_part(prompts, part_size)
    parts, present = [], {part_number(path) for path in warehouse.parts("completions", **keys)}
    for number, first in enumerate(range(0, len(prompts), per_part)):
        if shard.holds(number) and number not in present:
            members = [(prompt, prompt["group_index"] * prompt["group_size"] + sample)
                       for prompt in prompts[first:first + per_part]
                       for sample in range(prompt["group_size"])]
            parts.append(Part(number, members))
    return parts


def num_parts(prompts: list[dict[str, Any]], part_size: int) -> int:
    """How many parts the whole rollout has."""
    return math.ceil(len(prompts) / _prompts_per_part(prompts, part_size))


def _prompts_per_part(prompts: list[dict[str, Any]], part_size: int) -> int:
    return max(1, part_size // prompts[0]["group_size"])


def sample_parts(warehouse: Warehouse, engine: Engine, parts: list[Part], sampling: Sampling,
                 policy: dict[str, Any], stop: StopRequest, *, spill_seconds: float,
                 serve: str | None = None, **keys: Any) -> tuple[float, int]:
    """Sample all parts in one engine run and write each as soon as it is whole.

    The seconds spent writing and the tokens sampled by this call come back. What is finished of the parts in
    flight is spilled every `spill_seconds`, when the engine fails, and when `stop` is due: then StageStopped
    is raised.
    """
    constants = {**keys, **asdict(sampling), **_served_by(engine, policy, serve)}
    same = {name: constants[name] for name in ("policy_sha256", "dtype", "engine")}
    spills = {part.number: Spill(warehouse.part_path("completions", part.number, **keys), same)
              for part in parts}
    members = [(part, member) for part in parts for member in part.members]
    missing = [index for index, (part, member) in enumerate(members) if not spills[part.number].has(member)]
    began, writing, num_tokens = time.perf_counter(), 0.0, 0
    num_kept = len(members) - len(missing)  # not the bar's: TQDM_DISABLE stops its count
    results = _and_its_failure(engine.sample(_requests(members, missing), sampling), stop)
    with closing(results), tqdm(total=len(members), initial=num_kept, unit="completion",
                                desc=f"rollout {keys['iteration']} {keys['purpose']}",
                                mininterval=bar_interval()) as progress:
        for part in parts:
            writing += _close_if_whole(warehouse, part, spills[part.number], **keys)
        for sampled in results:
            if isinstance(sampled, Sampled):
                part, member = members[sampled.index]
                spills[part.number].add(_completion_row(member, sampled, constants))
                progress.update()
                num_kept += 1
                num_tokens += len(sampled.completion_ids)
                writing += _close_if_whole(warehouse, part, spills[part.number], **keys)
            failure = sampled if isinstance(sampled, Exception) else None
            if failure or stop.due() or time.perf_counter() - began > spill_seconds:
                began = time.perf_counter()
                for spill in spills.values():
                    spill.save()
                check_space(warehouse.root, 0, f"rollout of iteration {keys['iteration']}")
                writing += time.perf_counter() - began
            if (failure or stop.due()) and num_kept < len(members):
                raise _reason_to_end(failure, stop, f"{num_kept} of {len(members)} completions")
    assert num_kept == len(members), "the engine ended with completions missing"
    return writing, num_tokens


def _served_by(engine: Engine, policy: dict[str, Any], serve: str | None) -> dict[str, Any]:
    """What served the rows, and where."""
    return {"policy_version": policy["policy_version"], "policy_sha256": policy["sha256"],
            "engine": f"{engine.engine} ({serve})" if serve else engine.engine,
            "logprobs_mode": engine.logprobs_mode or None, "dtype": engine.dtype or None,
            "device": engine.device or None}


def _and_its_failure(sampled: Iterator[Sampled | None],
                     stop: StopRequest) -> Generator[Sampled | Exception | None, None, None]:
    """The engine's results, and its failure as the last of them: what it finished before is saved first.

    None comes first if the stop is due already.
    """
    if stop.due():
        yield None
    try:
        yield from sampled
    except Exception as error:
        yield error


def _reason_to_end(failure: Exception | None, stop: StopRequest, kept: str) -> Exception:
    """StageStopped when told to stop, which tells the engine's failure if there is one; else the failure."""
    if failure and not stop.asked():
        return failure
    told = f" The engine failed meanwhile: {first_line(failure)}." if failure else ""
    stopped = StageStopped(f"Stopped because {stop.reason}, with {kept} kept.{told} Run the same command "
                           "again to go on.")
    stopped.__cause__ = failure
    return stopped


def _close_if_whole(warehouse: Warehouse, part: Part, spill: Spill, **keys: Any) -> float:
    """Write the part if its last completion is there; seconds it took."""
    if len(spill.rows) < len(part.members):
        return 0.0
    began = time.perf_counter()
    rows = [spill.rows[prompt["task_id"], sample] for prompt, sample in part.members]
    table = pa.Table.from_pylist(rows, schema=arrow_schema("completions"))
    warehouse.write_part("completions", part.number, table, **keys)
    spill.remove()
    return time.perf_counter() - began


def _requests(members: list[tuple[Part, Member]], missing: list[int]) -> Iterator[Request]:
    for index in missing:
        _, (prompt, sample) = members[index]
        yield Request(index, prompt["prompt_ids"], _completion_seed(prompt, sample),
                      prompt["prefill"] or "", prompt.get("messages") or "", sample)


def _completion_seed(prompt: dict[str, Any], sample: int) -> int:
    return seed_of(prompt["seed"], "completion", sample)


def _completion_row(member: Member, sampled: Sampled, constants: dict[str, Any]) -> dict[str, Any]:
    prompt, sample = member
    return {
        **constants, "task_id": prompt["task_id"], "sample_index": sample, "group_id": prompt["group_id"],
        "completion": sampled.completion, "completion_ids": sampled.completion_ids,
        "behaviour_logprobs": sampled.logprobs, "support_ids": sampled.support,
        "host": sampled.host or platform.node(),
        "num_prompt_tokens": prompt["num_prompt_tokens"],
        "num_completion_tokens": len(sampled.completion_ids), "finish_reason": sampled.finish_reason,
        "cost": sampled.cost,
        "seed": _completion_seed(prompt, sample), "finished_at": datetime.now(UTC)}


def rollout_facts(warehouse: Warehouse, **keys: Any) -> dict[str, Any]:
    """Counts over the whole rollout, parts of earlier runs included."""
    columns = ["task_id", "group_id", "num_completion_tokens", "finish_reason"]
    rows = warehouse.read("completions", columns, **keys)
    tokens, reasons = rows["num_completion_tokens"].to_pylist(), rows["finish_reason"].to_pylist()
    return {"num_completions": len(tokens), "num_tokens": sum(tokens),
            "num_groups": len(set(rows["group_id"].to_pylist())),
            "num_tasks": len(set(rows["task_id"].to_pylist())),
            "num_truncated": sum(reason in CUT_OFF for reason in reasons),
            "num_loops": reasons.count("loop")}
