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

PAGE_HEAD = """\
# What a run holds

Every table, view and macro that `warehouse sql` and `duckdb -init RUN/warehouse.sql` know.
This page is written by `warehouse schema --markdown`.

Tables and views show complete stages alone, so that a number never changes while a stage runs; `--partial`
shows the parts of unfinished ones, and the view `parts` lists every file. Where an iteration was scored
several times, `samples` shows one scorer: which one, and why, says the view `scorers`
([the rule](reading.md)); `all_samples` holds all of them. Of several runs (`warehouse sql A B -c ..`) each
has a first column `run`, and the view `runs` says which they are ([several runs](reading.md#several-runs)).
"""
Described = tuple[str, str, str]        # a column: name, type, meaning


def dictionary_lines(name: str | None = None, *, markdown: bool = False) -> list[str]:
    """Everything, or the table, view, macro or column `name`, as text or Markdown."""
    views = described_columns()
    known = [*TABLES, *sorted(view for view in views if view not in TABLES and view not in HIDDEN)]
    macros = _macros()
    if name is not None and name not in views and name not in macros:
        rows = [(view, kind, meaning) for view in known for column, kind, meaning in views[view]
                if column.lower() == name.lower()]
        if not rows:
            raise StageError(f"There is no table, view, macro or column '{name}'. Known: "
                             f"{', '.join([*known, *macros])}.")
        return [f"## {name}", *_markdown_table("in", rows)] if markdown else [name, *_align(rows)]
    lines = [PAGE_HEAD] if markdown and name is None else []
    for view in known if name is None else [name] if name in views else []:
        lines += _view_lines(view, views[view], markdown)
    shown = macros if name is None else {name: macros[name]} if name in macros else {}
    if shown:
        lines += ["## Macros", ""] if markdown else ["macros"]
        lines += [f"- `{call}`: {text}" if markdown else f"  {call}\n      {text}"
                  for call, text in shown.values()]
    return lines


def _view_lines(view: str, rows: list[Described], markdown: bool) -> list[str]:
    text = _meanings()["views"][view]
    if markdown:
        return [f"## {view}", "", text, *_markdown_table("column", rows), ""]
    return [view, f"  {text}", *_align(rows), ""]


def described_columns() -> dict[str, list[Described]]:
    """The columns of every table and view; KeyError for a column without a meaning."""
    meanings = _meanings()
    stored = {table: {column.name: column.comment for column in columns} for table, columns in TABLES.items()}
    query = ("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
             "ORDER BY table_name, column_index")
    views: dict[str, list[Described]] = {}
    for view, column, kind in empty_connection().execute(query).fetchall():
        known = stored.get(STORED_AS.get(view, view)) or (
            meanings["columns"] | meanings["columns_of"].get(view, {}))
        views.setdefault(view, []).append((column, kind, known[column]))
    return views


def _meanings() -> dict[str, Any]:
    return tomllib.loads(files("warehouse.sql.texts").joinpath("meanings.toml").read_text(encoding="utf-8"))


def _markdown_table(first: str, rows: list[Described]) -> list[str]:
    return ["", f"| {first} | type | meaning |", "|---|---|---|",
            *[f"| {name} | {kind} | {meaning} |" for name, kind, meaning in rows]]


def _align(rows: list[Described]) -> list[str]:
    width = max(len(name) for name, _, _ in rows)
    return [f"    {name:<{width}}  {kind:<10} {meaning}" for name, kind, meaning in rows]


def _macros() -> dict[str, tuple[str, str]]:
    """Macros of the shipped SQL that are asked with arguments: name -> (call, the comment above it)."""
    macros = {}
    pattern = re.compile(r"((?:^--[^\n]*\n)*)^CREATE OR REPLACE MACRO (\w+)\(([^)]+)\)", re.MULTILINE)
    for file in (*SQL_FILES, RUNS_FILE):
        sql = files("warehouse.sql.texts").joinpath(file).read_text(encoding="utf-8")
        for comment, name, arguments in pattern.findall(sql):
            text = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
            macros[name] = (f"{name}({' '.join(arguments.split())})", text)
    return macros
