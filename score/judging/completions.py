"""Completions with what judging needs: the task, and how the prompt was augmented."""

import ast
import json
from dataclasses import dataclass

import pyarrow as pa

from score.tasks.kinds import Task, load_task
from score.tasks.measures import Answer
from score.tasks.test_sources import NO_PYTHON
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse
from warehouse.tasks.answers import first_code_block

PROMPT_COLUMNS = ["group_id", "task_id", "prompt", "split", "prefill", "flip", "rotations", "color_map"]


@dataclass(frozen=True, slots=True)
class Item:
    """One completion, ready to be judged."""

    task: Task
    answer: Answer
    split: str = ""
    prompt: str = ""


def program_in(text: str) -> str:
    """A text that is a program, or the program in it if it is a whole answer."""
    try:
        ast.parse(text)
    except NO_PYTHON:
        return first_code_block(text) or text
    return text


class Questions:
    """Tasks and prompts of one rollout, looked up by the rows of its completions."""

    def __init__(self, warehouse: Warehouse, iteration: int, purpose: str) -> None:
        prompts = warehouse.read("prompts", iteration=iteration, purpose=purpose, columns=PROMPT_COLUMNS)
        self.prompts = {row["group_id"]: row for row in prompts.to_pylist()}
        rows = warehouse.read("tasks", columns=["task_id", "kind", "payload"],
                              task_ids={row["task_id"] for row in self.prompts.values()})
        self.payloads = {row["task_id"]: row for row in rows.to_pylist()}
        self.tasks: dict[str, Task] = {}                    # of the current part

    def items(self, completions: pa.Table) -> list[Item]:
        """What to judge, in the order of the rows; StageError where a row has no prompt or no task."""
        self.tasks.clear()
        names = ("group_id", "task_id", "completion")
        rows = zip(*(completions.column(name).to_pylist() for name in names), strict=True)
        return [self._item(*row) for row in rows]

    def _item(self, group_id: str, task_id: str, completion: str) -> Item:
        prompt = self.prompts.get(group_id)
        if prompt is None:
            raise StageError(f"A completion of task {task_id} belongs to group {group_id}, which has no "
                             "prompt. Restore the part of `prompts` that is missing, or run `rollout` again.")
        text = (prompt["prefill"] or "") + completion
        color_map = None if prompt["color_map"] is None else tuple(prompt["color_map"])
        answer = Answer(text, first_code_block(text), prompt["flip"], prompt["rotations"], color_map)
        if task_id not in self.tasks:
            row = self.payloads.get(task_id)
            if row is None:
                raise StageError(f"There are completions of task {task_id}, which is not among the run's "
                                 "tasks. Restore RUN/tasks, or remove these completions.")
            self.tasks[task_id] = load_task(task_id, row["kind"], json.loads(row["payload"]))
        return Item(self.tasks[task_id], answer, prompt["split"], prompt["prompt"] or "")
