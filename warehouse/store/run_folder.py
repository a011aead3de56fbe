"""The run folder: where every table, stage and policy is, and how a stage begins and completes."""

from __future__ import annotations

import json
import platform
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from warehouse.ledger.entries import Begun, Changed, Completed, Transition, Worked
from warehouse.ledger.log import FOLDER, Log
from warehouse.ledger.old_runs import old_entries, upgrade
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import Key, Life, RunState
from warehouse.objects.place import sync_copy
from warehouse.store.checksums import (
    check_policy_files,
    check_tasks,
    file_state,
    part_damage,
    part_facts,
    sha256_of,
)
from warehouse.store.commit import (
    TEMPORARY_MARK,
    commit_directory,
    commit_json,
    ensure_local,
    file_names,
    next_to,
    readable,
    twin_of,
)
from warehouse.store.config_file import named_scorer
from warehouse.store.errors import NoRun, SettingChanged, StageError, moved_away, shell_quote
from warehouse.store.json_files import damaged, read_json
from warehouse.store.manifests import COPY, STEMS, TRAIN_TABLES, Listed, listed_parts, read_manifest
from warehouse.store.names import SCORER, check_name
from warehouse.store.parts import read_parts, write_part
from warehouse.store.schema import OLDEST_VERSION, SCHEMA_VERSION
from warehouse.store.unlisted import check_numbers, check_part

# The tables of each stage; a rollout's prompts have a folder of their own.
TABLES_OF = {"rollout": ("completions", "carried", "prompts"), "score": ("samples",),
             "logprobs": ("policy_logprobs",), "train": tuple(TRAIN_TABLES)}
STAGE_OF = {table: stage for stage, tables in TABLES_OF.items() for table in tables}


