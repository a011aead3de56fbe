"""What is stored, where, and how it is written; SQL over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def open(run: str | Path, *, strict: bool = False, in_place: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the run's views and macros; `.pl()` on any result gives a polars frame.

    Damaged stages are left out and named on stderr. Raises StageError if `run` is not a run folder, and with
    `strict` for what is damaged. `in_place` reads what lies in an object store there, and does not verify it.
    """
    from warehouse.sql.database import connect
    from warehouse.store.run_folder import open_warehouse
    return connect(open_warehouse(run), strict=strict, in_place=in_place)
