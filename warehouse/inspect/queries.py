"""Answers to SQL: scripts, limits, and output formats."""

import re
import sys
from pathlib import Path
from typing import Any

from warehouse.inspect.render import WRITERS
from warehouse.sql.catalog import quoted_name
from warehouse.sql.database import Connection, changes, explain_errors, interruptible, split_statements
from warehouse.store.commit import replace_bytes, replace_file
from warehouse.store.errors import StageError, UnusableFile, counted, printable

SHOWN_ROWS = 200
PAIRED = re.compile(r"\b(compare|gains)(_runs|_of_runs)?\s*\(")
NOT_PAIRED = """\
compare and gains pair tasks that both policies, or both runs, have scored with the same purpose. To evaluate
policy N: `rollout RUN --eval --iteration N`, then `score RUN`. `FROM task_results` has what is scored."""
ZONED = "TIMESTAMP WITH TIME ZONE"
SUFFIXES = {"": "table", ".txt": "table", ".csv": "csv", ".json": "json", ".jsonl": "json", ".md": "markdown",
            ".parquet": "parquet"}


def write_answers(connection: Connection, script: str, **options: Any) -> None:
    """Print the result of every statement of a script, up to the first error."""
    statements = split_statements(script)
    for number, statement in enumerate(statements, start=1):
        if number == len(statements) and changes(connection, statement):
            raise StageError("SQL cannot change the run, and this table is gone when the command ends. "
                             "Select from it in the same script.")
        if text := write_answer(connection, statement, **options):
            print(printable(text) if sys.stdout.isatty() else text, flush=True)


def read_script(path: Path | None) -> str:
    """A file of SQL, or the standard input; StageError if it is not text."""
    try:
        return sys.stdin.read() if path is None else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StageError(f"The input is not UTF-8 text ({error}). Save it as UTF-8.") from error


def write_answer(connection: Connection, statement: str, *, style: str | None = None,
                 output: Path | None = None, limit: int | None = None, full: bool = False,
                 width: int | None = None) -> str:
    """Run one statement; return the text, empty if it went to `output`."""
    if output and not style and output.suffix.lower() not in SUFFIXES:
        raise UnusableFile(output, "form", f"{output} has a suffix of none of the formats: "
                                           f"{', '.join(filter(None, SUFFIXES))}. Use one, or say --format.")
    style = style or SUFFIXES[output.suffix.lower() if output else ""]
    if style == "parquet" and output is None:
        raise StageError("Parquet cannot be printed. Name a file: --output rows.parquet")
    with explain_errors():
        relation = connection.sql(statement)
        if relation is None or changes(connection, statement):
            return ""
        relation = _without_time_zones(relation)
        if style == "parquet":
            assert output is not None
            wanted = relation if not limit else relation.limit(limit)
            replace_file(output, lambda file: interruptible(
                connection, lambda: wanted.to_parquet(str(file), compression="zstd")))
            return ""
        names = relation.columns
        shortened = style in ("table", "markdown") and output is None
        most = limit if limit is not None else SHOWN_ROWS if shortened else 0
        rows = interruptible(connection, (relation.limit(most + 1) if most else relation).fetchall)
    shown = rows[:most] if most else rows
    text = WRITERS[style](names, shown, full=full, width=width)
    if output:
        replace_bytes(output, f"{text}\n".encode() if text else b"")
        return ""
    if not rows and PAIRED.search(statement):
        print(NOT_PAIRED, file=sys.stderr)
    if len(rows) > len(shown) and style in ("table", "markdown"):
        # A line right below a Markdown table would be one more row of it.
        text += "\n" if style == "table" else "\n\n"
        text += f"(first {counted(len(shown), 'row')}; --limit 0 shows all)"
    return text


def _without_time_zones(relation: Any) -> Any:
    """Times with a zone as plain UTC times: Python would need another package to fetch them."""
    kinds = [str(kind) for kind in relation.types]
    if not any(ZONED in kind for kind in kinds):
        return relation
    columns = [f"#{number}::{kind.replace(ZONED, 'TIMESTAMP')} AS {quoted_name(name)}" if ZONED in kind
               else f"#{number} AS {quoted_name(name)}"  # by position: names may repeat
               for number, (name, kind) in enumerate(zip(relation.columns, kinds, strict=True), start=1)]
    return relation.project(", ".join(columns))
