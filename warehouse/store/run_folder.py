"""The run folder: the location of every table, stage and policy, and how rooms reach them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warehouse.ledger.entries import Transition
from warehouse.ledger.log import Log
from warehouse.ledger.old_runs import old_entries, upgrade
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import Key, Life, RunState
from warehouse.objects.place import sync_copy
from warehouse.store.checksums import check_policy_files, check_tasks, file_state, part_damage
from warehouse.store.commit import TEMPORARY_MARK, commit_directory, ensure_local, readable, twin_of
from warehouse.store.config_file import named_scorer
from warehouse.store.errors import NoRun, StageError, shell_quote
from warehouse.store.json_files import damaged, read_json
from warehouse.store.names import SCORER, check_name
from warehouse.store.schema import OLDEST_VERSION, SCHEMA_VERSION
from warehouse.store.stage import TABLES as TABLE_OF
from warehouse.store.stage import Listed, Stage, listed_parts

if TYPE_CHECKING:
    import pyarrow as pa

TRAIN_TABLES = {"train_samples": "samples", "train_tokens": "tokens", "train_steps": "steps"}
STEMS = {**TRAIN_TABLES, "carried": "carried"}  # prefix of a table's part names; others have `part`
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
        if not self.log.has_entries():
            old = old_entries(self.root)
            self.log.make(upgrade(self.root, self.facts), old)
        return self.log.append(ask)

    def check_live(self, stage: str, **identity: Any) -> Life:
        """The generation of a stage that this process writes; Refusal if another command ended it."""
        key = stage, identity["iteration"], identity.get("purpose"), identity.get("scorer")
        assert key in self.joined, f"{key} was not begun"
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
        life = self.state.life(stage, iteration or 0, None if stage == "train" else purpose, scorer)
        return self.folder_of(table, life, iteration=iteration, purpose=purpose, scorer=scorer)

    def folder_of(self, table: str, life: Life | None, *, iteration: int | None = None,
                  purpose: str | None = None, scorer: str | None = None, folder: str | None = None) -> Path:
        """Folder of a table's parts in a generation: that of a life, or the one in `folder`."""
        if table in TRAIN_TABLES:
            name = f"train/iteration={iteration}"
        else:
            top = "completions" if table == "carried" else table
            name = f"{top}/iteration={iteration}/purpose={check_name('The purpose', str(purpose))}"
            if table in ("samples", "policy_logprobs"):
                name += f"/{'scorer' if table == 'samples' else 'model'}="
                name += check_name("The scorer", str(scorer), SCORER)
        return self._generation(self.root / name, folder or (life.folder if life else ""))

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
        return listed_parts(folder, manifest, "prompts" if table == "prompts" else "parts",
                            STEMS.get(table, "part"))

    def verify(self, table: str, only: Iterable[Path] | None = None, **keys: Any) -> None:
        """StageError if a listed part, or a task, has changed; repeated calls cost nothing."""
        listed = self._listed(table, **keys)
        parts = dict.fromkeys(listed if only is None else only)
        ensure_local(parts)
        if table == "tasks":
            if gone := [part for part in parts if not part.is_file()]:
                raise StageError(f"{gone[0]} is missing. Restore it from a copy of the run.")
            check_tasks(tuple((part, file_state(part)) for part in parts), self.folder(table),
                        self.state.tasks_sha256)
        for part, facts in listed.items():
            if facts and part in parts and (why := part_damage(part, facts)):
                raise StageError(f"{part} {why}. Restore it from a copy, or run `warehouse check --fix` and "
                                 "then its stage again.")

    def read(self, table: str, columns: list[str] | None = None, *, task_ids: set[str] | None = None,
             **keys: Any) -> pa.Table:
        """All rows of a table under the given keys, in part order; StageError if a part has changed."""
        from warehouse.store.parts import read_parts
        parts = self.parts(table, **keys)
        try:
            self.verify(table, **keys)
            return read_parts(parts, table, columns, task_ids)
        except StageError:
            merged = self.parts(table, **keys)
            if merged == parts:
                raise
            ensure_local(merged)
            return read_parts(merged, table, columns, task_ids)  # `warehouse compact` merged them meanwhile

    def write_part(self, table: str, number: int, rows: pa.Table, **keys: Any) -> bool:
        """Commit one part of a stage that this process began or joined.

        False if it existed already, or the stage is complete: then `rows` are dropped. Refusal if another
        command ended the stage.
        """
        from warehouse.store.parts import write_part
        metadata = {"run_id": self.run_id, "part_uuid": uuid.uuid4().hex}
        life = self.check_live(STAGE_OF[table], **keys)
        if life.is_complete:        # by another worker, which also wrote this part
            return False
        path = self.folder_of(table, life, **keys) / f"{STEMS.get(table, 'part')}-{number:05d}.parquet"
        return write_part(path, table, rows, metadata)

    def stage(self, name: str, *, iteration: int, purpose: str | None = None,
              scorer: str | None = None) -> Stage:
        """The stage `rollout`, `score`, `logprobs` or `train` of one iteration."""
        identity: dict[str, Any] = {"iteration": iteration, "purpose": purpose, "scorer": scorer}
        return Stage(name, {key: value for key, value in identity.items() if value is not None}, self)

    def stage_of(self, life: Life) -> Stage:
        return Stage(life.stage, life.identity, self)

    def stages(self, iteration: int | None = None) -> list[Stage]:
        """Rollouts, then scores, logprobs and trainings, finished or not; of one iteration or of all."""
        stages = [self.stage_of(life) for name in TABLE_OF for life in self.state.of_stage(name, iteration)]
        ensure_local(stage.folder / "manifest.json" for stage in stages if stage.is_complete())
        return stages

    def documents(self) -> list[Path]:
        """The manifest of each complete stage, and policy.json of each policy."""
        return [*(stage.folder / "manifest.json" for stage in self.stages() if stage.is_complete()),
                *(self.policy_dir(version) / "policy.json" for version in self.state.versions)]

    def choose_scorer(self, iteration: int, purpose: str, name: str | None = None) -> tuple[str, str]:
        """The scorer of a rollout whose rows count, and why: `name`, or according to config.toml and state.

        Refusal if nothing is scored, or not by a scorer of that name.
        """
        return self.state.choose_scorer(iteration, purpose, name, named_scorer(self.root))

    def policy_dir(self, version: int) -> Path:
        """Folder of a policy's files, also if a rollback gave it another version; 0 is the base."""
        policy = self.state.policies.get(version)
        return self.root / "policies" / (policy.folder if policy else str(version))

    def policy_bytes(self, version: int) -> int:
        """Bytes of a policy's files, those of its optimizer included."""
        return sum(path.stat().st_size for path in self.policy_dir(version).iterdir())

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
            raise Refusal("weights_gone", to=version)
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


def open_warehouse(path: str | Path, at: int | None = None) -> Warehouse:
    """Open a run folder, or the working copy of s3://BUCKET/RUN (gs://, az://); `at`: as after that entry."""
    root = sync_copy(path).resolve()
    marker = root / "warehouse.json"
    facts = read_json(marker, schema_version=int)
    if facts is None:
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
    if at is not None and warehouse.state.head != at:
        raise StageError(f"The log of {path} has no entry {at}; the last is {warehouse.state.head}. "
                         f"`warehouse log {shell_quote(path)}` lists them.")
    if twin_of(root):
        warehouse.remove_dropped()
    return warehouse
