"""What is wrong with the files of a stage or of a policy: torn, changed, foreign, missing or left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.care.check import footer_problems
from warehouse.store.errors import StageError
from warehouse.store.parts import part_metadata, read_part
from warehouse.store.run_folder import TRAIN_TABLES, Warehouse
from warehouse.store.stage import Stage, sha256_of


def damaged_parts(warehouse: Warehouse, table: str, stage: Stage) -> Iterator[tuple[Path, str, bool]]:
    """Parts with what is wrong with them; the last says whether the stage lacks their rows then."""
    manifest, folder, key = readable_manifest(stage), stage.folder, "parts"
    if table == "prompts":
        assert stage.prompts, "prompts belong to a rollout"
        folder, key = stage.prompts, "prompts"
    if manifest and key not in manifest:  # a rollout from before manifests listed the prompts
        manifest = None
    prefix = TRAIN_TABLES.get(table, "part")
    listed = {part["name"]: part for part in (manifest or {key: []})[key]
              if part["name"].startswith(f"{prefix}-")}
    replaced = set((manifest or {}).get("replaced", []))
    keys = dict(stage.identity)
    if table == "train_samples":
        keys = {"trained_iteration": keys["iteration"]}
    for path in sorted(folder.glob(f"{prefix}-*.parquet")):
        if manifest and path.name not in listed:
            if path.name not in replaced:
                yield path, "its stage is complete without it", False
        elif not manifest and not (stage.folder / "manifest.json").exists() and _is_merged(path):
            yield path, "it was merged for a manifest that is gone", True
        elif why := part_damage(warehouse, table, keys, path, listed.get(path.name)):
            yield path, why, True
    for name in sorted(listed):
        if not (folder / name).exists():
            yield folder / name, f"{name} is missing", True


def part_damage(warehouse: Warehouse, table: str, keys: dict[str, Any], path: Path,
            listed: dict[str, Any] | None) -> str:
    """What is wrong with the file of a part; empty if nothing."""
    if listed and (path.stat().st_size != listed["bytes"] or sha256_of(path) != listed["sha256"]):
        return "it is not what its manifest lists (sha256)"
    found = footer_problems(warehouse, table, keys, path)
    if found:
        return found[0].removeprefix(f"{path} ")
    try:
        read_part(path)
    except StageError as error:
        return str(error).removeprefix(f"{path} ").split(". ")[0]
    return ""


def policy_damage(warehouse: Warehouse, version: int) -> str:
    """What is wrong with a policy folder; empty if nothing, or if there is none."""
    if not warehouse.policy_dir(version).exists():
        return ""
    if version in warehouse.policy_versions() and not warehouse.holds_weights(version):
        return ""  # pruned
    try:
        warehouse.verify_policy(version)
    except (StageError, ValueError, KeyError) as error:
        return str(error).split(". ")[0]
    return ""


def readable_manifest(stage: Stage) -> dict[str, Any] | None:
    """The manifest; None if there is none, or if it is damaged."""
    try:
        return stage.manifest()
    except StageError:
        return None


def is_compacted(stage: Stage) -> bool:
    """True if the stage's parts were merged, or were about to be."""
    return any(stage.folder.glob("compacted-*.json")) or any(
        _is_merged(path) for path in stage.folder.glob("part-*.parquet"))


def _is_merged(path: Path) -> bool:
    try:
        return "merged" in part_metadata(path)
    except StageError:
        return False
