"""Drop token columns of old iterations; every scalar, text and score stays."""

from __future__ import annotations

import datetime
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from warehouse.store.checksums import part_facts
from warehouse.store.commit import json_bytes, replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.parts import read_part, write_part
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage

DROPPED = {"completions": ("completion_ids", "behaviour_logprobs"), "prompts": ("prompt_ids",),
           "train_samples": ("old_logprobs",)}


class Pruned(NamedTuple):
    """What was pruned, or would be: iterations, parts, bytes before and after."""

    iterations: list[int]
    num_parts: int
    bytes_before: int
    bytes_after: int


def prune_run(warehouse: Warehouse, before: int, *, dry_run: bool) -> Pruned:
    """Null the token columns of iterations before `before`; with `dry_run` only say what would go.

    Nothing can be trained on those iterations again; each pruning is written to RUN/pruned.jsonl.
    """
    from tqdm import tqdm
    iterations = [number for number in warehouse.iterations("completions") if number < before]
    unfinished = [number for number in iterations
                  if not warehouse.stage("train", iteration=number).is_complete()]
    if unfinished:
        raise StageError(f"Iteration {unfinished[0]} is not trained yet and needs its tokens. Prune before "
                         f"{unfinished[0]}, or train it first.")
    work = [(table, parts) for number in iterations for table, parts in _tables(warehouse, number)
            if parts and not _is_pruned(table, parts)]
    num_parts = sum(len(parts) for _, parts in work)
    size = sum(path.stat().st_size for _, parts in work for path in parts)
    if dry_run:
        return Pruned(
            iterations, num_parts, size, size - sum(_token_bytes(table, parts) for table, parts in work)
        )
    for table, parts in tqdm(work, desc="prune", unit="stage", leave=False, disable=None):
        for part in parts:
            _replace(warehouse, table, part)
    for number in iterations:
        for stage in _stages(warehouse, number):
            _list_again(stage)
    after = sum(path.stat().st_size for _, parts in work for path in parts)
    done = Pruned(iterations, num_parts, size, after)
    if work:
        with (warehouse.root / "pruned.jsonl").open("a") as log:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            log.write(json.dumps({"at": now, "before": before, **done._asdict()}) + "\n")
    return done


def _tables(warehouse: Warehouse, iteration: int) -> Iterator[tuple[str, list[Path]]]:
    for purpose in warehouse.purposes("completions", iteration):
        for table in ("completions", "prompts"):
            yield table, warehouse.parts(table, iteration=iteration, purpose=purpose)
    yield "train_samples", warehouse.parts("train_samples", iteration=iteration)


def _stages(warehouse: Warehouse, iteration: int) -> list[Stage]:
    """Stages whose manifests list the pruned parts."""
    rollouts = [warehouse.stage("rollout", iteration=iteration, purpose=purpose)
                for purpose in warehouse.purposes("completions", iteration)]
    return [*rollouts, warehouse.stage("train", iteration=iteration)]


def _replace(warehouse: Warehouse, table: str, part: Path) -> None:
    """Put a part without tokens in the place of one that has them, in one rename."""
    import pyarrow as pa
    rows = read_part(part)
    for column in DROPPED[table]:
        field = rows.schema.field(column)
        rows = rows.set_column(
            rows.schema.get_field_index(column), field, pa.nulls(rows.num_rows, field.type)
        )
    scratch = warehouse.scratch("prune")
    write_part(scratch / part.name, table, rows, {"run_id": warehouse.run_id, "part_uuid": uuid.uuid4().hex})
    os.replace(scratch / part.name, part)
    scratch.rmdir()


def _list_again(stage: Stage) -> None:
    """Let the manifest say what its parts are now; after a kill, the next pruning comes here again."""
    manifest = stage.manifest()
    if manifest is None:
        return
    now = {"parts": [part_facts(stage.folder / part["name"]) for part in manifest["parts"]]}
    if stage.prompts and "prompts" in manifest:
        now["prompts"] = [part_facts(stage.prompts / part["name"]) for part in manifest["prompts"]]
    if any(manifest[name] != listed for name, listed in now.items()):
        replace_bytes(stage.folder / "manifest.json", json_bytes({**manifest, **now, "pruned": True}))


def _is_pruned(table: str, parts: list[Path]) -> bool:
    return _token_values(table, parts[0]) == 0


def _token_values(table: str, part: Path) -> int:
    """How many tokens the dropped columns of a part hold, from its footer."""
    import pyarrow.parquet as pq
    metadata = pq.read_metadata(part)
    total = 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if chunk.path_in_schema.split(".")[0] in DROPPED[table]:
                held = chunk.statistics
                total += held.num_values if held is not None else chunk.num_values
    return total


def _token_bytes(table: str, parts: list[Path]) -> int:
    import pyarrow.parquet as pq
    total = 0
    for part in parts:
        metadata = pq.read_metadata(part)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                if chunk.path_in_schema.split(".")[0] in DROPPED[table]:
                    total += chunk.total_compressed_size
    return total
