"""Any table as tasks: `hf:PATH?prompt=question&answer=answer` says which column is what.

PATH is a .parquet, .jsonl or .json file, a folder that Hugging Face `datasets` saved, or a copy of one of the
hub. A column inside another is `outer.inner`. What may be named:
    prompt        required: a text, or a list of messages with role and content
    answer        kind answer (or math): the answer, a text, a number, or a list of those accepted
    tests         kind function: statements (a list, its JSON, or one script), or a source with
                  check(candidate) or test functions; with entry_point (or its name), setup
    payload       any kind: an object or its JSON
    id            ids of the tasks, made of the file's name and the row's number when left out
    solution      right answers, for `score gold`
    columns       a,b,c: more columns, fields of the payload that reward functions get by name
    kind, match, label, tolerance       not columns but values: kind=math, match=numeric
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from warehouse.sources.tables import Row, read_rows, value_of
from warehouse.store.errors import StageError
from warehouse.tasks.payloads import JUDGES, defines_tests
from warehouse.tasks.task_files import Task, generic_task

COLUMNS = ("prompt", "answer", "tests", "entry_point", "setup", "payload", "id", "solution")
KINDS = {"answer": ("answer", "math"), "tests": ("function",)}        # that a column can make
VALUES = ("kind", "match", "label", "tolerance", "columns")


def read_columns(text: str) -> Iterator[Task]:
    """The tasks of a table; StageError for an unknown name, or a row without a named column."""
    place, _, query = text.partition("?")
    chosen = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(chosen.keys() - {*COLUMNS, *VALUES})
    if unknown:
        raise StageError(f"hf:{text} names '{unknown[0]}'. Known: {', '.join((*COLUMNS, *VALUES))}.")
    contents = [name for name in ("answer", "tests", "payload") if name in chosen]
    if "prompt" not in chosen or len(contents) != 1:
        raise StageError(f"hf:{text} must name the column of the prompt and one of answer, tests, payload, "
                         f"as in hf:{place}?prompt=question&answer=answer. Your own reward gets others by "
                         "columns=; if it alone judges, any column is an answer: answer=prompt.")
    of_content = KINDS.get(contents[0], ())
    if of_content and chosen.get("kind", of_content[0]) not in of_content:
        raise StageError(f"hf:{text}: tasks with the column '{contents[0]}' are of kind "
                         f"{' or '.join(of_content)}, not {chosen['kind']}. Leave kind= out, or "
                         "name the column as tests= (functions) or payload= (any kind).")
    if contents == ["tests"] and "entry_point" not in chosen:
        raise StageError(f"hf:{text} does not say which function the tests call. Add a column with its name, "
                         "or the name: ..&entry_point=COLUMN.")
    path = Path(place)
    for number, (where, row) in enumerate(read_rows(path, splits=False)):
        yield _task_of(row, number, where, path, chosen, contents[0])


def _task_of(row: Row, number: int, where: str, path: Path, chosen: dict[str, str], content: str) -> Task:
    def column(name: str, kind: type | tuple[type, ...] = object) -> Any:
        return value_of(row, chosen[name], where, kind)

    prompt = column("prompt", (str, list))
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    kind, value = chosen.get("kind"), column(content)
    packed = content == "payload" or (content == "tests" and str(value).lstrip().startswith("["))
    value = _as_json(value, where, packed=packed)
    if content == "answer":
        kind, payload = kind or "answer", {"answer": value}
        payload |= {name: chosen[name] for name in ("match", "label") if name in chosen}
        if "tolerance" in chosen:
            payload["tolerance"] = _number(chosen["tolerance"])
    elif content == "tests":
        kind = "function"
        script = isinstance(value, str) and not defines_tests(value)
        entry = chosen["entry_point"]
        is_name = entry not in row and (
            entry in str(value) or "candidate" in str(value))       # else a column is missing, which is said
        payload = {"tests": [value] if script else value, "setup": "",
                   "entry_point": entry if is_name else column("entry_point", str)}
        payload |= {"setup": column("setup", str)} if "setup" in chosen else {}
    else:
        payload = value
    more = {name.rpartition(".")[2]: _as_json(value_of(row, name, where), where, packed=False)
            for name in chosen.get("columns", "").split(",") if name}
    if more and isinstance(payload, dict):
        if taken := sorted(more.keys() & {*payload, *JUDGES}):
            raise StageError(f"{where}: column '{taken[0]}' of columns= has the name of a field by which "
                             "answers are judged. Rename it, or leave it out.")
        payload = {**payload, **more}
    named = "id" in chosen
    task_id = str(column("id", (str, int))) if named else f"{path.name.split('.')[0].rstrip('-*')}-{number}"
    solution = column("solution", str) if "solution" in chosen else None
    return generic_task({"task_id": task_id, "kind": kind, "messages": messages, "payload": payload,
                         "solution": solution}, where)


def _as_json(value: Any, where: str, *, packed: bool) -> Any:
    """A column's value as JSON, decimals and dates as texts; `packed` texts are parsed as JSON."""
    try:
        text = value if packed and isinstance(value, str) else json.dumps(value, default=_as_text)
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise StageError(f"{where} holds {str(value)[:60]!r}, which is not JSON ({error}). Correct it."
                         ) from error


def _as_text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        raise TypeError("bytes")
    return str(value)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise StageError(f"tolerance={text} is not a number. Correct it.") from None
