"""The run folder: where every table, stage and policy lives, and how rooms reach them."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warehouse.objects.place import sync_copy
from warehouse.store.checksums import check_policy_files, check_tasks, part_damage
from warehouse.store.commit import TEMPORARY_MARK, commit_directory, ensure_local, file_names, readable
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.intent import finish_intent
from warehouse.store.json_files import damaged, read_json
from warehouse.store.names import SCORER, base_purpose, check_name, turn_of
from warehouse.store.schema import OLDEST_VERSION, SCHEMA_VERSION
from warehouse.store.stage import Stage, read_manifest

if TYPE_CHECKING:
    import pyarrow as pa

POLICY_TYPES = {"kind": str, "parent": int, "rolled_back_to": int, "global_step": int, "files": dict,
                "settings": dict}
TRAIN_TABLES = {"train_samples": "samples", "train_tokens": "tokens", "train_steps": "steps"}
STEMS = {**TRAIN_TABLES, "carried": "carried"}  # how the parts of a table are named; others are `part`


@dataclass(frozen=True)
class Warehouse:
    """One run folder, opened. Nothing is cached: other processes may be writing."""

    root: Path
    facts: dict[str, Any]
    finished: str = ""  # the command that had been killed in the middle of its changes, which were made now

    @property
    def run_id(self) -> str:
        return self.facts["run_id"]

    @property
    def model(self) -> str:
        """Path or id of the base model; a path inside the run folder is stored relative to it."""
        model = self.facts["model"]
        inside = self.root / model
        return str(inside) if not Path(model).is_absolute() and inside.exists() else model

    @property
    def base_name(self) -> str:
        """The base model in a line: its id on the hub, or the last two names of its folder."""
        return "/".join(Path(self.facts["model"]).parts[-2:])

    def folder(self, table: str, *, iteration: int | None = None, purpose: str | None = None,
               scorer: str | None = None) -> Path:
        """Folder of a table's parts; `tasks` take no key, train tables take the iteration alone."""
        if table == "tasks":
            return self.root / "tasks"
        if table in TRAIN_TABLES:
            return self.root / "train" / f"iteration={iteration}"
        top = "completions" if table == "carried" else table
        name = f"{top}/iteration={iteration}/purpose={check_name('The purpose', str(purpose))}"
        if table == "samples":
            name += f"/scorer={check_name('The scorer', str(scorer), SCORER)}"
        return self.root / name  # joined as one: a run may have thousands of stages

    def part_path(self, table: str, number: int, **keys: Any) -> Path:
        """Final path of one part."""
        return self.folder(table, **keys) / f"{STEMS.get(table, 'part')}-{number:05d}.parquet"

    def parts(self, table: str, **keys: Any) -> list[Path]:
        """Parts in order of their number: those of the manifest once it is there, else those that exist.

        The manifest decides, so that a missing part is an error where it is read, and a part that a late twin
        adds, or that was merged into another, is nobody's row.
        """
        folder, name = self.folder(table, **keys), STEMS.get(table, "part")
        listed = self._parts_in_manifest(table, **keys)
        if listed is None:  # not complete, or a rollout from before manifests listed the prompts
            return [folder / name for name in file_names(folder, f"{name}-*.parquet")]
        return sorted(folder / part["name"] for part in listed)

    def verify(self, table: str, only: Iterable[Path] | None = None, **keys: Any) -> None:
        """StageError if a listed part, or a task, is not what was written; asking twice costs nothing.

        With `only` these parts alone are had here and looked at.
        """
        folder = self.folder(table, **keys)
        parts = dict.fromkeys(self.parts(table, **keys) if only is None else only)
        ensure_local(parts)
        if table == "tasks":
            if gone := [part for part in parts if not part.is_file()]:
                raise StageError(f"{gone[0]} is missing. Restore it from a copy of the run.")
            states = tuple((part, part.stat().st_mtime_ns, part.stat().st_ino) for part in parts)
            check_tasks(states, folder, self.facts.get("tasks_sha256"))
        for part in self._parts_in_manifest(table, **keys) or []:
            if folder / part["name"] in parts and (why := part_damage(folder / part["name"], part)):
                raise StageError(f"{folder / part['name']} {why}. Restore it from a copy, or run `warehouse "
                                 "repair` and then its stage again.")

    def _parts_in_manifest(self, table: str, **keys: Any) -> list[dict[str, Any]] | None:
        """How the manifest lists the parts of a table; None if there is none or it does not say."""
        stage = self.folder("completions" if table == "prompts" else table, **keys)
        listed = (read_manifest(stage) or {}).get("prompts" if table == "prompts" else "parts")
        name = f"{STEMS.get(table, 'part')}-"
        return None if listed is None else [part for part in listed if part["name"].startswith(name)]

    def read(self, table: str, columns: list[str] | None = None, *, task_ids: set[str] | None = None,
             **keys: Any) -> pa.Table:
        """All rows of a table under the given keys, in part order; StageError if a part is not as written.

        With `task_ids` the rows of these tasks alone, and the others are never in memory together.
        """
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
        """Commit one part; False if it stood already, then that one is kept and `rows` are dropped."""
        from warehouse.store.parts import write_part
        metadata = {"run_id": self.run_id, "part_uuid": uuid.uuid4().hex}
        return write_part(self.part_path(table, number, **keys), table, rows, metadata)

    def stage(self, name: str, *, iteration: int, purpose: str | None = None,
              scorer: str | None = None) -> Stage:
        """The stage `rollout`, `score` or `train` of one iteration."""
        table = {"rollout": "completions", "score": "samples", "train": "train_steps"}[name]
        identity: dict[str, Any] = {"iteration": iteration, "purpose": purpose, "scorer": scorer}
        identity = {key: value for key, value in identity.items() if value is not None}
        prompts = self.folder("prompts", **identity) if name == "rollout" else None
        return Stage(name, self.folder(table, **identity), identity, self.run_id, prompts)

    def iterations(self, table: str) -> list[int]:
        """Iterations that have a folder in `table`, in order."""
        top = "train" if table in TRAIN_TABLES else table
        return sorted(int(name) for name in _values_of(self.root / top, "iteration") if name.isdecimal())

    def purposes(self, table: str, iteration: int) -> list[str]:
        """Purposes of `table` in one iteration: 'train' first, then evaluations, each before its turns."""
        purposes = _values_of(self.root / table / f"iteration={iteration}", "purpose")
        return sorted(purposes, key=lambda purpose: (base_purpose(purpose) != "train", base_purpose(purpose),
                                                  turn_of(purpose)))

    def turns(self, iteration: int, base: str = "train", table: str = "completions") -> list[str]:
        """The purposes in `table` of all turns of a base purpose in one iteration, first turns first."""
        return [purpose for purpose in self.purposes(table, iteration) if base_purpose(purpose) == base]

    def scores(self, iteration: int, purpose: str) -> list[Stage]:
        """Every score of one rollout, finished or not."""
        folder = self.root / "samples" / f"iteration={iteration}" / f"purpose={purpose}"
        return [self.stage("score", iteration=iteration, purpose=purpose, scorer=scorer)
                for scorer in sorted(_values_of(folder, "scorer"))]

    def scorers(self, iteration: int, purpose: str) -> list[str]:
        """Scorers that completed the iteration."""
        return [score.identity["scorer"] for score in self.scores(iteration, purpose) if score.is_complete()]

    def stages(self, iteration: int | None = None) -> list[Stage]:
        """Rollouts, then scores, then trainings, finished or not; of one iteration or of all."""
        def numbers(table: str) -> list[int]:
            return [number for number in self.iterations(table) if iteration in (None, number)]

        stages = [self.stage("rollout", iteration=number, purpose=purpose)
                  for number in numbers("completions") for purpose in self.purposes("completions", number)]
        stages += [stage for number in numbers("samples") for purpose in self.purposes("samples", number)
                   for stage in self.scores(number, purpose)]
        return stages + [self.stage("train", iteration=number) for number in numbers("train_steps")]

    def trained_purpose(self, iteration: int) -> str:
        """The purpose whose rows the training of an iteration takes: 'train', or a distillation set."""
        settings = None
        with contextlib.suppress(StageError):       # damaged: `warehouse check` says so
            settings = self.stage("train", iteration=iteration).settings()
        return (settings or {}).get("purpose", "train")

    def policy_dir(self, version: int) -> Path:
        """Folder of a policy; version 0 is the base and holds policy.json alone."""
        return self.root / "policies" / str(version)

    def policy(self, version: int) -> dict[str, Any]:
        """policy.json of a version; StageError if that policy does not exist."""
        policy = read_json(self.policy_dir(version) / "policy.json", sha256=str)
        if policy is None:
            raise StageError(f"{self.root} has no policy {version}; it has {self.policy_versions()}. "
                             f"`train {shell_quote(self.root)} --iteration {version - 1}` would write it.")
        for key, kind in POLICY_TYPES.items():
            if policy.get(key) is not None and not isinstance(policy[key], kind):
                raise damaged(self.policy_dir(version) / "policy.json", f"'{key}' is of another type")
        return policy

    def is_pruned(self, version: int) -> bool:
        """True for the base, and for a policy of which policy.json alone was kept."""
        ensure_local([self.policy_dir(version)])
        return [path.name for path in self.policy_dir(version).iterdir()] == ["policy.json"]

    def verify_policy(self, version: int, unread: Sequence[str] = ()) -> None:
        """StageError if files in a policy's folder, those `unread` aside, are not as its policy.json says."""
        folder, stored = self.policy_dir(version), self.policy(version)
        if stored.get("kind", "base") == "base":
            return
        if self.is_pruned(version):
            raise StageError(f"{folder} holds no weights any more. Restore it from a copy, or name another "
                             "policy.")
        check_policy_files(folder, stored, unread)

    def policy_versions(self) -> list[int]:
        """Versions that are committed, in order."""
        return sorted(int(path.parent.name) for path in self.root.glob("policies/*/policy.json")
                      if path.parent.name.isdigit())

    def commit_policy(self, version: int, folder: Path) -> bool:
        """Rename a prepared folder (from `scratch`) to the policy; False if the version stood already."""
        assert (folder / "policy.json").exists(), "a policy folder needs its policy.json"
        return commit_directory(folder, self.policy_dir(version))

    def scratch(self, name: str) -> Path:
        """A fresh temporary folder on the run's filesystem, to be committed or removed by the caller."""
        folder = self.root / f"{TEMPORARY_MARK}{name}-{uuid.uuid4().hex[:12]}"
        try:
            folder.mkdir()
        except OSError as error:
            raise readable(error, folder) from error
        return folder


