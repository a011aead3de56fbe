"""A stage of one iteration: begun with its settings, complete with the log entry after its manifest."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from warehouse.ledger.entries import Begun, Changed, Completed, Transition, Worked
from warehouse.ledger.log import Log
from warehouse.ledger.state import Key, Life, RunState
from warehouse.store.checksums import part_facts, sha256_of
from warehouse.store.commit import TEMPORARY_MARK, commit_json, ensure_local, file_names, next_to
from warehouse.store.errors import SettingChanged, StageError, shell_quote
from warehouse.store.json_files import damaged, read_json
from warehouse.store.parts import check_parts

if TYPE_CHECKING:
    import pyarrow as pa

Listed = dict[Path, dict[str, Any]]  # parts with their manifest entries
TABLES = {"rollout": "completions", "score": "samples", "logprobs": "policy_logprobs", "train": "train_steps"}


class Run(Protocol):
    """What a stage needs from its run folder: `warehouse.store.run_folder.Warehouse`."""

    @property
    def root(self) -> Path: ...
    @property
    def log(self) -> Log: ...
    @property
    def state(self) -> RunState: ...
    @property
    def joined(self) -> dict[Key, int]: ...
    @property
    def owners(self) -> tuple[str, ...]: ...

    def append(self, ask: Callable[[RunState], Transition | None]) -> int | None: ...
    def check_live(self, stage: str, **identity: Any) -> Life: ...
    def folder(self, table: str, *, iteration: int | None = None, purpose: str | None = None,
               scorer: str | None = None) -> Path: ...
    def folder_of(self, table: str, life: Life | None, *, iteration: int | None = None,
                  purpose: str | None = None, scorer: str | None = None) -> Path: ...
    def new_policy_dir(self, iteration: int) -> Path: ...
    def read(self, table: str, columns: list[str] | None = None, **keys: Any) -> pa.Table: ...


@dataclass(frozen=True)
class Stage:
    """One run of rollout, score, logprobs or train over one iteration, in the current state of the run."""

    name: str
    identity: dict[str, Any]
    warehouse: Run = field(compare=False)

    @property
    def key(self) -> Key:
        identity = self.identity
        return self.name, identity["iteration"], identity.get("purpose"), identity.get("scorer")

    @property
    def life(self) -> Life | None:
        """Its life in the log; None if it never began, or was ended."""
        return self.warehouse.state.life(self.name, **self.identity)

    @property
    def folder(self) -> Path:
        """The folder of its parts; it may not exist yet."""
        return self.warehouse.folder(TABLES[self.name], **self.identity)

    @property
    def prompts(self) -> Path | None:
        """For a rollout, the folder of its prompts, which its manifest also lists."""
        return self.warehouse.folder("prompts", **self.identity) if self.name == "rollout" else None

    def settings(self) -> dict[str, Any] | None:
        """The settings that the stage was started with; None if it never started."""
        return dict(self.life.settings) if self.life else None

    def manifest(self) -> dict[str, Any] | None:
        """The manifest; None while the stage is not complete; StageError if it is damaged or gone."""
        while self.is_complete():
            folder = self.folder
            manifest = read_manifest(folder)
            if manifest is None and self.warehouse.log.is_past:
                raise StageError(f"{self.title} was compacted, pruned or removed since: its rows "
                                 "of then are gone. Name a later entry.")
            if manifest is None and self.is_complete() and self.folder == folder:
                raise damaged(folder / "manifest.json", "it is missing")
            if manifest is not None:
                return manifest
        return None

    def facts(self) -> dict[str, Any] | None:
        """The stage's counts and measurements; None while it is not complete."""
        manifest = self.manifest()
        return manifest["facts"] if manifest else None

    def written(self) -> list[Path]:
        """Parts and spills of an unfinished stage, as far as this machine has them."""
        found = sorted(self.folder.glob("part-*.parquet*"))
        return [path for path in found if TEMPORARY_MARK not in path.name]

    def last_write(self) -> float | None:
        """When this machine last wrote a file of it, in seconds since 1970; None if there is none here."""
        return max((path.stat().st_mtime for path in self.folder.glob("*") if path.exists()), default=None)

    def is_complete(self) -> bool:
        return self.life is not None and self.life.is_complete

    def settle(self, settings: dict[str, Any], accept_change: tuple[str, ...] = (),
               may_change: tuple[str, ...] = (), *, reads: Sequence[int] = (),
               taken: Sequence[str] = (), rows: str | None = None) -> None:
        """Begin the stage with these settings, or check them against those it was begun with.

        `reads` are the begin entries of the rows and the policy that it uses, `taken` groups of earlier
        rollouts that its plan continues, `rows` the folder of the parts that a score processes. Raises
        StageError naming the setting and both values if they differ: rows of one stage must be comparable. A
        setting named in `accept_change` may differ; then log and manifest record both values. The error names
        this option for settings in `may_change`. Refusal if another command ended the stage since this one
        began it.
        """
        settings = json.loads(json.dumps(settings))
        key = self.key
        if key in self.warehouse.joined:
            self.warehouse.check_live(self.name, **self.identity)
        life = self.life

        def begin(state: RunState) -> Begun | None:
            nonlocal life
            life = state.life(*key)
            return None if life else Begun(*key, settings, sorted({*reads}), [*taken], rows=rows)

        self.warehouse.state.check_rows(reads, rows)
        begun = None if life else self.warehouse.append(begin)
        self.warehouse.joined[key] = life.begun if life else begun      # type: ignore[assignment]
        if life:
            self._check_same(life, settings, accept_change, may_change)

    def _check_same(self, life: Life, settings: dict[str, Any], accept_change: tuple[str, ...],
                    may_change: tuple[str, ...]) -> None:
        before, begun = life.settings, life.begun
        for name in sorted(before.keys() | settings.keys()):
            values = {"before": before.get(name), "now": settings.get(name)}
            if values["before"] == values["now"]:
                continue
            if name not in accept_change:
                accept = f"continue with `--accept-change {name}`, " if name in may_change else ""
                raise SettingChanged(self.title, name, **values, way_out="Give the former value (option or "
                                     f"config.toml), {accept}or {self.way_to_discard()}.")
            if not life.is_complete:
                self._note_change(begun, {"setting": name, **values})

    def _note_change(self, begun: int, change: dict[str, Any]) -> None:
        self.warehouse.append(lambda state: None if change in state.lives[begun].changes
                              else Changed(begun, **change))

    @contextmanager
    def working(self, seconds: Callable[[], float]) -> Iterator[None]:
        """Note in the log how long this process worked on the stage if an error or a stop ends the block."""
        try:
            yield
        except Exception as error:
            with suppress(StageError, OSError):     # the block's error is what matters
                self.note_work(seconds(), str(error).partition(". ")[0] or type(error).__name__)
            raise

    def note_work(self, seconds: float, why: str) -> None:
        """Note in the log that this process leaves the stage, if it joined it and it is not complete."""
        if (begun := self.warehouse.joined.get(self.key)) is None:
            return

        def leave(state: RunState) -> Worked | None:
            life = state.lives[begun]
            is_over = life.is_complete or life.ended is not None
            return None if is_over else Worked(begun, round(seconds, 1), why)
        self.warehouse.append(leave)

    def complete(self, facts: dict[str, Any], numbers: Iterable[int] | None = None) -> dict[str, Any]:
        """Write the manifest: `facts`, the settings, versions, and sha256 and size of every part.

        The log entry after it completes the stage. StageError if a part is from another run, or if the parts
        differ from `numbers`, if given; Refusal if the stage, or one that it read, was ended meanwhile.
        """
        while not (life := self.warehouse.check_live(self.name, **self.identity)).is_complete:
            folder = self.warehouse.folder_of(TABLES[self.name], life, **self.identity)
            facts = {**facts, "seconds_before": life.worked} if life.worked else facts
            commit_json(folder / "manifest.json", self.facts_to_store(facts, numbers))
            written = read_manifest(folder)
            assert written is not None
            kept, sha256 = self._facts_of_state(written), sha256_of(folder / "manifest.json")

            def end(state: RunState, before: Life = life, kept: dict[str, Any] = kept,
                    sha256: str = sha256) -> Completed | None:
                now = state.lives[before.begun]     # a repair may have given it another folder
                return (None if now.is_complete or now.folder != before.folder
                        else Completed(now.begun, sha256, kept))

            self.warehouse.append(end)
        manifest = self.manifest()
        assert manifest is not None
        return manifest

    def _facts_of_state(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The facts of a complete stage that the run's state needs."""
        kept = {name: manifest["facts"][name] for name in ("scorer", "waiting") if name in manifest["facts"]}
        kept |= {name: manifest[name] for name in ("pruned", "lost") if manifest.get(name)}
        if any(part["name"].startswith("carried-") for part in manifest["parts"]):
            rows = self.warehouse.read("carried", ["group_id"], **self.identity)
            kept["carried"] = list(dict.fromkeys(rows["group_id"].to_pylist()))
        if self.name == "train":
            policy = self.warehouse.new_policy_dir(self.identity["iteration"])
            ensure_local([policy / "policy.json"])
            if (policy / "policy.json").exists():
                kept["policy"] = policy.relative_to(self.warehouse.root / "policies").as_posix()
        return kept

    def facts_to_store(self, facts: dict[str, Any], numbers: Iterable[int] | None = None) -> dict[str, Any]:
        """The content of a manifest written now."""
        folder, prompts = self.folder, self.prompts
        parts = [folder / name for name in file_names(folder, "*-*.parquet")]
        prompt_parts = [prompts / name for name in file_names(prompts, "part-*.parquet")] if prompts else []
        ensure_local([*parts, *prompt_parts])
        check_parts(parts, self.warehouse.owners, numbers)
        check_parts(prompt_parts, self.warehouse.owners)
        return {
            "stage": self.name, **self.identity, "facts": facts, "settings": self.settings(),
            "changes": [dict(change) for change in self.life.changes] if self.life else [],
            "versions": _versions(),
            "parts": [part_facts(part) for part in parts],
            **({"prompts": [part_facts(part) for part in prompt_parts]} if prompts else {}),
            "host": platform.node(), "finished_at": time.time(),
        }

    def way_to_discard(self) -> str:
        """How to discard the stage, as part of a sentence."""
        run, iteration = self.warehouse.root, self.identity["iteration"]
        if self.name == "train" and self.is_complete():
            return (f"train the same rows again on a branch: `warehouse branch {shell_quote(run)} "
                    f"{shell_quote(next_to(run, f'at-{iteration}'))} --at {iteration} --with-rows`")
        which = "--training" if self.name == "train" else f"--purpose {self.identity.get('purpose')}"
        if "scorer" in self.identity:
            which += f" --scorer {shell_quote(self.identity['scorer'])}"
        return (f"discard what it wrote with `warehouse discard {shell_quote(run)} --iteration {iteration} "
                f"{which}`")

    @property
    def title(self) -> str:
        """Its name in messages, for example `score of iteration 3, purpose train`."""
        keys = {"purpose": None, "scorer": None, **self.identity}
        return Life(self.name, **keys, begun=-1, folder="", settings={}).title


def read_manifest(folder: Path, name: str = "manifest.json") -> dict[str, Any] | None:
    """The manifest in a folder; None while the stage is not complete; StageError if it is damaged."""
    path = folder / name
    ensure_local([path])
    manifest = read_json(path, facts=dict, parts=list)
    for part in [*manifest["parts"], *manifest.get("prompts", [])] if manifest else []:
        if not isinstance(part, dict) or not {"name", "bytes", "sha256"} <= part.keys():
            raise damaged(path, "it does not list its parts")
    return manifest


def listed_parts(folder: Path, manifest: dict[str, Any] | None, key: str = "parts",
                 stem: str = "*") -> Listed:
    """Parts by path, in order, with their entries in a manifest; if that has none, those that exist, with {}.

    The manifest decides: a missing part is an error when it is read, and a part from a late worker,
    or one that was merged into another, is ignored.
    """
    listed, pattern = (manifest or {}).get(key), f"{stem}-*.parquet"
    if listed is None:  # not complete, or a rollout from before manifests listed the prompts
        return {folder / name: {} for name in file_names(folder, pattern)}
    return {folder / part["name"]: part for part in sorted(listed, key=itemgetter("name"))
            if fnmatch(part["name"], pattern)}


def readable_manifest(stage: Stage) -> dict[str, Any] | None:
    """The manifest; None if there is none, or if it is damaged."""
    try:
        return stage.manifest()
    except StageError:
        return None


@cache
def _versions() -> dict[str, str | None]:
    """What this process runs; the Git revision is None if Rollhouse is installed without its history."""
    from importlib.metadata import version
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    git = ""
    with suppress(OSError):     # without Git
        git = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {"python": platform.python_version(), "rollhouse": version("rollhouse"), "git": git or None}
