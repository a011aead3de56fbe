"""Answers to a query: saved queries by name, limits, and the format asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from warehouse.look.render import as_csv, as_json, as_markdown, as_table
from warehouse.sql.database import explained, interruptible, run_query, unwritable, without_end
from warehouse.store.chosen_scorer import read_config
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse
from warehouse.transfer.export_rows import quoted_name

if TYPE_CHECKING:
    import duckdb

SHOWN_ROWS = 200
ZONED = "TIMESTAMP WITH TIME ZONE"
SUFFIXES = {".csv": "csv", ".json": "json", ".jsonl": "json", ".md": "markdown", ".parquet": "parquet"}


def write_answer(
    warehouse: Warehouse,
    connection: duckdb.DuckDBPyConnection,
    query: str,
    *,
    style: str | None = None,
    output: Path | None = None,
    limit: int | None = None,
    full: bool = False,
    width: int | None = None,
) -> str:
    """Run `query` or the saved `@name key=value`; the text to print, empty where it went to `output`.

    A file whose suffix names a format is written in it where no other `style` is asked for, and holds every
    row unless there is a `limit`.
    """
    style = style or (SUFFIXES.get(output.suffix.lower(), "table") if output else "table")
    if style == "parquet" and output is None:
        raise StageError("Parquet cannot be printed. Name a file: --output rows.parquet")
    parameters = None
    if query.startswith("@"):
        query, parameters = saved_query(warehouse, query)
    query = without_end(query)
    with explained():
        relation = run_query(connection, query, parameters)
        if relation is None:
            return ""
        relation = _without_time_zones(relation)
        if style == "parquet":
            assert output is not None
            wanted, file = relation if not limit else relation.limit(limit), output
            with _writable(output):
                interruptible(connection, lambda: wanted.to_parquet(str(file), compression="zstd"))
            return ""
        names = relation.columns
        shortened = style in ("table", "markdown") and output is None
        most = limit if limit is not None else SHOWN_ROWS if shortened else 0
        rows = interruptible(connection, (relation.limit(most + 1) if most else relation).fetchall)
    shown = rows[:most] if most else rows
    text = {"table": lambda: as_table(names, shown, full=full, width=width),
            "markdown": lambda: as_markdown(names, shown, full=full),
            "csv": lambda: as_csv(names, shown),
            "json": lambda: as_json(names, shown)}[style]()
    if output:
        with _writable(output):
            output.write_text(text + "\n" if text else "")
        return ""
    if len(rows) > len(shown) and style in ("table", "markdown"):
        # A line right below a Markdown table would be one more row of it.
        text += ("\n" if style == "table" else "\n\n") + f"(first {len(shown)} rows; --limit 0 shows all)"
    return text


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Make the folder of a file; one sentence where it or the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unwritable(path):
            yield
    except OSError as error:
        raise StageError(f"Cannot write {path}: {error.strerror or error}. Name another file with "
                         "--output.") from error


class SavedQuery(NamedTuple):
    """A query with a name: what it tells, its defaults, its SQL with $parameters."""

    summary: str
    defaults: dict[str, str]
    sql: str


def saved_queries(warehouse: Warehouse) -> dict[str, SavedQuery]:
    """Queries that are shipped, then those of [queries] in RUN/config.toml, which may replace them."""
    found = {}
    text = files("warehouse.sql.texts").joinpath("saved.sql").read_text()
    for name, defaults, summary, sql in re.findall(
        r"^-- @(\w+)([^:\n]*): (.*)\n([^;]+);", text, re.MULTILINE
    ):
        found[name] = SavedQuery(summary, dict(pair.split("=") for pair in defaults.split()), sql.strip())
    for name, sql in read_config(warehouse).get("queries", {}).items():
        found[name] = SavedQuery("from config.toml", {}, sql)
    return found


def saved_query(warehouse: Warehouse, line: str) -> tuple[str, dict[str, Any]]:
    """SQL and parameters of `@name key=value ..`."""
    name, *pairs = line[1:].split() or [""]
    known = saved_queries(warehouse)
    if name not in known:
        raise StageError(f"There is no saved query @{name}. Known: {', '.join('@' + one for one in known)}.")
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise StageError(f"'{wrong[0]}' is not key=value. Write for example @{name} iteration=3.")
    given = dict(pair.split("=", 1) for pair in pairs)
    values = known[name].defaults | given
    wanted = set(re.findall(r"\$(\w+)", known[name].sql))
    if wanted != set(values):
        raise StageError(f"@{name} takes {', '.join(sorted(wanted)) or 'no parameter'}; "
                         f"given: {', '.join(sorted(given)) or 'none'}.")
    return known[name].sql, {key: _value(text) for key, text in values.items()}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _without_time_zones(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Times with a zone as plain UTC times: Python cannot fetch them without one more package."""
    kinds = [str(kind) for kind in relation.types]
    if not any(ZONED in kind for kind in kinds):
        return relation
    columns = [f"#{number}::{kind.replace(ZONED, 'TIMESTAMP')} AS {quoted_name(name)}" if ZONED in kind
               else f"#{number} AS {quoted_name(name)}"  # by position: names may be there twice
               for number, (name, kind) in enumerate(zip(relation.columns, kinds, strict=True), start=1)]
    return relation.project(", ".join(columns))
