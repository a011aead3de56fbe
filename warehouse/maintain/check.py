"""All that is wrong with the stored files: where, what, the way out, and what follows from it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.maintain.check_rows import row_problems
from warehouse.maintain.part_findings import Consequence, Finding, Footers, find_damaged_parts
from warehouse.sql.inventory import UNFINISHED, is_built_upon
from warehouse.sql.verified import forget_verified
from warehouse.store.chosen_scorer import trained_scorer
from warehouse.store.commit import TEMPORARY_MARK, twin_of
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.json_files import damaged, read_json
from warehouse.store.parts import part_number, spills_of
from warehouse.store.run_folder import STEMS, TRAIN_TABLES, Warehouse
from warehouse.store.stage import Stage, readable_manifest

EXPECTED = re.compile(r"(part|carried|samples|tokens|steps)-\d{5,}\.parquet|"
                      r"(manifest|settings|plan)\.json|(drift|change|compacted)-\w+\.json")
TABLES = ("tasks", "prompts", "completions", "samples", "train")


class Report(NamedTuple):
    """What is wrong: `problems` break an invariant, `notes` are only worth knowing; and how much there is."""

    problems: list[str]
    notes: list[str]
    num_parts: int
    num_rows: int


def check_run(warehouse: Warehouse, *, quick: bool = False) -> Report:
    """Check names, manifests, checksums and footers, then (unless `quick`) the rows of every part."""
    footers = Footers(warehouse)
    found = list(find_damage(warehouse, quick=quick, footers=footers))
    problems = [finding.text for finding in found if finding.consequence != "note"]
    if problems:
        forget_verified(warehouse)
    else:
        footers.remember()
    return Report(problems, [finding.text for finding in found if finding.consequence == "note"],
                  len(footers.seen), sum(rows for *_, rows in footers.seen.values()))


def find_damage(warehouse: Warehouse, iteration: int | None = None, *, quick: bool = False,
                rows: bool = True, footers: Footers | None = None) -> Iterator[Finding]:
    """Names, tasks, policies, then stage by stage: documents, parts and, unless `quick`, checksums and rows.

    With an iteration named, its stages and the policy that it wrote alone.
    """
    from tqdm import tqdm
    if twin := twin_of(warehouse.root):
        twin.bring_all()
    footers = footers or Footers(warehouse)
    if iteration is None:
        yield from _foreign_files(warehouse)
        yield from _tasks(warehouse, footers, quick=quick)
    yield from _policies(warehouse, iteration, quick=quick)
    stages = warehouse.stages(iteration)
    for stage in tqdm(stages, desc="stages", unit="stage", leave=False, disable=None):
        wrong = list(_stage(warehouse, stage, footers, quick=quick))
        yield from wrong
        if rows and not quick:
            yield from _rows(warehouse, stage, {finding.path for finding in wrong})


def _foreign_files(warehouse: Warehouse) -> Iterator[Finding]:
    """Files in the tables' folders that no stage writes."""
    for folder, _, names in (walked for table in TABLES for walked in os.walk(warehouse.root / table)):
        for path in (Path(folder, name) for name in sorted(names) if not EXPECTED.fullmatch(name)):
            inside = str(path.relative_to(warehouse.root))
            # Version 0.2.0 left a claim beside each file on filesystems without hard links.
            if path.parent.suffix == ".claim" or "checkpoint-" in inside or _is_gone_on_with(path):
                continue
            if TEMPORARY_MARK in inside or ".spill-" in inside:
                yield Finding.of(path, "is left from a killed process; remove it when nothing runs.", "note")
            else:
                words = "was not written by any stage. Move it out of the run folder."
                yield Finding.of(path, words, "aside")


def _is_gone_on_with(path: Path) -> bool:
    """True of what a rollout saved of a part that is still open: the next one reads it."""
    part = path.parent / path.name.partition(".spill-")[0]
    return not part.exists() and path in spills_of(part)


def _tasks(warehouse: Warehouse, footers: Footers, *, quick: bool) -> Iterator[Finding]:
    """The tasks are there and are those that the run was made with."""
    folder, parts = warehouse.folder("tasks"), warehouse.parts("tasks")
    if not parts:
        yield Finding.of(folder, "holds no tasks. Restore it from a copy of the run.", "restore")
    wrong = [Finding(part, text, "restore") for part in parts for text in footers.problems("tasks", {}, part)]
    for finding in wrong:
        yield Finding.of(finding.path, f"{finding.why}. Restore it from a copy of the run.", "restore")
    if wrong or not parts or quick:
        return
    try:
        warehouse.verify("tasks")
    except StageError as error:
        yield Finding(folder, str(error), "restore")


