"""Merge the parts of finished stages into a few: fewer files, the same rows in the same order.

Readers take the parts of a complete stage from its manifest, so replacing the manifest, which is one rename,
is the instant at which all of them change from the old parts to the merged ones. The old files are removed
after it; a reader that had listed them asks again. A late twin of a killed worker may still add an old part:
no manifest lists it, so it is nobody's row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.sql.database import refresh_sql
from warehouse.store.checksums import part_facts
from warehouse.store.commit import commit_file, commit_json, json_bytes, replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.parts import part_metadata, part_number, part_writer, row_group_size
from warehouse.store.run_folder import Warehouse
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
    warehouse.sweep()
    return lines or ["nothing to merge: no finished iteration has several small parts"]


def _stages(warehouse: Warehouse, iteration: int, purpose: str) -> list[Stage]:
    """Stages that read or wrote the rows of one rollout: the rollout, its scores, the training on it."""
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    folder = warehouse.root / "samples" / f"iteration={iteration}" / f"purpose={purpose}"
    scorers = [path.name.removeprefix("scorer=") for path in sorted(folder.glob("scorer=*"))]
    stages = [warehouse.stage("rollout", **keys)]
    stages += [warehouse.stage("score", **keys, scorer=scorer) for scorer in scorers]
    return stages + ([warehouse.stage("train", iteration=iteration)] if purpose == "train" else [])


def _compact_rollout(warehouse: Warehouse, iteration: int, purpose: str, part_mib: int) -> list[str]:
    """Merge completions and samples alike, so that part i of samples still scores part i of completions."""
    rollout, *others = _stages(warehouse, iteration, purpose)
    stages = [stage for stage in others if stage.name == "score" and stage.is_complete()]
    parts = warehouse.parts("completions", iteration=iteration, purpose=purpose)
    try:
        plan = _plan(parts, part_mib)
        # The rollout last: as long as its manifest is the old one, a killed run finds the same plan again.
        for stage in [*stages, rollout] if plan else []:
            _merge(warehouse, stage, plan)
    except (StageError, FileNotFoundError):
        if parts == warehouse.parts("completions", iteration=iteration, purpose=purpose):
            raise
        return [f"iteration {iteration} ({purpose}): another process merged it meanwhile"]
    num_removed = sum(_remove_replaced(stage) for stage in [*stages, rollout])
    if not plan and not num_removed:
        return []
    return [f"iteration {iteration} ({purpose}): {num_removed} files merged into "
            f"{sum(len((stage.manifest() or {'parts': []})['parts']) for stage in [*stages, rollout])}"]


def _plan(parts: list[Path], part_mib: int) -> Merged:
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
    first = part_number(parts[-1]) + 1
    return {first + index: numbers for index, numbers in enumerate(groups)}


def _merge(warehouse: Warehouse, stage: Stage, plan: Merged) -> None:
    """Write the merged parts of one stage, then let its manifest name them instead of the old ones."""
    manifest = stage.manifest()
    assert manifest is not None
    listed = {part_number(Path(part["name"])): part for part in manifest["parts"]}
    if listed.keys() == plan.keys():
        return  # switched by a run that was killed before the rollout's turn
    if listed.keys() != {number for numbers in plan.values() for number in numbers}:
        raise StageError(f"{stage.title} has other parts than its rollout. Give the --part-mib of the "
                         "compaction that was killed, or see `warehouse check`.")
    paths = [_merge_part(warehouse, stage, number, numbers) for number, numbers in plan.items()]
    replaced = [*manifest.get("replaced", []), *(part["name"] for part in manifest["parts"])]
    new = {**manifest, "parts": [part_facts(path) for path in paths], "replaced": replaced,
           "compacted_at": time.time()}
    # A copy under a name of its own: if the manifest is ever damaged, the merged parts explain themselves.
    commit_json(stage.folder / f"compacted-{min(plan):05d}.json", new)
    replace_bytes(stage.folder / "manifest.json", json_bytes(new))


def _merge_part(warehouse: Warehouse, stage: Stage, number: int, numbers: list[int]) -> Path:
    table = "completions" if stage.name == "rollout" else "samples"
    old = [warehouse.part_path(table, one, **stage.identity) for one in numbers]
    path, merged = warehouse.part_path(table, number, **stage.identity), f"{numbers[0]}-{numbers[-1]}"
    commit_file(path, lambda temporary: _write(temporary, table, old, warehouse.run_id, merged))
    if part_metadata(path).get("merged") != merged:
        raise StageError(f"{path} was made by another compaction. Run `warehouse repair` to put it aside.")
    return path


def _write(temporary: Path, table: str, old: list[Path], run_id: str, merged: str) -> None:
    """Copy the rows of the old parts, about a row group at a time."""
    num_rows, size = 0, row_group_size(table)
    with part_writer(temporary, table, {"run_id": run_id, "merged": merged}) as writer:
        for batch in _batches(old, size):
            writer.write_table(batch.cast(writer.schema), row_group_size=size)
            num_rows += batch.num_rows
    written = pq.read_metadata(temporary).num_rows
    assert written == num_rows == sum(pq.read_metadata(path).num_rows for path in old), "rows were lost"


def _batches(paths: list[Path], size: int) -> Iterator[pa.Table]:
    """Rows of the parts in order, small row groups together until they are `size` rows."""
    held: list[pa.Table] = []
    for path in paths:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                held.append(file.read_row_group(group).replace_schema_metadata(None))
                if sum(batch.num_rows for batch in held) >= size:
                    yield pa.concat_tables(held)
                    held = []
    if held:
        yield pa.concat_tables(held)


def _remove_replaced(stage: Stage) -> int:
    """Remove files that the manifest names as replaced; how many there were."""
    manifest = stage.manifest() or {}
    listed = {part["name"] for part in manifest.get("parts", [])}
    old = [stage.folder / name for name in manifest.get("replaced", []) if name not in listed]
    present = [path for path in old if path.exists()]
    for path in present:
        path.unlink(missing_ok=True)
    return len(present)
