"""The data dictionary: what every table, view, column and macro means."""

import re
import tomllib
from importlib.resources import files
from typing import Any

from warehouse.sql.catalog import STORED_AS
from warehouse.sql.database import empty_connection
from warehouse.sql.script import HIDDEN, RUNS_FILE, SQL_FILES
from warehouse.store.errors import StageError
from warehouse.store.schema import TABLES

Described = tuple[str, str, str]        # a column: name, type, meaning

# Macros that make views of any table of rows.
OF_TABLES = ("groups_of", "task_results_of", "mismatch_of", "stats_of", "differing_settings", "gains_over")


def dictionary_lines(name: str | None = None) -> list[str]:
    """Everything, or the table, view, macro or column `name`, as text; StageError for an unknown name."""
    views, texts, macros = described_columns(), described_views(), described_macros()
    if name is not None and name not in views and name not in macros:
        rows = [(view, kind, meaning) for view in texts for column, kind, meaning in views[view]
                if column.lower() == name.lower()]
        if not rows:
            raise StageError(f"There is no table, view, macro or column '{name}'. Known: "
                             f"{', '.join([*texts, *macros])}.")
        return [name, *_align(rows)]
    lines = []
    for view in texts if name is None else [name] if name in views else []:
        lines += [view, f"  {_meanings()['views'][view]}", *_align(views[view]), ""]
    shown = macros if name is None else {name: macros[name]} if name in macros else {}
    lines += ["macros"] if shown else []
    return lines + [f"  {call}\n      {text}" for call, text in shown.values()]


def described_views() -> dict[str, str]:
    """What a row of each table and view is, by name: tables first."""
    derived = sorted(described_columns().keys() - {*TABLES, *HIDDEN})
    return {view: _meanings()["views"][view] for view in (*TABLES, *derived)}


def described_columns() -> dict[str, list[Described]]:
    """The columns of every table and view; KeyError for a column without a meaning."""
    meanings = _meanings()
    stored = {table: {column.name: column.comment for column in columns} for table, columns in TABLES.items()}
    of_views = dict(pair for table in reversed(stored.values()) for pair in table.items())
    of_views |= meanings["columns"]
    query = ("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
             "ORDER BY table_name, column_index")
    views: dict[str, list[Described]] = {}
    for view, column, kind in empty_connection().execute(query).fetchall():
        known = stored.get(STORED_AS.get(view, view)) or of_views | meanings["columns_of"].get(view, {})
        views.setdefault(view, []).append((column, kind, known[column]))
    return views


def _meanings() -> dict[str, Any]:
    return tomllib.loads(files("warehouse.sql.texts").joinpath("meanings.toml").read_text(encoding="utf-8"))


def _align(rows: list[Described]) -> list[str]:
    width = max(len(name) for name, _, _ in rows)
    return [f"    {name:<{width}}  {kind:<10} {meaning}" for name, kind, meaning in rows]


def described_macros() -> dict[str, tuple[str, str]]:
    """Macros of the shipped SQL that take arguments: name -> (call, the comment above it and its columns)."""
    macros, connection = {}, empty_connection()
    pattern = re.compile(r"((?:^--[^\n]*\n)*)^CREATE OR REPLACE MACRO (\w+)\(([^)]+)\)( AS T)?", re.MULTILINE)
    for file in (*SQL_FILES, RUNS_FILE):
        sql = files("warehouse.sql.texts").joinpath(file).read_text(encoding="utf-8")
        for comment, name, arguments, table in pattern.findall(sql):
            if name in (*HIDDEN, *OF_TABLES):
                continue
            text = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
            if table and file != RUNS_FILE and arguments != "rows":     # these need runs, or rows
                given = ", ".join("NULL" for each in arguments.split(",") if ":=" not in each)
                rows = connection.execute(f"DESCRIBE FROM {name}({given})").fetchall()
                text += f" Columns: {', '.join(row[0] for row in rows)}." * (len(rows) < 30)
            macros[name] = (f"{name}({' '.join(arguments.split())})", text)
    return macros
