"""Drop token columns of old iterations; every scalar, text and score stays."""

import datetime
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warehouse.stages.carried import waiting_groups
from warehouse.stages.due import waiting_iterations
from warehouse.store.checksums import part_facts
from warehouse.store.commit import ensure_local, file_names
from warehouse.store.errors import StageError
from warehouse.store.intent import Step, carry_out
from warehouse.store.json_files import json_bytes
from warehouse.store.parts import part_metadata, read_parts, write_part
from warehouse.store.run_folder import Warehouse
from warehouse.store.stage import Stage

DROPPED = {"completions": ("completion_ids", "behaviour_logprobs", "support_ids"), "prompts": ("prompt_ids",),
           "carried": ("completion_ids", "behaviour_logprobs", "support_ids"),
           "train_samples": ("old_logprobs",), "train_tokens": ("log_drift", "clipped")}


class Pruned(NamedTuple):
    """What was pruned, or would be: iterations, parts, bytes before and after."""

    iterations: list[int]
    num_parts: int
    bytes_before: int
    bytes_after: int


def prune_run(warehouse: Warehouse, before: int, *, dry_run: bool) -> Pruned:
    """Null the token columns of iterations before `before`; with `dry_run` only say what would go.

    Nothing can be trained on those iterations again. Each iteration is pruned in one change and has a line in
    RUN/pruned.jsonl.
    """
    from tqdm import tqdm
    iterations = [number for number in warehouse.iterations("completions") if number < before]
    unfinished = [number for number in iterations
                  if not warehouse.stage("train", iteration=number).is_complete()]
    if unfinished:
        raise StageError(f"Iteration {unfinished[0]} is not trained yet and needs its tokens. Train it first"
                         f"{_or_before(unfinished[0])}.")
    needed = waiting_groups(warehouse, before, complete=True)
    if needed:
        raise StageError(f"Groups that iteration {min(needed)} carried over are not whole yet, and need its "
                         f"tokens. Let a `rollout` finish them first{_or_before(min(needed))}.")
    if waiting := [number for number in waiting_iterations(warehouse, warehouse.policy_versions()[-1])
                   if number < before]:
        raise StageError(f"Iteration {waiting[0]} waits to be trained on with the next one, and needs "
                         f"its tokens. Let `train` take it first{_or_before(waiting[0])}.")
    num_parts = size = after = 0
    for number in tqdm(iterations, desc="prune", unit="iteration", leave=False, disable=None):
        work = [(table, part) for stage in _stages(warehouse, number)
                for table, part in _parts(warehouse, stage) if _tokens(table, part)[0]]
        num_parts += len(work)
        size += sum(part.stat().st_size for _, part in work)
        if dry_run:
            after += sum(part.stat().st_size - _tokens(table, part)[1] for table, part in work)
        elif work:
            after += _prune(warehouse, number, before, work)
    return Pruned(iterations, num_parts, size, after)


def _or_before(iteration: int) -> str:
    return f", or prune with --before {iteration}" if iteration else ""


def _stages(warehouse: Warehouse, iteration: int) -> list[Stage]:
    """Stages that wrote tokens of an iteration."""
    rollouts = [warehouse.stage("rollout", iteration=iteration, purpose=purpose)
                for purpose in warehouse.purposes("completions", iteration)]
    return [*rollouts, warehouse.stage("train", iteration=iteration)]


def _parts(warehouse: Warehouse, stage: Stage) -> Iterator[tuple[str, Path]]:
    for table in ("train_samples", "train_tokens") if stage.name == "train" else (
            "completions", "carried", "prompts"):
        parts = warehouse.parts(table, **stage.identity)
        ensure_local(parts)
        yield from ((table, part) for part in parts)


def _prune(warehouse: Warehouse, iteration: int, before: int, work: list[tuple[str, Path]]) -> int:
    """Write the parts of one iteration without tokens, then exchange all of them; their bytes after it."""
    scratch, new = warehouse.scratch("prune"), {}
    for index, (table, part) in enumerate(work):
        new[part] = scratch / f"{index}-{part.name}"
        _write_without_tokens(warehouse, table, part, new[part])
    sizes = [sum(path.stat().st_size for path in paths) for paths in (new, new.values())]
    done = Pruned([iteration], len(work), *sizes)
    log = warehouse.root / "pruned.jsonl"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = json.dumps({"at": now, "before": before, **done._asdict()})
    former = log.read_text(encoding="utf-8") if log.exists() else ""
    steps: list[Step] = [("replace", part, path) for part, path in new.items()]
    for stage in _stages(warehouse, iteration):
        manifest = stage.manifest()
        if manifest and any(part.parent in (stage.folder, stage.prompts) for part in new):
            text = json_bytes({**manifest, "pruned": True, **_listed_again(stage, manifest, new)}).decode()
            copies = sorted(stage.folder.glob("compacted-*.json"))[-1:]
            steps += [("write", path, text) for path in (*copies, stage.folder / "manifest.json")]
    carry_out(warehouse.root, "prune", [*steps, ("write", log, f"{former}{line}\n"), ("remove", scratch, "")])
    return done.bytes_after


def _write_without_tokens(warehouse: Warehouse, table: str, part: Path, path: Path) -> None:
    import pyarrow as pa
    rows = read_parts([part], table)
    for column in DROPPED[table]:
        field = rows.schema.field(column)
        nothing = pa.nulls(rows.num_rows, field.type)
        rows = rows.set_column(rows.schema.get_field_index(column), field, nothing)
    write_part(path, table, rows, {"run_id": warehouse.run_id, "part_uuid": uuid.uuid4().hex})


def _tokens(table: str, part: Path) -> tuple[int, int]:
    """How many tokens the dropped columns of a part hold, and in how many bytes, from its footer."""
    import pyarrow.parquet as pq
    part_metadata(part)                                # which says what is wrong with a damaged part
    metadata = pq.read_metadata(part)
    count = num_bytes = 0
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if chunk.path_in_schema.split(".")[0] in DROPPED[table]:
                held = chunk.statistics
                count += held.num_values if held is not None else chunk.num_values
                num_bytes += chunk.total_compressed_size
    return count, num_bytes


def _listed_again(stage: Stage, manifest: dict[str, Any], new: dict[Path, Path]) -> dict[str, list[Any]]:
    """What the manifest says of parts that are exchanged."""
    folders = {"parts": stage.folder, **({"prompts": stage.prompts} if stage.prompts else {})}
    return {key: [{**part_facts(new[folder / part["name"]]), "name": part["name"]}
                  if folder / part["name"] in new else part for part in manifest[key]]
            for key, folder in folders.items() if key in manifest}


def prune_policies(warehouse: Warehouse, keep: int | None) -> None:
    """Remove weights and optimizer of all policies but the last `keep` and the base; policy.json stays.

    None keeps all. Rows of a pruned policy can still be trained on, but no more be sampled.
    """
    folders = [warehouse.policy_dir(version) for version in warehouse.policy_versions()[:-keep] if version
               ] if keep else []
    steps: list[Step] = [("remove", folder / name, "") for folder in folders
                         for name in file_names(folder, "*") if name != "policy.json"]
    if steps:  # all files of a policy, or none: half of them would pass for damage
        carry_out(warehouse.root, "train --keep-policies", steps)
