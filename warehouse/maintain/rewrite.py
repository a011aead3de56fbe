"""New generations of stages that keep their rows: sound parts are adopted, others rewritten or left out.

A stage's parts are in a folder with a name that is used only once. A change of files creates a new folder
and one log entry that switches all affected stages to their new folders together. A kill before the entry
leaves a folder that is never read.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warehouse.ledger.entries import Rewritten
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import Life
from warehouse.store.checksums import part_facts
from warehouse.store.commit import adopt_file, commit_json, ensure_local, file_names, remove_folder
from warehouse.store.manifests import COPY, Listed, listed_parts
from warehouse.store.run_folder import TABLES_OF, Warehouse


@dataclass
class NewGeneration:
    """The new folder of a stage, and `facts` that its entry in the log gets."""

    warehouse: Warehouse
    life: Life
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    adopted: Listed = field(default_factory=dict)

    @classmethod
    def of(cls, warehouse: Warehouse, life: Life, why: str) -> "NewGeneration":
        return cls(warehouse, life, f"{why}-{uuid.uuid4().hex[:12]}")

    def folders(self) -> list[tuple[Path, Path]]:
        """The old and new folders of the stage's files, including the prompts' of a rollout."""
        tables = [TABLES_OF[self.life.stage][0], *(["prompts"] if self.life.stage == "rollout" else [])]
        return [(self.warehouse.folder_of(table, self.life),
                 self.warehouse.folder_of(table, self.life, self.name)) for table in tables]

    def new_path(self, path: Path) -> Path:
        return next(new / path.name for old, new in self.folders() if path.parent == old)

    def adopt(self, manifest: dict[str, Any] | None, without: Collection[Path] = ()) -> None:
        """Take over the plan and the parts of the manifest, without one all parts, except those in `without`.

        Their entries stay as they are, so a damaged part is still found.
        """
        for (old, new), table in zip(self.folders(), ("", "prompts"), strict=False):
            for path, facts in {**listed_parts(old, manifest, table), old / "plan.json": {}}.items():
                if path not in without:
                    ensure_local([path])
                    if path.is_file():
                        adopt_file(path, new / path.name)
                    if facts:
                        self.adopted[new / path.name] = facts

    def write_manifest(self, manifest: Mapping[str, Any], **changes: Any) -> None:
        """Write the stage's manifest and its copy, with the adopted parts and the new ones."""
        listed = dict[str, Any]()
        for (_, new), key in zip(self.folders(), ("parts", "prompts"), strict=False):
            if key in manifest:
                paths = {path for path in self.adopted if path.parent == new}
                paths |= {new / name for name in file_names(new, "*-*.parquet")}
                listed[key] = [self.adopted.get(path) or part_facts(path) for path in sorted(paths)]
        for name in ("manifest.json", COPY):
            commit_json(self.folders()[0][1] / name, {**manifest, **listed, **changes})

    def remove_former(self) -> None:
        """Delete the stage's former files, which no longer count."""
        for old, _ in self.folders():
            if old.name.startswith("generation="):
                remove_folder(old)
            else:                               # of an old run: it contains other generations
                for path in old.iterdir() if old.is_dir() else []:
                    if path.is_file():
                        path.unlink(missing_ok=True)


def verify_all(warehouse: Warehouse, lives: Iterable[Life]) -> None:
    """StageError if a part of these stages is damaged: without the former ones it could not be restored."""
    for life in lives:
        for table in TABLES_OF[life.stage]:
            warehouse.verify(table, **life.identity)


@contextmanager
def rewriting(warehouse: Warehouse, why: str, lives: Collection[Life]) -> Iterator[list[NewGeneration]]:
    """The block lists new folders of these stages; at its end the log switches to all of them at once.

    Then the former ones are removed, except by a repair. If it fails, the new ones are; Refusal if that is
    because another command changed one of the stages.
    """
    new = list[NewGeneration]()
    try:
        yield new
        if new:
            entry = Rewritten(why, {
                str(each.life.begun): {"former": each.life.folder, "folder": each.name, **each.facts}
                for each in new})
            warehouse.append(lambda _state: entry)
    except Exception as error:
        for folder in [folder for each in new for _, folder in each.folders()]:
            remove_folder(folder)       # which the log does not name
        changed = [life for life in lives if warehouse.state.lives[life.begun] != life]
        if changed and not isinstance(error, Refusal):
            raise Refusal("overtaken", what=changed[0].title, run=warehouse.state.run) from error
        raise
    for each in new if why != "repaired" else []:
        each.remove_former()
