"""Put aside what is damaged, with everything that was made from it, so that the stages can make it again.

Nothing is deleted: files move to RUN/broken/<time>/; after a kill those that are left move when the run is
next.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from warehouse.maintain.check import find_damage
from warehouse.maintain.discard import new_target
from warehouse.maintain.part_findings import Finding, is_compacted
from warehouse.stages.due import is_sampled
from warehouse.stages.space import sweep
from warehouse.store.errors import StageError
from warehouse.store.intent import Step, carry_out
from warehouse.store.json_files import json_bytes
from warehouse.store.names import is_training
from warehouse.store.parts import part_number
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage, read_manifest, readable_manifest
from warehouse.tasks.changes import replaced_payloads


class Move(NamedTuple):
    """A file or folder to put aside; `path` is None for a remark alone."""

    path: Path | None
    why: str
    lost: Stage | None = None  # the stage whose manifest must go on without this part


def plan_repair(warehouse: Warehouse, iteration: int | None = None) -> list[Move]:
    """What to put aside; of one iteration, or of all and of the folder as a whole."""
    moves: dict[Path | str, Move] = {}
    for finding in find_damage(warehouse, iteration, rows=False):
        for move in _moves(warehouse, finding):
            moves.setdefault(move.path or move.why, move)
    whole = {path for path in moves if isinstance(path, Path) and path.is_dir()}
    return [move for path, move in moves.items() if isinstance(path, str) or not whole & set(path.parents)]


def put_aside(warehouse: Warehouse, moves: list[Move]) -> Path:
    """Carry the moves out; the folder where everything is now."""
    folder = new_target(warehouse, "broken")
    record = [{"path": str(move.path.relative_to(warehouse.root)), "why": move.why}
              for move in moves if move.path]
    steps: list[Step] = [("write", folder / "repair.json", json_bytes(record).decode())]
    steps += [("move", move.path, folder / move.path.relative_to(warehouse.root)) for move in moves
              if move.path and move.path.exists()]
    steps += [*_manifests_without(moves), *_manifests_of_compactions({move.path for move in moves})]
    carry_out(warehouse.root, "repair", steps)
    sweep(warehouse)
    return folder


def _moves(warehouse: Warehouse, finding: Finding) -> Iterator[Move]:
    """What has to go because of a finding."""
    stage = finding.stage
    if finding.consequence == "aside":
        yield Move(finding.path, finding.why)
    elif finding.consequence == "again" and stage:
        if stage.name == "train":
            yield from _train_moves(warehouse, stage, finding)
            return
        if finding.path.parent == stage.folder and _is_past(warehouse, stage):
            yield from _lost_rows(warehouse, stage, finding)
            return
        if finding.path.parent == stage.prompts and _is_past(warehouse, stage) and (
                is_compacted(stage) or not _has_weights(warehouse, stage)):
            yield Move(None, f"{finding.path} {finding.why}; nothing could sample with a plan drawn again, "
                             "for tokens or weights were pruned: restore it from a copy")
            return
        if stage.name == "score" and finding.path.parent == stage.folder and (
                why_not := _why_not_scored_again(warehouse, stage)):
            yield Move(finding.path, f"{finding.why}; {why_not}, so it cannot be scored again and these rows "
                       "are lost", stage)
            return
        if stage.name == "rollout" and (finding.path.parent == stage.folder or (
                finding.path.parent == stage.prompts and is_compacted(stage))):
            yield from _sampled_again(warehouse, stage, finding)
        yield Move(finding.path, finding.why) if not finding.path.is_dir() else Move(None, finding.text)
        yield from _open_again(stage)


def _open_again(stage: Stage) -> Iterator[Move]:
    """Take the manifest away; what a compaction kept of it would be out of date."""
    for path in [*sorted(stage.folder.glob("compacted-*.json")), stage.folder / "manifest.json"]:
        if path.exists():
            yield Move(path, "its stage must be run again")


def _sampled_again(warehouse: Warehouse, stage: Stage, finding: Finding) -> Iterator[Move]:
    """What was made from a damaged part of completions, or from a plan that merged parts do not follow."""
    keys, numbers = stage.identity, {part_number(finding.path)}
    if is_compacted(stage):
        # Which rows a merged part held is decided by its merging: the plan numbers them otherwise.
        present = sorted(stage.folder.glob("part-*.parquet"))
        yield from (Move(path, "its rollout is sampled again whole, having been compacted")
                    for path in present if path != finding.path)
        numbers |= {part_number(path) for path in present}
    twin = stage.folder / f"part-{part_number(finding.path):05d}.parquet"
    if finding.path.parent == stage.folder and twin != finding.path and twin.exists():
        # what was carried over is begun again, with its part
        yield Move(twin, "what was carried over from it is damaged or gone")
    for score in warehouse.scores(keys["iteration"], keys["purpose"]):
        scored = [path for path in sorted(score.folder.glob("part-*.parquet"))
                  if part_number(path) in numbers]
        lost = score if _why_not_scored_again(warehouse, score) else None
        yield from (Move(path, "its completions are damaged or gone", lost) for path in scored)
        yield from _open_again(score) if scored and not lost else ()
    if is_training(keys["purpose"]) and warehouse.stage("train", iteration=keys["iteration"]).is_complete():
        yield Move(None, f"policy {keys['iteration'] + 1} stays: it was trained on the rows as they were")


def _is_past(warehouse: Warehouse, stage: Stage) -> bool:
    """True for a rollout of a policy whose weights were pruned, or whose own tokens were."""
    if stage.name != "rollout":
        return False
    asked_by_text = ((readable_manifest(stage) or {}).get("settings") or {}).get("model")    # behind an API
    return (_is_pruned(stage) and not asked_by_text) or not _has_weights(warehouse, stage)


def _why_not_scored_again(warehouse: Warehouse, score: Stage) -> str:
    """Why no scorer could judge the completions again as that one did; '' where one can."""
    rollout = {key: score.identity[key] for key in ("iteration", "purpose")}
    if _is_pruned(warehouse.stage("rollout", **rollout)):
        return "its completions were pruned"
    settings = (readable_manifest(score) or {}).get("settings") or {}
    if settings.get("replaced", {}) != replaced_payloads(warehouse.root):
        return "tasks were replaced since"
    return ""


def _is_pruned(stage: Stage) -> bool:
    return bool((readable_manifest(stage) or {}).get("pruned"))


def _has_weights(warehouse: Warehouse, stage: Stage) -> bool:
    """False where the policy that a rollout sampled was pruned to its policy.json."""
    version = ((readable_manifest(stage) or {}).get("settings") or {}).get("policy_version")
    try:
        return (version is None or warehouse.policy(version).get("kind", "base") == "base"
                or not warehouse.is_pruned(version))
    except StageError:
        return True


def _lost_rows(warehouse: Warehouse, stage: Stage, finding: Finding) -> Iterator[Move]:
    """A damaged part of a rollout that cannot be sampled again, and what scores it."""
    yield Move(finding.path, f"{finding.why}; its tokens or its policy were pruned, so it cannot be sampled "
               "again and these rows are lost", stage)
    for score in warehouse.scores(stage.identity["iteration"], stage.identity["purpose"]):
        if (path := score.folder / finding.path.name).exists():
            yield Move(path, "its completions are lost", score)


def _train_moves(warehouse: Warehouse, stage: Stage, finding: Finding) -> Iterator[Move]:
    """A training and its policy are made again, unless later rows were sampled from that policy."""
    version = stage.identity["iteration"] + 1
    folder = warehouse.policy_dir(version)
    if not (is_sampled(warehouse, version) or warehouse.policy_dir(version + 1).exists()):
        yield from (Move(path, f"{path.name}: {finding.why}; trained again")
                    for path in (stage.folder, folder) if path.exists())
    elif finding.path == folder:
        yield Move(None, f"policy {version} is damaged ({finding.why}) and later rows were sampled from it, "
                         f"so it cannot be trained again: restore {folder} from a copy")
    else:
        yield Move(finding.path, f"{finding.why}; policy {version} was sampled from, so its training "
                   "cannot be run again and these rows are lost", stage)


def _manifests_without(moves: list[Move]) -> Iterator[Step]:
    """Manifests that name parts as lost instead of listing them."""
    for stage in {move.lost.folder: move.lost for move in moves if move.lost}.values():
        names = [move.path.name for move in moves if move.path and move.lost == stage]
        if manifest := readable_manifest(stage):
            kept = [part for part in manifest["parts"] if part["name"] not in names]
            text = json_bytes({**manifest, "parts": kept, "lost": [*manifest.get("lost", []), *names]})
            yield "write", stage.folder / "manifest.json", text.decode()


def _manifests_of_compactions(opened: set[Path | None]) -> Iterator[Step]:
    """Of manifests that are put aside those that a compaction has a copy of, if its parts are all there."""
    for path in sorted(path for path in opened if path and path.name == "manifest.json"):
        copies = sorted(set(path.parent.glob("compacted-*.json")) - opened)
        with contextlib.suppress(StageError):  # a copy that is damaged, too, is none
            kept = read_manifest(path.parent, copies[-1].name) if copies else None
            if kept and all((path.parent / part["name"]).exists() for part in kept["parts"]):
                yield "write", path, json_bytes(kept).decode()
