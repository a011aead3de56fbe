"""Which iteration a stage has to work on next, and whether a named one is in order."""

from __future__ import annotations

from warehouse.errors import StageError
from warehouse.store import Warehouse


def rollout_due(warehouse: Warehouse) -> int:
    """The lowest iteration whose training rollout is not complete; its policy must exist."""
    iteration = 0
    while warehouse.stage("rollout", iteration=iteration, purpose="train").manifest():
        iteration += 1
    return iteration


def train_due(warehouse: Warehouse) -> int:
    """The lowest iteration that is not trained."""
    iteration = 0
    while warehouse.stage("train", iteration=iteration).manifest():
        iteration += 1
    return iteration


def rollouts_to_score(warehouse: Warehouse, scorer: str, iteration: int | None = None,
                      purpose: str | None = None) -> list[tuple[int, str]]:
    """Complete rollouts that `scorer` has not completed, as (iteration, purpose).

    With an iteration named, StageError if it has no complete rollout.
    """
    iterations = warehouse.iterations("completions") if iteration is None else [iteration]
    due, complete = [], 0
    for number in iterations:
        for name in warehouse.purposes("completions", number):
            rollout = warehouse.stage("rollout", iteration=number, purpose=name)
            if purpose in (None, name) and rollout.manifest():
                complete += 1
                if scorer not in warehouse.scorers(number, name):
                    due.append((number, name))
    if iteration is not None and not complete:
        which = f" (purpose {purpose})" if purpose else ""
        raise StageError(f"Iteration {iteration}{which} has no complete rollout to score. "
                         f"Run `rollout {warehouse.root} --iteration {iteration}` first.")
    return due
