"""A stage of one iteration: its settings, fixed when it starts, and its manifest, written last."""

import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.store.checksums import part_facts
from warehouse.store.commit import commit_json, ensure_local, file_names
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.json_files import damaged, read_json, shorten
from warehouse.store.parts import check_parts


@dataclass(frozen=True)
class Stage:
    """One run of rollout, score or train over one iteration; complete once its manifest exists."""

    name: str
    folder: Path
    identity: dict[str, Any]
    run_id: str = ""
    prompts: Path | None = None  # folder of the prompts of a rollout, which its manifest lists as well

    def settings(self) -> dict[str, Any] | None:
        """What the stage was started with; None if it never started."""
        return read_json(self.folder / "settings.json")

    def manifest(self) -> dict[str, Any] | None:
        """What the stage wrote; None while it is not complete."""
        return read_manifest(self.folder)

    def is_complete(self) -> bool:
        """True once the manifest exists, without reading it."""
        return (self.folder / "manifest.json").exists()

    def settle(self, settings: dict[str, Any], accept_change: tuple[str, ...] = (),
               may_change: tuple[str, ...] = ()) -> None:
        """Fix the settings before the first part, or check that they are those of the earlier run.

        Raises StageError naming the setting and both values when they differ: rows of one stage are of
        one kind, or no comparison over them means anything. A setting named in `accept_change` may differ;
        both values are then recorded beside the settings and in the manifest. One of `may_change` could be.
        """
        settings = json.loads(json.dumps(settings))
        if commit_json(self.folder / "settings.json", settings):
            return
        before = self.settings()
        assert before is not None
        for key in sorted(before.keys() | settings.keys()):
            values = {"before": before.get(key), "now": settings.get(key)}
            if values["before"] == values["now"]:
                continue
            if key not in accept_change:
                accept = f"go on with `--accept-change {key}`, " if key in may_change else ""
                raise StageError(
                    f"{self.title} was started with {key} = {shorten(values['before'], 80)}, now it is "
                    f"{shorten(values['now'], 80)}. Run it with the former value, {accept}or "
                    f"{self.way_to_discard()}.")
            record = {"setting": key, **values}
            name = hashlib.sha256(json.dumps(record).encode()).hexdigest()[:12]
            commit_json(self.folder / f"change-{name}.json", record)

    def changes(self) -> list[dict[str, Any]]:
        """Changes of settings that were accepted while the stage ran; version 0.2.0 called them drift."""
        paths = [*self.folder.glob("drift-*.json"), *self.folder.glob("change-*.json")]
        records = [read_json(path) for path in sorted(paths)]
        return [record for record in records if record is not None]

    def complete(self, facts: dict[str, Any], numbers: Iterable[int] | None = None) -> dict[str, Any]:
        """Write the manifest: `facts`, the settings, versions, and sha256 and size of every part.

        StageError if a part comes from another run, or if `numbers` are given and the parts have others.
        """
        commit_json(self.folder / "manifest.json", self.facts_to_store(facts, numbers))
        written = self.manifest()
        assert written is not None
        return written

    def facts_to_store(self, facts: dict[str, Any], numbers: Iterable[int] | None = None) -> dict[str, Any]:
        """What the manifest would say now."""
        from importlib.metadata import version
        parts = [self.folder / name for name in file_names(self.folder, "*-*.parquet")]
        asked = ([self.prompts / name for name in file_names(self.prompts, "part-*.parquet")]
                 if self.prompts else [])
        ensure_local([*parts, *asked])
        check_parts(parts, self.run_id, numbers)
        check_parts(asked, self.run_id)
        return {
            "stage": self.name, **self.identity, "facts": facts, "settings": self.settings(),
            "changes": self.changes(),
            "versions": {"python": platform.python_version(), "rollhouse": version("rollhouse"),
                         "git": _revision()},
            "parts": [part_facts(part) for part in parts],
            **({"prompts": [part_facts(part) for part in asked]} if self.prompts else {}),
            "host": platform.node(), "finished_at": time.time(),
        }

    def way_to_discard(self) -> str:
        """How a sentence says to start the stage afresh."""
        if self.name == "score":
            return f"remove {self.folder} to score again"
        run = self.folder.parents[2 if self.name == "rollout" else 1]
        if self.name == "train" and self.is_complete():
            return (f"go back to before it with `warehouse rollback {shell_quote(run)} --to "
                    f"{self.identity['iteration']}`")
        which = f"--purpose {self.identity['purpose']}" if self.name == "rollout" else "--training"
        return (f"put aside what it wrote with `warehouse discard {shell_quote(run)} --iteration "
                f"{self.identity['iteration']} {which}`")

    @property
    def title(self) -> str:
        """How messages name the stage, for example `score of iteration 3, purpose train`."""
        others = [f", {key} {value}" for key, value in self.identity.items() if key != "iteration"]
        return f"{self.name} of iteration {self.identity['iteration']}{''.join(others)}"


def read_manifest(folder: Path, name: str = "manifest.json") -> dict[str, Any] | None:
    """What the stage in this folder wrote; None while it is not complete; StageError if it is damaged."""
    path = folder / name
    manifest = read_json(path, facts=dict, parts=list)
    for part in [*manifest["parts"], *manifest.get("prompts", [])] if manifest else []:
        if not isinstance(part, dict) or not {"name", "bytes", "sha256"} <= part.keys():
            raise damaged(path, "it does not list its parts")
    return manifest


def readable_manifest(stage: Stage) -> dict[str, Any] | None:
    """The manifest; None if there is none, or if it is damaged."""
    try:
        return stage.manifest()
    except StageError:
        return None


def _revision() -> str | None:
    """Git revision of the source tree Rollhouse runs from; None when it is installed without its history."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
