"""Manifests: the parts of a complete stage, with size and sha256."""

from fnmatch import fnmatch
from operator import itemgetter
from pathlib import Path
from typing import Any

from warehouse.store.commit import ensure_local, file_names
from warehouse.store.json_files import damaged, read_json

TRAIN_TABLES = {"train_samples": "samples", "train_tokens": "tokens", "train_steps": "steps"}
STEMS = {**TRAIN_TABLES, "carried": "carried"}  # prefix of a table's part names; others have `part`
COPY = "manifest-copy.json"         # the manifest once more, for repairs
Listed = dict[Path, dict[str, Any]]  # parts with their manifest entries


def read_manifest(folder: Path, name: str = "manifest.json") -> dict[str, Any] | None:
    """The manifest in a folder; None while the stage is not complete; StageError if it is damaged."""
    path = folder / name
    ensure_local([path])
    manifest = read_json(path, facts=dict, parts=list)
    for part in [*manifest["parts"], *manifest.get("prompts", [])] if manifest else []:
        if not isinstance(part, dict) or not {"name", "bytes", "sha256"} <= part.keys():
            raise damaged(path, "it does not list its parts")
    return manifest


def listed_parts(folder: Path, manifest: dict[str, Any] | None, table: str = "") -> Listed:
    """Parts by path, in order, with their entries in a manifest; if that has none, those that exist, with {}.

    They are those of a table, or all in the folder. The manifest decides: a missing part is an error when it
    is read, and a part from a late worker, or one that was merged into another, is ignored.
    """
    listed = (manifest or {}).get("prompts" if table == "prompts" else "parts")
    pattern = f"{STEMS.get(table, 'part') if table else '*'}-*.parquet"
    if listed is None:  # not complete, or a rollout from before manifests listed the prompts
        return {folder / name: {} for name in file_names(folder, pattern)}
    return {folder / part["name"]: part for part in sorted(listed, key=itemgetter("name"))
            if fnmatch(part["name"], pattern)}
