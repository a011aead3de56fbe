"""Tasks as rows of the run's table: unique by id, in the order in which they were named."""

import pyarrow as pa

from warehouse.sources.named import Source, parse_source, read_source
from warehouse.store.errors import StageError
from warehouse.store.schema import arrow_schema
from warehouse.tasks.task_files import Task

BATCH = 64                   # tasks that are taken over at once


def read_sources(tasks: tuple[str, ...], heldout: tuple[str, ...] = ()) -> list[tuple[Source, Task]]:
    """The tasks of sources as the command line names them, each with its source; StageError if one is bad."""
    sources = [parse_source(text, heldout=False) for text in tasks]
    sources += [parse_source(text, heldout=True) for text in heldout]
    return _unique([(source, task) for source in sources for task in read_source(source)])


def task_table(rows: list[tuple[Source, Task]], first: int = 0) -> pa.Table:
    """Rows of the table `tasks`, their positions counted from `first`.

    `rows` is empty afterwards: tasks may take most of the memory, and are let go of as they are taken over.
    """
    schema, batches = arrow_schema("tasks"), []
    while rows:
        last = rows[-BATCH:]
        del rows[-BATCH:]
        batches.append(pa.RecordBatch.from_pylist([
            {"task_id": task.task_id, "source": source.text, "split": source.split, "heldout": source.heldout,
             "position": position, "kind": task.kind, "messages": task.messages, "payload": task.payload}
            for position, (source, task) in enumerate(last, start=first + len(rows))], schema=schema))
    return pa.Table.from_batches(batches[::-1], schema)


def _unique(rows: list[tuple[Source, Task]]) -> list[tuple[Source, Task]]:
    """Drop a task that the same split names twice; refuse a task that is both trained on and held out."""
    kept: dict[str, tuple[Source, Task]] = {}
    heldout = {source.split: source.heldout for source, _ in rows}
    for source, _ in rows:
        if heldout[source.split] != source.heldout:
            raise StageError(f"Split '{source.split}' would be trained on and held out. Name one of the two, "
                             f"as in --heldout exam={source.place}.")
    for source, task in rows:
        before = kept.setdefault(task.task_id, (source, task))
        if before[0].split != source.split:
            raise StageError(f"Task {task.task_id} is in split '{before[0].split}' and in split "
                             f"'{source.split}'. Leave it out of one of them.")
        if before[1] != task:
            raise StageError(f"Two different tasks are called {task.task_id} ({before[0].text} and "
                             f"{source.text}). Rename one of them.")
    return list(kept.values())