@dataclass(frozen=True)
class Warehouse:
    """An opened run folder. Its state is derived from the log, which is read again on each access.

    A stage that this process began or joined is written in its generation of that time: once another command
    has ended it, nothing more is written.
    """

    root: Path
    facts: dict[str, Any]
    at: int | None = field(default=None, compare=False)     # the entry of the log as of which it is read
    joined: dict[Key, int] = field(default_factory=dict, compare=False)     # lives that this process writes

    @cached_property
    def log(self) -> Log:
        return Log(self.root, self.at)

    @property
    def state(self) -> RunState:
        return self.log.state()

    def append(self, ask: Callable[[RunState], Transition | None]) -> int | None:
        """Append the transition that `ask` returns for the state; its number, None if `ask` returned none."""
        self.check_there()
        if not self.log.has_entries():
            old = old_entries(self.root)
            self.log.make(upgrade(self.root, self.facts), old)
        return self.log.append(ask)

    def check_there(self) -> None:
        """StageError if the run was moved or removed since it was opened."""
        if not (self.root / "warehouse.json").exists():
            raise moved_away(self.root)

    def check_live(self, stage: str, **identity: Any) -> Life:
        """The generation of a stage that this process writes; Refusal if another command ended it."""
        key = stage, identity["iteration"], identity.get("purpose"), identity.get("scorer")
        assert key in self.joined, f"{key} was not begun"
        self.check_there()
        state = self.log.refresh()
        state.check_live(self.joined[key])
        return state.lives[self.joined[key]]

    @property
    def run_id(self) -> str:
        return self.facts["run_id"]

    @property
    def owners(self) -> tuple[str, ...]:
        """The run ids that parts may have: its own and, for a branch, those of the runs it comes from."""
        return self.run_id, *self.facts.get("parents", ())

    @property
    def model(self) -> str:
        """Path or id of the base model; a path inside the run folder is stored relative to it."""
        model = self.facts["model"]
        inside = self.root / model
        return str(inside) if not Path(model).is_absolute() and inside.exists() else model

    @property
    def base_name(self) -> str:
        """A short name of the base model: its id on the hub, or the last two names of its path."""
        return "/".join(Path(self.facts["model"]).parts[-2:])

    def folder(self, table: str, *, iteration: int | None = None, purpose: str | None = None,
               scorer: str | None = None) -> Path:
        """Folder of a table's parts in the current generation; `tasks` take no key, train tables only
        the iteration. If the stage has not begun, the folder for its generations.
        """
        if table == "tasks":
            return self._generation(self.root / "tasks", self.state.tasks_folder)
        stage = STAGE_OF[table]
        key = stage, iteration or 0, None if stage == "train" else purpose, scorer
        return self.folder_of(table, self.state.life(*key) or Life(*key))

    def folder_of(self, table: str, life: Life, generation: str = "") -> Path:
        """Folder of a table's parts in a generation of a stage: that of its life, or another."""
        if table in TRAIN_TABLES:
            name = f"train/iteration={life.iteration}"
        else:
            top = "completions" if table == "carried" else table
            name = f"{top}/iteration={life.iteration}/purpose={check_name('The purpose', str(life.purpose))}"
            if table in ("samples", "policy_logprobs"):
                name += f"/{'scorer' if table == 'samples' else 'model'}="
                name += check_name("The scorer", str(life.scorer), SCORER)
        return self._generation(self.root / name, generation or life.folder)

    @staticmethod
    def _generation(place: Path, name: str) -> Path:
        return place / f"generation={name}" if name else place

    def part_path(self, table: str, number: int, **keys: Any) -> Path:
        return self.folder(table, **keys) / f"{STEMS.get(table, 'part')}-{number:05d}.parquet"

    def parts(self, table: str, **keys: Any) -> list[Path]:
        """Parts sorted by number: those of the manifest if there is one, else those that exist."""
        return [*self._listed(table, **keys)]

    def _listed(self, table: str, **keys: Any) -> Listed:
        manifest, folder = None, self.folder(table, **keys)
        if table != "tasks":
            manifest = self.stage(STAGE_OF[table], **keys).manifest()
            if folder != self.folder(table, **keys):    # another command changed it meanwhile
                return self._listed(table, **keys)
        return listed_parts(folder, manifest, table)

    def verify(self, table: str, only: Iterable[Path] | None = None, **keys: Any) -> None:
        """StageError if a listed part, or a task, has changed, or an unfinished stage has a part not its own.

        Repeated calls cost nothing.
        """
        listed = self._listed(table, **keys)
        parts = dict.fromkeys(listed if only is None else only)
        ensure_local(parts)
        if table == "tasks":
            if gone := [part for part in parts if not part.is_file()]:
                raise StageError(f"{gone[0]} is missing. Restore it from a copy of the run.")
            check_tasks(tuple((part, file_state(part)) for part in parts), self.folder(table),
                        self.state.tasks_sha256)
            return
        for part, facts in listed.items():
            if part in parts and not facts:
                check_part(part, table, self.owners, keys)
            elif part in parts and (why := part_damage(part, facts)):
                raise StageError(f"{part} {why}. Restore it from a copy, or run `warehouse check --fix` and "
                                 "then its stage again.")

    def read(self, table: str, columns: list[str] | None = None, *, task_ids: set[str] | None = None,
             **keys: Any) -> pa.Table:
        """All rows of a table under the given keys, in part order; StageError if a part has changed."""
        parts = self.parts(table, **keys)
        try:
            self.verify(table, **keys)
            return read_parts(parts, table, columns, task_ids)
        except StageError:
            if self.parts(table, **keys) == parts:
                raise
            return self.read(table, columns, task_ids=task_ids, **keys)     # another command changed them

    def write_part(self, table: str, number: int, rows: pa.Table, **keys: Any) -> bool:
        """Commit one part of a stage that this process began or joined.

        False if it existed already, or the stage is complete: then `rows` are dropped. Refusal if another
        command ended the stage.
        """
        metadata = {"run_id": self.run_id, "part_uuid": uuid.uuid4().hex}
        life = self.check_live(STAGE_OF[table], **keys)
        if life.is_complete:        # by another worker, which also wrote this part
            return False
        path = self.folder_of(table, life) / f"{STEMS.get(table, 'part')}-{number:05d}.parquet"
        return write_part(path, table, rows, metadata)

    def stage(self, name: str, *, iteration: int, purpose: str | None = None,
              scorer: str | None = None) -> Stage:
        """The stage `rollout`, `score`, `logprobs` or `train` of one iteration."""
        return self.stage_of(Life(name, iteration, purpose, scorer))

    def stage_of(self, life: Life) -> Stage:
        return Stage(life.stage, life.identity, self)

    def stages(self, iteration: int | None = None) -> list[Stage]:
        """Rollouts, then scores, logprobs and trainings, finished or not; of one iteration or of all."""
        stages = [self.stage_of(life) for name in TABLES_OF for life in self.state.of_stage(name, iteration)]
        ensure_local(stage.folder / "manifest.json" for stage in stages if stage.is_complete())
        return stages

    def documents(self) -> list[Path]:
        """The manifest of each complete stage, and policy.json of each policy."""
        return [*(stage.folder / "manifest.json" for stage in self.stages() if stage.is_complete()),
                *(self.policy_dir(version) / "policy.json" for version in self.state.versions)]

    def needed_files(self) -> Iterator[Path]:
        """Documents, tasks, and what the documents list: parts, and files of policies that have weights."""
        yield from [*self.documents(), *(self.parts("tasks") or [self.part_path("tasks", 0)])]
        for stage in self.stages():
            for table in TABLES_OF[stage.name]:
                yield from self.parts(table, **stage.identity)
        for version, policy in self.state.policies.items():
            for name in [] if policy.dropped else self.policy(version).get("files", []):
                yield self.policy_dir(version) / name

    def choose_scorer(self, iteration: int, purpose: str, name: str | None = None) -> tuple[str, str]:
        """The scorer of a rollout whose rows count, and why: `name`, or according to config.toml and state.

        Refusal if nothing is scored, or not by a scorer of that name.
        """
        return self.state.choose_scorer(iteration, purpose, name, named_scorer(self.root))

    def policy_dir(self, version: int) -> Path:
        """Folder of a policy's files, also if a rollback gave it another version; 0 is the base."""
        policy = self.state.policies.get(version)
        return self.root / "policies" / (policy.folder if policy else str(version))

    def new_policy_dir(self, iteration: int) -> Path:
        """The folder for the policy of an iteration's unfinished training."""
        life = self.check_live("train", iteration=iteration)
        return self._generation(self.root / "policies" / str(iteration + 1), life.folder or "0")

    def policy(self, version: int) -> dict[str, Any]:
        """policy.json of a version; StageError if that policy does not exist."""
        known = self.state.policies.get(version)
        folder = self.policy_dir(version)
        ensure_local([folder / "policy.json"])
        if known is None:
            raise StageError(f"{self.root} has no policy {version}; it has {self.state.versions}. "
                             f"`train {shell_quote(self.root)} --iteration {version - 1}` would write it.")
        policy = read_json(folder / "policy.json", sha256=str)
        if policy is None:
            raise damaged(folder / "policy.json", "it is missing")
        if known.rolled_back_to is not None and policy["policy_version"] != version:
            policy |= {"policy_version": version, "parent": known.rolled_back_to,
                       "parent_sha256": policy["sha256"], "rolled_back_to": known.rolled_back_to}
            policy |= {} if known.global_step is None else {"global_step": known.global_step}
        return policy

    def verify_policy(self, version: int, unread: Sequence[str] = ()) -> None:
        """StageError if files of a policy, except `unread`, differ from its policy.json."""
        folder, stored = self.policy_dir(version), self.policy(version)
        if stored.get("kind", "base") == "base":
            return
        if self.state.policies[version].dropped:
            raise Refusal("weights_gone", to=version, kept=self.state.kept)
        ensure_local([folder], unread)
        check_policy_files(folder, stored, unread)

    def commit_policy(self, iteration: int, folder: Path) -> bool:
        """Move a prepared folder (from `scratch`) to the place for the policy of an iteration's training.

        It becomes policy `iteration` + 1 when the training is complete. False if one existed already.
        """
        assert (folder / "policy.json").exists(), "a policy folder needs its policy.json"
        return commit_directory(folder, self.new_policy_dir(iteration))

    def remove_dropped(self) -> None:
        """Remove weights from a working copy that another machine dropped from the run."""
        for policy in self.state.policies.values():
            for path in (self.root / "policies" / policy.folder).glob("*") if policy.dropped else []:
                if path.is_file() and path.name != "policy.json":
                    path.unlink(missing_ok=True)

    def scratch(self, name: str) -> Path:
        """A fresh temporary folder on the run's filesystem, to be committed or removed by the caller."""
        folder = self.root / f"{TEMPORARY_MARK}{name}-{uuid.uuid4().hex[:12]}"
        try:
            folder.mkdir()
        except OSError as error:
            raise readable(error, self.root) from error
        return folder


