"""Everything that is wrong with the stored files: where, what, the way out, and the consequence."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from warehouse.ledger.entries import DERIVED
from warehouse.maintain.fix import Change, changes_for
from warehouse.maintain.part_findings import Consequence, Finding, Seen, find_damaged_parts, footer_problems
from warehouse.sql.inventory import UNFINISHED, is_built_upon
from warehouse.sql.verified import forget_verified
from warehouse.store.checksums import OPTIMIZER
from warehouse.store.commit import file_names, twin_of
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.run_folder import TABLES_OF, Stage, Warehouse


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
    """Check tasks, policies, manifests and footers, and unless `quick` checksums."""
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
    """Tasks, policies, then each stage's documents and parts, with checksums unless `quick`."""
    from tqdm import tqdm
    if twin := twin_of(warehouse.root):
        twin.bring_all(unread=[OPTIMIZER] if quick else [])
    if iteration is None:
        yield from _readable(_tasks(warehouse, seen, quick=quick), warehouse.folder("tasks"))
    for version in warehouse.state.versions:
        if iteration in (None, version - 1):
            yield from _readable(_policy(warehouse, version, quick=quick), warehouse.policy_dir(version))
    stages = warehouse.stages(iteration)
    for stage in tqdm(stages, desc="stages", unit="stage", leave=False, disable=None):
        folders = [warehouse.folder(table, **stage.identity) for table in TABLES_OF[stage.name]]
        yield from _readable(_stage(warehouse, stage, seen, quick=quick), *folders)


def _readable(found: Iterable[Finding], *folders: Path) -> Iterator[Finding]:
    """What is wrong with these folders; one that cannot be read is a finding, and the check goes on."""
    try:
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.listdir(folder)      # a glob takes what may not be read for empty
        yield from found
    except OSError as error:
        path = Path(error.filename or folders[0])
        yield Finding.of(path, f"cannot be read ({error.strerror}). Fix that.", "restore")


def folders_that_count(warehouse: Warehouse) -> set[Path]:
    """Every folder that the run's state names, including those of unfinished stages."""
    folders = {warehouse.folder("tasks")}
    for stage in warehouse.stages():
        folders |= {stage.folder, *([stage.prompts] if stage.prompts else [])}
        if stage.name == "train" and stage.life and not stage.life.is_complete:
            folders.add(warehouse.root / "policies" / str(stage.identity["iteration"] + 1)
                        / f"generation={stage.life.folder}")
    return folders | {warehouse.policy_dir(version) for version in warehouse.state.versions}


def _tasks(warehouse: Warehouse, seen: Seen, *, quick: bool) -> Iterator[Finding]:
    """The tasks exist and are those that the run was made with."""
    folder, parts = warehouse.folder("tasks"), warehouse.parts("tasks")
    if not parts:
        yield Finding.of(folder, "holds no tasks. Restore it from a copy of the run.", "restore")
    sound = bool(parts)
    for part in parts:
        wrong, seen[part] = footer_problems(warehouse, part)
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


def _policy(warehouse: Warehouse, version: int, *, quick: bool) -> Iterator[Finding]:
    """A policy has the files that its policy.json lists, and its parent exists."""
    folder, stage = warehouse.policy_dir(version), warehouse.stage("train", iteration=version - 1)
    consequence: Consequence = "again" if version else "restore"
    if not (folder / "policy.json").exists():
        again = stage.life and warehouse.state.can_train_again(stage.life)
        way_out = f", or let `warehouse check --fix` open {stage.title} again" if again else ""
        yield Finding.of(folder, f"has no policy.json: policy {version} is missing. Restore it from a "
                         f"copy of the run{way_out}.", consequence, stage)
        return
    try:
        parent = warehouse.policy(version).get("parent")
        if not quick and not warehouse.state.policies[version].dropped:
            warehouse.verify_policy(version)
    except StageError as error:
        yield Finding(folder, str(error), consequence, stage)
        return
    if parent is not None and parent not in warehouse.state.versions:
        yield Finding(folder, f"Policy {version} names policy {parent} as its parent, which does not "
                      "exist. Restore it from a copy.", "restore")


def again(warehouse: Warehouse, stage: Stage) -> str:
    """The command that goes on with a stage; options of named evaluations and the like are in the log."""
    command = {"logprobs": "train logprobs"}.get(stage.name, stage.name)
    words = f"{command} {shell_quote(warehouse.root)} --iteration {stage.identity['iteration']}"
    purpose = stage.identity.get("purpose")
    if stage.name != "rollout" or purpose == "train":
        return words
    return f"{words} --eval" if purpose == "eval" else f"{words}, with the options that `warehouse log` has"


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
        words = f"{UNFINISHED if gone else 'is not complete.'} To finish it: {again(warehouse, stage)}"
        yield Finding(stage.folder, f"{stage.title} {words}", "unfinished" if gone else "note")
    for table in TABLES_OF[stage.name]:
        folder = warehouse.folder(table, **stage.identity)
        yield from find_damaged_parts(warehouse, stage, table, folder, manifest, seen, quick=quick)
    if manifest and "prompts" not in manifest and stage.prompts and not any(stage.prompts.glob("part-*")):
        yield Finding.of(stage.prompts, f"holds no prompts, though {stage.title} is complete. Restore them, "
                         "or let `warehouse check --fix` open the stage again.", "again", stage)


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
