"""Put aside what is damaged, with everything that was made from it, so that the stages can make it again.

Nothing is deleted: files move to RUN/broken/<time>/. What depends on a file goes before the file itself, so
that a repair that is killed finds the same damage again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.care.check import EXPECTED, TABLES
from warehouse.care.damage import damaged_parts, is_compacted, policy_damage, readable_manifest
from warehouse.store.commit import TEMPORARY_MARK, json_bytes, replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.parts import part_number
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage, read_json

NOT_JSON = "it is not JSON"


class Move(NamedTuple):
    """A file or folder to put aside; `path` is None for a remark alone."""

    path: Path | None
    why: str
    lost: Stage | None = None  # the stage whose manifest must go on without this part


def repairs(warehouse: Warehouse, iteration: int | None = None) -> list[Move]:
    """What to put aside, in order; of one iteration, or of all and of the folder as a whole."""
    found: list[Move] = [] if iteration is not None else list(_foreign_files(warehouse))
    for number in _iterations(warehouse) if iteration is None else [iteration]:
        found += _train_repairs(warehouse, number)
        for purpose in warehouse.purposes("completions", number):
            found += _rollout_repairs(warehouse, number, purpose)
    first = {move.path or move.why: move for move in reversed(found)}
    return [move for move in found if first[move.path or move.why] is move]


def put_aside(warehouse: Warehouse, moves: list[Move]) -> Path:
    """Carry the moves out; the folder where everything is now."""
    # The counter keeps two repairs of one second, or of a clock set back, apart.
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())
    folders = (warehouse.root / "broken" / f"{stamp}-{count}" for count in range(1000))
    folder = next(path for path in folders if not path.exists())
    folder.mkdir(parents=True)
    record = [{"path": str(move.path.relative_to(warehouse.root)), "why": move.why}
              for move in moves if move.path]
    replace_bytes(folder / "repair.json", json_bytes(record))
    for move in moves:
        if move.lost and move.path:
            _go_on_without(move.lost, move.path)
        if move.path is None or not move.path.exists():
            continue
        target = folder / move.path.relative_to(warehouse.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(move.path, target)
        if move.why == NOT_JSON:
            _restore_compacted(move.path)
    warehouse.sweep()
    return folder


def _iterations(warehouse: Warehouse) -> list[int]:
    return sorted({*warehouse.iterations("completions"), *warehouse.iterations("train_steps")})


def _foreign_files(warehouse: Warehouse) -> Iterator[Move]:
    """Files in the tables' folders that no stage writes."""
    for table in TABLES:
        for path in sorted((warehouse.root / table).rglob("*")):
            inside = str(path.relative_to(warehouse.root))
            ours = EXPECTED.fullmatch(path.name) or any(
                mark in inside for mark in (TEMPORARY_MARK, ".spill-", ".claim", "checkpoint-"))
            if path.is_file() and not ours:
                yield Move(path, "no stage wrote it")


def _rollout_repairs(warehouse: Warehouse, iteration: int, purpose: str) -> Iterator[Move]:
    """Damage of prompts, completions and samples; samples of damaged completions go with them."""
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    rollout = warehouse.stage("rollout", **keys)
    scores = _scores(warehouse, iteration, purpose)
    damaged = list(damaged_parts(warehouse, "completions", rollout))
    numbers = {part_number(path) for path, _, counts in damaged if counts}
    if numbers and is_compacted(rollout):
        # Which rows a merged part held is decided by its merging: the plan numbers them otherwise.
        present = sorted(rollout.folder.glob("part-*.parquet"))
        damaged += [(path, "its rollout is sampled again whole, having been compacted", True)
                    for path in present]
        numbers |= {part_number(path) for path in present}
    prompts = list(damaged_parts(warehouse, "prompts", rollout))
    if rollout.is_complete() and not any(warehouse.folder("prompts", **keys).glob("part-*.parquet")):
        prompts = [(warehouse.part_path("prompts", 0, **keys), "it is missing", True)]
    for stage in scores:
        yield from _score_repairs(warehouse, stage, numbers)
    if damaged or prompts:
        if numbers and purpose == "train" and warehouse.stage("train", iteration=iteration).is_complete():
            yield Move(None, f"policy {iteration + 1} stays: it was trained on the rows as they were")
        if numbers or any(counts for _, _, counts in prompts):
            yield from _open_again(rollout)
        yield from (Move(path, why) for path, why, _ in [*damaged, *prompts] if path.exists())
    yield from _damaged_json(rollout)


