"""The local folder in which the stages work on a run of an object store, as on any other run folder.

A file is put into the store before it appears here under its final name, and the store decides who was first:
so what lies here under its final name stands in the store. Documents (settings, manifests, policy.json) are
brought when the run is opened, parts and weights when somebody reads them. An object's e-tag is kept in the
fraction of the second of its file's time: a file whose size or fraction differ from the object is another.
Spills, checkpoints, rollups and temporary files are this machine's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from warehouse.objects import changes
from warehouse.objects.bucket import Bucket, Found, is_address, normal_address, policy_files
from warehouse.store.commit import (
    COPY_MARKER,
    TEMPORARY_MARK,
    TWINS,
    json_bytes,
    reached,
    replace_bytes,
    saying_why,
)
from warehouse.store.errors import StageError
from warehouse.store.json_files import read_json

TABLES = ("tasks", "prompts", "completions", "samples", "train", "policies")
TOP_FILES = ("warehouse.json", "config.toml", "intent.json", "pruned.jsonl")
DOCUMENT = re.compile(r"\.(json|jsonl|toml)$")
OWN = re.compile(rf"{re.escape(TEMPORARY_MARK)}|\.spill-|(^|/)checkpoint-")  # never an object
REQUESTS = 32                   # at the same time
WORTH_A_BAR = 1 << 24           # bytes to put
Work = TypeVar("Work")
Answer = TypeVar("Answer")


class WorkingCopy:
    """A working copy and the objects that it is a copy of."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.bucket = Bucket(address)

    @property
    def address(self) -> str:
        """Where the objects lie."""
        return self.bucket.address

    def sync(self) -> None:
        """Bring documents that are new or changed; drop files that the store holds no more, or otherwise."""
        listed = self.listing()
        self._check_same_run(listed)
        self.bring_documents(listed)
        files = [path for table in TABLES for path in (self.root / table).rglob("*")
                 if path.is_file() and self.holds(path)]
        files += [self.root / name for name in TOP_FILES if (self.root / name).is_file()]
        doubtful = [path for path in files if not _fits(path, listed.get(self.key_of(path)))]
        # A file that another process committed after the listing is not in it: hence each is asked for again.
        now = in_parallel(lambda path: self.bucket.head(self.key_of(path)), doubtful)
        for path, found in zip(doubtful, now, strict=True):
            if not _fits(path, found):
                self._drop(path)

    def bring_config(self) -> None:
        """Have config.toml here as it is now: commands read it before they open the run."""
        if (found := self.bucket.head("config.toml")) and not _fits(self.root / "config.toml", found):
            self._bring({"config.toml": self.root / "config.toml"})

    def listing(self) -> dict[str, Found]:
        """Every object of the run by its key, those aside in `discarded/` and `broken/` left out."""
        tables = in_parallel(lambda table: dict(self.bucket.list(table)), TABLES)
        listed = {key: found for key, found in self.bucket.list_top().items() if key in TOP_FILES}
        for table in tables:
            listed |= table
        return listed

    def holds(self, path: Path) -> bool:
        """True for a file of the run; False for what is this machine's alone."""
        name = path.relative_to(self.root).as_posix()
        return (name in TOP_FILES or name.partition("/")[0] in TABLES) and not OWN.search(name)

    def key_of(self, path: Path) -> str:
        """The key of a file's object.

        The files of a policy lie below a name that its policy.json gives: two trainings may write the same
        version at once, and the one whose policy.json is first has its files complete and its own.
        """
        parts = path.relative_to(self.root).parts
        if parts[0] == "policies" and len(parts) == 3 and parts[2] != "policy.json":
            return "/".join((*parts[:2], policy_files(path.with_name("policy.json")), parts[2]))
        return "/".join(parts)

    def create(self, path: Path, temporary: Path) -> bool:
        """Put the object of `path`; False if one stood already, whose content `temporary` has then."""
        if not self.holds(path):
            return True
        self._check_puts()
        key = self.key_of(path)
        reached("before put", path)
        found = self.bucket.create(key, temporary)
        won = found is not None
        if found is None:
            temporary.unlink()
            found = self.bucket.download(key, temporary)
            if found is None:
                raise StageError(f"{self.address}/{key} was removed meanwhile. Run the same command "
                                 "again.")
            temporary.chmod(0o444)
        _stamp(temporary, found)
        return won

    def create_folder(self, folder: Path, final: Path) -> bool:
        """Put a policy's files, and then its policy.json, which makes it one; False if one stood already."""
        if not self.holds(final):
            return True
        self._check_puts()
        place, document = final.relative_to(self.root).as_posix(), folder / "policy.json"
        own = f"{place}/{policy_files(document)}"
        files = sorted(path for path in folder.iterdir() if path != document)
        num_bytes = sum(path.stat().st_size for path in files)
        with bar(f"policy {final.name} to the store", num_bytes, "B", worth=WORTH_A_BAR) as progress:
            for path in files:
                _stamp(path, self.bucket.put(f"{own}/{path.name}", path))
                progress.update(path.stat().st_size)
        reached("before put", final)
        found = self.bucket.create(f"{place}/policy.json", document)
        if found:
            _stamp(document, found)
        else:
            self._bring({f"{place}/policy.json": final / "policy.json"})
        valid = f"{place}/{policy_files(document if found else final / 'policy.json')}"
        left = [key for key, _ in self.bucket.list(place) if key != f"{place}/policy.json"]
        self.bucket.delete(key for key in left if not key.startswith(f"{valid}/")
                           and (found or key.startswith(f"{own}/")))
        return found is not None

    def file_names(self, folder: Path) -> list[str]:
        """Names of a folder's objects now; its documents are brought."""
        place = folder.relative_to(self.root).as_posix()
        listed = dict(self.bucket.list(place))
        self.bring_documents(listed)
        return [key.removeprefix(f"{place}/") for key in listed]

    def bring(self, paths: Iterable[Path]) -> None:
        """Have files of the run here, and of a policy, given its folder, all; what is missing stays so."""
        wanted: dict[str, Path] = {}
        for path in paths:
            if path.parent == self.root / "policies" and (path / "policy.json").exists():
                place = f"{path.relative_to(self.root).as_posix()}/{policy_files(path / 'policy.json')}"
                wanted |= {key: path / key.rpartition("/")[2] for key, _ in self.bucket.list(place)}
            elif self.holds(path):
                wanted[self.key_of(path)] = path
        self._bring({key: path for key, path in wanted.items() if not path.exists()})

    def bring_all(self) -> None:
        """Have every part and every policy here."""
        listed = self.listing()
        self.bring([*(self.root / key for key in listed if key.endswith(".parquet")),
                    *(self.root / key.rpartition("/")[0] for key in listed
                      if re.fullmatch(r"policies/\d+/policy\.json", key))])

    def remove(self, path: Path) -> None:
        """Delete the objects of a file or a folder."""
        place = path.relative_to(self.root).as_posix()
        self.bucket.delete([place, *(key for key, _ in self.bucket.list(place))])

    def carry_out(self, command: str, steps: Sequence[tuple[str, Path, Path | str]]) -> bool:
        """Make changes of several files as one: see warehouse.objects.changes."""
        return changes.carry_out(self, command, steps)

    def finish_change(self) -> str:
        """Make what a killed command had begun to change; that command, or ''."""
        return changes.finish(self) if (self.root / changes.INTENT).exists() else ""

    def bring_documents(self, listed: dict[str, Found]) -> None:
        """Bring the documents of a listing that are new or other than here."""
        wanted = {key: self.root / key for key, found in listed.items() if DOCUMENT.search(key)
                  and "/files-" not in key and not _fits(self.root / key, found)}
        for path in wanted.values():
            if path.name == "settings.json" and path.exists():
                self._drop(path)
        self._bring(wanted)

    def _bring(self, wanted: dict[str, Path]) -> None:
        def download(item: tuple[str, Path]) -> None:
            key, path = item
            temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex[:12]}")
            try:
                with saying_why(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if found := self.bucket.download(key, temporary):
                        temporary.chmod(0o444)
                        _stamp(temporary, found)
                        os.replace(temporary, path)
                        progress.update()
            finally:
                temporary.unlink(missing_ok=True)

        with bar(f"from {self.address}", len(wanted), "file", worth=REQUESTS) as progress:
            in_parallel(download, wanted.items())

    def _check_same_run(self, listed: dict[str, Found]) -> None:
        """StageError if the run is gone, or another lies there: this copy may be the last of its rows."""
        own = self.root / "warehouse.json"
        if not own.exists() or _fits(own, listed.get(own.name)):
            return
        stored = self.bucket.get(own.name)
        if stored is None or json.loads(stored[0])["run_id"] != (read_json(own) or {})["run_id"]:
            raise StageError(f"At {self.address} does not lie any more the run that {self.root} is a copy "
                             "of. Check which store that is (AWS_ENDPOINT_URL). If the run is gone, remove "
                             f"{self.root / COPY_MARKER}: the copy is a local run then, of what was brought.")

    def _drop(self, path: Path) -> None:
        """Remove a file that is not as the store has it; with a stage's settings go its unfinished rows."""
        path.unlink(missing_ok=True)
        if path.name == "settings.json":
            for left in path.parent.iterdir():
                if OWN.search(left.name) and TEMPORARY_MARK not in left.name:
                    shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the first folder that is not empty
            for folder in path.parents:
                if folder != self.root:
                    folder.rmdir()

    def _check_puts(self) -> None:
        """Once per working copy, ask the store to refuse a second object of one name."""
        marker: dict[str, Any] = read_json(self.root / COPY_MARKER) or {"address": self.address}
        if not marker.get("conditional_puts"):
            self.bucket.check_conditional_puts()
            replace_bytes(self.root / COPY_MARKER, json_bytes({**marker, "conditional_puts": True}))


def open_copy(path: str | Path) -> WorkingCopy:
    """The working copy that an address names, made if there is none, or that a folder is."""
    if is_address(path):
        address = normal_address(path)
        root = folder_of(address)
        if not (root / COPY_MARKER).exists():
            with saying_why(root):
                root.mkdir(parents=True, exist_ok=True)
            replace_bytes(root / COPY_MARKER, json_bytes({"address": address}))
    else:
        root = Path(path).resolve()
        address = (read_json(root / COPY_MARKER, address=str) or {})["address"]
    twin = TWINS.get(root)
    if not isinstance(twin, WorkingCopy):
        twin = TWINS[root] = WorkingCopy(root, address)
    return twin


def folder_of(address: str) -> Path:
    """Where the working copy of an address lies: below $ROLLHOUSE_CACHE, or ~/.cache/rollhouse."""
    cache = Path(os.environ.get("ROLLHOUSE_CACHE") or Path.home() / ".cache" / "rollhouse")
    return cache.resolve() / address.replace("://", "/")


def _fits(path: Path, found: Found | None) -> bool:
    """Whether a file is the object that a listing tells of."""
    try:
        stat = path.stat()
    except OSError:
        return False
    return found is not None and found == Found(stat.st_size, stat.st_mtime_ns // 1000 % 1_000_000)


def _stamp(path: Path, found: Found) -> None:
    second = int(path.stat().st_mtime)
    os.utime(path, ns=(second * 10**9, second * 10**9 + found.mark * 1000))


def in_parallel(work: Callable[[Work], Answer], items: Iterable[Work]) -> list[Answer]:
    """The answers in the order of the items; what one of them raises is raised."""
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(work, items))


def bar(what: str, total: int, unit: str, *, worth: int) -> tqdm[Any]:
    """A progress bar for work of at least `worth`; for less it stays silent."""
    return tqdm(desc=what, total=total, unit=unit, unit_scale=unit == "B", leave=False,
                disable=True if total < worth else None)
