"""Copy a run between an object store and another place; a repeated call copies what is new.

Files of a run never change, and the log says which count. So the target's log has to be a prefix of the
source's; missing files are copied first, the entries of the log last.
"""

import os
from collections.abc import Collection
from pathlib import Path

from warehouse.ledger.log import FOLDER
from warehouse.objects.bucket import is_address
from warehouse.objects.fetch import bar, in_parallel
from warehouse.objects.working_copy import TABLES, TOP_FILES, WorkingCopy
from warehouse.store.commit import COPY_MARKER, twin_of
from warehouse.store.errors import StageError, counted
from warehouse.store.json_files import read_json
from warehouse.store.run_folder import Warehouse, open_warehouse

UNDER_WAY = "/checkpoint-"      # of an unfinished training: not copied
CHANGING = ("config.toml", "warehouse.json")
RANKS = {"policy.json": 1, "manifest.json": 2, "warehouse.json": 4}     # of names; entries of the log are 3


def mirror_run(run: str, to: str) -> str:
    """Copy the committed files of a run to an address, or from one to a folder; return the line to print.

    StageError if another run is there, or if the target continued alone. An old run gets its log first.
    """
    if not is_address(to):
        return _pull(run, Path(to).resolve())
    warehouse = open_warehouse(run)
    warehouse.append(lambda _state: None)
    if twin := twin_of(warehouse.root):
        twin.bring_all()
    target = WorkingCopy(warehouse.root, to)
    files = {target.key_of(path): path for path in _files(target)}
    _check_whole(target, warehouse, files)
    listed = target.listing()
    wanted = _wanted(target, files, listed, warehouse.run_id, target.run_id(), to)
    target.bucket.check_conditional_puts()
    num_bytes = sum(files[key].stat().st_size for key in wanted)

    def put(item: tuple[str, Path]) -> None:
        target.bucket.put(*item)
        progress.update(item[1].stat().st_size)

    with bar(f"to {to}", num_bytes, "B", worth=1 << 20) as progress:
        for rank in range(5):           # a killed mirror lists no missing file
            of_rank = [(key, files[key]) for key in sorted(wanted) if _rank(key) == rank]
            if rank == 3:               # entry after entry: another command would fill a gap
                for number, item in enumerate(of_rank, start=len(_entries(listed))):
                    put(item)
                    target.pack_log(number)
            else:
                in_parallel(put, of_rank)
    target.bucket.delete(_gone(listed, files))
    return (f"{counted(len(wanted), 'file')} copied to {to} ({num_bytes:,} bytes), "
            f"{len(files) - len(wanted)} were there already")


def _pull(run: str, folder: Path) -> str:
    """Copy a run of an object store to a folder, which is then a normal run."""
    if not is_address(run) or (folder / COPY_MARKER).exists():
        raise StageError(f"Nothing to mirror from {run} to {folder}: one of the two must be s3://BUCKET/RUN "
                         "(gs://, az://), the other a folder that is not its working copy. A folder is "
                         "copied to another with `cp -a`.")
    copy = WorkingCopy(folder, run)
    run_id = copy.run_id()
    if run_id is None:
        raise StageError(f"{run} is not a run: it has no warehouse.json. Fix the address.")
    own_id = (read_json(folder / "warehouse.json") or {}).get("run_id")
    listed = {key: state for key, state in copy.listing().items() if UNDER_WAY not in key}
    before = {copy.key_of(path): path for path in _files(copy)}
    new = _wanted(copy, listed, before, run_id, own_id, str(folder))
    for rank in range(5):
        if rank == 2:               # files come before the documents that name them
            copy.bring_all()
        of_rank = {key: listed[key] for key in sorted(new) if _rank(key) == rank}
        for documents in [{key: state} for key, state in of_rank.items()] if rank == 3 else [of_rank]:
            copy.bring_documents(documents)
    if "config.toml" in new:        # users edit it
        (folder / "config.toml").chmod(folder.stat().st_mode & 0o666)
    _check_whole(copy, open_warehouse(folder), listed)
    for key in _gone(before, listed):
        before[key].unlink(missing_ok=True)
    return f"{counted(len(new), 'file')} copied to {folder}, {len(listed) - len(new)} were there already"


def _gone(there: Collection[str], here: Collection[str]) -> list[str]:
    """Files of generations that the source no longer has: they were merged, pruned or removed."""
    kept = {key.partition("/files-")[0].rpartition("/")[0] for key in here}
    return [key for key in there if "generation=" in key and UNDER_WAY not in key and key not in here
            and key.partition("/files-")[0].rpartition("/")[0] not in kept]


def _check_whole(copy: WorkingCopy, warehouse: Warehouse, there: Collection[str]) -> None:
    """StageError if the source lacks what its log names: the target keeps it."""
    for path in warehouse.documents():
        if (key := copy.key_of(path)) not in there:
            raise StageError(f"{key} is missing from the run to copy, though its log names it. Restore it "
                             "from a copy of the run (if that is the other place, mirror the other way).")


def _files(copy: WorkingCopy) -> list[Path]:
    """The committed files in the folder, except those of an unfinished training."""
    files = [copy.root / name for name in TOP_FILES]
    for table in TABLES:
        if (copy.root / table).exists():
            for folder, _, names in os.walk(copy.root / table, onerror=_raise):     # not as if it were empty
                files += [Path(folder) / name for name in names]
    return [path for path in files if path.is_file() and copy.holds(path) and UNDER_WAY not in str(path)]


def _entries(keys: Collection[str]) -> list[str]:
    return sorted(key for key in keys if key.startswith(f"{FOLDER}/"))


def _rank(key: str) -> int:
    return 3 if key.startswith(f"{FOLDER}/") else RANKS.get(key.rpartition("/")[2], 0)


def _wanted(copy: WorkingCopy, here: Collection[str], there: Collection[str], run_id: str,
            id_there: str | None, where: str) -> set[str]:
    """What to copy from here: new and changed files.

    StageError for a place with another run or, where a killed mirror left none, other files, and unless the
    log there is a prefix of the one to copy: each entry names the previous one.
    """
    if id_there not in (None, run_id):
        raise StageError(f"At {where} is another run ({str(id_there)[:8]}, not {run_id[:8]}). Name another "
                         "place.")

    def differs(key: str) -> bool:
        return (copy.root / key).read_bytes() != copy.bucket.get(key)

    new, entries, own = {*here}.difference(there), _entries(there), _entries(here)
    changed = {key for key in CHANGING if key in here and key in there and differs(key)}
    if id_there is None and (others := {*there}.difference(here) | changed):
        raise StageError(f"{where} is not a run and has {min(others)}, which the run to copy lacks. Name "
                         "another place, or a new one.")
    if len(entries) > len(own):
        raise StageError(f"{where} has log entries that the run to copy lacks ({entries[-1]}): "
                         "another command continued there. Mirror the other way, or to another place.")
    if entries and differs(entries[-1]):
        raise StageError(f"{where} and the run to copy have different {entries[-1]}: both continued. Mirror "
                         "to another place.")
    return new | changed


def _raise(error: OSError) -> None:
    raise error
