"""Every invariant of the stored files; each violation named with its part and the way out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warehouse.care.check_rows import completion_problems, prompt_problems, sample_problems, train_problems
from warehouse.store.commit import TEMPORARY_MARK
from warehouse.store.errors import StageError
from warehouse.store.parts import part_number
from warehouse.store.run_folder import TRAIN_TABLES, Warehouse
from warehouse.store.schema import SCHEMA_VERSION, stored_names
from warehouse.store.stage import Stage, sha256_of
from warehouse.tasks.task_files import tasks_sha256

EXPECTED = re.compile(r"(part|samples|steps)-\d{5,}\.parquet|manifest\.json|settings\.json|plan\.json|"
                      r"(drift|compacted)-\w+\.json")
TABLES = ("tasks", "prompts", "completions", "samples", "train")


@dataclass
class Report:
    """What was found: `problems` break an invariant, `notes` are only worth knowing."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_parts: int = 0
    num_rows: int = 0


def check_run(warehouse: Warehouse, *, quick: bool = False) -> Report:
    """Check names, manifests, checksums and footers, then (unless `quick`) the rows of every part."""
    import pyarrow.parquet as pq
    from tqdm import tqdm
    report = Report()
    _check_names(warehouse, report)
    _check_tasks(warehouse, report, quick=quick)
    _check_policies(warehouse, report, quick=quick)
    stages = _stages(warehouse)
    readable: dict[Path, bool] = {}
    for table, keys, part in tqdm(_parts(warehouse), desc="parts", unit="part", leave=False, disable=None):
        report.num_parts += 1
        found = footer_problems(warehouse, table, keys, part)
        report.problems += found
        readable[part] = not found
        report.num_rows += 0 if found else pq.read_metadata(part).num_rows
    for stage in tqdm(stages, desc="stages", unit="stage", leave=False, disable=None):
        _check_stage(warehouse, stage, report, quick=quick)
    if not quick:
        _check_rows(warehouse, readable, report)
    return report


def _stages(warehouse: Warehouse) -> list[Stage]:
    stages = []
    for iteration in warehouse.iterations("completions"):
        stages += [warehouse.stage("rollout", iteration=iteration, purpose=purpose)
                   for purpose in warehouse.purposes("completions", iteration)]
    for iteration, purpose, scorer in _scored(warehouse):
        stages.append(warehouse.stage("score", iteration=iteration, purpose=purpose, scorer=scorer))
    return stages + [warehouse.stage("train", iteration=iteration)
                     for iteration in warehouse.iterations("train_steps")]


def _scored(warehouse: Warehouse) -> list[tuple[int, str, str]]:
    """Keys of every score stage, finished or not."""
    return [
        (iteration, purpose, folder.name.removeprefix("scorer="))
        for iteration in warehouse.iterations("samples")
        for purpose in warehouse.purposes("samples", iteration)
        for folder in sorted(
            (warehouse.root / "samples" / f"iteration={iteration}" / f"purpose={purpose}").glob("scorer=*")
        )
    ]


def _parts(warehouse: Warehouse) -> list[tuple[str, dict[str, object], Path]]:
    """Every part with its table and the keys that its folder gives."""
    found: list[tuple[str, dict[str, object], Path]] = [
        ("tasks", {}, part) for part in warehouse.parts("tasks")
    ]
    for table in ("prompts", "completions"):
        for iteration in warehouse.iterations(table):
            for purpose in warehouse.purposes(table, iteration):
                keys: dict[str, object] = {"iteration": iteration, "purpose": purpose}
                found += [(table, keys, part)
                          for part in warehouse.parts(table, iteration=iteration, purpose=purpose)]
    for iteration, purpose, scorer in _scored(warehouse):
        keys = {"iteration": iteration, "purpose": purpose, "scorer": scorer}
        found += [("samples", keys, part) for part in warehouse.parts("samples", **keys)]
    for table in TRAIN_TABLES:
        key = "trained_iteration" if table == "train_samples" else "iteration"
        for iteration in warehouse.iterations(table):
            found += [(table, {key: iteration}, part) for part in warehouse.parts(table, iteration=iteration)]
    return [entry for entry in found if entry[2].exists()]  # one that is missing is told with its manifest


def _check_names(warehouse: Warehouse, report: Report) -> None:
    """Files that no stage writes."""
    for table in TABLES:
        for path in sorted((warehouse.root / table).rglob("*")):
            if path.is_dir() or path.parent.name.endswith(".claim") or EXPECTED.fullmatch(path.name):
                continue
            if TEMPORARY_MARK in path.name or ".spill-" in path.name or ".claim" in path.parent.name:
                report.notes.append(f"{path} is left from a killed process; remove it when nothing runs.")
            elif "checkpoint" not in str(path.relative_to(warehouse.root)):
                report.problems.append(f"{path} was not written by any stage. Move it out of the run folder.")


