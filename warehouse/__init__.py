"""What is stored, where, and how it is written; SQL over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def open(run: str | Path, *others: str | Path, strict: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the run's views and macros; `.pl()` on any result gives a polars frame.

    With `others`, they are over all these runs and have a first column `run`. Damaged stages are left out and
    named on stderr; with `strict` they raise StageError, as does a path that is not a run or given twice.
    """
    from warehouse.sql.many import connect_runs, open_runs
    return connect_runs(open_runs([run, *others]), strict=strict)
