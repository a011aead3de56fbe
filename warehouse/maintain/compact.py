"""Merge the parts of finished stages into a few: fewer files, the same rows in the same order.

Readers take the parts of a complete stage from its manifest, so replacing the manifest, which is one rename,
is the instant at which they change from the old parts to the merged ones. The old files are removed after it;
a reader that had listed them asks again. A late twin of a killed worker may still add an old part: no
manifest lists it, so it is nobody's row.
"""

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.sql.database import refresh_sql
from warehouse.stages.space import sweep
from warehouse.store.checksums import part_facts
from warehouse.store.commit import ensure_local, flush, saying_why
from warehouse.store.errors import StageError
from warehouse.store.intent import Step, carry_out
from warehouse.store.json_files import json_bytes
from warehouse.store.names import is_training
from warehouse.store.parts import as_stored, part_number, part_writer, read_groups, row_group_size
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import arrow_schema
from warehouse.store.stage import Stage

Merged = dict[int, list[int]]  # number of the merged part -> numbers of the parts in it, in order
MIB = 2**20


def compact_run(warehouse: Warehouse, iteration: int | None = None, part_mib: int = 256) -> list[str]:
    """Compact every finished iteration, or the one named; the lines to print come back.

    StageError if the one named has a stage under way.
    """
    lines = []
    for number in warehouse.iterations("completions") if iteration is None else [iteration]:
        for purpose in warehouse.purposes("completions", number):
            unfinished = [stage.title for stage in _stages(warehouse, number, purpose)
                          if not stage.is_complete() and stage.settings() is not None]
            if not unfinished:
                lines += _compact_rollout(warehouse, number, purpose, part_mib)
            elif iteration is not None:
                raise StageError(f"{unfinished[0]} is not complete. Run it to its end, then compact.")
    refresh_sql(warehouse)
    sweep(warehouse)
    return lines or ["nothing to merge: no finished iteration has several small parts"]


def _stages(warehouse: Warehouse, iteration: int, purpose: str) -> list[Stage]:
    """Stages that read or wrote the rows of one rollout: the rollout, its scores, the training on it."""
    stages = [warehouse.stage("rollout", iteration=iteration, purpose=purpose),
              *warehouse.scores(iteration, purpose)]
    return stages + ([warehouse.stage("train", iteration=iteration)] if is_training(purpose) else [])


def _compact_rollout(warehouse: Warehouse, iteration: int, purpose: str, part_mib: int) -> list[str]:
    """Merge completions and samples alike, so that part i of samples still scores part i of completions."""
    rollout, *others = _stages(warehouse, iteration, purpose)
    if not rollout.is_complete():
        return []
    stages = [rollout, *(stage for stage in others if stage.name == "score" and stage.is_complete())]
    parts = warehouse.parts("completions", iteration=iteration, purpose=purpose)
    lost = {part_number(Path(name)) for stage in stages for name in (stage.manifest() or {}).get("lost", [])}
    if lost & {part_number(part) for part in parts}:    # a merged part would have no twin
        return [f"iteration {iteration} ({purpose}): stays in its parts, as a part of its scores is lost"]
    meanwhile = [f"iteration {iteration} ({purpose}): another process merged it meanwhile"]
    ensure_local(parts)
    scratch, steps = warehouse.scratch("compact"), list[Step]()
    try:
        plan = _plan(parts, part_mib, lost)
        manifests = [_merge(warehouse, stage, plan, scratch, steps) if plan else stage.manifest() or {}
                     for stage in stages]
    except (StageError, FileNotFoundError):
        if parts == warehouse.parts("completions", iteration=iteration, purpose=purpose):
            raise
        return meanwhile
    old = [stage.folder / name for stage, manifest in zip(stages, manifests, strict=True)
           for name in manifest.get("replaced", []) if (stage.folder / name).exists()]
    if not steps and not old:
        scratch.rmdir()
        return []
    steps += [*(("remove", path, "") for path in old), ("remove", scratch, "")]
    if parts != warehouse.parts("completions", iteration=iteration, purpose=purpose) or not carry_out(
            warehouse.root, "compact", steps):
        return meanwhile
    names = [part["name"] for manifest in manifests for part in manifest["parts"]]
    return [f"iteration {iteration} ({purpose}): {len(old)} files merged into "
            f"{sum(name.startswith('part-') for name in names)}"]


def _plan(parts: list[Path], part_mib: int, lost: set[int]) -> Merged:
    """Neighbours up to `part_mib` MiB together become one part; empty when that makes no fewer."""
    groups: list[list[int]] = []
    size = 0
    for part in parts:
        num_bytes = part.stat().st_size
        if not groups or size + num_bytes > part_mib * MIB:
            groups.append([])
            size = 0
        groups[-1].append(part_number(part))
        size += num_bytes
    if len(groups) == len(parts):
        return {}
    # Numbers never used before: a zombie's late part cannot meet them. All get new ones, to keep the order.
    first = max(lost | {part_number(parts[-1])}) + 1
    return {first + index: numbers for index, numbers in enumerate(groups)}


def _merge(warehouse: Warehouse, stage: Stage, plan: Merged, scratch: Path,
           steps: list[Step]) -> dict[str, Any]:
    """Write the merged parts of one stage; the manifest that names them. `steps` put both in their place."""
    manifest = stage.manifest()
    assert manifest is not None
    carried = [part for part in manifest["parts"] if part["name"].startswith("carried-")]     # few: they stay
    parts = [part for part in manifest["parts"] if part not in carried]
    listed = {part_number(Path(part["name"])) for part in parts}
    if listed != {number for numbers in plan.values() for number in numbers}:
        raise StageError(f"{stage.title} has other parts than its rollout: see `warehouse check`.")
    table = "completions" if stage.name == "rollout" else "samples"
    warehouse.verify(table, **stage.identity)
    merged = []
    for number, numbers in plan.items():
        final = warehouse.part_path(table, number, **stage.identity)
        path = scratch / str(len(steps)) / final.name
        old = [warehouse.part_path(table, replaced, **stage.identity) for replaced in numbers]
        path.parent.mkdir()
        with saying_why(path):
            _write(path, table, old, warehouse.run_id)
            flush(path)
        merged.append(part_facts(path))
        steps.append(("move", path, final))
    replaced = [*manifest.get("replaced", []), *(part["name"] for part in parts)]
    new = {**manifest, "parts": [*merged, *carried], "replaced": replaced, "compacted_at": time.time()}
    # A copy under a name of its own: if the manifest is ever damaged, the merged parts explain it.
    steps += [("write", stage.folder / name, json_bytes(new).decode())
              for name in (f"compacted-{min(plan):05d}.json", "manifest.json")]
    return new


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
    """Rows of the parts in order, small row groups together until they are `size` rows."""
    held: list[pa.Table] = []
    for group in chain.from_iterable(read_groups(path, table, arrow_schema(table).names) for path in paths):
        held.append(group)
        if sum(batch.num_rows for batch in held) >= size:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)
