"""Go back to an earlier policy: the next iteration samples from it; no row and no policy is deleted."""

import shutil
from pathlib import Path

from warehouse.maintain.discard import check_unanswered, folders_of, new_target
from warehouse.stages.due import is_sampled
from warehouse.store.commit import flush_folder, saying_why
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.intent import Step, carry_out
from warehouse.store.json_files import json_bytes
from warehouse.store.run_folder import Warehouse


def roll_back(warehouse: Warehouse, to: int) -> list[str]:
    """Make the weights of policy `to` the newest policy; the lines to print come back.

    If nothing was sampled from the newest policy, its folder is set aside under another name and its
    version is given to a copy of `to`. Otherwise its iteration stays as it is, untrained, and the copy
    becomes the next version; what the newest policy has sampled ahead of that is discarded.
    """
    versions = warehouse.policy_versions()
    if to not in versions:
        raise StageError(f"There is no policy {to}; there are {versions[0]} to {versions[-1]}. Name one of "
                         "those with --to.")
    newest = max(versions)
    if to == newest:
        raise StageError(f"Policy {to} is the newest one already: there is nothing to go back from.")
    sampled = is_sampled(warehouse, newest)
    if warehouse.policy(newest).get("rolled_back_to") == to and not sampled:
        return [f"policy {newest} has the weights of policy {to} already; nothing is changed",
                f"next: rollout {shell_quote(warehouse.root)} --iteration {newest}"]
    _check_trained(warehouse, newest)
    warehouse.verify_policy(to)
    if sampled:
        version, steps = newest + 1, _skip_training(warehouse, newest, to)
        said = f"iteration {newest} stays as it is and is not trained on"
        target, ahead = new_target(warehouse), _sampled(warehouse, version)
        steps += [("move", folder, target / folder.relative_to(warehouse.root)) for folder in ahead]
        if ahead:
            said += f"; what was sampled ahead of iteration {version} is kept in {target}"
    else:
        aside = _free_name(warehouse.policy_dir(newest))
        version, steps = newest, [("move", warehouse.policy_dir(newest), aside)]
        said = f"the former policy {newest} is kept in {aside.name}"
    chosen = warehouse.policy(to)
    facts = {**chosen, "policy_version": version, "parent": to, "parent_sha256": chosen.get("sha256"),
             "rolled_back_to": to}
    if steps_taken := warehouse.policy(newest).get("global_step"):
        facts["global_step"] = steps_taken      # the run's, which counts on
    copied = warehouse.scratch(f"policy-{version}")
    with saying_why(copied):
        for file in warehouse.policy_dir(to).iterdir():
            if file.is_file() and file.name != "policy.json":
                shutil.copy2(file, copied / file.name)
        (copied / "policy.json").write_bytes(json_bytes(facts))
        flush_folder(copied)
    carry_out(warehouse.root, "rollback", [*steps, ("move", copied, warehouse.policy_dir(version))])
    return [f"policy {version} now has the weights of policy {to}; {said}",
            f"next: rollout {shell_quote(warehouse.root)} --iteration {version}"]


def _check_trained(warehouse: Warehouse, version: int) -> None:
    """StageError where the training that wrote a policy was killed before its end: none could finish it."""
    training = warehouse.stage("train", iteration=version - 1)
    if training.settings() is not None and not training.is_complete():
        raise StageError(f"{training.title} wrote policy {version} and was stopped before its end. Run "
                         f"`train {shell_quote(warehouse.root)}` again, which finishes it; then roll back.")


def _sampled(warehouse: Warehouse, iteration: int) -> list[Path]:
    """What there is of an iteration's rollouts to train on; StageError where an evaluation answers them."""
    purposes = sorted({*warehouse.turns(iteration, table="prompts"), *warehouse.turns(iteration)})
    check_unanswered(warehouse, iteration, purposes)
    return [folder for purpose in purposes for folder in folders_of(warehouse, iteration, purpose)
            if folder.exists()]


def _skip_training(warehouse: Warehouse, iteration: int, to: int) -> list[Step]:
    """Mark the training of an iteration as left out, unless it has begun or is done."""
    stage = warehouse.stage("train", iteration=iteration)
    if stage.is_complete():
        return []
    if stage.settings() is not None:
        raise StageError(f"{stage.title} has begun. Finish it, or remove {stage.folder}; then roll back.")
    manifest = stage.facts_to_store({"rolled_back_to": to, "seconds": 0.0})
    return [("write", stage.folder / "manifest.json", json_bytes(manifest).decode())]


def _free_name(folder: Path) -> Path:
    numbers = (folder.with_name(f"{folder.name}.set-aside-{number}") for number in range(1, 1000))
    return next(path for path in numbers if not path.exists())
