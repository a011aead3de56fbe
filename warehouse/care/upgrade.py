"""Bring the files of a run to this schema version: columns added since are there, empty."""

from collections.abc import Iterator
from pathlib import Path

from warehouse.care.prune import exchange_parts
from warehouse.store.errors import StageError
from warehouse.store.intent import carry_out
from warehouse.store.json_files import json_bytes
from warehouse.store.parts import part_metadata, part_version, read_parts, write_part
from warehouse.store.run_folder import Warehouse, all_stages
from warehouse.store.schema import SCHEMA_VERSION, later_columns
from warehouse.store.stage import Stage


def upgrade_run(warehouse: Warehouse) -> list[str]:
    """Write the parts of older schema versions again, stage by stage, then the run's version.

    The lines to print. Until then every reader takes what a part does not have yet as null.
    """
    from tqdm import tqdm
    version = warehouse.facts["schema_version"]
    if version == SCHEMA_VERSION:
        return [f"{warehouse.root} has schema version {version}, which is the newest; nothing to do"]
    changed = 0
    for stage in tqdm(all_stages(warehouse), desc="upgrade", unit="stage", leave=False, disable=None):
        old = dict(_older_parts(warehouse, stage))
        if old:
            scratch = warehouse.scratch("upgrade")
            new = {part: scratch / f"{table}-{part.name}" for part, table in old.items()}
            for part, table in old.items():
                kept = {key: value for key, value in part_metadata(part).items()
                        if key not in ("schema_version", "table")}
                write_part(new[part], table, read_parts([part], table), kept)
            exchange_parts(warehouse, "upgrade", [stage], new, {}, [("remove", scratch, "")])
            changed += len(old)
    facts = json_bytes({**warehouse.facts, "schema_version": SCHEMA_VERSION}).decode()
    if not carry_out(warehouse.root, "upgrade", [("write", warehouse.root / "warehouse.json", facts)]):
        raise StageError(f"Another command was changing {warehouse.root}, which is done now. Run this one "
                         "again.")
    return [f"{warehouse.root}: {changed} parts written again, from schema version {version} to "
            f"{SCHEMA_VERSION}"]


def _older_parts(warehouse: Warehouse, stage: Stage) -> Iterator[tuple[Path, str]]:
    """Parts of a stage that lack columns, each with its table; StageError if one is damaged."""
    tables = {"rollout": ("completions", "carried", "prompts"), "score": ("samples",),
              "train": ("train_samples", "train_steps")}[stage.name]
    for table in tables:
        warehouse.verify(table, **stage.identity)
        for part in warehouse.parts(table, **stage.identity):
            if later_columns(table, part_version(part)):
                yield part, table
