"""The kinds of task that can be scored, by the name in tasks.kind."""

from __future__ import annotations

from score.tasks.answer import AnswerKind
from score.tasks.function import FunctionKind
from score.tasks.grid import GridKind
from score.tasks.measures import TaskKind
from score.tasks.script import ScriptKind
from warehouse.store.errors import StageError

KINDS: dict[str, TaskKind] = {"grid": GridKind(), "function": FunctionKind(), "stdio": ScriptKind(),
                              "answer": AnswerKind()}


def kind_named(name: str, task_id: str) -> TaskKind:
    """The kind of a task; StageError when it is unknown."""
    if name not in KINDS:
        raise StageError(f"Task {task_id} is of kind '{name}', which cannot be scored. "
                         f"Known: {', '.join(KINDS)}.")
    return KINDS[name]
