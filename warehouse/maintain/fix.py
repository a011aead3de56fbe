"""Consequences of damage: which stages continue without which files, which run again, what is lost.

Nothing is moved or deleted. A stage that loses files gets a new generation with the others; the old one no
longer counts, and `warehouse prune --ended` removes it.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from warehouse.ledger.entries import Discarded
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import Life
from warehouse.maintain.rewrite import NewGeneration, rewriting
from warehouse.store.errors import StageError
from warehouse.store.manifests import COPY, read_manifest
from warehouse.store.names import is_training
from warehouse.store.parts import part_number
from warehouse.store.run_folder import Stage, Warehouse

# What --fix does: nothing (also if a stage runs again anyway), leave the file out, or have its stage run
# again. In other cases only a copy helps.
Consequence = Literal["note", "unfinished", "aside", "again", "restore"]


class Finding(NamedTuple):
    """A file or folder, a sentence about it, and the consequence for it and its stage."""

    path: Path
    text: str
    consequence: Consequence
    stage: Stage | None = None

    @classmethod
    def of(cls, path: Path, words: str, consequence: Consequence, stage: Stage | None = None) -> "Finding":
        """A finding with a sentence that begins with the path."""
        return cls(path, f"{path} {words}", consequence, stage)

    @property
    def why(self) -> str:
        """What is wrong, without the path and the way out."""
        return self.text.removeprefix(f"{self.path} ").split(". ")[0]


class Change(NamedTuple):
    """The consequence of a finding: a file that its stage continues without, or a training to discard.

    Without its manifest.json a stage runs again. `path` is None for a remark without a change; `lost` rows
    cannot be made again, and their stage stays complete without them.
    """

    path: Path | None
    why: str
    stage: Stage | None = None
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.why}" if self.path else f"note: {self.why}"


def changes_for(warehouse: Warehouse, findings: Iterable[Finding]) -> list[Change]:
    """All changes, each path once."""
    changes: dict[Path | str, Change] = {}
    for finding in findings:
        for change in _changes(warehouse, finding):
            changes.setdefault(change.path or change.why, change)
    return [*changes.values()]


def fix(warehouse: Warehouse, changes: list[Change]) -> bool:
    """Make the changes, by at most two entries of the log; False if there is none to make."""
    lives, of_life = dict[int, Life](), dict[int, list[Change]]()
    for change in changes:
        if change.path and (stage := change.stage):
            life = stage.life
            if not life or (life.folder and f"generation={life.folder}" not in change.path.parts):
                raise Refusal("overtaken", what=stage.title, run=warehouse.state.run)
            lives[life.begun] = life
            of_life.setdefault(life.begun, []).append(change)
    ended = [begun for begun, life in lives.items()
             if any(change.path == warehouse.stage_of(life).folder for change in of_life[begun])]
    if ended:
        warehouse.append(lambda _state: Discarded(ended))
    with rewriting(warehouse, "repaired", lives.values()) as new:
        for begun in [each for each in lives if each not in ended]:
            new.append(NewGeneration.of(warehouse, lives[begun], "repaired"))
            _leave_out(new[-1], of_life[begun])
    return bool(lives)


def _leave_out(new: NewGeneration, changes: list[Change]) -> None:
    """Fill a new generation with the stage's files but those of the changes."""
    stage = new.warehouse.stage_of(new.life)
    manifest, readable = stage.folder / "manifest.json", stage.readable_manifest()
    going = {change.path for change in changes if change.path}
    kept = readable or _copy_of_manifest(stage.folder)
    new.adopt(kept, without=going)
    if kept is None or (manifest in going and (
            readable or not all(change.lost or change.path == manifest for change in changes))):
        new.facts["open"] = True
        return
    new.facts["lost"] = [*kept.get("lost", []), *(change.path.name for change in changes
                                                  if change.lost and change.path)]
    new.write_manifest(kept, lost=new.facts["lost"])


def _copy_of_manifest(folder: Path) -> dict[str, Any] | None:
    with contextlib.suppress(StageError):
        return read_manifest(folder, COPY)
    return None