@dataclass(frozen=True)
class Stage:
    """One run of rollout, score, logprobs or train over one iteration, in the current state of the run."""

    name: str
    identity: dict[str, Any]
    warehouse: Warehouse = field(compare=False)

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
        return self.warehouse.folder(TABLES_OF[self.name][0], **self.identity)

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
                for name, value in {"stage": self.name, **self.identity}.items():
                    if manifest.get(name, value) != value:
                        raise damaged(folder / "manifest.json", f"its {name} is {manifest[name]}")
                return manifest
        return None

    def readable_manifest(self) -> dict[str, Any] | None:
        """The manifest; None if there is none, or if it is damaged."""
        try:
            return self.manifest()
        except StageError:
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
            folder = self.warehouse.folder_of(TABLES_OF[self.name][0], life)
            facts = {**facts, "seconds_before": life.worked} if life.worked else facts
            commit_json(folder / "manifest.json", self.facts_to_store(facts, numbers))
            written = read_manifest(folder)
            assert written is not None
            commit_json(folder / COPY, written)
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
        if spent := manifest["facts"].get("seconds"):
            kept["seconds"] = round(sum(spent.values()) if isinstance(spent, dict) else spent, 1)
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
        """The content of a manifest written now, once every part is read: a damaged one is not sealed in."""
        parts, prompts = list[Path](), list[Path]()
        for table in TABLES_OF[self.name]:
            folder = self.warehouse.folder(table, **self.identity)
            found = [folder / name for name in file_names(folder, f"{STEMS.get(table, 'part')}-*.parquet")]
            ensure_local(found)
            for part in found:
                check_part(part, table, self.warehouse.owners, self.identity)
            (prompts if table == "prompts" else parts).extend(found)
        if numbers is not None:
            check_numbers(parts, numbers)
        return {
            "stage": self.name, **self.identity, "facts": facts, "settings": self.settings(),
            "changes": [dict(change) for change in self.life.changes] if self.life else [],
            "versions": _versions(),
            "parts": [part_facts(part) for part in sorted(parts)],
            **({"prompts": [part_facts(part) for part in prompts]} if self.name == "rollout" else {}),
            "host": platform.node(), "finished_at": time.time(),
        }

    def way_to_discard(self) -> str:
        """How to discard the stage, as part of a sentence."""
        run, iteration, state = self.warehouse.root, self.identity["iteration"], self.warehouse.state
        is_read = self.name == "rollout" and state.trained_purpose(iteration) == self.identity["purpose"]
        if state.is_complete("train", iteration) and (self.name == "train" or is_read):
            again, rows = ("make others", "") if is_read else ("train the same rows again", " --with-rows")
            return (f"{again} on a branch: `warehouse branch {shell_quote(run)} "
                    f"{shell_quote(next_to(run, f'at-{iteration}'))} --at {iteration}{rows}`")
        which = "--training" if self.name == "train" else f"--purpose {self.identity.get('purpose')}"
        if "scorer" in self.identity:
            which += f" --scorer {shell_quote(self.identity['scorer'])}"
        return (f"discard what it wrote with `warehouse discard {shell_quote(run)} --iteration {iteration} "
                f"{which}`")

    @property
    def title(self) -> str:
        """Its name in messages, for example `score of iteration 3, purpose train`."""
        return Life(*self.key).title


