"""Read tasks from files and check every field, so that errors name line and field."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError
from warehouse.tasks.payloads import check_payload, read_json

HALF_LETTER = re.compile("[\ud800-\udfff]")  # JSON can spell half a surrogate pair, which is not text
KINDS = ("grid", "function", "stdio", "answer", "math", "graded")


@dataclass(frozen=True)
class Task:
    """One task; `messages` and `payload` are JSON, `solution` is a known right answer, not stored."""

    task_id: str
    kind: str
    payload: str
    messages: str | None = None
    solution: str | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether it is a grid task without solutions of its tests, as in a competition."""
        return self.kind == "grid" and self.payload.count('"output"') < self.payload.count('"input"')


def grid_task(task_id: str, pairs: dict[str, Any], *, where: str) -> Task:
    """A grid task from {'train': [{'input', 'output'}..], 'test': [..]}; StageError naming the bad field."""
    if not isinstance(pairs, dict):
        raise StageError(f"{where}: task {task_id} is not an object with 'train' and 'test'. Correct it.")
    check_payload("grid", pairs, f"{where}: task {task_id}")
    kept = {split: [{name: pair[name] for name in ("input", "output") if pair.get(name) is not None}
                    for pair in pairs[split]]
            for split in ("train", "test")}
    return Task(task_id, "grid", json.dumps(kept, separators=(",", ":")))


def read_arc_json(path: Path) -> Iterator[Task]:
    """ARC tasks in Kaggle's format: {task_id: {train, test}}, test outputs inline or in a twin file."""
    challenges = load_json(path, dict, "tasks by id")
    solutions_path = path.with_name(path.name.replace("challenges", "solutions"))
    solutions: dict[str, Any] = {}
    if solutions_path != path and solutions_path.exists():
        solutions = load_json(solutions_path, dict, "tasks by id")
    if "train" in challenges and "test" in challenges:  # a single task, as in the original ARC repository
        challenges = {path.name.split(".")[0]: challenges}
    for task_id, pairs in challenges.items():
        if task_id in solutions and isinstance(pairs, dict) and isinstance(pairs.get("test"), list):
            given = solutions[task_id]
            if not isinstance(given, list) or len(given) != len(pairs["test"]):
                raise StageError(f"{solutions_path}: task {task_id} lacks one solution for each of its "
                                 f"{len(pairs['test'])} tests. Correct it.")
            pairs = {**pairs, "test": [{**row, "output": solution} for row, solution
                                       in zip(pairs["test"], given, strict=True)]}
        yield grid_task(task_id, pairs, where=str(path))


def load_json(path: Path, kind: type, of: str) -> Any:
    """The list or object in a file; StageError if it is damaged or holds something else."""
    try:
        with _unpacked(path) as stream:
            text = stream.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(f"{path} cannot be read: {error}. Fetch it again.") from error
    value = _parse_json(text, path)
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a list"
        raise StageError(f"{path} holds a {type(value).__name__}, not {wanted} of {of}. Correct it.")
    return value


def read_jsonl(path: Path) -> Iterator[Task]:
    """Generic tasks, one JSON object per line: task_id, kind, payload, and messages (not for grids)."""
    for where, row in json_lines(path):
        yield generic_task(row, where)


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The place of each line that is not blank, in words, and its value; .gz and .zst are unpacked."""
    number = 0
    try:
        with _unpacked(path) as stream:
            for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8"), start=1):
                if line.strip():
                    yield f"{path}, line {number}", _parse_json(line.rstrip(), path, number)
    except UnicodeDecodeError as error:
        raise StageError(f"{path} cannot be read after line {number}: it is not UTF-8. Give JSON "
                         "lines.") from error
    except OSError as error:
        raise StageError(f"{path} cannot be read after line {number}: {error}. Fetch it again.") from error


def _parse_json(text: str, path: Path, line: int = 0) -> Any:
    """The value of a file, or of one line of it; StageError naming it if it cannot be read or stored."""
    where = f"{path}, line {line}" if line else str(path)
    try:
        value = read_json(text)
        half = HALF_LETTER.search(json.dumps(value, ensure_ascii=False))
    except json.JSONDecodeError as error:
        place = f"{error.msg}, column" if line else f"{error.msg} at line {error.lineno}, column"
        raise StageError(f"{where} is not valid JSON: {place} {error.colno}. Correct it.") from error
    except (ValueError, RecursionError) as error:  # thousands of nested brackets
        raise StageError(f"{where} cannot be read: {error}. Correct it.") from error
    if half:
        raise StageError(f"{where} holds {half[0]!a}, half of a surrogate pair, which is not text. "
                         "Correct it.")
    return value


def _unpacked(path: Path) -> Any:
    """A stream of a file's bytes; OSError if a packed file is damaged or cut off."""
    import pyarrow as pa
    packed = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    return pa.CompressedInputStream(path.open("rb"), packed) if packed else path.open("rb")


def generic_task(row: Any, where: str) -> Task:
    """A task from a line of JSON; StageError naming the bad field."""
    if not isinstance(row, dict):
        raise StageError(f"{where} is not a JSON object. Correct it.")
    if "kind" not in row and "scorer" in row:  # the field's name up to version 0.2
        row["kind"] = row["scorer"]
    for field, wanted_type, wanted in (("task_id", str, "a text"), ("kind", str, "a text"),
                                       ("payload", dict, "an object")):
        if not isinstance(row.get(field), wanted_type):
            way_out = ("If this is a table, name its columns: hf:FILE?prompt=prompt&answer=COLUMN"
                       if "prompt" in row else "Correct it")
            raise StageError(f"{where}: field '{field}' is missing or not {wanted}. {way_out}.")
    if row["kind"] not in KINDS:
        raise StageError(f"{where}: field 'kind' is '{row['kind']}'. Use one of {', '.join(KINDS)}.")
    messages = row.get("messages")
    if row["kind"] == "grid" and messages is None:
        return grid_task(row["task_id"], row["payload"], where=where)
    if not isinstance(messages, list) or not messages or not all(map(is_turn, messages)):
        raise StageError(f"{where}: field 'messages' is missing or not a list of objects with the texts "
                         "'role' and 'content', as in [{\"role\": \"user\", \"content\": \"Write f(a).\"}].")
    payload = row["payload"]
    if row["kind"] == "grid":
        payload = json.loads(grid_task(row["task_id"], payload, where=where).payload)
    check_payload(row["kind"], payload, f"{where}: task {row['task_id']}")
    if payload.get("match") == "numeric" and not re.search(r"\d", str(payload.get("answer"))):
        raise StageError(f"{where}: task {row['task_id']}: payload field 'answer' holds no number, and "
                         "'match' is 'numeric'. Correct one of them.")
    solution = row.get("solution")
    return Task(row["task_id"], row["kind"], json.dumps(payload), json.dumps(messages),
                solution if isinstance(solution, str) else None)


def is_turn(turn: Any) -> bool:
    """True for a message: an object with the texts role and content."""
    return isinstance(turn, dict) and all(isinstance(turn.get(field), str) for field in ("role", "content"))
