"""Everything that is wrong with the stored files: where, what, the way out, and the consequence."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.ledger.entries import DERIVED
from warehouse.maintain.fix import Change, changes_for
from warehouse.maintain.part_findings import Consequence, Finding, Seen, find_damaged_parts, footer_problems
from warehouse.sql.inventory import UNFINISHED, is_built_upon
from warehouse.sql.verified import forget_verified
from warehouse.store.commit import TEMPORARY_MARK, file_names, twin_of
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.parts import part_number, spills_of
from warehouse.store.run_folder import TRAIN_TABLES, Warehouse
from warehouse.store.stage import TABLES as TABLE_OF
from warehouse.store.stage import Stage, readable_manifest

EXPECTED = re.compile(r"(part|carried|samples|tokens|steps)-\d{5,}\.parquet|"
                      r"(manifest|manifest-copy|settings|plan)\.json|(drift|change|compacted)-\w+\.json")
TABLES = ("tasks", "prompts", "completions", "samples", "policy_logprobs", "train")


class Report(NamedTuple):
    """What is wrong: `problems` break an invariant, `notes` are information; and the number of checked files.

    `unfinished` are problems that running a stage again will fix; `changes` are what --fix does about the
    others, or did.
    """

    problems: list[str]
    unfinished: list[str]
    notes: list[str]
    num_parts: int
    num_rows: int
    changes: list[Change]


def check_run(warehouse: Warehouse, iteration: int | None = None, *, quick: bool = False) -> Report:
    """Check names, manifests and footers, and unless `quick` checksums.

    With `iteration`, only its stages and the policy that it wrote.
    """
    seen: Seen = {}
    warehouse.state.check_begun(iteration)
    found = list(find_damage(warehouse, iteration, seen, quick=quick))
    problems = [finding for finding in found if finding.consequence != "note"]
    if problems:
        forget_verified(warehouse)
    return Report([finding.text for finding in problems],
                  [finding.text for finding in problems if finding.consequence == "unfinished"],
                  [finding.text for finding in found if finding.consequence == "note"],
                  len(seen), sum(seen.values()), changes_for(warehouse, problems))


def find_damage(warehouse: Warehouse, iteration: int | None, seen: Seen, *, quick: bool) -> Iterator[Finding]:
    """Names, tasks, policies, then each stage's documents and parts, with checksums unless `quick`."""
    from tqdm import tqdm
    if twin := twin_of(warehouse.root):
        twin.bring_all()
    if iteration is None:
        yield from _foreign_files(warehouse)
        yield from _tasks(warehouse, seen, quick=quick)
    yield from _policies(warehouse, iteration, quick=quick)
    stages = warehouse.stages(iteration)
    for stage in tqdm(stages, desc="stages", unit="stage", leave=False, disable=None):
        yield from _stage(warehouse, stage, seen, quick=quick)


def _foreign_files(warehouse: Warehouse) -> Iterator[Finding]:
    """Files in the tables' folders that no stage writes, and the size of ended generations."""
    counted_folders = folders_that_count(warehouse)
    ended: dict[Path, int] = {}
    for folder, _, names in (walked for table in TABLES for walked in os.walk(warehouse.root / table)):
        for path in (Path(folder, name) for name in sorted(names)):
            inside = path.relative_to(warehouse.root)
            generation = next((parent for parent in (path, *path.parents)
                               if parent.name.startswith("generation=")), None)
            if generation and generation not in counted_folders and path.is_file():
                ended[generation] = ended.get(generation, 0) + path.stat().st_size
                continue
            # Version 0.2.0 left a claim beside each file on filesystems without hard links.
            if EXPECTED.fullmatch(path.name) or path.parent.suffix == ".claim" or (
                    "checkpoint-" in str(inside) or _is_gone_on_with(path)):
                continue
            if TEMPORARY_MARK in str(inside) or ".spill-" in str(inside):
                yield Finding.of(path, "was left by a killed process; remove it when nothing runs.", "note")
            else:
                words = "was not written by any stage. Move it out of the run folder."
                yield Finding.of(path, words, "restore")
    if ended:
        yield Finding(warehouse.root,
                      f"{counted(len(ended), 'generation')} that were ended or never used take "
                      f"{sum(ended.values()) / 1e6:.1f} MB; `warehouse prune {shell_quote(warehouse.root)} "
                      "--ended --yes` removes them.", "note")


def folders_that_count(warehouse: Warehouse) -> set[Path]:
    """Every folder that the run's state names, including those of unfinished stages."""
    folders = {warehouse.folder("tasks")}
    for stage in warehouse.stages():
        folders |= {stage.folder, *([stage.prompts] if stage.prompts else [])}
        if stage.name == "train" and stage.life:
            folders.add(warehouse.root / "policies" / str(stage.identity["iteration"] + 1)
                        / f"generation={stage.life.folder}")
    return folders | {warehouse.policy_dir(version) for version in warehouse.state.versions}


def _is_gone_on_with(path: Path) -> bool:
    """True for a spill of a part that is still open: the next rollout reads it."""
    part = path.parent / path.name.partition(".spill-")[0]
    return not part.exists() and path in spills_of(part)