def check_not_lost(root: Path) -> None:
    """StageError if a folder without warehouse.json was a run: more than a killed init leaves."""
    if any(root.glob("completions/*")) or (root / FOLDER / "00000001.json").exists():
        raise NoRun(root, None, "was a run but has no warehouse.json. Restore that file from a copy, or "
                                "choose another folder.")


def open_warehouse(path: str | Path, at: int | None = None) -> Warehouse:
    """Open a run folder, or the working copy of s3://BUCKET/RUN (gs://, az://); `at`: as after that entry."""
    root = sync_copy(path).resolve()
    marker = root / "warehouse.json"
    facts = read_json(marker, schema_version=int)
    if facts is None:
        check_not_lost(root)
        inside = sorted(marker.parent.name for marker in root.glob("*/warehouse.json"))
        way_out = (f"It holds the runs {', '.join(inside[:4])}{' ..' * (len(inside) > 4)}. Name one: "
                   f"{shell_quote(Path(path) / inside[0])}" if inside else
                   f"Make one with `warehouse init {shell_quote(path)} --model MODEL --tasks SOURCE`.")
        raise NoRun(path, None, f"is not a run folder (it has no warehouse.json). {way_out}")
    version = facts["schema_version"]
    if version < OLDEST_VERSION:
        raise NoRun(path, version, f"has schema version {version}, which Rollhouse 0.1.0 wrote. "
                                   "Finish it with that version, or sample it again.")
    if version > SCHEMA_VERSION:
        raise NoRun(path, version, f"has schema version {version}, this Rollhouse reads up to "
                                   f"{SCHEMA_VERSION}. Install a newer Rollhouse.")
    facts = read_json(marker, run_id=str, model=str)
    assert facts is not None
    warehouse = Warehouse(root, facts, at)
    logged = (warehouse.log if at is None else Log(root)).state().facts
    for name in ("run_id", "parents") if logged else ():
        if facts.get(name, []) != logged.get(name, []):
            raise damaged(marker, f"its {name} is not that of the log: it is another run's")
    if at is not None and warehouse.state.head != at:
        raise StageError(f"The log of {path} has no entry {at}; the last is {warehouse.state.head}. "
                         f"`warehouse log {shell_quote(path)}` lists them.")
    if twin_of(root):
        warehouse.remove_dropped()
    return warehouse


@cache
def _versions() -> dict[str, str | None]:
    """What this process runs; the Git revision is None if Rollhouse is installed without its history."""
    from importlib.metadata import version
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    git = ""
    with suppress(OSError):     # without Git
        git = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {"python": platform.python_version(), "rollhouse": version("rollhouse"), "git": git or None}
