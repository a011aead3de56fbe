"""The log of a run as files: RUN/_log/00000017.json; an entry is committed at the next free number."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from glob import glob
from pathlib import Path
from shlex import join
from tempfile import NamedTemporaryFile
from typing import Any

from warehouse.ledger.entries import Begun, Entry, Made, Transition
from warehouse.ledger.fold import Fold, check
from warehouse.ledger.old_runs import old_entries
from warehouse.ledger.state import RunState
from warehouse.store.commit import TEMPORARY_MARK, commit_bytes, ensure_local, twin_of
from warehouse.store.errors import Damaged, shell_quote
from warehouse.store.json_files import damaged, fresh_text, json_bytes, read_json

FOLDER = "_log"
ENTRY, LISTINGS = re.compile(r"\d{8}\.json"), 5


class Log:
    """The entries of a run, read as they appear; new ones are appended here.

    Numbers are tried one after the other, never read from a listing: over NFS a listing may be stale. It
    only shows whether entries are missing before those that are there.
    """

    def __init__(self, root: Path, at: int | None = None) -> None:
        self._root, self._at, self._looked_for_old = root, at, False
        self._names = f"{root}/{FOLDER}"    # text, because thousands of Path objects are slow
        self._fold = Fold(shell_quote(root))
        self._next, self._before, self._is_whole = 0, "", False
        self._reading = threading.RLock()       # a viewer's threads, and a loop's, share one

    def state(self) -> RunState:
        """The state after the log's current last entry, or after entry `at`."""
        with self._reading:
            while (self._at is None or self._next <= self._at) and self._read_next():
                pass
            if self._at is None and not self._is_whole:
                self.check_whole()
            if not self._next and not self._looked_for_old:
                for entry in old_entries(self._root):
                    self._fold.apply(entry)
                self._looked_for_old = True
            return self._fold.state()

    def refresh(self) -> RunState:
        """The same, after fetching new entries if the run is in an object store."""
        with self._reading:
            if twin_of(self._root) and self._at is None:
                while not self.path(self._next).exists():
                    ensure_local([self.path(self._next)])
                    if not self._read_next():
                        break
            return self.state()

    def append(self, ask: Callable[[RunState], Transition | None]) -> int | None:
        """Commit the transition that `ask` returns for the state; None if it returns none.

        If another entry is committed first, `ask` is called again with the newer state. Raises what `ask`
        raises, and Refusal if the state does not allow its answer.
        """
        assert self._at is None, "the past is read, not changed"
        with self._reading:
            while True:
                state = self.refresh()
                what = ask(state)
                if what is None:
                    return None
                check(state, what)
                assert self._next, "an old run gets a log before its first transition"
                number = self._next
                if self._commit(what):
                    return number

    def make(self, facts: dict[str, Any], old: list[Entry] | None = None) -> None:
        """Commit entry 0, unless there is one."""
        self._commit(Made(facts, [entry.to_json() for entry in old or []]))

    @property
    def is_past(self) -> bool:
        """Whether the run is read as it was at an earlier entry."""
        return self._at is not None

    def next_path(self) -> Path:
        return self.path(self._next)

    def has_entries(self) -> bool:
        """False for an unchanged run of a version without a log."""
        return self.path(0).exists()

    def path(self, number: int) -> Path:
        return self._root / FOLDER / f"{number:08d}.json"

    def _commit(self, what: Transition) -> bool:
        """Commit an entry at the next number; False if another is there."""
        self.check_whole(what.iteration if isinstance(what, Begun) else None)
        entry = Entry(self._next, what, time.time(), place(), command_line())
        content = json_bytes({**entry.to_json(), "nonce": uuid.uuid4().hex, "before": self._before})
        first = commit_bytes(self.path(self._next), content)
        self._read_next()
        if first and (twin := twin_of(self._root)):
            twin.pack_log(entry.number)
        return first

    def check_whole(self, iteration: int | str | None = None) -> None:
        """Damaged if the next entry is missing, but later ones are there, or a folder of a stage they began.

        A stage's folder is made after its entry. The folders of an iteration are listed, or of all ("*").
        """
        for _ in range(LISTINGS):               # which may miss what is committed meanwhile
            numbers, folders = set[int](), self._generations(iteration)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                numbers = {int(name[:8]) for name in os.listdir(self._names) if ENTRY.fullmatch(name)}
            last = max(numbers | folders.keys(), default=-1)
            if self._next in numbers or self._next > last or self.next_path().exists():
                self._is_whole = self._next > 0
                return
            ensure_local([self.next_path()])
            # In a folder that has changed NFS looks again for names that it did not find before.
            with contextlib.suppress(OSError), NamedTemporaryFile(prefix=TEMPORARY_MARK, dir=self._names):
                time.sleep(0.1)
        if self._next < max(numbers, default=-1):
            raise damaged(self.next_path(), f"it is missing, and {self.path(max(numbers)).name} is there")
        raise Damaged(self.next_path(), f"it is missing, and {folders[last]} is there",
                      f"and entries up to {last} are missing, though {folders[last]} is there. Restore them "
                      "from a copy of the run; if there is none, move that folder out of the run.")

    def _generations(self, iteration: int | str | None) -> dict[int, str]:
        """Folders of stages, by the number of the entry that began each."""
        names = [name for depth in ("", "*/", "*/*/") if iteration is not None
                 for name in glob(f"*/iteration={iteration}/{depth}generation=*", root_dir=self._root)]
        found = {name: name.rpartition("=")[2] for name in names}
        return {int(number): name for name, number in found.items() if number.isdecimal()}

    def _read_next(self) -> bool:
        """Apply the next entry, if there is one."""
        name = f"{self._names}/{self._next:08d}.json"
        if not os.path.exists(name):
            return False
        path = Path(name)
        try:
            text = fresh_text(path)
            stored = json.loads(text)
            entry = Entry.from_json(stored)
        except FileNotFoundError:
            return False
        except (ValueError, RecursionError) as error:
            raise damaged(path, str(error)) from error
        # Each entry holds the hash of the previous one, so only the last is compared with its own checksum.
        if entry.number != self._next or stored["before"] != self._before:
            raise damaged(path if entry.number != self._next or not self._next else self.path(self._next - 1),
                          f"entry {self._next} of the log does not follow it")
        if not os.path.exists(f"{self._names}/{self._next + 1:08d}.json"):
            read_json(path)
        self._fold.apply(entry)
        self._next += 1
        self._before = hashlib.sha256(text.encode()).hexdigest()
        return True


def place() -> str:
    """This machine, and the job of SLURM that runs here."""
    task = "_".join(filter(None, map(os.environ.get, ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))))
    job = task or os.environ.get("SLURM_JOB_ID")
    return platform.node() + (f", job {job}" if job else "")


def command_line() -> str:
    """The typed command line, with only the program's name instead of its path."""
    program, *arguments = sys.argv or [""]
    return join([os.path.basename(program), *arguments])[:2000]
