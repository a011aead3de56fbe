"""Parts that no manifest lists yet: each is read completely, once, before its stage seals it in."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from warehouse.store.checksums import FileState, file_state
from warehouse.store.errors import Damaged, StageError
from warehouse.store.parts import damaged_part, missing_part, part_metadata, part_number, read_groups
from warehouse.store.schema import arrow_schema

# The columns that hold a key of the stage under another name.
KEY_COLUMNS = {("train_samples", "iteration"): "trained_iteration",
               ("train_tokens", "iteration"): "trained_iteration", ("policy_logprobs", "scorer"): "model"}


def check_part(path: Path, table_name: str, owners: Sequence[str], keys: Mapping[str, Any]) -> None:
    """StageError unless a part of an unfinished stage is whole and the stage's own.

    Its page checksums are verified; its footer names one of `owners` and the table, its rows have the `keys`.
    """
    if path.is_file():
        _check_part(path, file_state(path), table_name, tuple(owners), tuple(keys.items()))
    else:       # opening a pipe would wait
        raise damaged_part(path, "it is not a file") if os.path.lexists(path) else missing_part(path)


@cache
def _check_part(path: Path, _state: FileState, table_name: str, owners: tuple[str, ...],
                keys: tuple[tuple[str, Any], ...]) -> None:
    facts = part_metadata(path)
    if (owner := facts.get("run_id", "")) not in owners:
        raise StageError(f"{path} belongs to run {owner or '(none)'}, this one is {owners[0]}. Move it "
                         "out of the run folder, then run the stage again.")
    if (table := facts.get("table", table_name)) != table_name:
        raise _misplaced(path, f"it holds rows of {table}")
    for rows in read_groups(path, table_name, arrow_schema(table_name).names):
        for key, value in keys:
            column = KEY_COLUMNS.get((table_name, key), key)
            if others := [other for other in pc.unique(rows[column]).to_pylist() if other != value]:
                raise _misplaced(path, f"its rows have {column} {others[0]} instead of {value}")


def _misplaced(path: Path, why: str) -> Damaged:
    return Damaged(path, why, f"is not a part of this stage ({why}). Let `warehouse check --fix` leave it "
                              "out, then run the stage again.")


def check_numbers(paths: list[Path], numbers: Iterable[int]) -> None:
    """StageError if a part is not one of `numbers`, or if one is missing."""
    wanted = set(numbers)
    present = {part_number(path): path for path in paths if not path.name.startswith("carried-")}
    for number in sorted(present.keys() - wanted):
        raise StageError(f"{present[number]} is not a part of this stage, which has {len(wanted)}. Move "
                         "it out of the run folder, then run the stage again.")
    for number in sorted(wanted - present.keys()):
        where = paths[0].parent if paths else "its folder"
        raise StageError(f"Part {number} of this stage vanished from {where}. Run the stage again.")
