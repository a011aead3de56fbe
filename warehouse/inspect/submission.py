"""The table of the ARC papers for a submission: what its two attempts get right of the run's solutions."""

import json
from pathlib import Path
from typing import Any

from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError, counted
from warehouse.tasks.payloads import grid_problem

WAY_OUT = "`warehouse export RUN FILE --to arc-submission` writes one."
COLUMNS = ["split", "tasks", "attempted", "test inputs", "attempt 1", "two attempts", "score", "solved"]


def submission_table(connection: Connection, path: Path) -> tuple[list[str], list[list[Any]]]:
    """Per split and for all: shares of test inputs right by one and by two attempts, and of tasks.

    `score` is Kaggle's: the mean over tasks of the share of test inputs that one of two attempts gets right;
    `solved` the share of tasks with all of them. Tasks without an attempt count as wrong. Where solutions are
    not known these are null, and every task has to be there. StageError where Kaggle would refuse the file.
    """
    try:
        submission = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:       # not JSON, or not even text
        raise StageError(f"{path} is no submission ({error}). {WAY_OUT}") from error
    if not isinstance(submission, dict):
        raise StageError(f"{path} is no submission (it is no object). {WAY_OUT}")
    tasks = [row | {"expected": [pair.get("output") for pair in json.loads(row["payload"])["test"]]}
             for row in rows_of(connection, "SELECT task_id, split, payload FROM tasks WHERE kind = 'grid'")]
    if not {task["task_id"] for task in tasks} & submission.keys():
        raise StageError(f"{path} has no task of this run. Give a submission for its tasks.")
    by_split: dict[str, list[dict[str, Any]]] = {
        split: [task for task in tasks if task["split"] == split]
        for split in dict.fromkeys(task["split"] for task in tasks if task["task_id"] in submission)}
    if len(by_split) > 1:
        by_split["all of these"] = [task for tasks in by_split.values() for task in tasks]
    return COLUMNS, [_row(title, tasks, submission, path) for title, tasks in by_split.items()]


def _row(title: str, tasks: list[dict[str, Any]], submission: dict[str, Any], path: Path) -> list[Any]:
    first, either = [], []
    for task in tasks:
        expected = task["expected"]
        given = submission.get(task["task_id"], [{}] * len(expected))
        if (not isinstance(given, list) or len(given) != len(expected)
                or not all(isinstance(each, dict) for each in given)):
            raise StageError(f"{path}: task {task['task_id']} has not one object of attempts for each of its "
                             f"{len(expected)} test inputs. Correct it.")
        for each in given if task["task_id"] in submission else ():
            for name in ("attempt_1", "attempt_2"):
                if problem := grid_problem(each.get(name)):
                    raise StageError(f"{path}: {name} of task {task['task_id']} {problem}, and Kaggle "
                                     "refuses the file. Correct it.")
        attempts = [(each.get("attempt_1"), each.get("attempt_2")) for each in given]
        first.append([grid == pair[0] for pair, grid in zip(attempts, expected, strict=True)])
        either.append([grid in pair for pair, grid in zip(attempts, expected, strict=True)])
    inputs = sum(map(len, first))
    hidden = any(None in task["expected"] for task in tasks)
    if hidden and (missing := [task["task_id"] for task in tasks if task["task_id"] not in submission]):
        raise StageError(f"{path} lacks {counted(len(missing), 'task')}, {missing[0]} among them, and Kaggle "
                         "refuses the file. `warehouse export` with --challenges fills them in.")
    if hidden:      # its form is right, and that is all that can be known
        return [title, len(tasks), len(tasks), inputs, None, None, None, None]
    return [title, len(tasks), sum(task["task_id"] in submission for task in tasks), inputs,
            sum(map(sum, first)) / inputs, sum(map(sum, either)) / inputs,
            sum(sum(right) / len(right) for right in either) / len(tasks), sum(map(all, either)) / len(tasks)]
