"""Canonical solutions, judged before a run is made of their tasks."""

import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import click

from warehouse.store.errors import StageError
from warehouse.tasks.task_files import Task, json_lines, text_lines

OWN = "sources"              # the solutions that come with the tasks
PROGRAMS = ("grid", "function", "stdio")


def judge_tasks(tasks: Sequence[Task], gold: str, config: Path | None) -> None:
    """Judge solutions of the tasks.

    `gold` is a file of solutions, which go before those of the sources, or OWN. What is right and what is not
    is printed; the limits are those of the table [score] of `config`.
    """
    _judge(tasks, _solutions(tasks, gold), gold, config)


def _solutions(tasks: Sequence[Task], gold: str) -> str:
    """Lines of JSON: those of the file, and what the sources bring for tasks that it does not name."""
    own = [{"task_id": task.task_id, "code" if task.kind in PROGRAMS else "text": task.solution}
           for task in tasks if task.solution is not None]
    if gold == OWN and not own:
        raise StageError("None of the sources brings solutions. Name a file of them: --gold FILE.")
    text, named = "", set()
    if gold != OWN:
        named = {str(row.get("task_id")) for _, row in json_lines(Path(gold)) if isinstance(row, dict)}
        text = "".join(text_lines(Path(gold))).rstrip() + "\n"
    return text + "".join(json.dumps(row) + "\n" for row in own if row["task_id"] not in named)


def _judge(tasks: Sequence[Task], solutions: str, gold: str, config: Path | None) -> None:
    """Print what `score gold` says of each solution: the room that runs programs is asked by its command."""
    [score] = [script.load() for script in entry_points(group="console_scripts", name="score")
               if script.dist and script.dist.name == "rollhouse"]
    with tempfile.TemporaryDirectory() as folder:
        given, answers = (Path(folder) / name for name in ("t.jsonl", "answers"))
        answers.write_text(solutions, encoding="utf-8")
        given.write_text("".join(json.dumps({
            "task_id": task.task_id, "kind": task.kind, "messages": [{"role": "user", "content": ""}],
            "payload": json.loads(task.payload)}) + "\n" for task in tasks))
        options = ["--config", str(config)] if config else []
        try:
            score.commands["gold"].main([str(given), str(answers), *options], standalone_mode=False)
        except click.ClickException as error:   # it names the files that it was given here
            raise StageError(error.message.replace(str(answers), gold).replace(str(given), "the sources")
                             ) from error
