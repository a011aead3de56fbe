"""Which files make up each table now: parts of complete stages, and what the rollup already holds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from warehouse.sql.rollup_files import Rollup, valid_rollup
from warehouse.store.chosen_scorer import Choice, scorer_choices
from warehouse.store.run_folder import Warehouse

TABLES = ("tasks", "prompts", "completions", "all_samples", "samples", "fresh_samples", "train_samples",
          "fresh_train_samples", "train_steps")


class Inventory(NamedTuple):
    """The state of a run that its SQL is made from."""

    parts: dict[str, list[Path]]
    choices: list[Choice]
    rollup: Rollup | None
    manifests: list[Path]
    policies: list[Path]

    @property
    def first_iterations(self) -> list[int]:
        """Training iterations that are scored, in order."""
        return sorted(
            choice.iteration for choice in self.choices if choice.chosen and choice.purpose == "train"
        )


def empty_inventory() -> Inventory:
    """A run without any file."""
    return Inventory({name: [] for name in TABLES}, [], None, [], [])


def take_inventory(warehouse: Warehouse, *, partial: bool = False) -> Inventory:
    """What is complete now; with `partial` the parts of unfinished stages too, and no rollup."""
    choices = scorer_choices(warehouse)
    rollup = None if partial else valid_rollup(warehouse, choices)
    parts: dict[str, list[Path]] = {name: [] for name in TABLES}
    parts["tasks"] = warehouse.parts("tasks")
    for iteration in warehouse.iterations("completions"):
        for purpose in warehouse.purposes("completions", iteration):
            if partial or warehouse.stage("rollout", iteration=iteration, purpose=purpose).is_complete():
                for table in ("prompts", "completions"):
                    parts[table] += warehouse.parts(table, iteration=iteration, purpose=purpose)
    _add_samples(warehouse, choices, rollup, parts, partial)
    for iteration in warehouse.iterations("train_steps"):
        if partial or warehouse.stage("train", iteration=iteration).is_complete():
            found = warehouse.parts("train_samples", iteration=iteration)
            parts["train_samples"] += found
            parts["fresh_train_samples"] += [] if rollup and iteration in rollup.trained else found
            parts["train_steps"] += warehouse.parts("train_steps", iteration=iteration)
    return Inventory(parts, choices, rollup, _manifests(warehouse), [
        warehouse.policy_dir(version) / "policy.json" for version in warehouse.policy_versions()])


def _add_samples(warehouse: Warehouse, choices: list[Choice], rollup: Rollup | None,
                 parts: dict[str, list[Path]], partial: bool) -> None:
    """Fill all_samples, samples and fresh_samples."""
    for choice in choices:
        found = warehouse.parts("samples", iteration=choice.iteration, purpose=choice.purpose,
                                scorer=choice.scorer)
        parts["all_samples"] += found
        if choice.chosen:
            parts["samples"] += found
            if not rollup or (choice.iteration, choice.purpose) not in rollup.scored:
                parts["fresh_samples"] += found
    if partial:
        unfinished = _unfinished_scores(warehouse)
        chosen = {path.parents[1] for path in parts["samples"]}
        alone = [path for path in unfinished if path.parents[1] not in chosen]
        parts["all_samples"] += unfinished
        parts["samples"] += alone
        parts["fresh_samples"] += alone


def _unfinished_scores(warehouse: Warehouse) -> list[Path]:
    folders = warehouse.root.glob("samples/iteration=*/purpose=*/scorer=*")
    return [path for folder in sorted(folders) if not (folder / "manifest.json").exists()
            for path in sorted(folder.glob("part-*.parquet"))]


def _manifests(warehouse: Warehouse) -> list[Path]:
    """Manifests of all complete stages."""
    return sorted([*warehouse.root.glob("completions/iteration=*/purpose=*/manifest.json"),
                   *warehouse.root.glob("samples/iteration=*/purpose=*/scorer=*/manifest.json"),
                   *warehouse.root.glob("train/iteration=*/manifest.json")])