def _score_repairs(warehouse: Warehouse, stage: Stage, resampled: set[int]) -> Iterator[Move]:
    """Damaged samples, and those whose completions are damaged or gone."""
    keys = {key: stage.identity[key] for key in ("iteration", "purpose")}
    rollout = warehouse.stage("rollout", **keys)
    sampled = (warehouse.parts("completions", **keys) if readable_manifest(rollout)
               else rollout.folder.glob("part-*.parquet"))
    scored = {part_number(path) for path in sampled}
    damaged = list(damaged_parts(warehouse, "samples", stage))
    damaged += [(path, "its completions are damaged or gone", True)
                for path in sorted(stage.folder.glob("part-*.parquet"))
                if part_number(path) in resampled or part_number(path) not in scored]
    if any(counts for _, _, counts in damaged):
        yield from _open_again(stage)
    yield from (Move(path, why) for path, why, _ in damaged if path.exists())
    yield from _damaged_json(stage)


def _train_repairs(warehouse: Warehouse, iteration: int) -> Iterator[Move]:
    """Damage of a training and its policy: trained again, unless later rows were sampled from that policy."""
    stage = warehouse.stage("train", iteration=iteration)
    version = iteration + 1
    folder = warehouse.policy_dir(version)
    damaged = [found for table in ("train_samples", "train_steps")
               for found in damaged_parts(warehouse, table, stage)]
    policy = policy_damage(warehouse, version)
    used = version in warehouse.iterations("completions") or warehouse.policy_dir(version + 1).exists()
    if policy and used:
        yield Move(None, f"policy {version} is damaged ({policy}) and later rows were sampled from it, so it "
                         f"cannot be trained again: restore {folder} from a copy")
    elif (damaged or policy) and not used:
        why = policy or damaged[0][1]
        yield from (Move(path, f"{path.name}: {why}; trained again")
                    for path in (stage.folder, folder) if path.exists())
        return
    for path, why, _ in damaged:
        yield Move(path, f"{why}; policy {version} was sampled from, so its training "
                   "cannot be run again and these rows are lost", stage)
    yield from _damaged_json(stage)


def _scores(warehouse: Warehouse, iteration: int, purpose: str) -> list[Stage]:
    folder = warehouse.root / "samples" / f"iteration={iteration}" / f"purpose={purpose}"
    return [warehouse.stage("score", iteration=iteration, purpose=purpose,
                            scorer=path.name.removeprefix("scorer="))
            for path in sorted(folder.glob("scorer=*"))]


def _open_again(stage: Stage) -> Iterator[Move]:
    """Take the manifest away; what a compaction kept of it would be out of date."""
    for path in [*sorted(stage.folder.glob("compacted-*.json")), stage.folder / "manifest.json"]:
        if path.exists():
            yield Move(path, "its stage must be run again")


def _damaged_json(stage: Stage) -> Iterator[Move]:
    for name in ("manifest.json", "settings.json"):
        try:
            read_json(stage.folder / name)
        except StageError:
            yield Move(stage.folder / name, NOT_JSON)


def _go_on_without(stage: Stage, path: Path) -> None:
    """Let the manifest name a part as lost instead of listing it."""
    manifest = stage.manifest()
    if manifest:
        kept = [part for part in manifest["parts"] if part["name"] != path.name]
        lost = [*manifest.get("lost", []), path.name]
        replace_bytes(stage.folder / "manifest.json", json_bytes({**manifest, "parts": kept, "lost": lost}))


def _restore_compacted(path: Path) -> None:
    """A damaged manifest of merged parts comes back from the copy that the compaction kept."""
    copies = sorted(path.parent.glob("compacted-*.json")) if path.name == "manifest.json" else []
    if copies:
        listed = [path.with_name(part["name"]) for part in json.loads(copies[-1].read_text())["parts"]]
        if all(part.exists() for part in listed):
            replace_bytes(path, copies[-1].read_bytes())
