"""The kinds of task that can be scored, by the name in tasks.kind, and tasks ready to be judged."""

from dataclasses import dataclass
from typing import Any

from score.tasks.answer import AnswerKind
from score.tasks.function import FunctionKind
from score.tasks.graded import GRADED
from score.tasks.grid import GridKind
from score.tasks.measures import TaskKind
from score.tasks.puzzle import PuzzleKind
from score.tasks.script import ScriptKind
from warehouse.store.errors import StageError
from warehouse.tasks.payloads import check_payload

KINDS: dict[str, TaskKind] = {"grid": GridKind(), "function": FunctionKind(), "stdio": ScriptKind(),
                              "answer": AnswerKind(), "puzzle": PuzzleKind(), **GRADED}


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its payload as its kind reads it."""

    task_id: str
    kind_name: str
    kind: TaskKind
    payload: dict[str, Any]
    content: Any                     # what `kind.load` made of the payload


def load_task(task_id: str, kind_name: str, payload: dict[str, Any]) -> Task:
    """The task, checked; StageError where its kind is unknown or its payload is wrong."""
    if kind_name not in KINDS:
        raise StageError(f"Task {task_id} is of kind '{kind_name}', which cannot be scored. "
                         f"Known: {', '.join(KINDS)}.")
    check_payload(kind_name, payload, f"Task {task_id}")
    kind = KINDS[kind_name]
    return Task(task_id, kind_name, kind, payload, kind.load(payload))
