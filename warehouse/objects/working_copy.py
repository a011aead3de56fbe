"""The local folder in which stages work on a run in an object store, as on any other run folder.

A file is put into the store before it appears here under its final name, and the store decides who was
first. So every file with its final name here is in the store. The log is downloaded when the run is opened,
other files when they are read. Spills, rollups and temporary files stay on this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from warehouse.objects.bucket import Bucket, ObjectState
from warehouse.objects.fetch import bar, fetch, fits, in_parallel, stamp
from warehouse.store.commit import COPY_MARKER, TEMPORARY_MARK, beside, reached, replace_bytes, seal
from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes, read_json

TABLES = ("_log", "tasks", "prompts", "completions", "samples", "policy_logprobs", "train", "policies")
TOP_FILES = ("warehouse.json", "config.toml", "intent.json", "pruned.jsonl")   # the last two of old runs
DOCUMENT = re.compile(r"(?!.*/files-).*\.(json|jsonl|toml)")     # downloaded when the run is opened
OWN = re.compile(rf"{re.escape(TEMPORARY_MARK)}|\.spill-")       # local to this machine, never an object
WHOLE = re.compile(r"(policies/[^/]+(?:/generation=[^/]+)?|train/[^/]+(?:/generation=[^/]+)?/checkpoint-\d+)"
                   r"(?:/((?!generation=).+))?")    # a folder that is committed as one
WORTH_A_BAR = 1 << 24           # bytes to put
LOG, PACKS, PACKED = "_log", "_log-packs", 8


class WorkingCopy:
    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.bucket = Bucket(address)
        self.address = self.bucket.address

    def sync(self) -> None:
        """Download what defines the run: warehouse.json, config.toml and new entries of the log.

        Other files are downloaded when they are read: files never change. For a run without a log
        all documents are downloaded.
        """
        listed = {key: state for key, state in self.bucket.list_top().items() if key in TOP_FILES}
        self._check_same_run(listed)
        self.bring_documents(listed)
        for name in {*TOP_FILES} - listed.keys():
            if (self.root / name).exists() and not self.bucket.head(name):
                (self.root / name).unlink()
        for document in (self.root / "train").glob("*/*/checkpoint-*/checkpoint.json"):
            if not self.bucket.head(self.key_of(document)):     # gigabytes another machine continued from
                shutil.rmtree(document.parent)
        self._bring_log()
        if not self._entry(0).exists():
            self.bring_documents(self.listing())

    def _bring_log(self) -> None:
        """Download missing entries, many at once if they are packed."""
        number = next(each for each in itertools.count() if not self._entry(each).exists())
        packs, last, wanted = dict[int, tuple[int, str]](), number, list[int]()
        for key, _ in self.bucket.list(PACKS, after=f"{PACKS}/{number:08d}"):
            first, size = map(int, key.rpartition("/")[2].removesuffix(".json").split("-"))
            packs[first], last = max(packs.get(first, (0, "")), (size, key)), max(last, first + size)
        while number < last:
            pack = self.bucket.get(packs[number][1]) if number in packs else None
            texts = json.loads(pack) if pack else []
            for place, text in enumerate(texts, start=number):
                with beside(self._entry(place)) as temporary:
                    temporary.write_text(text, encoding="utf-8")
                    seal(temporary)
                    os.replace(temporary, self._entry(place))
            wanted += [] if texts else [number]
            number += len(texts) or 1
        behind = self.bucket.list(LOG, after=f"{LOG}/{number - 1:08d}.json" if number else None)
        keys = [*(self.key_of(self._entry(each)) for each in wanted), *(key for key, _ in behind)]
        fetch(self.bucket, {key: self.root / key for key in keys})

    def pack_log(self, last: int) -> None:
        """Pack the last entries together at 8, 64, 512 ..: a new machine then downloads few objects.

        If this fails, they are downloaded one by one.
        """
        size = PACKED
        with contextlib.suppress(StageError):
            while (last + 1) % size == 0:
                first = last + 1 - size
                texts = [self._entry(each).read_text(encoding="utf-8") for each in range(first, last + 1)]
                self.bucket.put(f"{PACKS}/{first:08d}-{size:08d}.json", json.dumps(texts).encode())
                size *= PACKED

    def _entry(self, number: int) -> Path:
        return self.root / LOG / f"{number:08d}.json"

    def bring_config(self) -> None:
        """Update config.toml: commands read it before they open the run.

        It is listed, because an error of a listing says more than that of a request for one object.
        """
        state, path = self.bucket.list_top().get("config.toml"), self.root / "config.toml"
        if state and not fits(path, state):
            fetch(self.bucket, {"config.toml": path})

    def listing(self) -> dict[str, ObjectState]:
        """Every object of the run by its key."""
        tables = in_parallel(lambda table: dict(self.bucket.list(table)), TABLES)
        listed = {key: state for key, state in self.bucket.list_top().items() if key in TOP_FILES}
        for table in tables:
            listed |= table
        return listed

    def holds(self, path: Path) -> bool:
        """True for a file of the run; False for a file that stays on this machine."""
        name = path.relative_to(self.root).as_posix()
        return (name in TOP_FILES or name.partition("/")[0] in TABLES) and not OWN.search(name)

    def key_of(self, path: Path) -> str:
        """The key of a file's object.

        The files of a policy or checkpoint are below a name given in its document: two trainings may write
        the same one at once, and the files of the first document are complete and its own.
        """
        name = path.relative_to(self.root).as_posix()
        inside = WHOLE.fullmatch(name)
        document = document_of(self.root / inside[1]) if inside else path
        if not inside or inside[2] in (None, document.name):
            return name
        return f"{inside[1]}/{files_of(document)}/{inside[2]}"

    def create(self, path: Path, temporary: Path) -> bool:
        """Put the object of `path`; False if it existed, and then `temporary` has the object's content."""
        if not self.holds(path):
            return True
        self._check_puts()
        key = self.key_of(path)
        reached("before put", path)
        state = self.bucket.create(key, temporary)
        won = state is not None
        if state is None:
            temporary.unlink()
            state = self.bucket.download(key, temporary)
            if state is None:
                raise StageError(f"{self.address}/{key} was removed meanwhile. Run the same command again.")
            seal(temporary)
        stamp(temporary, state)
        return won

    def create_folder(self, folder: Path, final: Path) -> bool:
        """Put the files of a policy or checkpoint, then its document; False if one existed already."""
        if not self.holds(final):
            return True
        self._check_puts()
        place, document = self.key_of(final), folder / document_of(final).name
        own = f"{place}/{files_of(document)}"
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path != document)
        num_bytes = sum(path.stat().st_size for path in files)
        with bar(f"{place} to the store", num_bytes, "B", worth=WORTH_A_BAR) as progress:
            for path in files:
                stamp(path, self.bucket.put(f"{own}/{path.relative_to(folder).as_posix()}", path))
                progress.update(path.stat().st_size)
        reached("before put", final)
        state = self.bucket.create(f"{place}/{document.name}", document)
        if state:
            stamp(document, state)
        else:
            fetch(self.bucket, {f"{place}/{document.name}": document_of(final)})
        valid = f"{place}/{files_of(document if state else document_of(final))}"
        left = [key for key, _ in self.bucket.list(place) if key != f"{place}/{document.name}"]
        self.bucket.delete(key for key in left if not key.startswith(f"{valid}/")
                           and (state or key.startswith(f"{own}/")))
        return state is not None

    def file_names(self, folder: Path) -> list[str]:
        """Current names of a folder's objects; its documents are downloaded."""
        place = folder.relative_to(self.root).as_posix()
        listed = dict(self.bucket.list(place))
        self.bring_documents(listed)
        return [re.sub(r"/files-[0-9a-f]{16}/", "/", key).removeprefix(f"{place}/") for key in listed]

    def ensure_local(self, paths: Iterable[Path], unread: Collection[str] = ()) -> None:
        """Download files of the run, and those of a policy or checkpoint folder that are not `unread`.

        Missing ones stay missing; a folder is removed if its document is no longer an object.
        """
        wanted: dict[str, Path] = {}
        for path in paths:
            document, inside = document_of(path), WHOLE.fullmatch(path.relative_to(self.root).as_posix())
            if inside and not inside[2] and not document.exists():
                fetch(self.bucket, {self.key_of(document): document})
            if document.exists() and inside:
                place = f"{self.key_of(path)}/{files_of(document)}/"
                listed = [key for key, _ in self.bucket.list(place)]
                wanted |= {key: path / name for key in listed
                           if (name := key.removeprefix(place)) not in unread}
                if not listed and not self.bucket.head(self.key_of(document)):
                    document.unlink(missing_ok=True)
                    with contextlib.suppress(OSError):      # it is not empty
                        os.removedirs(document.parent)
            elif self.holds(path):
                wanted[self.key_of(path)] = path
        fetch(self.bucket, {key: path for key, path in wanted.items() if not path.exists()})

    def bring_all(self, unread: Collection[str] = ()) -> None:
        """Download every part, and every policy but for files that are `unread`."""
        listed = self.listing()
        self.bring_documents(listed)
        self.ensure_local([*(self.root / key for key in listed if key.endswith(".parquet")),
                    *(self.root / key.rpartition("/")[0] for key in listed
                      if re.fullmatch(r"policies/\d+(/generation=[^/]+)?/policy\.json", key))], unread)

    def adopt(self, path: Path, to: Path) -> None:
        """Copy an object within the store, so that it exists under both names."""
        self.bucket.copy(self.key_of(path), self.key_of(to))
        if state := self.bucket.head(self.key_of(to)):
            stamp(path, state)      # both names are one local file

    def remove(self, path: Path) -> None:
        place = self.key_of(path)
        self.bucket.delete([place, *(key for key, _ in self.bucket.list(place))])

    def bring_documents(self, listed: dict[str, ObjectState]) -> None:
        """Download the documents of a listing that are new or changed."""
        wanted = {key: self.root / key for key, state in listed.items()
                  if DOCUMENT.fullmatch(key) and not fits(self.root / key, state)}
        fetch(self.bucket, wanted)

    def run_id(self) -> str | None:
        """The id of the run at the address; None if there is none."""
        stored = self.bucket.get("warehouse.json")
        return json.loads(stored)["run_id"] if stored else None

    def _check_same_run(self, listed: dict[str, ObjectState]) -> None:
        """StageError if the run is gone or replaced: this copy may be the last of its rows."""
        own = self.root / "warehouse.json"
        if not own.exists() or fits(own, listed.get(own.name)):
            return
        if self.run_id() != (read_json(own) or {})["run_id"]:
            raise StageError(f"{self.address} no longer holds the run that {self.root} is a copy "
                             "of. Check which store that is (AWS_ENDPOINT_URL). If the run is gone, remove "
                             f"{self.root / COPY_MARKER}: the copy is then a local run, as downloaded.")

    def _check_puts(self) -> None:
        """Once per working copy, test that the store refuses a second object of one name."""
        marker: dict[str, Any] = read_json(self.root / COPY_MARKER) or {"address": self.address}
        if not marker.get("conditional_puts"):
            self.bucket.check_conditional_puts()
            replace_bytes(self.root / COPY_MARKER, json_bytes({**marker, "conditional_puts": True}))


def document_of(folder: Path) -> Path:
    """The file that makes a folder a policy or a checkpoint; it is put last."""
    return folder / ("checkpoint.json" if folder.name.startswith("checkpoint-") else "policy.json")


def files_of(document: Path) -> str:
    """The location of the other files in the store: next to their document, named after it."""
    content = document.read_bytes() if document.exists() else b""
    return f"files-{hashlib.sha256(content).hexdigest()[:16]}"
