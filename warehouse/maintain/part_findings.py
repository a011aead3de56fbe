"""What is wrong with the parts of one table: missing, changed, torn, foreign or left over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.store.checksums import part_damage
from warehouse.store.errors import StageError
from warehouse.store.manifests import STEMS, listed_parts
from warehouse.store.parts import footer_facts, read_part
from warehouse.store.run_folder import Stage, Warehouse
from warehouse.store.schema import OLDEST_VERSION, SCHEMA_VERSION

# What --fix does: nothing (also if a stage runs again anyway), leave the file out, or have its stage run
# again. In other cases only a copy helps.
Consequence = Literal["note", "unfinished", "aside", "again", "restore"]
RESTORE_OR_OPEN = "Restore it, or let `warehouse check --fix` open the stage again."
Seen = dict[Path, int]      # number of rows of each checked part


class Finding(NamedTuple):
    """A file or folder, a sentence about it, and the consequence for it and its stage."""

    path: Path
    text: str
    consequence: Consequence
    stage: Stage | None = None

    @classmethod
    def of(cls, path: Path, words: str, consequence: Consequence, stage: Stage | None = None) -> Finding:
        """A finding with a sentence that begins with the path."""
        return cls(path, f"{path} {words}", consequence, stage)

    @property
    def why(self) -> str:
        """What is wrong, without the path and the way out."""
        return self.text.removeprefix(f"{self.path} ").split(". ")[0]


def find_damaged_parts(warehouse: Warehouse, stage: Stage, table: str, folder: Path,
                       manifest: dict[str, Any] | None, seen: Seen, *, quick: bool) -> Iterator[Finding]:
    """Compare the parts of one table with the manifest, by size and checksum, and by their footers."""
    # First, as a worker may write one meanwhile.
    present = {*folder.glob(f"{STEMS.get(table, 'part')}-*.parquet")}
    listed = listed_parts(folder, manifest, table)
    for path in sorted(listed.keys() | present):
        if path not in listed:
            words = f"is not in the manifest of {stage.title}. Move it out of the run."
            yield Finding.of(path, words, "aside", stage)
        elif path in present and not os.access(path, os.R_OK):
            words = "cannot be read (Permission denied). Grant it." if path.exists() else (
                "is a broken link. Restore its target.")
            yield Finding.of(path, words, "restore")
        else:
            wrong = list[str]()
            if path.is_file():          # opening a pipe would wait
                wrong, seen[path] = footer_problems(warehouse, path)
            for text in (*wrong, *_content_problems(path, listed[path], bool(wrong), quick=quick)):
                yield Finding(path, text, "again", stage)


def _content_problems(path: Path, listed: dict[str, Any], wrong: bool, *, quick: bool) -> Iterator[str]:
    """What is wrong with the content of a part; a `wrong` footer is not reported again."""
    if listed and (why := part_damage(path, listed, quick=quick)):
        yield f"{path} {why}. {RESTORE_OR_OPEN}"
    elif not listed and not quick and not wrong:
        try:
            read_part(path)
        except StageError as error:
            yield str(error)


def footer_problems(warehouse: Warehouse, part: Path) -> tuple[list[str], int]:
    """What is wrong with a part according to its footer, and its number of rows."""
    try:
        footer = pq.read_metadata(part)
    except (pa.ArrowInvalid, OSError) as error:
        why = str(error).splitlines()[0].partition(". ")[0]
        return [f"{part} is torn or not Parquet ({why}). Restore it, or let `warehouse check "
                "--fix` leave it out."], 0
    metadata = footer_facts(footer.metadata)
    version = metadata.get("schema_version", str(SCHEMA_VERSION))
    if version not in map(str, range(OLDEST_VERSION, SCHEMA_VERSION + 1)):
        return [f"{part} has schema version {version}, which this Rollhouse (version {SCHEMA_VERSION}) does "
                "not read. Use the Rollhouse that wrote it, or let `warehouse check --fix` leave it out."], 0
    owner = metadata.get("run_id", "")
    if owner not in warehouse.owners:
        return [f"{part} belongs to run {owner or '(none)'}, this one is {warehouse.run_id}. Move it out of "
                "the run folder."], footer.num_rows
    return [], footer.num_rows