def _check_tasks(warehouse: Warehouse, report: Report, *, quick: bool) -> None:
    """The tasks are there and are those that the run was made with."""
    folder, wanted = warehouse.folder("tasks"), warehouse.facts.get("tasks_sha256")
    if not warehouse.parts("tasks"):
        report.problems.append(f"{folder} holds no tasks. Restore it from a copy of the run.")
        return
    if quick or wanted is None:
        return
    try:
        found = tasks_sha256(warehouse.read("tasks").to_pylist())
    except StageError:
        return  # a torn part is told with its footer
    if found != wanted:
        report.problems.append(f"The tasks in {folder} are not those that the run was made with "
                               f"(warehouse.json: tasks_sha256 {wanted[:12]}, found {found[:12]}). Restore "
                               "them from a copy of the run.")


def _check_policies(warehouse: Warehouse, report: Report, *, quick: bool) -> None:
    versions = warehouse.policy_versions()
    for folder in sorted(warehouse.root.glob("policies/*")):
        if folder.name.isdigit() and int(folder.name) not in versions:
            report.problems.append(f"{folder} has no policy.json. Remove the folder and run train of "
                                   f"iteration "
                                   f"{int(folder.name) - 1} again.")
    for version in versions:
        if not quick and warehouse.holds_weights(version):
            try:
                warehouse.verify_policy(version)
            except (StageError, KeyError) as error:
                report.problems.append(str(error))
        parent = warehouse.policy(version).get("parent")
        if parent is not None and parent not in versions:
            report.problems.append(f"Policy {version} names policy {parent} as its parent, which does "
                                   f"not exist. "
                                   "Restore it from a copy.")


def _check_stage(warehouse: Warehouse, stage: Stage, report: Report, *, quick: bool) -> None:
    """Manifest against the parts in the folder, and the numbers of the parts."""
    manifest = stage.manifest()
    if manifest is None:
        report.notes.append(f"{stage.title} is not complete; run it again to finish it.")
        return
    replaced = set(manifest.get("replaced", []))
    _check_listed(stage, stage.folder, manifest["parts"], replaced, report, quick=quick)
    if stage.prompts and "prompts" in manifest:
        _check_listed(stage, stage.prompts, manifest["prompts"], set(), report, quick=quick)
    elif stage.prompts and not any(stage.prompts.glob("part-*.parquet")):
        report.problems.append(f"{stage.prompts} holds no prompts, though {stage.title} is complete. Restore "
                               "them, or let `warehouse repair` open the stage again.")
    if stage.name == "score":
        _check_scored_parts(warehouse, stage, report)
    if stage.name == "train":
        _check_trained_scores(warehouse, stage, manifest, report)
        written = stage.identity["iteration"] + 1
        if written not in warehouse.policy_versions():
            report.problems.append(f"{stage.title} is complete, but policy {written} is missing. "
                                   f"Restore it, or "
                                   f"remove {stage.folder} and train again.")


def _check_listed(stage: Stage, folder: Path, facts: list[dict[str, Any]], replaced: set[str],
                  report: Report, *, quick: bool) -> None:
    """The parts in one folder against those that the stage's manifest lists."""
    listed = {part["name"]: part for part in facts}
    present = {part.name: part for part in folder.glob("*-*.parquet")}
    for name in sorted(listed.keys() - present.keys()):
        report.problems.append(f"{folder / name} is missing, though the manifest of {stage.title} lists it. "
                               "Restore it, or let `warehouse repair` open the stage again.")
    for name in sorted(present.keys() - listed.keys()):
        if name in replaced:
            report.notes.append(f"{present[name]} was merged into another; run `warehouse compact` again.")
            continue
        report.problems.append(f"{present[name]} is not in the manifest of {stage.title}. Move it out of the "
                               "run.")
    for name in sorted(listed.keys() & present.keys()):
        part, one = present[name], listed[name]
        if part.stat().st_size != one["bytes"] or (not quick and sha256_of(part) != one["sha256"]):
            report.problems.append(f"{part} does not match its manifest ({'size' if quick else 'sha256'} "
                                   "differs). Restore it, or let `warehouse repair` open the stage again.")


