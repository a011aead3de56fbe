"""A stage of one iteration: its settings, fixed when it starts, and its manifest, written last."""

from __future__ import annotations

import errno
import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.store.commit import commit_json
from warehouse.store.errors import StageError
from warehouse.store.parts import check_parts

STALE_ATTEMPTS = 9


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
        return read_json(self.folder / "manifest.json")

    def is_complete(self) -> bool:
        """True once the manifest exists, without reading it."""
        return (self.folder / "manifest.json").exists()

    def settle(self, settings: dict[str, Any], accept_change: tuple[str, ...] = ()) -> None:
        """Fix the settings before the first part, or check that they are those of the earlier run.

        Raises StageError naming the setting and both values when they differ: rows of one stage are of
        one kind, or no comparison over them means anything. A setting named in `accept_change` may differ;
        both values are then recorded beside the settings and in the manifest.
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
                raise StageError(
                    f"{self.title} was started with {key} = {_shown(values['before'])}, now it is "
                    f"{_shown(values['now'])}. Run it with the former value, or {self._way_to_discard()}.")
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
        parts = sorted(self.folder.glob("*-*.parquet"))
        check_parts(parts, self.run_id, numbers)
        asked = sorted(self.prompts.glob("part-*.parquet")) if self.prompts else []
        check_parts(asked, self.run_id)
        manifest = {
            "stage": self.name, **self.identity, "facts": facts, "settings": self.settings(),
            "changes": self.changes(),
            "versions": {"python": platform.python_version(), "rollhouse": _version(), "git": _revision()},
            "parts": [part_facts(part) for part in parts],
            **({"prompts": [part_facts(part) for part in asked]} if self.prompts else {}),
            "host": platform.node(), "finished_at": time.time(),
        }
        commit_json(self.folder / "manifest.json", manifest)
        written = self.manifest()
        assert written is not None
        return written

    def _way_to_discard(self) -> str:
        if self.name == "score":
            return f"remove {self.folder} to score again"
        run = self.folder.parents[2 if self.name == "rollout" else 1]
        which = f"--purpose {self.identity['purpose']}" if self.name == "rollout" else "--training"
        return (f"put aside what it wrote with `warehouse discard {run} --iteration "
                f"{self.identity['iteration']} {which}`")

    @property
    def title(self) -> str:
        """How messages name the stage, for example `score of iteration 3, purpose train`."""
        others = [f", {key} {value}" for key, value in self.identity.items() if key != "iteration"]
        return f"{self.name} of iteration {self.identity['iteration']}{''.join(others)}"


def part_facts(part: Path) -> dict[str, Any]:
    """How a manifest lists a part."""
    return {"name": part.name, "bytes": part.stat().st_size, "sha256": sha256_of(part)}


def weights_sha256(folder: Path) -> str:
    """Hash of a policy's weights: sha256 over its safetensors files in order of name."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        _feed(digest, path)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    _feed(digest, path)
    return digest.hexdigest()


def _feed(digest: Any, path: Path) -> None:
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)


def _version() -> str:
    from importlib.metadata import version
    return version("rollhouse")


def _revision() -> str | None:
    """Git revision of the source tree Rollhouse runs from; None when it is installed without one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file of a stage, None if it does not exist; StageError if it is damaged."""
    try:
        return json.loads(_fresh_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StageError(f"{path} cannot be opened: {error.strerror}. Mend that, then run the same command "
                         "again.") from error
    except ValueError as error:  # not JSON, or not even text
        raise StageError(f"{path} is damaged ({error}). Run `warehouse repair` on the run, or restore the "
                         "file from a copy.") from error


def _fresh_text(path: Path) -> str:
    """The text of a file; over NFS one that another client replaces just now is stale: then the new one."""
    for _ in range(STALE_ATTEMPTS):
        try:
            return path.read_text()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_text()


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
