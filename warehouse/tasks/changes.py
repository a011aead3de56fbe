"""What was done to the tasks of a run since it was made: tasks/change-*.json."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from warehouse.store.json_files import read_json


def task_changes(root: Path) -> list[dict[str, Any]]:
    """The changes in order: each adds tasks, or puts payloads in the place of others."""
    paths = sorted((root / "tasks").glob("change-*.json"))
    return [change for path in paths if (change := read_json(path, at=str)) is not None]


def replaced_payloads(root: Path) -> dict[str, str]:
    """For every task that was replaced, the hash of what it expects now."""
    return {name: facts["payload_sha256"] for change in task_changes(root)
            for name, facts in change.get("replaced", {}).items()}


def split_of_eval(root: Path, tasks: Iterable[Mapping[str, Any]]) -> str | None:
    """The held-out split whose evaluations are `eval`: the first of the run, unless it got several at once.

    So a curve goes on when another split is added. `tasks` have task_id, split and heldout.
    """
    added = {task_id: number for number, change in enumerate(task_changes(root), start=1)
             for task_id in change.get("added", [])}
    splits: dict[int, set[str]] = {}
    for task in tasks:
        if task["heldout"]:
            splits.setdefault(added.get(task["task_id"], 0), set()).add(task["split"])
    first = splits[min(splits)] if splits else set()
    return first.pop() if len(first) == 1 else None


def payload_sha256(row: Mapping[str, Any]) -> str:
    """Hash of what a task asks and expects."""
    content = json.dumps([row[name] for name in ("kind", "messages", "payload")])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
