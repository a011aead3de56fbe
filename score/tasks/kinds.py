"""The kinds of task that can be scored, by the name in tasks.kind, and tasks ready to be judged."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from score.tasks.answer import AnswerKind
from score.tasks.function import FunctionKind
from score.tasks.graded import MATH, GradedKind, source_hash
from score.tasks.grid import GridKind
from score.tasks.measures import TaskKind
from score.tasks.script import ScriptKind
from warehouse.store.errors import StageError
from warehouse.tasks.graders import grader_versions
from warehouse.tasks.payloads import check_payload

KINDS: dict[str, TaskKind] = {"grid": GridKind(), "function": FunctionKind(), "stdio": ScriptKind(),
                              "answer": AnswerKind(), "math": MATH, "graded": GradedKind()}
GRADED_SINCE_0_3 = ("puzzle", "reasoning-gym", "verifiers")
ENDS = ("score.jobs.program_end", "score.jobs.tests_end")     # loaded once per lane, they cost children less


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
        again = (" Add these tasks again (`warehouse tasks replace`), from a source whose kind is `graded`: "
                 "docs/tasks.md." if kind_name in GRADED_SINCE_0_3 else "")
        raise StageError(f"Task {task_id} is of kind '{kind_name}', which cannot be scored. "
                         f"Known: {', '.join(KINDS)}.{again}")
    check_payload(kind_name, payload, f"Task {task_id}")
    kind = KINDS[kind_name]
    return Task(task_id, kind_name, kind, payload, kind.load(payload))


@dataclass(frozen=True)
class Graders:
    """What tasks need of libraries: modules that lanes load, and versions, which are part of the identity."""

    modules: tuple[str, ...]
    versions: dict[str, str]


def graders_of(tasks: Iterable[tuple[str, Any]], import_paths: Sequence[str] = ()) -> Graders:
    """The graders of tasks, which are kind and payload (or its JSON); StageError where one is missing."""
    kinds, own = set(), dict[str, None]()
    for kind, payload in tasks:
        kinds.add(kind)
        if kind == "graded":
            told = json.loads(payload) if isinstance(payload, str) else payload
            own |= dict.fromkeys([told["grader"], *told.get("modules", [])])
    versions, missing = grader_versions(kinds)
    if missing:
        raise StageError(missing[0])
    versions |= {name: source_hash(name, import_paths) for name in sorted(own)}
    return Graders((*([MATH.module] if MATH.module and "math" in kinds else ()), *own,
                    *(ENDS if "function" in kinds else ())), versions)
