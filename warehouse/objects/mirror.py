"""Copy a run between an object store and another place; run again, it copies what is new or changed.

Where a document or a part was replaced (compact, prune, rollback), its whole iteration or policy is.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from warehouse.objects.bucket import ObjectState, is_address, mark_of
from warehouse.objects.fetch import bar, fits, in_parallel
from warehouse.objects.keys import DOCUMENT, TABLES, TOP_FILES
from warehouse.objects.working_copy import WorkingCopy
from warehouse.store.commit import COPY_MARKER, twin_of
from warehouse.store.errors import StageError, counted
from warehouse.store.json_files import read_json
from warehouse.store.run_folder import open_warehouse

UNDER_WAY = "/checkpoint-"      # of a training: not copied
LAST = ("settings.json", "manifest.json", "policy.json", "warehouse.json")  # what makes the rest count
TASK_CHANGE = re.compile(r"tasks/change-\d+\.json")


def mirror_run(run: str, to: str) -> str:
    """Copy the committed files of a run to an address, or from one to a folder; the line to print comes back.

    StageError if another run lies there, or if that one went on alone.
    """
    if not is_address(to):
        return _pull(run, Path(to).resolve())
    warehouse = open_warehouse(run)
    if twin := twin_of(warehouse.root):
        twin.bring_all()
    target = WorkingCopy(warehouse.root, to)
    there = _run_id(target)
    _check_same_run(warehouse.run_id, there, to)
    _check_settled(target)
    target.bucket.check_conditional_puts()
    files = {target.key_of(path): path for path in _files(target)}
    listed = target.listing()
    _check_not_ahead(set(listed), set(files), to)
    other = {key for key, path in files.items() if not _same(target, key, path, listed.get(key))}
    both = {key: files[key] for key in other if key in listed}
    _check_is_run(there, {*both, *(listed.keys() - files)}, to)
    _check_not_both(target, both, to, out=True)
    replaced = _replaced(both)
    wanted = {key: path for key, path in files.items() if key in other or _place(key) in replaced}
    num_bytes = sum(path.stat().st_size for path in wanted.values())

    def put(item: tuple[str, Path]) -> None:
        target.bucket.put(*item)
        progress.update(item[1].stat().st_size)

    with bar(f"to {to}", num_bytes, "B", worth=1 << 20) as progress:
        for rank in range(len(LAST) + 1):  # a mirror that is killed lists nothing that it has not
            in_parallel(put, [(key, path) for key, path in wanted.items() if _rank(path.name) == rank])
            if rank == 0:                   # merged parts, weights that went back
                target.bucket.delete(key for key in listed if _place(key) in replaced and key not in files
                                     and UNDER_WAY not in key)
    return (f"{counted(len(wanted), 'file')} copied to {to} ({num_bytes:,} bytes), "
            f"{len(files) - len(wanted)} stood there")


def _pull(run: str, folder: Path) -> str:
    """Copy a run of an object store to a folder, which is a run like any other then."""
    if not is_address(run) or (folder / COPY_MARKER).exists():
        raise StageError(f"Nothing to mirror from {run} to {folder}: one of the two must be s3://BUCKET/RUN "
                         "(gs://, az://), the other a folder that is no working copy of it. A folder is "
                         "copied to another with `cp -a`.")
    copy = WorkingCopy(folder, run)
    run_id = _run_id(copy)
    if run_id is None:
        raise StageError(f"{run} is no run: it has no warehouse.json. Mend the address.")
    own_id = (read_json(folder / "warehouse.json") or {}).get("run_id")
    _check_same_run(run_id, own_id, str(folder))
    _check_settled(copy)
    listed = {key: state for key, state in copy.listing().items() if UNDER_WAY not in key}
    before = {copy.key_of(path): path for path in _files(copy)}
    _check_not_ahead(set(before), set(listed), str(folder))
    stood = {key for key, path in before.items()
             if fits(path, listed.get(key)) or _same(copy, key, path, listed.get(key))}
    _check_is_run(own_id, before.keys() - stood, str(folder))
    both = {key: path for key, path in before.items() if key in listed and key not in stood}
    _check_not_both(copy, both, str(folder), out=False)
    replaced = _replaced(both)
    for key, path in before.items():
        if _place(key) in replaced and not DOCUMENT.fullmatch(key) and not fits(path, listed.get(key)):
            path.unlink()
            stood.discard(key)
    ranks = {key: _rank(key.rpartition("/")[2]) for key in listed}
    for rank in (0, 1, 3, 2, 4):
        if rank == 2:               # manifests and warehouse.json follow what they speak of
            copy.bring_all()
        copy.bring_documents({key: state for key, state in listed.items() if ranks[key] == rank})
    return f"{counted(len(listed) - len(stood), 'file')} copied to {folder}, {len(stood)} stood there"


def _place(key: str) -> str:
    """What is replaced together: an iteration, a policy, or the tasks with warehouse.json."""
    place = re.match(r"[^/]+/(iteration=\d+)/|(policies/[^/]+)/", key)
    return (place[1] or place[2]) if place else ""


def _replaced(keys: Iterable[str]) -> set[str]:
    """The places whose document is another: a part alone may be of a stage that is under way."""
    return {_place(key) for key in keys if key.rpartition("/")[2] in LAST[1:]}


def _files(copy: WorkingCopy) -> list[Path]:
    """The committed files in the folder, but for a change or a training under way."""
    files = [path for table in TABLES for path in (copy.root / table).rglob("*")]
    files += [copy.root / name for name in TOP_FILES if name != "intent.json"]
    return [path for path in files if path.is_file() and copy.holds(path) and UNDER_WAY not in str(path)]


def _rank(name: str) -> int:
    return LAST.index(name) + 1 if name in LAST else 0


def _run_id(copy: WorkingCopy) -> str | None:
    """The run that lies at the address; None if there is none."""
    answer = copy.bucket.get("warehouse.json")
    return json.loads(answer[0])["run_id"] if answer else None


def _check_same_run(run_id: str, there: str | None, where: str) -> None:
    if there not in (None, run_id):
        raise StageError(f"At {where} lies another run ({str(there)[:8]}, not {run_id[:8]}). Name another "
                         "place.")


def _check_is_run(run_id: str | None, others: set[str], where: str) -> None:
    """StageError for a place of another kind; what a mirror that was killed left there is no `others`."""
    if run_id is None and others:
        raise StageError(f"{where} is no run, and has {min(others)}, which is not of the run to copy. Name "
                         "another place, or a new one.")


def _check_not_ahead(there: set[str], here: set[str], where: str) -> None:
    """StageError if stages or policies are there alone: they would no longer fit what is copied."""
    ahead = sorted(key for key in there - here
                   if key.rpartition("/")[2] in LAST[:3] or TASK_CHANGE.fullmatch(key))
    if ahead:
        raise StageError(f"{where} has {ahead[0]}, which the run to copy has not: somebody went on there, or "
                         "put it aside here. Mirror the other way, or to another place.")


def _check_not_both(copy: WorkingCopy, both: dict[str, Path], where: str, *, out: bool) -> None:
    """StageError if a stage or a change of tasks was made on both sides, or rows are left at `where` alone.

    What care commands replace keeps the time at which its stage was finished.
    """
    keys = sorted(key for key in both if key.endswith("/manifest.json") or TASK_CHANGE.fullmatch(key))
    for key, answer in zip(keys, in_parallel(copy.bucket.get, keys), strict=True):
        sides = (read_json(both[key]) or {}, json.loads(answer[0]) if answer else {})
        source, target = sides if out else sides[::-1]
        if (TASK_CHANGE.fullmatch(key) or source.get("finished_at") != target.get("finished_at")
                or set(source.get("lost", [])) - set(target.get("lost", []))):
            raise StageError(f"{where} and the run to copy have each their own {key}: both went on, it was "
                             "made again, or rows were lost. Mirror the other way, or elsewhere.")


def _check_settled(copy: WorkingCopy) -> None:
    if copy.bucket.head("intent.json"):
        raise StageError(f"A command was killed while it changed {copy.address}. Run `warehouse check "
                         f"{copy.address}`, which makes the rest; then mirror.")


def _same(copy: WorkingCopy, key: str, path: Path, state: ObjectState | None) -> bool:
    """Whether the object is the file: parts of one name and size are, documents are compared."""
    if state is None or state.size != path.stat().st_size:
        return False
    if not DOCUMENT.fullmatch(path.name):
        return True
    content = path.read_bytes()
    if state.mark == mark_of(hashlib.md5(content, usedforsecurity=False).hexdigest()):  # the e-tag, on S3
        return True
    answer = copy.bucket.get(key)
    return answer is not None and answer[0] == content
