"""Go back to an earlier policy: the next iteration samples from it; no row and no policy is deleted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from warehouse.store.commit import commit_directory
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse


def roll_back(warehouse: Warehouse, to: int) -> list[str]:
    """Make the weights of policy `to` the newest policy; the lines to print come back.

    If nothing was sampled from the newest policy, its folder is set aside under another name and its
    version is given to a copy of `to`. Otherwise its iteration stays as it is, untrained, and the copy
    becomes the next version.
    """
    versions = warehouse.policy_versions()
    if to not in versions:
        raise StageError(f"There is no policy {to}; there are {_ranges(versions)}. Name one of those "
                         f"with --to.")
    newest = max(versions)
    if to == newest:
        raise StageError(f"Policy {to} is the newest one already: there is nothing to go back from.")
    chosen = warehouse.policy(to)
    sampled = newest in warehouse.iterations("completions")
    if not sampled and warehouse.policy(newest).get("rolled_back_to") == to:
        return [f"policy {newest} has the weights of policy {to} already; nothing is changed",
                f"next: rollout {warehouse.root} --iteration {newest}"]
    if sampled:
        version = newest + 1
        _skip_training(warehouse, newest, to)
        said = f"iteration {newest} stays as it is and is not trained on"
    else:
        version = newest
        aside = _free_name(warehouse.policy_dir(newest))
        os.rename(warehouse.policy_dir(newest), aside)
        said = f"the former policy {newest} is kept in {aside.name}"
    folder = warehouse.scratch(f"policy-{version}")
    for file in warehouse.policy_dir(to).iterdir():
        if file.is_file() and file.name != "policy.json":
            shutil.copy2(file, folder / file.name)
    facts = {**chosen, "policy_version": version, "parent": to, "parent_sha256": chosen.get("sha256"),
             "rolled_back_to": to}
    (folder / "policy.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
    committed = commit_directory(folder, warehouse.policy_dir(version))
    assert committed, "another process wrote the policy meanwhile"
    return [f"policy {version} now has the weights of policy {to}; {said}",
            f"next: rollout {warehouse.root} --iteration {version}"]


def _skip_training(warehouse: Warehouse, iteration: int, to: int) -> None:
    """Mark the training of an iteration as left out, unless it has begun or is done."""
    stage = warehouse.stage("train", iteration=iteration)
    if stage.manifest() is None:
        if stage.settings() is not None:
            raise StageError(f"{stage.title} has begun. Finish it, or remove {stage.folder}; then roll back.")
        stage.complete({"rolled_back_to": to, "seconds": 0.0})


def _free_name(folder: Path) -> Path:
    numbers = (folder.with_name(f"{folder.name}.set-aside-{number}") for number in range(1, 1000))
    return next(path for path in numbers if not path.exists())


def _ranges(versions: list[int]) -> str:
    return f"{versions[0]} to {versions[-1]}" if versions else "none"