def _changes(warehouse: Warehouse, finding: Finding) -> Iterator[Change]:
    stage, path, why = finding.stage, finding.path, finding.why
    life = stage.life if stage else None
    if stage is None or life is None or finding.consequence not in ("aside", "again"):
        return
    gone_for_good = warehouse.state.why_not_again(life)
    unlisted = path.name == "manifest.json" and not _copy_of_manifest(stage.folder)
    if stage.name == "train" and (unlisted or finding.consequence == "again"):
        yield from _training(warehouse, stage, life, finding)
    elif unlisted and gone_for_good:
        yield Change(None, f"{path} {why}; {gone_for_good}: restore it from a copy")
    elif finding.consequence == "aside":
        yield Change(path, why, stage)
    elif path.parent == stage.folder and gone_for_good:
        yield Change(path, f"{why}; {gone_for_good} and these rows are lost", stage, lost=True)
        for score in _scores(warehouse, stage):
            if (scored := score.folder / path.name).exists():
                yield Change(scored, "its completions are lost", score, lost=True)
    elif stage.name == "rollout" and gone_for_good and (
            life.compacted or not warehouse.state.has_weights(life)):
        yield Change(None, f"{path} {why}; {gone_for_good}, so a newly drawn plan cannot be "
                     "sampled: restore it from a copy")
    else:
        if stage.name == "rollout" and (path.parent == stage.folder or life.compacted):
            yield from _sampled_again(warehouse, stage, life, path)
        yield Change(path, why, stage) if not path.is_dir() else Change(None, finding.text)
        yield _run_again(stage)


def _run_again(stage: Stage) -> Change:
    return Change(stage.folder / "manifest.json", "its stage must be run again", stage)


def _scores(warehouse: Warehouse, stage: Stage) -> list[Stage]:
    lives = warehouse.state.derived(**stage.identity) if stage.name == "rollout" else []
    return [warehouse.stage_of(life) for life in lives]


def _sampled_again(warehouse: Warehouse, stage: Stage, life: Life, path: Path) -> Iterator[Change]:
    """What was made from a damaged part of completions, or from a plan that merged parts do not follow."""
    numbers = {part_number(path)}
    if life.compacted:
        # Merging decided which rows a merged part holds: the plan numbers them differently.
        present = sorted(stage.folder.glob("part-*.parquet"))
        yield from (Change(part, "its compacted rollout is sampled again as a whole", stage)
                    for part in present if part != path)
        numbers |= {part_number(part) for part in present}
    twin = stage.folder / f"part-{part_number(path):05d}.parquet"
    if path.parent == stage.folder and twin != path and twin.exists():
        # carried-over groups are started again with their part
        yield Change(twin, "groups carried over from it are damaged or gone", stage)
    for score in _scores(warehouse, stage):
        scored = [part for part in sorted(score.folder.glob("part-*.parquet"))
                  if part_number(part) in numbers]
        lost = bool((judged := score.life) and warehouse.state.why_not_again(judged))
        yield from (Change(part, "its completions are damaged or gone", score, lost) for part in scored)
        if scored and not lost:
            yield _run_again(score)
    iteration = stage.identity["iteration"]
    if is_training(stage.identity["purpose"]) and warehouse.state.is_trained(iteration):
        yield Change(None, f"policy {iteration + 1} stays: it was trained on the rows as they were")


def _training(warehouse: Warehouse, stage: Stage, life: Life, finding: Finding) -> Iterator[Change]:
    """A training and its policy are made again, unless later rows were sampled from that policy."""
    version = life.iteration + 1
    if not life.is_complete or warehouse.state.can_train_again(life):
        yield Change(stage.folder, f"{finding.path.name}: {finding.why}; trained again", stage)
    elif finding.path.suffix != ".parquet":
        yield Change(None, f"policy {version} cannot be trained again, as later rows were sampled from it: "
                           f"restore {finding.path} from a copy")
    else:
        yield Change(finding.path, f"{finding.why}; policy {version} was sampled from, so its training "
                     "cannot be run again and these rows are lost", stage, lost=True)
