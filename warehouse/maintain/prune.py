"""Drop token columns of old iterations; every scalar, text and score stays."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from warehouse.ledger.entries import WeightsDropped
from warehouse.ledger.state import RunState
from warehouse.maintain.rewrite import NewGeneration, rewriting, verify_all
from warehouse.store.commit import ensure_local, file_names, remove_file, remove_folder
from warehouse.store.errors import counted
from warehouse.store.parts import part_metadata, read_parts, stored_bytes, write_part
from warehouse.store.run_folder import TABLES_OF, Warehouse

UNDER_WAY_SECONDS = 3600        # a command may be writing a generation that the log does not name yet
DROPPED = {"completions": ("completion_ids", "behaviour_logprobs", "support_ids"), "prompts": ("prompt_ids",),
           "carried": ("completion_ids", "behaviour_logprobs", "support_ids"),
           "policy_logprobs": ("logprobs", "entropies"),
           "train_samples": ("old_logprobs",), "train_tokens": ("log_drift", "clipped")}


def prune_run(warehouse: Warehouse, before: int, *, dry_run: bool) -> str:
    """Null the token columns of iterations before `before`, or with `dry_run` nothing; the line to print.

    These iterations cannot be trained on again; Refusal while something may need them. Each iteration
    is pruned by one entry of the log.
    """
    from tqdm import tqdm
    warehouse.state.check_prune(before)
    iterations = [number for number in warehouse.state.iterations("rollout") if number < before]
    num_parts = size = after = shared = 0
    for number in tqdm(iterations, desc="prune", unit="iteration", leave=False, disable=None):
        lives = [life for stage in warehouse.stages(number)
                 if (life := stage.life) and life.is_complete and not life.pruned]
        if all(life.stage == "score" for life in lives):
            continue
        with rewriting(warehouse, "pruned", lives) as new:
            verify_all(warehouse, lives)
            for life in lives:
                parts = [(table, part) for table in TABLES_OF[life.stage] if table in DROPPED
                         for part in warehouse.parts(table, **life.identity)]
                ensure_local(part for _, part in parts)
                num_parts += len(parts)
                size += stored_bytes(part for _, part in parts)
                shared += stored_bytes(part for _, part in parts if part.stat().st_nlink > 1)
                if parts and not dry_run:
                    new.append(NewGeneration.of(warehouse, life, "pruned"))
                    after += _prune(new[-1], parts)
    if not num_parts:
        return f"There is nothing to prune before iteration {before}."
    what, stay = counted(num_parts, "part"), staying(shared)
    if not dry_run:
        return f"{what} pruned, {size / 1e6:.1f} MB to {after / 1e6:.1f} MB{stay}"
    return (f"{what} of {counted(len(iterations), 'iteration')}, {size / 1e6:.1f} MB, would lose their "
            f"tokens and could not be trained on again. Run it with --yes to do it{stay}.")


def staying(shared: int) -> str:
    """The bytes that stay where branches or arms share the files, as the end of a sentence."""
    return f"; {shared / 1e6:.1f} MB stay, because branches or arms share them" if shared else ""


def _prune(new: NewGeneration, parts: list[tuple[str, Path]]) -> int:
    """Write a stage's parts without tokens into its new generation; return the new bytes."""
    manifest = new.warehouse.stage_of(new.life).manifest() or {}
    new.adopt(manifest, without=[part for _, part in parts])
    num_bytes = 0
    for table, part in parts:
        path = new.new_path(part)
        _write_without_tokens(new.warehouse, table, part, path)
        num_bytes += path.stat().st_size
    new.write_manifest(manifest, pruned=True)
    new.facts["pruned"] = True
    return num_bytes


def _write_without_tokens(warehouse: Warehouse, table: str, part: Path, path: Path) -> None:
    rows = read_parts([part], table)
    for column in DROPPED[table]:
        field = rows.schema.field(column)
        nothing = pa.nulls(rows.num_rows, field.type)
        rows = rows.set_column(rows.schema.get_field_index(column), field, nothing)
    merged = {key: value for key, value in part_metadata(part).items() if key == "merged"}
    write_part(path, table, rows, {"run_id": warehouse.run_id, "part_uuid": uuid.uuid4().hex, **merged})


def prune_ended(warehouse: Warehouse, *, dry_run: bool) -> str:
    """Remove folders, at least an hour old, of generations that no longer count; return the line to print."""
    from warehouse.maintain.check import folders_that_count
    warehouse.log.check_whole("*")      # without its end the log calls what counts ended
    counts = folders_that_count(warehouse)
    ended = [folder for folder in warehouse.root.rglob("generation=*") if folder not in counts]
    folders = [folder for folder in ended if time.time() - folder.stat().st_mtime > UNDER_WAY_SECONDS]
    files = [path for folder in counts if folder.name.startswith("generation=") and "=" in folder.parent.name
             for path in folder.parent.glob("*") if path.is_file()]         # an old run without generations
    size = stored_bytes([*files, *(path for place in folders for path in place.rglob("*") if path.is_file())])
    for folder in folders if not dry_run else []:
        remove_folder(folder)
    for path in files if not dry_run else []:
        remove_file(path)
    what = f"{counted(len(folders), 'generation')} that no longer count, {size / 1e6:.1f} MB"
    young = len(ended) - len(folders)
    stay = f"; {young} younger than an hour {'stays' if young == 1 else 'stay'}" if young else ""
    return f"{what}: removed{stay}" if not dry_run else (
        f"{what}, would be removed{stay}. Run it with --yes to do it.")


def unkept(state: RunState, keep: int) -> list[int]:
    """Policies with weights of their own that are neither the base nor what one of the last `keep` has."""
    kept = {policy.folder for version, policy in state.policies.items()
            if not version or version > state.newest - keep}
    return [version for version, policy in state.policies.items()
            if policy.folder not in kept and not policy.dropped]


def policy_bytes(warehouse: Warehouse, versions: list[int]) -> tuple[int, int]:
    """The bytes of policies' files, and those of them that branches or arms share."""
    folders = {warehouse.policy_dir(version) for version in versions}      # a rollback shares one
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    shared = [path for path in files if path.stat().st_nlink > 1]
    return stored_bytes(files), stored_bytes(shared)


def prune_policies(warehouse: Warehouse, keep: int | None,
                   say: Callable[[str], None] = lambda _line: None) -> None:
    """Remove weights and optimizer of all policies but the last `keep` and the base; policy.json stays.

    None keeps all. Rows of a pruned policy can still be trained on, but the policy cannot sample again. `say`
    gets a line that names them.
    """
    gone: list[int] = []

    def drop(state: RunState) -> WeightsDropped | None:
        gone[:] = unkept(state, keep) if keep else []
        return WeightsDropped([*gone]) if gone else None

    warehouse.append(drop)
    for version, policy in warehouse.state.policies.items() if keep else []:
        folder = warehouse.policy_dir(version)
        for name in file_names(folder, "*") if policy.dropped else []:
            if name != "policy.json":
                remove_file(folder / name)
    if gone:
        names = f"{'policy' if len(gone) == 1 else 'policies'} {', '.join(map(str, gone))}"
        say(f"removed the weights of {names} (keep-policies {keep})")
