"""Put aside what is damaged, with everything that was made from it, so that the stages can make it again.

Nothing that is damaged is deleted: it moves to RUN/broken/<time>/.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.ledger.entries import Discarded
from warehouse.maintain.check import find_damage
from warehouse.maintain.part_findings import Finding, is_compacted
from warehouse.maintain.rewrite import NewGeneration, point_to
from warehouse.stages.space import sweep
from warehouse.store.commit import move_aside
from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes
from warehouse.store.names import is_training
from warehouse.store.parts import part_number
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage, read_manifest, readable_manifest


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
    """Take what is damaged out of the run, then move it; the folder where it is now.

    A stage that loses files goes on in a new generation with the others: complete where lost rows cannot be
    had again, else open, to be run again. The files move after the log says so.
    """
    paths = [move.path for move in moves if move.path]
    state = warehouse.state
    ended = [life for life in state.of_stage("train") if warehouse.stage_of(life).folder in paths]
    if ended:
        warehouse.append(lambda _state: Discarded([life.begun for life in ended]))
    new = [generation for stage in warehouse.stages() if (generation := _without(warehouse, stage, moves))]
    if new:
        point_to(warehouse, "repaired", new)
    stamp = f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    folder = warehouse.root / "broken" / stamp
    folder.mkdir(parents=True)
    record = [{"path": str(move.path.relative_to(warehouse.root)), "why": move.why}
              for move in moves if move.path]
    (folder / "repair.json").write_bytes(json_bytes(record))
    for path in paths:
        move_aside(path, folder / path.relative_to(warehouse.root))
    for generation in new:
        generation.remove_former()
    sweep(warehouse)
    return folder


def _without(warehouse: Warehouse, stage: Stage, moves: list[Move]) -> NewGeneration | None:
    """A new generation of a stage without what moves away; None where nothing of it does."""
    folders = [folder for folder in (stage.folder, stage.prompts) if folder]
    going = {move.path: move for move in moves if move.path and move.path.parent in folders}
    if not going or stage.life is None:
        return None
    new, manifest = NewGeneration.of(warehouse, stage, "repaired"), stage.folder / "manifest.json"
    kept = None if manifest in going else readable_manifest(stage)
    new.adopt(without=going.keys())
    lost = [path.name for path, move in going.items() if move.lost]
    if manifest in going and not any(path.suffix == ".parquet" for path in going):
        kept = _copy_of_manifest(stage.folder)
    if kept is None:
        new.facts["open"] = True
        return new
    lost = [*kept.get("lost", []), *lost]
    new.write_manifest(kept, lost=lost)
    new.facts["lost"] = lost
    return new


def _copy_of_manifest(folder: Path) -> dict[str, Any] | None:
    """What a compaction kept beside the manifest, if its parts are all there."""
    with contextlib.suppress(StageError):
        kept = read_manifest(folder, "manifest-copy.json")
        if kept and all((folder / part["name"]).exists() for part in kept["parts"]):
            return kept
    return None


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
    """Take the manifest away, and its copy."""
    for path in (stage.folder / "manifest.json", stage.folder / "manifest-copy.json"):
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
    if is_training(keys["purpose"]) and warehouse.state.is_trained(keys["iteration"]):
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
    if settings.get("replaced", {}) != warehouse.state.replaced_payloads:
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
    assert stage.life is not None
    version, state = stage.life.iteration + 1, warehouse.state
    folder = warehouse.policy_dir(version)
    if not stage.life.is_complete or state.can_train_again(stage.life):
        yield from (Move(path, f"{path.name}: {finding.why}; trained again")
                    for path in (stage.folder, folder) if path.exists())
    elif finding.path == folder:
        yield Move(None, f"policy {version} is damaged ({finding.why}) and later rows were sampled from it, "
                         f"so it cannot be trained again: restore {folder} from a copy")
    else:
        yield Move(finding.path, f"{finding.why}; policy {version} was sampled from, so its training "
                   "cannot be run again and these rows are lost", stage)