def open_warehouse(path: str | Path) -> Warehouse:
    """Open a run folder, or s3://BUCKET/RUN (gs://, az://) by its working copy.

    StageError if it is none, or was written by a newer version.
    """
    root = sync_copy(path).resolve()
    marker = root / "warehouse.json"
    facts = read_json(marker, schema_version=int)
    if facts is None:
        raise StageError(f"{path} is not a run folder (it has no warehouse.json). Make one with "
                         f"`warehouse init {shell_quote(path)} --model MODEL --tasks SOURCE`.")
    version = facts["schema_version"]
    if version < OLDEST_VERSION:
        raise StageError(f"{path} has schema version {version}, which was never released: no Rollhouse reads "
                         "it. Sample the run again.")
    if version > SCHEMA_VERSION:
        raise StageError(f"{path} has schema version {version}, this Rollhouse reads up to {SCHEMA_VERSION}. "
                         "Install a newer Rollhouse.")
    finished = finish_intent(root)                       # which may be a change of the facts, too
    facts = read_json(marker, run_id=str, model=str)
    assert facts is not None
    return Warehouse(root, facts, finished)


def _values_of(folder: Path, key: str) -> list[str]:
    """What the entries of a folder are named behind `key=`."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StageError(f"{folder} cannot be opened: {error.strerror}. Mend that, then run the same command "
                         "again.") from error
    return [name.removeprefix(f"{key}=") for name in names if name.startswith(f"{key}=")]
