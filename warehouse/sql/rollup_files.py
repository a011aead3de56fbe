"""The rollup's files: small tables per group, task and iteration, and the stages they were made from."""

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from warehouse.ledger.state import Choice
from warehouse.store.checksums import part_damage
from warehouse.store.errors import StageError
from warehouse.store.json_files import read_json
from warehouse.store.run_folder import Warehouse

ROLLED = ("groups", "task_results", "rolled_mismatch", "iteration_stats")  # each made from those before it
FOLDER = "iterations"


class Rollup(NamedTuple):
    """One written rollup: its folder, and the stages it holds."""

    folder: Path
    scored: set[tuple[int, str]]
    trained: set[int]


def definitions() -> str:
    """A name for the meaning of a rollup's columns: a rollup made by other SQL is ignored."""
    return hashlib.sha256(measures_text().encode()).hexdigest()[:8]


def measures_text() -> str:
    return files("warehouse.sql.texts").joinpath("measures.sql").read_text(encoding="utf-8")


def rollup_keys(warehouse: Warehouse, choices: list[Choice]) -> list[list[object]]:
    """The stages that a rollup of everything complete would hold: each chosen score with its training.

    A training iteration is settled once it is trained; before, its row would lack the mismatch.
    """
    return [[choice.iteration, choice.purpose, choice.scorer, choice.version]
            for choice in choices if choice.chosen and (
                choice.purpose != "train" or warehouse.state.is_trained(choice.iteration))]


def valid_rollup(warehouse: Warehouse, choices: list[Choice]) -> Rollup | None:
    """The newest rollup with only stages that still count; None if there is none."""
    documents = sorted(warehouse.root.glob(f"{FOLDER}/rollup-{definitions()}-*/rollup.json"),
                       key=lambda path: path.stat().st_mtime_ns, reverse=True)
    if not documents:
        return None
    current = {tuple(key) for key in rollup_keys(warehouse, choices)}
    for document in documents:
        try:
            written = read_json(document, stages=list, files=list) or {"stages": [None]}
        except StageError:
            continue  # damaged, or of version 0.2.0: made again
        keys = written["stages"]
        if all(isinstance(key, list) and tuple(key) in current for key in keys) and not any(
                part_damage(document.parent / str(facts["name"]), facts) for facts in written["files"]):
            return Rollup(document.parent, {(key[0], key[1]) for key in keys},
                          {key[0] for key in keys if key[1] == "train"})
    return None
