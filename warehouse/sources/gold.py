"""Canonical solutions, judged before a run is made of their tasks."""

import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import click

from warehouse.store.errors import StageError
from warehouse.tasks.task_files import Task

OWN = "sources"              # the solutions that come with the tasks
PROGRAMS = ("grid", "function", "stdio")


def judge_tasks(tasks: Sequence[Task], gold: str, config: Path | None) -> list[Task]:
    """The tasks, those whose solution is right only together with their tests changed to that mode.

    `gold` is a file of solutions, which go before those of the sources, or OWN. What is right and what is not
    is printed. The room that runs programs is asked by its command `score gold`
    with the limits in the table [score] of `config`.
    """
    solutions = [{"task_id": task.task_id, "code" if task.kind in PROGRAMS else "text": task.solution}
                 for task in tasks if task.solution is not None]
    if gold == OWN and not solutions:
        raise StageError("None of the sources brings solutions. Name a file of them: --gold FILE.")
    text = "" if gold == OWN else _text_of(Path(gold))
    own = "".join(json.dumps(row) + "\n" for row in solutions if row["task_id"] not in _ids_in(text))
    [score] = [script.load() for script in entry_points(group="console_scripts", name="score")
               if script.dist and script.dist.name == "rollhouse"]
    with tempfile.TemporaryDirectory() as folder:
        given, verdicts, answers = (Path(folder) / name for name in ("t.jsonl", "verdicts", "answers"))
        answers.write_text(f"{text.rstrip()}\n{own}" if text else own)
        given.write_text("".join(json.dumps({
            "task_id": task.task_id, "kind": task.kind, "messages": [{"role": "user", "content": ""}],
            "payload": json.loads(task.payload)}) + "\n" for task in tasks))
        options = ["--config", str(config)] if config else []
        try:
            score.commands["gold"].main([str(given), str(answers), "--output", str(verdicts), *options],
                                        standalone_mode=False)
        except click.ClickException as error:   # it names the files that it was given here
            raise StageError(error.message.replace(str(answers), gold).replace(str(given), "the sources")
                             ) from error
        rows = [json.loads(line) for line in verdicts.read_text().splitlines()]
    together = {row["task_id"] for row in rows if row["together"]}
    return [replace(task, payload=json.dumps({**json.loads(task.payload), "mode": "together"}))
            if task.task_id in together else task for task in tasks]


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(f"--gold {path} cannot be read: {error}. Name a file of solutions, or `sources` for "
                         "those that the sources bring.") from error


def _ids_in(text: str) -> set[str]:
    """Tasks that a file of solutions names; lines that cannot be read are for `score gold` to complain of."""
    ids = set()
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            ids.add(str(json.loads(line)["task_id"]))
    return ids
