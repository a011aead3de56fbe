"""Put aside what one iteration wrote, to make it again with other settings; nothing is deleted."""

import time
from pathlib import Path
from typing import Any

from warehouse.stages.carried import PURPOSE, carried_groups, taken_groups
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.intent import carry_out
from warehouse.store.names import is_training, turn_of
from warehouse.store.run_folder import Warehouse


def discard(warehouse: Warehouse, iteration: int, purpose: str | None) -> Path:
    """Move the prompts, completions and samples of a purpose to RUN/discarded/, or an unfinished training.

    `purpose` None is the training. StageError if a policy was trained from the rows, which are its record, or
    if later turns answer them, or a later iteration went on with what they left.
    """
    if purpose is not None:
        check_unanswered(warehouse, iteration, [purpose])
        _check_left(warehouse, iteration, purpose)
    training = warehouse.stage("train", iteration=iteration)
    folders = [] if purpose is None else folders_of(warehouse, iteration, purpose)
    if purpose is None or is_training(purpose) or purpose == warehouse.trained_purpose(iteration):
        if "rolled_back_to" in (training.manifest() or {}).get("facts", {}):
            raise StageError(f"Iteration {iteration} was left out of training by a rollback, and its rows "
                             "stay: they are the record of the policy that was given up.")
        if training.is_complete() or iteration + 1 in warehouse.policy_versions():
            raise StageError(f"Policy {iteration + 1} was trained in iteration {iteration}, so the rows "
                             f"stay. Go back with `warehouse rollback {shell_quote(warehouse.root)} --to "
                             f"{iteration}`, or start a new run.")
        folders.append(training.folder)  # last: rows that a training has begun with go before their record
    folders = [folder for folder in folders if folder.exists()]
    if not folders and warehouse.finished == "discard":
        return max((warehouse.root / "discarded").glob("*"), default=warehouse.root / "discarded")
    if not folders:
        raise StageError(f"Iteration {iteration} has nothing of that to discard. `warehouse summary` lists "
                         "what there is.")
    target = new_target(warehouse)
    carry_out(warehouse.root, "discard",
              [("move", folder, target / folder.relative_to(warehouse.root)) for folder in folders])
    return target


def folders_of(warehouse: Warehouse, iteration: int, purpose: str) -> list[Path]:
    """What the plan and the rows of a purpose lie in; they may not be there."""
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    return [warehouse.folder("prompts", **keys), warehouse.folder("completions", **keys),
            warehouse.folder("samples", **keys, scorer="all").parent]


def new_target(warehouse: Warehouse, place: str = "discarded") -> Path:
    """A folder of RUN/discarded, or of another place, that is not there yet."""
    stamp = f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.gmtime())}-{time.time_ns() % 1_000_000:06d}"
    return warehouse.root / place / stamp


def check_unanswered(warehouse: Warehouse, iteration: int, purposes: list[str]) -> None:
    """StageError if the plan of a later turn stands on rows of these rollouts, and is none of them itself."""
    gone = {(iteration, purpose) for purpose in purposes}
    waves = [(number, wave) for number in warehouse.iterations("completions")
             for wave in warehouse.purposes("completions", number) if turn_of(wave) > 1]
    for number, wave in (each for each in waves if each not in gone):
        parents = warehouse.read("prompts", ["parent_iteration", "parent_purpose"], iteration=number,
                                 purpose=wave).to_pylist()
        if gone & {(row["parent_iteration"], row["parent_purpose"]) for row in parents}:
            raise StageError(f"{wave} of iteration {number} answers completions of iteration {iteration}. "
                             f"Put that aside first: `warehouse discard "
                             f"{shell_quote(warehouse.root)} --iteration "
                             f"{number} --purpose {wave}`.")


def _check_left(warehouse: Warehouse, iteration: int, purpose: str) -> None:
    """StageError if a later iteration goes on with groups that this rollout carried over."""
    if purpose != PURPOSE or not (carried := set(carried_groups(warehouse, iteration))):
        return
    for group, number in taken_groups(warehouse, iteration).items():
        if group in carried:
            raise StageError(f"Iteration {number} goes on with groups that it carried over. Put that aside "
                             f"first: `warehouse discard {shell_quote(warehouse.root)} --iteration {number} "
                             f"--purpose {PURPOSE}`.")
