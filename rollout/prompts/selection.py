"""Which tasks a rollout may sample: those of its splits, or of a query over the warehouse."""

from collections import Counter
from typing import Any

from rollout.options import RolloutOptions
from warehouse.store.commit import ensure_local
from warehouse.store.errors import StageError
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse


def choose_tasks(warehouse: Warehouse, options: RolloutOptions) -> list[dict[str, Any]]:
    """Tasks of the requested splits in order of import, or those of them that a query returns.

    The default is all held-out splits for evaluation and all others for training; for a begun evaluation
    `eval` it is that evaluation's split. StageError when none is left.
    """
    tasks = warehouse.read("tasks").sort_by("position").to_pylist()
    known = list(dict.fromkeys(task["split"] for task in tasks))
    usual = options.evaluate and not options.label and warehouse.state.split_of_eval(tasks)
    splits = options.splits or ((usual,) if usual else tuple(dict.fromkeys(
        task["split"] for task in tasks if task["heldout"] == options.evaluate)))
    for split in splits:
        if split not in known:
            raise StageError(f"This run has no split '{split}'. It has {', '.join(known)}.")
    if not splits:
        kind = "held-out" if options.evaluate else "training"
        raise StageError(f"This run has no {kind} split. Name one of {', '.join(known)} with --split.")
    tasks = [task for task in tasks if task["split"] in splits]
    if options.tasks_sql is not None and not (
            tasks := named_by_query(warehouse, options.tasks_sql, tasks)):
        raise StageError("--tasks-sql names no task, or none of them in the splits to sample. Try the "
                         "query with `warehouse sql`, or name the split with --split.")
    return tasks


def named_by_query(warehouse: Warehouse, query: str, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks that the query returns as task_id; StageError if it has no such column."""
    from warehouse.sql.database import connect, keys_of
    rows = keys_of(connect(warehouse, strict=True), "--tasks-sql", query, ["task_id"])
    wanted = {row["task_id"] for row in rows}
    return [task for task in tasks if task["task_id"] in wanted]


def training_visits(warehouse: Warehouse, before: int) -> Counter[str]:
    """In how many training iterations before this one each task was begun.

    Reads and verifies only two columns of each plan; hashing whole plans would read everything again.
    """
    warehouse.stages()                  # downloads their manifests, many at once
    plans = {iteration: warehouse.parts("prompts", iteration=iteration, purpose="train")
             for iteration in warehouse.state.iterations("rollout") if iteration < before}
    ensure_local(part for parts in plans.values() for part in parts)
    visits, carried = Counter[str](), set[str]()
    for iteration, parts in plans.items():
        plan = read_parts(parts, "prompts", ["task_id", "group_id"]).to_pylist()
        visits.update({row["task_id"] for row in plan if row["group_id"] not in carried})
        carried |= set(warehouse.state.carried_groups(iteration))
    return visits
