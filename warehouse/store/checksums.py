"""Hashes of stored files, and whether a file is unchanged."""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from warehouse.store.commit import ensure_local, twin_of
from warehouse.store.errors import Damaged, StageError

OPTIMIZER = "optimizer.pt"          # of a policy: only the next training reads it
TASK_COLUMNS = ["task_id", "split", "heldout", "kind", "messages", "payload"]      # what defines the tasks

FileState = tuple[int, int, int]    # size, time in ns, and inode: with others its content is read again


def part_facts(part: Path) -> dict[str, Any]:
    """A part's entry in a manifest."""
    return {"name": part.name, "bytes": part.stat().st_size, "sha256": sha256_of(part)}


def part_damage(path: Path, facts: dict[str, Any], *, quick: bool = False) -> str:
    """How a part differs from its manifest entry, by size only if `quick`; '' if it does not.

    A file is hashed once per process, and again only when its size, time or inode changed.
    """
    damage = _differs(path, facts, quick)
    if damage and twin_of(path):        # in an object store the object counts, not its local copy
        path.unlink(missing_ok=True)
        ensure_local([path])
        _hash_once.cache_clear()        # it may have the other's time and inode
        damage = _differs(path, facts, quick)
    return damage


def _differs(path: Path, facts: dict[str, Any], quick: bool) -> str:
    if not path.is_file():
        return "is not a file" if path.exists() else "is missing, though the manifest of its stage lists it"
    state = file_state(path)
    try:
        same = state[0] == facts["bytes"] and (quick or _hash_once(path, state) == facts["sha256"])
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if same else f"does not match its manifest ({'size' if quick else 'sha256'} differs)"


def tasks_sha256(tables: Iterable[Any]) -> str:
    """One hash over all columns that define tasks; the table comes in pieces, in the order of import."""
    digest = hashlib.sha256()
    for table in tables:
        for row in table.select(TASK_COLUMNS).to_pylist():
            digest.update(json.dumps([row[name] for name in TASK_COLUMNS]).encode())
    return digest.hexdigest()


@functools.cache
def check_tasks(parts: tuple[tuple[Path, FileState], ...], folder: Path, wanted: str | None) -> None:
    """StageError unless the parts hold the tasks that the run was made with."""
    from warehouse.store.parts import read_groups
    from warehouse.store.schema import arrow_schema
    if wanted and not parts:
        raise StageError(f"{folder} holds no tasks. Restore them from a copy of the run.")
    names = arrow_schema("tasks").names         # of all columns the page checksums are verified
    try:
        actual = tasks_sha256(group for path, _ in parts for group in read_groups(path, "tasks", names))
    except Damaged as error:
        raise Damaged(error.path, error.why, f"cannot be read ({error.why}). Restore it from a copy of the "
                                             "run.") from error
    if wanted not in (None, actual):
        raise StageError(f"The tasks in {folder} are not those that the run was made with (warehouse.json: "
                         f"tasks_sha256 {str(wanted)[:12]}, found {actual[:12]}). Restore them from a copy "
                         "of the run.")


def check_policy_files(folder: Path, stored: dict[str, Any], unread: Sequence[str] = ()) -> None:
    """StageError if files of a policy, except `unread`, differ from its policy.json, `stored`."""
    way_out = "Restore the folder from a copy, or see what `warehouse check --fix` can do."
    try:
        hashes = file_hashes(folder, unread)
        for name in sorted(stored.get("files", {}).keys() - hashes.keys() - {*unread}):
            raise StageError(f"{folder / name} is missing. {way_out}")
        actual = weights_sha256(folder, hashes)
        changed = [name for name, sha256 in stored.get("files", {}).items()
                   if hashes.get(name) != sha256 and name not in unread]
    except FileNotFoundError as error:
        raise StageError(f"{folder} was discarded meanwhile. Run the same command again.") from error
    except OSError as error:
        raise StageError(f"{folder} cannot be read: {error.strerror}. {way_out}") from error
    if actual != stored["sha256"]:
        raise StageError(f"The weights in {folder} have sha256 {actual[:12]}, its policy.json says "
                         f"{stored['sha256'][:12]}: they were changed or damaged. {way_out}")
    for name in changed:
        raise StageError(f"{folder / name} was changed or damaged. {way_out}")


def weights_sha256(folder: Path, hashes: dict[str, str] | None = None) -> str:
    """Hash of a policy's weights: sha256 over its safetensors files, sorted by name."""
    weights = sorted(folder.glob("*.safetensors"))
    return hashes[weights[0].name] if hashes and len(weights) == 1 else sha256_of(*weights)


def file_hashes(folder: Path, unread: Sequence[str] = ()) -> dict[str, str]:
    """Hex sha256 of each file of a folder except `unread`, by name; four are hashed in parallel."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in unread]
    with ThreadPoolExecutor(4) as pool:
        return dict(zip([path.name for path in paths], pool.map(sha256_of, paths), strict=True))


def sha256_of(*paths: Path) -> str:
    """Hex sha256 of a file, or of several concatenated."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def file_state(path: Path) -> FileState:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


@functools.cache
def _hash_once(path: Path, _state: FileState) -> str:
    return sha256_of(path)