def _policies(warehouse: Warehouse, iteration: int | None, *, quick: bool) -> Iterator[Finding]:
    """Each policy's files are those that its policy.json names, and its parent is there."""
    folders = {int(folder.name): folder for folder in warehouse.root.glob("policies/*")
               if folder.name.isdigit()}
    for version, folder in sorted(folders.items()):
        if iteration not in (None, version - 1):
            continue
        stage = warehouse.stage("train", iteration=version - 1)
        consequence: Consequence = "again" if version else "restore"
        if not (folder / "policy.json").exists():
            way_out = (f"Remove the folder and run train of iteration {version - 1} again" if version else
                       "Restore it from a copy of the run")
            yield Finding.of(folder, f"has no policy.json. {way_out}.", consequence, stage)
            continue
        try:
            parent = warehouse.policy(version).get("parent")
            if not quick and not warehouse.is_pruned(version):
                warehouse.verify_policy(version)
        except StageError as error:
            yield Finding(folder, str(error), consequence, stage)
            continue
        if parent is not None and parent not in folders:
            yield Finding(folder, f"Policy {version} names policy {parent} as its parent, which does not "
                          "exist. Restore it from a copy.", "restore")


def _stage(warehouse: Warehouse, stage: Stage, footers: Footers, *, quick: bool) -> Iterator[Finding]:
    """Documents and parts of one stage, and what it says of others."""
    manifest = None
    for path in (stage.folder / "manifest.json", stage.folder / "settings.json"):
        try:
            if path.name == "manifest.json":
                manifest = stage.manifest()
            elif (settings := read_json(path)) is not None and (manifest or {}).get(
                    "settings", settings) != settings:
                raise damaged(path, "the manifest says that the settings were others")
        except StageError as error:
            yield Finding(path, str(error), "aside", stage)
    if manifest is None and not stage.is_complete():
        gone = is_built_upon(warehouse, stage)
        words = UNFINISHED if gone else "is not complete; run it again to finish it."
        yield Finding(stage.folder, f"{stage.title} {words}", "restore" if gone else "note")
    for table, keys, folder in _tables(stage):
        yield from find_damaged_parts(footers, stage, table, keys, folder, manifest, quick=quick)
    if manifest and "prompts" not in manifest and stage.prompts and not any(stage.prompts.glob("part-*")):
        yield Finding.of(stage.prompts, f"holds no prompts, though {stage.title} is complete. Restore them, "
                         "or let `warehouse repair` open the stage again.", "again", stage)
    if stage.name == "score":
        yield from _scored_parts(warehouse, stage, manifest)
    if manifest and stage.name == "train":
        yield from _training(warehouse, stage, manifest)


def _tables(stage: Stage) -> list[tuple[str, dict[str, Any], Path]]:
    """Tables that a stage writes: name, the keys that every row of a part has, folder."""
    if stage.name == "train":
        return [(table, {"iteration" if table == "train_steps" else "trained_iteration":
                         stage.identity["iteration"]}, stage.folder) for table in TRAIN_TABLES]
    table = "completions" if stage.name == "rollout" else "samples"
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
    if not (sampled or listed) and complete:
        yield Finding.of(rollout.folder, f"is missing, though {stage.title} is complete. Restore it from a "
                         "copy of the run; no stage can sample the same completions again.", "restore")
    elif complete and sampled - lost != (scored := {part_number(path) for path in present}):
        yield Finding(stage.folder, f"{stage.title} has parts {sorted(scored)}, the completions have "
                      f"{sorted(sampled)}. Restore the missing ones, or remove {stage.folder} and score "
                      "again.", "restore")
    replaced = (manifest or {}).get("replaced", [])
    for path in present if sampled else []:
        if part_number(path) not in sampled and path.name not in replaced:
            yield Finding.of(path, "scores completions that are gone. `warehouse repair` puts it aside.",
                             "again", stage)


def _training(warehouse: Warehouse, stage: Stage, manifest: dict[str, Any]) -> Iterator[Finding]:
    """The policy that a training wrote is there, and so are the scores that it was trained on."""
    iteration = stage.identity["iteration"]
    if not (warehouse.policy_dir(iteration + 1) / "policy.json").exists():
        yield Finding(stage.folder, f"{stage.title} is complete, but policy {iteration + 1} is missing. "
                      f"Restore it, or remove {stage.folder} and train again.", "restore")
    scorer = trained_scorer(manifest)
    if scorer is None or "rolled_back_to" in manifest["facts"]:
        return
    rows: dict[str, Any] = {"iteration": iteration, "purpose": warehouse.trained_purpose(iteration)}
    scores = warehouse.stage("score", **rows, scorer=scorer)
    if scores.folder.is_dir() and any(scores.folder.iterdir()):
        return  # unfinished ones are told as a stage
    way_out = "Restore it from a copy of the run"
    if warehouse.stage("rollout", **rows).is_complete():
        way_out += f", or score again: score {shell_quote(warehouse.root)} --iteration {iteration}"
    yield Finding.of(scores.folder, f"is missing, though {stage.title} was trained on its rewards. "
                     f"{way_out}.", "restore")


def _rows(warehouse: Warehouse, stage: Stage, wrong: set[Path]) -> Iterator[Finding]:
    """The rows of every part of a stage that can be read."""
    for table, keys, folder in _tables(stage):
        for part in sorted(folder.glob(f"{STEMS.get(table, 'part')}-*.parquet")):
            if part in wrong:
                continue
            try:
                problems = row_problems(warehouse, table, keys, part)
            except StageError as error:
                problems = [str(error)]
            for problem in problems:
                yield Finding(part, f"{part}: {problem}", "restore")
