"""Write results per group, task and iteration into small files that queries read instead of the parts."""

import contextlib
import hashlib
import json
import re
import shutil
from pathlib import Path

from warehouse.sql.catalog import SQL_TYPES
from warehouse.sql.database import Connection, connect_to, explain_errors
from warehouse.sql.inventory import Inventory, take_inventory
from warehouse.sql.rollup_files import FOLDER, ROLLED, definitions, measures_text, rollup_keys
from warehouse.store.checksums import part_facts
from warehouse.store.commit import commit_directory
from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes
from warehouse.store.parts import stored_bytes
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import TABLES

WORTH_IT = 32  # stages; with fewer, computing is as fast
MOST_HELD = 64 << 20  # bytes of parts; larger ones are read by column, repeatedly


def fresh_stages(warehouse: Warehouse, inventory: Inventory) -> int:
    """The number of settled stages that the rollup lacks."""
    held = len(inventory.rollup.scored) if inventory.rollup else 0
    return len(rollup_keys(warehouse, inventory.choices)) - held


def keep_rolled_up(warehouse: Warehouse) -> Inventory:
    """The inventory, after a rollup if enough stages have gathered."""
    inventory = take_inventory(warehouse)
    if fresh_stages(warehouse, inventory) >= WORTH_IT and not warehouse.log.is_past:
        with contextlib.suppress(OSError, StageError):
            write_rollup(warehouse, inventory)
            return take_inventory(warehouse)
    return inventory


def write_rollup(warehouse: Warehouse, inventory: Inventory | None = None) -> int:
    """Roll up every settled stage; return the number of stages in the rollup.

    It is derived and may be removed at any time. A newly scored or chosen stage makes it invalid.
    """
    inventory = inventory or take_inventory(warehouse)
    keys = rollup_keys(warehouse, inventory.choices)
    if not keys or (inventory.rollup and len(inventory.rollup.scored) == len(keys)):
        return len(keys)
    connection = connect_to(inventory)
    for table in ("fresh_samples", "fresh_train_samples"):
        _read_once(connection, table, inventory.parts[table])
    folder = warehouse.scratch("rollup")
    try:
        scored = ", ".join(f"({key[0]}, '{key[1]}')" for key in keys)
        trained = ", ".join(str(key[0]) for key in keys if key[1] == "train") or "NULL"
        for table in ROLLED:
            of_training = table == "rolled_mismatch"
            held = f"iteration IN ({trained})" if of_training else f"(iteration, purpose) IN ({scored})"
            with explain_errors():
                rows = connection.sql(f"FROM {table} WHERE {held} ORDER BY iteration")
                rows.to_parquet(f"{folder}/{table}.parquet", compression="zstd", row_group_size=16384)
        files = [part_facts(folder / f"{table}.parquet") for table in ROLLED]
        (folder / "rollup.json").write_bytes(json_bytes({"stages": keys, "files": files}))
        name = hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:12]
        final = warehouse.root / FOLDER / f"rollup-{definitions()}-{name}"
        shutil.rmtree(final, ignore_errors=True)  # damaged, or it would have been used
        commit_directory(folder, final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # after a full disk; else it has its final name
    written = sorted(warehouse.root.glob(f"{FOLDER}/rollup-*"), key=lambda path: path.stat().st_mtime_ns)
    for old in written[:-2]:        # another process may be reading the previous one
        shutil.rmtree(old, ignore_errors=True)
    return len(keys)


def _read_once(connection: Connection, table: str, parts: list[Path]) -> None:
    """Load the rows of many small files into memory: opening them takes longer than the computation.

    Columns that no measure names stay null. With several threads, they would wait for each other's files.
    """
    if stored_bytes(parts) > MOST_HELD:
        return
    unread = [f"NULL::{SQL_TYPES[column.type]} AS {column.name}"
              for column in TABLES[table.removeprefix("fresh_")]
              if not re.search(rf"\b{column.name}\b", measures_text())]
    with explain_errors():
        connection.execute(
            f"SET threads = 1; CREATE TABLE held_{table} AS SELECT * REPLACE ({', '.join(unread)}) FROM "
            f"{table}; RESET threads; CREATE OR REPLACE MACRO stored_{table}() AS TABLE FROM held_{table}")
