"""Answers to a query: saved queries by name, limits, and the format asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.database import explained, interruptible, run_query
from warehouse.errors import StageError
from warehouse.render import as_csv, as_json, as_markdown, as_table
from warehouse.store import Warehouse

if TYPE_CHECKING:
    import duckdb

SHOWN_ROWS = 200


def write_answer(
    warehouse: Warehouse,
    connection: duckdb.DuckDBPyConnection,
    query: str,
    *,
    style: str = "table",
    output: Path | None = None,
    limit: int | None = None,
    full: bool = False,
    width: int | None = None,
) -> str:
    """Run `query`; the text to print, empty where it went to the file `output`."""
    if style == "parquet" and output is None:
        raise StageError("Parquet cannot be printed. Name a file: --output rows.parquet")
    relation = run_query(connection, query)
    if relation is None:
        return ""
    relation = _without_time_zones(relation)
    if style == "parquet":
        assert output is not None
        with explained():
            wanted = relation if not limit else relation.limit(limit)
            interruptible(connection, lambda: wanted.to_parquet(str(output), compression="zstd"))
        return ""
    most = limit if limit is not None else SHOWN_ROWS if style in ("table", "markdown") else 0
    with explained():
        rows = interruptible(connection, (relation.limit(most + 1) if most else relation).fetchall)
    shown = rows[:most] if most else rows
    text = {"table": lambda: as_table(relation.columns, shown, full=full, width=width),
            "markdown": lambda: as_markdown(relation.columns, shown, full=full),
            "csv": lambda: as_csv(relation.columns, shown),
            "json": lambda: as_json(relation.columns, shown)}[style]()
    if output:
        output.write_text(text + "\n")
        return ""
    if len(rows) > len(shown) and style == "table":
        text += f"\n(first {len(shown)} rows; --limit 0 shows all)"
    return text


def _without_time_zones(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Times with a zone as plain UTC times: Python cannot fetch them without one more package."""
    zoned = [name for name, kind in zip(relation.columns, relation.types, strict=True)
             if str(kind) == "TIMESTAMP WITH TIME ZONE"]
    if not zoned:
        return relation
    casts = ", ".join(f'"{name}"::TIMESTAMP AS "{name}"' for name in zoned)
    return relation.project(f"* REPLACE ({casts})")
