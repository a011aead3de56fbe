"""Rows of published data sets: JSON, Parquet, or what Hugging Face `datasets` saved."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError, UnusableFile, check_file
from warehouse.tasks.task_files import json_lines, load_json

JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
TABLES = (".parquet", ".arrow")
SUFFIXES = (*JSON_LINES, ".json", ".json.gz", *TABLES)
LETTERS = re.compile(r"^\D*")            # of train-00000-of-00002.parquet
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-]+")
Row = dict[str, Any]


def read_rows(path: Path, *, splits: bool = True) -> Iterator[tuple[str, Row]]:
    """The place of each row, in words, and the row; StageError if a file is missing or damaged.

    A folder is one that `datasets` saved, or a copy of a hub data set: its Parquet or Arrow files in order.
    Several `splits` may be refused. `FOLDER/train-*` is the files with such names.
    """
    if path.is_dir() or "*" in path.name:
        folder, pattern = (path, "**/*") if path.is_dir() else (path.parent, path.name)
        files = sorted(file for file in folder.glob(pattern)
                       if file.name.endswith(TABLES) and not file.name.startswith("cache-"))
        if not files:
            raise StageError(f"{path} holds neither Parquet nor Arrow files. Name a folder that "
                             "`datasets` saved, or a file.")
        tables = sorted({f"{file.parent / LETTERS.findall(file.name)[0]}*" for file in files})
        if len(tables) > 1 and not splits:
            raise StageError(f"{path} holds several tables, perhaps of training and test: "
                             f"{', '.join(tables)}. Name one of them, as hf:{tables[-1]}?prompt=..")
    elif HUB_NAME.fullmatch(str(path)) and not path.exists():
        raise UnusableFile(path, "missing", f"There is no folder {path}, and nothing is downloaded. "
                           f"To fetch it: `hf download --repo-type dataset {path} --local-dir {path}`.")
    else:
        check_file(path, SUFFIXES)
        files = [path]
    for file in files:
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[tuple[str, Row]]:
    if path.name.endswith(TABLES):
        yield from _read_table(path)
        return
    if path.name.endswith(JSON_LINES):
        rows = json_lines(path)
    else:
        content = load_json(path, list, "rows")
        rows = ((f"{path}, row {number}", row) for number, row in enumerate(content))
    for where, row in rows:
        if not isinstance(row, dict):
            raise StageError(f"{where} is not a JSON object. Correct it.")
        yield where, row


def _read_table(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    number = 0
    try:
        if path.name.endswith(".parquet"):
            batches: Any = pq.ParquetFile(path).iter_batches()
        else:
            batches = pa.ipc.open_stream(pa.memory_map(str(path)))
        for batch in batches:
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise StageError(f"{path} cannot be read after row {number}: {error}. Fetch it again.") from error


def value_of(row: Row, column: str, where: str, kind: type | tuple[type, ...] = object) -> Any:
    """A column of a row, or `outer.inner`; StageError if it is missing or of another type."""
    value: Any = row
    for name in [column] if column in row else column.split("."):
        if not isinstance(value, dict) or name not in value:
            raise StageError(f"{where} has no column '{column}'. It has {', '.join(map(str, row))}.")
        value = value[name]
    if not isinstance(value, kind):
        wanted = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise StageError(f"{where}: column '{column}' is {type(value).__name__}, not {wanted}. Correct it.")
    return value
