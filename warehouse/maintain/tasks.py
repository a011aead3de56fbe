"""Add or replace tasks of a run; the log records what they were before.

Rows are never changed. A scorer's identity includes the replaced tasks, so earlier scores keep their
scorer, and `score` judges again and stores its rows next to them.
"""

import datetime
import uuid
from typing import Any

import pyarrow as pa

from warehouse.ledger.entries import TasksChanged
from warehouse.sources.named import read_sources, task_table
from warehouse.store.checksums import tasks_sha256
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.parts import write_part
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import arrow_schema
from warehouse.tasks.payloads import payload_sha256


def add_tasks(warehouse: Warehouse, tasks: tuple[str, ...], heldout: tuple[str, ...]) -> list[str]:
    """Add the tasks of sources behind the run's; return the lines to print. StageError for an existing id."""
    rows = warehouse.read("tasks").sort_by("position").to_pylist()
    by_id = {row["task_id"]: row for row in rows}
    last = max((row["position"] for row in rows), default=-1)
    new = task_table(read_sources(tasks, heldout), first=last + 1)
    trained = {row["split"]: row["heldout"] for row in rows}
    added = []
    for row in new.to_pylist():
        before = by_id.get(row["task_id"])
        if before and before | {"position": 0, "source": ""} == row | {"position": 0, "source": ""}:
            continue                                    # unchanged: the command is run again
        if before:
            raise StageError(f"The run has a task {row['task_id']} already. Change it with `warehouse tasks "
                             f"replace {shell_quote(warehouse.root)} SOURCE`.")
        if trained.get(row["split"], row["heldout"]) != row["heldout"]:
            raise StageError(f"Split '{row['split']}' would be trained on and held out. Name another.")
        added.append(row)
    if not added:
        return ["The run has these tasks already; nothing to do."]
    _write(warehouse, rows + added, {"added": [row["task_id"] for row in added]})
    return [f"{counted(len(added), 'task')} added; the run has {len(rows) + len(added)} now"]


def replace_tasks(warehouse: Warehouse, sources: tuple[str, ...]) -> list[str]:
    """Replace tasks of the run by those of sources with equal ids; position and split stay."""
    rows = warehouse.read("tasks").sort_by("position").to_pylist()
    given = {task.task_id: (source, task) for source, task in read_sources(sources)}
    unknown = sorted(given.keys() - {row["task_id"] for row in rows})
    if unknown:
        raise StageError(f"The run has no task {unknown[0]}. Add it with `warehouse tasks add "
                         f"{shell_quote(warehouse.root)} --tasks SOURCE`.")
    replaced, after = {}, []
    for row in rows:
        source, task = given.get(row["task_id"], (None, None))
        new = row if source is None or task is None else {
            **row, "source": source.text, "kind": task.kind, "messages": task.messages,
            "payload": task.payload}
        after.append(new)
        if any(new[name] != row[name] for name in ("kind", "messages", "payload")):
            replaced[row["task_id"]] = {
                "before": {name: row[name] for name in ("source", "kind", "messages", "payload")},
                "payload_sha256": payload_sha256(new)}
    if not replaced:
        return ["The run has these tasks already; nothing to do."]
    _write(warehouse, after, {"replaced": replaced})
    return [f"{counted(len(replaced), 'task')} replaced; completions stay, and `score "
            f"{shell_quote(warehouse.root)}` judges them again and keeps the former rows"]


def _write(warehouse: Warehouse, rows: list[dict[str, Any]], change: dict[str, Any]) -> None:
    """Write the table into a new folder, and record in the log that it is the run's now."""
    table = pa.Table.from_pylist(rows, schema=arrow_schema("tasks"))
    former, sha256 = warehouse.state.tasks_sha256, tasks_sha256([table])
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    record = {"at": now, **change, "tasks_sha256_before": former, "tasks_sha256": sha256}
    name = f"{sha256[:8]}-{uuid.uuid4().hex[:8]}"
    write_part(warehouse.root / "tasks" / f"generation={name}" / "part-00000.parquet", "tasks", table,
               {"run_id": warehouse.run_id, "part_uuid": f"tasks-{name}"})
    warehouse.append(lambda state: TasksChanged(name, sha256, former, record))