def _tasks(warehouse: Warehouse, seen: Seen, *, quick: bool) -> Iterator[Finding]:
    """The tasks exist and are those that the run was made with."""
    folder, parts = warehouse.folder("tasks"), warehouse.parts("tasks")
    if not parts:
        yield Finding.of(folder, "holds no tasks. Restore it from a copy of the run.", "restore")
    sound = bool(parts)
    for part in parts:
        wrong, seen[part] = footer_problems(warehouse, "tasks", {}, part)
        sound &= not wrong
        for text in wrong:
            why = Finding(part, text, "restore").why
            yield Finding.of(part, f"{why}. Restore it from a copy of the run.", "restore")
    if quick or not sound:
        return
    try:
        warehouse.verify("tasks")
    except StageError as error:
        yield Finding(folder, str(error), "restore")


def _policies(warehouse: Warehouse, iteration: int | None, *, quick: bool) -> Iterator[Finding]:
    """Each policy has the files that its policy.json lists, and its parent exists."""
    versions = warehouse.state.versions
    for version in versions:
        folder = warehouse.policy_dir(version)
        if iteration not in (None, version - 1):
            continue
        stage = warehouse.stage("train", iteration=version - 1)
        consequence: Consequence = "again" if version else "restore"
        if not (folder / "policy.json").exists():
            way_out = f", or let `warehouse check --fix` open {stage.title} again" if version else ""
            yield Finding.of(folder, f"has no policy.json: policy {version} is missing. Restore it from a "
                             f"copy of the run{way_out}.", consequence, stage)
            continue
        try:
            parent = warehouse.policy(version).get("parent")
            if not quick and not warehouse.state.policies[version].dropped:
                warehouse.verify_policy(version)
        except StageError as error:
            yield Finding(folder, str(error), consequence, stage)
            continue
        if parent is not None and parent not in versions:
            yield Finding(folder, f"Policy {version} names policy {parent} as its parent, which does not "
                          "exist. Restore it from a copy.", "restore")


def _stage(warehouse: Warehouse, stage: Stage, seen: Seen, *, quick: bool) -> Iterator[Finding]:
    """Documents and parts of one stage, and their links to other stages."""
    manifest = None
    if stage.is_complete() and not file_names(stage.folder, "*"):
        yield _gone(warehouse, stage)
        return
    try:
        manifest = stage.manifest()
    except StageError as error:
        yield Finding(stage.folder / "manifest.json", str(error), "aside", stage)
    if manifest is None and not stage.is_complete():
        gone = is_built_upon(warehouse, stage)
        words = UNFINISHED if gone else "is not complete; run it again to finish it."
        yield Finding(stage.folder, f"{stage.title} {words}", "unfinished" if gone else "note")
    for table, keys, folder in _tables(stage):
        yield from find_damaged_parts(warehouse, stage, table, keys, folder, manifest, seen,
                                      quick=quick)
    if manifest and "prompts" not in manifest and stage.prompts and not any(stage.prompts.glob("part-*")):
        yield Finding.of(stage.prompts, f"holds no prompts, though {stage.title} is complete. Restore them, "
                         "or let `warehouse check --fix` open the stage again.", "again", stage)
    if stage.name == "score":
        yield from _scored_parts(warehouse, stage, manifest)


def _gone(warehouse: Warehouse, stage: Stage) -> Finding:
    """The folder of a complete stage is gone. Scores can be made again, sampled rows cannot."""
    assert stage.life is not None
    what = f"is gone, though {stage.title} is complete. Restore it from a copy of the run"
    if stage.name in DERIVED:
        return Finding(stage.folder / "manifest.json", f"{stage.folder} {what}, or let `warehouse "
                       "check --fix` open the stage again.", "aside", stage)
    read = stage.name == "train" or warehouse.state.readers(stage.life.begun)
    way_out = "; no stage can make the same rows again" if read else f", or {stage.way_to_discard()}"
    return Finding.of(stage.folder, f"{what}{way_out}.", "restore")


def _tables(stage: Stage) -> list[tuple[str, dict[str, Any], Path]]:
    """Tables that a stage writes: name, the keys that every row of a part has, folder."""
    if stage.name == "train":
        return [(table, {"iteration" if table == "train_steps" else "trained_iteration":
                         stage.identity["iteration"]}, stage.folder) for table in TRAIN_TABLES]
    table = TABLE_OF[stage.name]
    return [(table, stage.identity, stage.folder),
            *([("carried", stage.identity, stage.folder), ("prompts", stage.identity, stage.prompts)]
              if stage.prompts else [])]


def _scored_parts(warehouse: Warehouse, stage: Stage, manifest: dict[str, Any] | None) -> Iterator[Finding]:
    """Part i of samples scores part i of completions."""
    complete = manifest is not None
    rollout = warehouse.stage("rollout", **{key: stage.identity[key] for key in ("iteration", "purpose")})
    listed = readable_manifest(rollout)
    sampled = ({part_number(Path(part["name"])) for part in listed["parts"]
                if part["name"].startswith("part-")} if listed else
               {part_number(path) for path in rollout.folder.glob("part-*.parquet")})
    present = sorted(stage.folder.glob("part-*.parquet"))
    lost = {part_number(Path(name)) for name in (manifest or {}).get("lost", [])}
    if complete and sampled and sampled - lost != (scored := {part_number(path) for path in present}):
        yield Finding(stage.folder, f"{stage.title} has parts {sorted(scored)}, the completions have "
                      f"{sorted(sampled)}. Restore the missing ones, or {stage.way_to_discard()} and score "
                      "again.", "restore")
    for path in present if sampled else []:
        if part_number(path) not in sampled:
            yield Finding.of(path, "scores completions that are gone. `warehouse check --fix` leaves it out.",
                             "again", stage)
