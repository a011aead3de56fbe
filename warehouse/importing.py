"""Rollouts that were sampled elsewhere: JSON lines with token ids become one complete rollout stage."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.errors import StageError
from warehouse.schema import arrow_schema
from warehouse.store import Warehouse

REQUIRED = {"task_id": str, "prompt_ids": list, "completion_ids": list, "behaviour_logprobs": list,
            "completion": str, "finish_reason": str, "policy_version": int}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0}
PART_ROWS = 4096


def import_rollouts(warehouse: Warehouse, source: Path, *, iteration: int, purpose: str,
                    plain_sampling: bool) -> int:
    """Write the lines of `source` as the rollout of an iteration; how many completions it has.

    Every line is checked before anything is written; a StageError names the line and the field. Sampling
    parameters must stand in the lines unless `plain_sampling` says that there were none: temperature 1,
    no truncation, no penalty.
    """
    stage = warehouse.stage("rollout", iteration=iteration, purpose=purpose)
    if stage.settings() is not None or stage.is_complete():
        raise StageError(f"{stage.title} exists already. Import into an iteration or purpose that does not.")
    splits = {
        row["task_id"]: row["split"] for row in warehouse.read("tasks", ["task_id", "split"]).to_pylist()
    }
    rows = [_checked(line, number, splits, plain_sampling) for number, line in _lines(source)]
    if not rows:
        raise StageError(f"{source} holds no completion. Give a file with one JSON object per line.")
    policies = {row["policy_version"] for row in rows}
    if len(policies) > 1:
        raise StageError(f"{source} holds completions of policies {sorted(policies)}. One rollout is of one "
                         "policy: split the file.")
    _number(rows, iteration, purpose)
    stage.settle({"imported_from": source.name, "sha256": hashlib.sha256(source.read_bytes()).hexdigest()})
    keys = {"iteration": iteration, "purpose": purpose}
    warehouse.write_part("prompts", 0, _table("prompts", _prompts(rows, splits)), **keys)
    for number, part in enumerate(_parts(rows)):
        warehouse.write_part("completions", number, _table("completions", part), **keys)
    stage.complete({"num_completions": len(rows), "imported": True, "seconds": 0.0})
    return len(rows)


def _lines(source: Path) -> Iterator[tuple[int, str]]:
    raw: Any = source.open("rb")
    if source.suffix == ".zst":
        import zstandard
        raw = zstandard.ZstdDecompressor().stream_reader(raw)
    with io.TextIOWrapper(raw, encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, line


def _checked(line: str, number: int, tasks: dict[str, str], plain_sampling: bool) -> dict[str, Any]:
    """One line as a row of completions, prompt columns beside it."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise StageError(f"Line {number} is not JSON ({error}). Mend or remove it.") from error
    if not isinstance(row, dict):
        raise StageError(f"Line {number} is not a JSON object. One line is one completion.")
    for field, kind in REQUIRED.items():
        if not isinstance(row.get(field), kind):
            raise StageError(f"Line {number}: '{field}' is missing or not of type {kind.__name__}.")
    if row["task_id"] not in tasks:
        raise StageError(f"Line {number}: task '{row['task_id']}' is not in this run. Import it with "
                         "`warehouse init --tasks`.")
    ids, logprobs = row["completion_ids"], row["behaviour_logprobs"]
    if not ids or len(ids) != len(logprobs):
        raise StageError(f"Line {number}: {len(ids)} completion_ids but {len(logprobs)} "
                         f"behaviour_logprobs; there "
                         "must be one for each token.")
    if not all(isinstance(p, int | float) and math.isfinite(p) and p <= 1e-6 for p in logprobs):
        raise StageError(f"Line {number}: 'behaviour_logprobs' holds a value that is no log probability.")
    if not all(isinstance(token, int) and token >= 0 for token in [*ids, *row["prompt_ids"]]):
        raise StageError(f"Line {number}: a token id is not a whole number from 0.")
    missing = [name for name in SAMPLING if row.get(name) is None]
    if missing and not plain_sampling:
        raise StageError(f"Line {number}: '{missing[0]}' is missing. Give the sampling parameters in "
                         f"every line, "
                         "or --plain-sampling if there were none (temperature 1, no truncation, no penalty).")
    return {**row, **{name: SAMPLING[name] for name in missing}}


def _number(rows: list[dict[str, Any]], iteration: int, purpose: str) -> None:
    """Give every row its keys, group by prompt, in the order of the file."""
    counts: dict[str, int] = {}
    groups: dict[str, list[str]] = {}
    now = datetime.datetime.now(datetime.UTC)
    for row in rows:
        task = row["task_id"]
        prompt_id = hashlib.sha256(json.dumps(row["prompt_ids"]).encode()).hexdigest()[:16]
        of_task = groups.setdefault(task, [])
        if prompt_id not in of_task:
            of_task.append(prompt_id)
        index = counts.get(task, 0)
        counts[task] = index + 1
        row.update(iteration=iteration, purpose=purpose, sample_index=index, prompt_id=prompt_id,
                   group_index=of_task.index(prompt_id), num_prompt_tokens=len(row["prompt_ids"]),
                   group_id=f"{iteration}/{purpose}/{task}/{of_task.index(prompt_id)}",
                   num_completion_tokens=len(row["completion_ids"]), finished_at=now)


def _prompts(rows: list[dict[str, Any]], splits: dict[str, str]) -> list[dict[str, Any]]:
    """One prompt row per group."""
    prompts: dict[str, dict[str, Any]] = {}
    for row in rows:
        prompt = prompts.setdefault(
            row["group_id"],
            {
                **row,
                "group_size": 0,
                "split": splits[row["task_id"]],
                "prompt": row.get("prompt") or "",
                "prompt_format": "imported",
                "prefill": "",
                "seed": None,
            },
        )
        prompt["group_size"] += 1
    return list(prompts.values())


def _parts(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows in parts of PART_ROWS or a little more: the rows of a group stay together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    part: list[dict[str, Any]] = []
    for group in groups.values():
        part += group
        if len(part) >= PART_ROWS:
            yield part
            part = []
    if part:
        yield part


def _table(name: str, rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa
    schema = arrow_schema(name)
    return pa.Table.from_pylist([{key: row.get(key) for key in schema.names} for row in rows], schema=schema)
