"""Write what was computed per group, task and iteration into small files that questions read instead."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from typing import TYPE_CHECKING

from warehouse.sql.database import connect, explained
from warehouse.sql.inventory import take_inventory
from warehouse.sql.rollup_files import FOLDER, ROLLED, definitions, rollup_keys
from warehouse.store.checksums import part_facts
from warehouse.store.commit import commit_directory, json_bytes
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

if TYPE_CHECKING:
    import duckdb

WORTH_IT = 32  # stages; below that computing afresh is as quick


def fresh_stages(warehouse: Warehouse) -> int:
    """How many settled stages the rollup does not hold yet."""
    inventory = take_inventory(warehouse)
    held = len(inventory.rollup.scored) if inventory.rollup else 0
    return len(rollup_keys(warehouse, inventory.choices)) - held


def keep_rolled_up(warehouse: Warehouse) -> None:
    """Roll up when enough stages have gathered; a run folder that cannot be written stays as it is."""
    if fresh_stages(warehouse) >= WORTH_IT:
        with contextlib.suppress(PermissionError, StageError):
            write_rollup(warehouse)


def write_rollup(warehouse: Warehouse) -> int:
    """Roll up every settled stage; how many stages the rollup holds comes back.

    It is derived, so it may be removed at any time. Stages scored or chosen anew since make it void.
    """
    inventory = take_inventory(warehouse)
    keys = rollup_keys(warehouse, inventory.choices)
    if not keys or (inventory.rollup and len(inventory.rollup.scored) == len(keys)):
        return len(keys)
    connection = connect(warehouse)
    folder = warehouse.scratch("rollup")
    scored = ", ".join(f"({key[0]}, '{key[1]}')" for key in keys)
    trained = ", ".join(str(key[0]) for key in keys if key[1] == "train") or "NULL"
    for table in ROLLED:
        of_training = table == "rolled_mismatch"
        held = f"iteration IN ({trained})" if of_training else f"(iteration, purpose) IN ({scored})"
        _write(connection, f"FROM {table} WHERE {held} ORDER BY iteration", str(folder / f"{table}.parquet"))
    files = [part_facts(folder / f"{table}.parquet") for table in ROLLED]
    (folder / "rollup.json").write_bytes(json_bytes({"stages": keys, "files": files}))
    name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
    final = warehouse.root / FOLDER / f"rollup-{definitions()}-{name}"
    shutil.rmtree(final, ignore_errors=True)  # damaged, or it would have served
    commit_directory(folder, final)
    _remove_old(warehouse)
    return len(keys)


def _write(connection: duckdb.DuckDBPyConnection, query: str, path: str) -> None:
    with explained():
        connection.sql(query).to_parquet(path, compression="zstd", row_group_size=16384)


def _remove_old(warehouse: Warehouse) -> None:
    """Keep the two newest: another process may be reading the one before."""
    folders = sorted(warehouse.root.glob(f"{FOLDER}/rollup-*"), key=lambda path: path.stat().st_mtime_ns)
    for folder in folders[:-2]:
        shutil.rmtree(folder, ignore_errors=True)
