"""Which parts are unchanged since they were written: checked before SQL reads them, to find flipped bits.

DuckDB verifies no page checksums. A part is hashed once, and again when its size, time or inode changed;
sound parts are listed in RUN/iterations/verified.json, which may be removed at any time.
"""

import contextlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from warehouse.sql.rollup_files import FOLDER
from warehouse.store.checksums import file_state, part_damage
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.json_files import read_json
from warehouse.store.parts import read_part
from warehouse.store.run_folder import Warehouse

NOTES = "verified.json"
WORTH_THREADS = 1 << 26  # bytes to hash; for less, threads cost more than they save
WORTH_A_WORD = 1 << 30  # bytes to hash; print a line for more


def find_damage(warehouse: Warehouse, listed: dict[Path, dict[str, Any]]) -> dict[Path, str]:
    """The damaged ones of the parts, each with what is wrong, given their manifest entries.

    A part that no manifest lists (`{}`) is read completely once: its pages have checksums. Tasks are compared
    with the hash in warehouse.json.
    """
    path = warehouse.root / FOLDER / NOTES
    known: dict[str, Any] = {}
    with contextlib.suppress(StageError):  # damaged: made again
        known = read_json(path) or {}
    entries: dict[Path, list[Any]] = {part: [*state_of(part), facts.get("sha256")]
                                      for part, facts in listed.items()}
    names = {part: str(part).removeprefix(f"{warehouse.root}/") for part in listed}
    unknown = [part for part in listed if known.get(names[part]) != entries[part]]
    num_bytes = sum(entries[part][0] for part in unknown)
    if num_bytes > WORTH_A_WORD:
        print(f"verifying {num_bytes / 1e9:.1f} GB that no command has read here yet ..", file=sys.stderr)
    with ThreadPoolExecutor() as pool:
        each = pool.map if num_bytes > WORTH_THREADS else map
        damage = each(lambda part: _damage(warehouse, part, listed[part]), unknown)
        found = dict(zip(unknown, damage, strict=True))
    sound = {names[part]: entry for part, entry in entries.items() if not found.get(part)}
    if sound != known:
        with contextlib.suppress(OSError, StageError):  # every session verifies a read-only run
            replace_bytes(path, json.dumps(sound).encode())
    return {part: why for part, why in found.items() if why}


def forget_verified(warehouse: Warehouse) -> None:
    """Have every part hashed again before it is read: a disk can flip a bit and leave time and inode."""
    with contextlib.suppress(OSError):  # a read-only run
        (warehouse.root / FOLDER / NOTES).unlink()


def state_of(part: Path) -> list[int]:
    """Size, time and inode of a file; zeros if it is missing."""
    try:
        return [*file_state(part)]
    except OSError:
        return [0, 0, 0]


def _damage(warehouse: Warehouse, part: Path, facts: dict[str, Any]) -> str:
    """How a part differs from what was written; '' if it does not."""
    try:
        if facts:
            return part_damage(part, facts)
        if part.parent == warehouse.folder("tasks"):
            warehouse.verify("tasks")
        else:
            read_part(part)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except StageError:
        return "is unreadable, or differs from the run's tasks"
    return ""