def _check_trained_scores(warehouse: Warehouse, stage: Stage, manifest: dict[str, Any],
                          report: Report) -> None:
    """The scores that an iteration was trained on are there; unfinished ones are told as a stage."""
    iteration = stage.identity["iteration"]
    scorer = manifest["facts"].get("scorer") or (manifest.get("settings") or {}).get("scorer")
    if scorer is None or "rolled_back_to" in manifest["facts"]:
        return
    scores = warehouse.stage("score", iteration=iteration, purpose="train", scorer=scorer)
    if scores.is_complete() or scores.settings() is not None or any(scores.folder.glob("part-*.parquet")):
        return
    way_out = "Restore it from a copy of the run"
    if warehouse.stage("rollout", iteration=iteration, purpose="train").is_complete():
        way_out += f", or score again: score {warehouse.root} --iteration {iteration}"
    report.problems.append(f"{scores.folder} is missing, though {stage.title} was trained on its rewards. "
                           f"{way_out}.")


def _check_scored_parts(warehouse: Warehouse, stage: Stage, report: Report) -> None:
    """Part i of samples scores part i of completions."""
    keys = {"iteration": stage.identity["iteration"], "purpose": stage.identity["purpose"]}
    sampled = {part_number(part) for part in warehouse.parts("completions", **keys)}
    listed = warehouse.parts("samples", **stage.identity)
    scored = {part_number(part) for part in listed if part.exists()}
    if not sampled:
        folder = warehouse.folder("completions", **keys)
        report.problems.append(f"{folder} is missing, though {stage.title} is complete. Restore it from a "
                               "copy of the run; no stage can sample the same completions again.")
    elif sampled != scored:
        report.problems.append(f"{stage.title} has parts {sorted(scored)}, the completions have "
                               f"{sorted(sampled)}. "
                               f"Restore the missing ones, or remove {stage.folder} and score again.")


def footer_problems(warehouse: Warehouse, table: str, keys: dict[str, Any], part: Path) -> list[str]:
    """What is wrong with a part by its footer: it does not open, or is of another table, run or folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    try:
        file = pq.ParquetFile(part)
    except (pa.ArrowInvalid, OSError) as error:
        return [f"{part} is torn or not Parquet ({str(error).splitlines()[0]}). `warehouse repair` puts it "
                "aside."]
    version = (file.schema_arrow.metadata or {}).get(b"rollhouse.schema_version", b"").decode()
    if version and version != str(SCHEMA_VERSION):
        return [f"{part} has schema version {version}, this Rollhouse reads {SCHEMA_VERSION}. Use the "
                "version of Rollhouse that wrote it, or let `warehouse repair` put it aside."]
    names = list(stored_names(table).values())
    if file.schema_arrow.names != names:
        odd = sorted(set(file.schema_arrow.names) ^ set(names))
        return [f"{part} has other columns than {table}: {', '.join(odd)}. Restore the original."]
    problems = []
    owner = (file.schema_arrow.metadata or {}).get(b"rollhouse.run_id", b"").decode()
    if owner != warehouse.run_id:
        problems.append(f"{part} belongs to run {owner or '(none)'}, this one is {warehouse.run_id}. "
                        "Move it out of the run folder.")
    for key, value in keys.items():
        found = {_bound(file, group, key) for group in range(file.metadata.num_row_groups)} - {(None, None)}
        if found - {(value, value)}:
            problems.append(f"{part} lies in the folder of {key} {value} but holds {key} "
                            f"{sorted(found - {(value, value)})[0][0]}. Move it where it belongs.")
    return problems


def _bound(file: object, group: int, column: str) -> tuple[object, object]:
    """Least and greatest value of a column in one row group."""
    metadata = file.metadata.row_group(group)  # type: ignore[attr-defined]
    names = [metadata.column(index).path_in_schema for index in range(metadata.num_columns)]
    statistics = metadata.column(names.index(column)).statistics
    return (statistics.min, statistics.max) if statistics and statistics.has_min_max else (None, None)


def _check_rows(warehouse: Warehouse, readable: dict[Path, bool], report: Report) -> None:
    """The rows of every part that can be read."""
    from tqdm import tqdm
    checks = {"completions": completion_problems, "samples": sample_problems, "train_samples": train_problems,
              "prompts": prompt_problems}
    work = [entry for entry in _parts(warehouse) if entry[0] in checks and readable.get(entry[2])]
    for table, keys, part in tqdm(work, desc="rows", unit="part", leave=False, disable=None):
        try:
            report.problems += [f"{part}: {problem}" for problem in checks[table](warehouse, keys, part)]
        except StageError as error:
            report.problems.append(str(error))
