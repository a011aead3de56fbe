"""Merge the parts of finished stages into a few: fewer files, the same rows in the same order.

The merged parts go into new generations. One entry of the log switches to them for the rollout and all its
scores; the old files are removed afterwards. A reader that had listed them lists again.
"""

import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.ledger.refusals import Refusal
from warehouse.maintain.rewrite import NewGeneration, rewriting, verify_all
from warehouse.sql.database import refresh_sql
from warehouse.store.commit import commit_file
from warehouse.store.errors import StageError
from warehouse.store.manifests import Listed, listed_parts
from warehouse.store.names import is_training
from warehouse.store.parts import as_stored, part_number, part_writer, read_groups, row_group_size
from warehouse.store.run_folder import TABLES_OF, Warehouse
from warehouse.store.schema import arrow_schema

Merged = dict[int, list[int]]  # number of the merged part -> numbers of the parts in it, in order
MIB = 2**20


def compact_run(warehouse: Warehouse, iteration: int | None = None, part_mib: int = 256) -> list[str]:
    """Compact every finished iteration, or the named one; return the lines to print."""
    warehouse.state.check_begun(iteration)
    lines = list[str]()
    for rollout in warehouse.state.of_stage("rollout", iteration):
        while (done := _compact(warehouse, rollout.identity, part_mib, iteration is not None)) is None:
            continue                    # another command changed it meanwhile
        lines += done
    refresh_sql(warehouse)
    return lines or ["nothing to merge: no finished iteration has several small parts"]


def _compact(warehouse: Warehouse, keys: dict[str, Any], part_mib: int, named: bool) -> list[str] | None:
    """Merge completions, samples and logprobs alike: part i of samples still scores part i of completions.

    None if another command changed them meanwhile.
    """
    state = warehouse.state
    lives = [life for life in (state.life("rollout", **keys), *state.derived(**keys)) if life]
    training = state.life("train", keys["iteration"]) if is_training(keys["purpose"]) else None
    unfinished = [life.title for life in (*lives, training) if life and not life.is_complete]
    if unfinished and named:
        raise StageError(f"{unfinished[0]} is not complete. Run it to its end, then compact.")
    if unfinished or not lives:
        return []
    title = f"iteration {keys['iteration']} ({keys['purpose']})"
    rollout = warehouse.stage("rollout", **keys)
    parts = listed_parts(rollout.folder, rollout.manifest(), "completions")
    lost = {part_number(Path(name)) for life in lives for name in life.lost}
    if lost & {part_number(part) for part in parts}:    # a merged part would lack its scores
        return [f"{title}: stays in its parts, as a part of its scores is lost"]
    try:
        with rewriting(warehouse, "compacted", lives) as new:
            plan = _plan(parts, part_mib)
            verify_all(warehouse, lives if plan else [])
            for life in lives if plan else []:
                new.append(NewGeneration.of(warehouse, life, "compacted"))
                _merge(new[-1], plan)
    except Refusal:
        return None
    if not new:
        return []
    num_old = sum(map(len, plan.values())) * len(new)
    return [f"{title}: {num_old} files merged into {len(plan) * len(new)}"]


def _plan(parts: Listed, part_mib: int) -> Merged:
    """Adjacent parts of up to `part_mib` MiB become one part; empty if this does not reduce their number."""
    groups: list[list[int]] = []
    size = 0
    for part, facts in parts.items():
        num_bytes = facts["bytes"]
        if not groups or size + num_bytes > part_mib * MIB:
            groups.append([])
            size = 0
        groups[-1].append(part_number(part))
        size += num_bytes
    return {} if len(groups) == len(parts) else dict(enumerate(groups))


def _merge(new: NewGeneration, plan: Merged) -> None:
    """Write the merged parts of one stage, and its manifest, into a new generation."""
    warehouse, stage = new.warehouse, new.warehouse.stage_of(new.life)
    manifest = stage.manifest()
    assert manifest is not None
    listed = {part_number(Path(part["name"])) for part in manifest["parts"]
              if part["name"].startswith("part-")}
    if listed != {number for numbers in plan.values() for number in numbers}:
        raise StageError(f"{stage.title} has other parts than its rollout: see `warehouse check`.")
    table = TABLES_OF[stage.name][0]
    former = warehouse.parts(table, **stage.identity)
    by_number = {part_number(part): part for part in former}
    new.adopt(manifest, without=former)
    for number, numbers in plan.items():
        old = [by_number[replaced] for replaced in numbers]
        commit_file(new.new_path(old[0]).with_name(f"part-{number:05d}.parquet"),
                    partial(_write, table=table, old=old, run_id=warehouse.run_id))
    new.write_manifest(manifest, compacted_at=time.time())


def _write(path: Path, table: str, old: list[Path], run_id: str) -> None:
    """Copy the rows of the old parts, about a row group at a time."""
    num_rows, size = 0, row_group_size(table)
    merged = f"{part_number(old[0])}-{part_number(old[-1])}"
    with part_writer(path, table, {"run_id": run_id, "merged": merged}) as writer:
        for batch in _batches(old, table, size):
            writer.write_table(as_stored(batch, writer.schema), row_group_size=size)
            num_rows += batch.num_rows
    written = pq.read_metadata(path).num_rows
    assert written == num_rows == sum(pq.read_metadata(part).num_rows for part in old), "rows were lost"


def _batches(paths: list[Path], table: str, size: int) -> Iterator[pa.Table]:
    """Rows of the parts in order; small row groups are combined up to `size` rows."""
    held: list[pa.Table] = []
    for group in chain.from_iterable(read_groups(path, table, arrow_schema(table).names) for path in paths):
        held.append(group)
        if sum(batch.num_rows for batch in held) >= size:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)
