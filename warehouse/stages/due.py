"""Which iteration a stage has to work on next, and whether a named iteration is in order."""

import contextlib

from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import is_of, is_training, turn_purpose
from warehouse.store.run_folder import Warehouse


def rollout_due(warehouse: Warehouse) -> int:
    """The lowest iteration without a complete training rollout that is not trained (on what another model
    said); the last complete one if it must be trained first, for there is no policy to go on with."""
    iteration, versions = 0, warehouse.policy_versions()
    while iteration + 1 in versions and (
            warehouse.stage("rollout", iteration=iteration, purpose="train").is_complete()
            or warehouse.stage("train", iteration=iteration).is_complete()):
        iteration += 1
    return iteration


def turn_due(warehouse: Warehouse, base: str, turn: int) -> int:
    """The newest iteration whose turn before this one is complete; StageError if there is none."""
    before = turn_purpose(base, turn - 1)
    complete = [number for number in warehouse.iterations("completions")
                if warehouse.stage("rollout", iteration=number, purpose=before).is_complete()]
    if not complete:
        raise StageError(f"{warehouse.root} has no complete rollout of purpose {before} to answer. Run "
                         "`rollout` and `score` for it first.")
    return complete[-1]


def train_due(warehouse: Warehouse) -> int:
    """The lowest iteration that is not trained."""
    iteration = 0
    while warehouse.stage("train", iteration=iteration).is_complete():
        iteration += 1
    return iteration


def waiting_iterations(warehouse: Warehouse, iteration: int) -> list[int]:
    """The iterations right before that passed their policy on unchanged to gather more groups.

    What lies before a rollback waits no longer: the policy that was taken up again may have waited itself.
    """
    first = iteration
    while (policy := warehouse.policy(first) if first else {}).get("facts", {}).get("waiting") and (
            policy.get("rolled_back_to") is None):
        first -= 1
    return list(range(first, iteration))


def is_left_out(warehouse: Warehouse, iteration: int) -> bool:
    """Whether its training is over without its rows: a rollback left it out, or it took another model's."""
    manifest = warehouse.stage("train", iteration=iteration).manifest() or {}
    return "rolled_back_to" in manifest.get("facts", {}) or (manifest.get("settings") or {}).get(
        "purpose", "train") != "train"


def is_sampled(warehouse: Warehouse, version: int) -> bool:
    """Whether there are rows of a policy, of whatever iteration; settings that are damaged tell of none."""
    for iteration in warehouse.iterations("completions"):
        for purpose in warehouse.purposes("completions", iteration):
            with contextlib.suppress(StageError):
                rollout = warehouse.stage("rollout", iteration=iteration, purpose=purpose)
                if iteration == version or (rollout.settings() or {}).get("policy_version") == version:
                    return True
    return False


def given_up_iterations(warehouse: Warehouse, iteration: int) -> set[int]:
    """The iterations before that a rollback left behind, of policies that its own does not come from."""
    left_behind, version, versions = set[int](), iteration, {*warehouse.policy_versions()}
    while version > 0:
        to = warehouse.policy(version).get("rolled_back_to") if version in versions else None
        left_behind.update(range(version if to is None else to + 1, version))
        version = version - 1 if to is None else to
    return left_behind


def rollouts_to_score(warehouse: Warehouse, scorer: str, iteration: int | None = None,
                      purpose: str | None = None) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Rollouts that `scorer` has not completed, as (iteration, purpose), and those of them that were pruned.

    One under way is due while it has parts that are not scored, unless its training was left out: it stays as
    it is. With an iteration named, StageError if it has nothing to score.
    """
    iterations = warehouse.iterations("completions") if iteration is None else [iteration]
    due: list[tuple[int, str]] = []
    pruned: list[tuple[int, str]] = []
    known = 0
    for number in iterations:
        for name in warehouse.purposes("completions", number):
            if not is_of(name, purpose):
                continue
            rollout = warehouse.stage("rollout", iteration=number, purpose=name)
            complete = rollout.is_complete()
            parts = warehouse.parts("completions", iteration=number, purpose=name)
            known += bool(complete or parts)
            scored = warehouse.parts("samples", iteration=number, purpose=name, scorer=scorer)
            under_way = parts if iteration is not None else len(parts) > len(scored) and not (
                is_training(name) and is_left_out(warehouse, number))
            if scorer not in warehouse.scorers(number, name) and (complete or under_way):
                gone = (rollout.manifest() or {}).get("pruned", False)
                (pruned if gone else due).append((number, name))
    if iteration is not None and not known:
        which = f" (purpose {purpose})" if purpose else ""
        raise StageError(f"Iteration {iteration}{which} has no complete rollout to score. "
                         f"Run `rollout {shell_quote(warehouse.root)} --iteration {iteration}` first.")
    return due, pruned
