"""Everything that is wrong with the stored files: where, what, the way out, and the consequence."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from warehouse.ledger.entries import DERIVED
from warehouse.maintain.fix import Change, Consequence, Finding, changes_for
from warehouse.sql.inventory import UNFINISHED
from warehouse.sql.verified import forget_verified
from warehouse.store.checksums import OPTIMIZER, part_damage
from warehouse.store.commit import file_names, twin_of
from warehouse.store.errors import Damaged, StageError
from warehouse.store.manifests import STEMS, listed_parts
from warehouse.store.parts import UNREADABLE, footer_facts
from warehouse.store.run_folder import TABLES_OF, Stage, Warehouse
from warehouse.store.schema import OLDEST_VERSION, SCHEMA_VERSION
from warehouse.store.unlisted import check_part

Seen = dict[Path, int]      # number of rows of each checked part


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
    try:
        warehouse.log.check_whole("*" if iteration is None else iteration)
    except Damaged as error:
        yield Finding(error.path, str(error), "restore")
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
        wrong, seen[part] = _footer_problems(warehouse, part)
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
    if manifest is None and stage.life and not stage.is_complete():
        gone = warehouse.state.is_built_upon(stage.life)
        words = "was given up by a rollback: nothing is left to do." if (
            warehouse.state.is_given_up(stage.life)) else (
            f"{UNFINISHED if gone else 'is not complete.'} To finish it: {warehouse.state.again(stage.life)}")
        if stage.name == "score" and len(warehouse.state.of_stage(
                "score", stage.life.iteration, stage.life.purpose)) > 1:
            words += f"; or {stage.way_to_discard()}"
        yield Finding(stage.folder, f"{stage.title} {words}", "unfinished" if gone else "note")
    for table in TABLES_OF[stage.name]:
        yield from _damaged_parts(warehouse, stage, table, manifest, seen, quick=quick)
    if manifest and "prompts" not in manifest and stage.prompts and not any(stage.prompts.glob("part-*")):
        yield Finding.of(stage.prompts, f"holds no prompts, though {stage.title} is complete. Restore them, "
                         "or let `warehouse check --fix` open the stage again.", "again", stage)


def _damaged_parts(warehouse: Warehouse, stage: Stage, table: str, manifest: dict[str, Any] | None,
                   seen: Seen, *, quick: bool) -> Iterator[Finding]:
    """Compare the parts of one table with the manifest, by size and checksum, and by their footers."""
    folder = warehouse.folder(table, **stage.identity)
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
                wrong, seen[path] = _footer_problems(warehouse, path)
            for text in wrong or _content_problems(stage, table, path, listed[path], quick=quick):
                yield Finding(path, text, "again", stage)


def _content_problems(stage: Stage, table: str, path: Path, listed: dict[str, Any],
                      *, quick: bool) -> Iterator[str]:
    """What is wrong with the content of a part whose footer is sound."""
    if listed and (why := part_damage(path, listed, quick=quick)):
        yield f"{path} {why}. Restore it, or let `warehouse check --fix` open the stage again."
    elif not listed and not quick:
        try:
            check_part(path, table, stage.warehouse.owners, stage.identity)
        except StageError as error:
            yield str(error)


def _footer_problems(warehouse: Warehouse, part: Path) -> tuple[list[str], int]:
    """What is wrong with a part according to its footer, and its number of rows."""
    try:
        footer = pq.read_metadata(part)
    except UNREADABLE as error:
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


def _gone(warehouse: Warehouse, stage: Stage) -> Finding:
    """The folder of a complete stage is gone. Most scores can be made again, sampled rows cannot."""
    assert stage.life is not None
    what = f"is gone, though {stage.title} is complete. Restore it from a copy of the run"
    if stage.name in DERIVED and not warehouse.state.why_not_again(stage.life):
        return Finding(stage.folder / "manifest.json", f"{stage.folder} {what}, or let `warehouse "
                       "check --fix` open the stage again.", "aside", stage)
    read = stage.name == "train" or warehouse.state.readers(stage.life.begun)
    way_out = "; no stage can make the same rows again" if read else f", or {stage.way_to_discard()}"
    return Finding.of(stage.folder, f"{what}{way_out}.", "restore")
