"""The data dictionary: what every table, view, column and macro means, read from the comments in SQL."""

from __future__ import annotations

import re
from importlib.resources import files

from warehouse.sql.database import SQL_FILES, empty_connection
from warehouse.store.errors import StageError
from warehouse.store.schema import TABLES

PAGE_HEAD = """\
# What a run holds

Every table, view and macro that `warehouse sql`, `warehouse shell` and `duckdb -init RUN/warehouse.sql` know.
This page is written by `warehouse schema --markdown`; the meanings are the comments of the SQL itself.

Tables and views show complete stages alone, so that a number never changes while a stage runs; `--partial`
shows the parts of unfinished ones, and the view `parts` lists every file. Where an iteration was scored
several times, `samples` shows one scorer, chosen in this order: the one named in RUN/config.toml
(`[warehouse]` `scorer = "NAME"`), the one whose rewards were trained on, the one that finished last.
The view `scorers` says which and why; `all_samples` holds all of them.
"""
HIDDEN = ("stage_manifests", "policy_documents", "part_files", "fresh_samples", "fresh_train_samples")


def dictionary_lines(name: str | None = None, *, markdown: bool = False) -> list[str]:
    """Everything, or the table, view, macro or column `name`, as text or Markdown."""
    connection = empty_connection()
    views = dict(connection.execute(
        "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_name").fetchall())
    macros = _macros()
    known = [*[table for table in TABLES if table in views],
             *sorted(view for view in views if view not in TABLES and view not in HIDDEN)]
    if name is not None and name not in views and name not in macros:
        places = connection.execute(
            "SELECT table_name, data_type, comment FROM duckdb_columns() "
            "WHERE lower(column_name) = lower($1)", [name]).fetchall()
        held = {place[0]: place for place in places}
        if not any(view in held for view in known):
            raise StageError(f"There is no table, view, macro or column '{name}'. Known: "
                             f"{', '.join([*known, *macros])}.")
        return _column_lines(name, [held[view] for view in known if view in held], markdown)
    lines: list[str] = [PAGE_HEAD] if markdown and name is None else []
    for view in known if name is None else [name] if name in views else []:
        columns = connection.execute("SELECT column_name, data_type, comment FROM duckdb_columns() "
                                     "WHERE table_name = $1 ORDER BY column_index", [view]).fetchall()
        lines += _view_lines(view, views[view], columns, markdown)
    shown = macros if name is None else {name: macros[name]} if name in macros else {}
    if shown:
        lines += ["## Macros", ""] if markdown else ["macros"]
        lines += [f"- `{call}`: {text}" if markdown else f"  {call}\n      {text}"
                  for call, text in shown.values()]
    return lines


def _column_lines(name: str, places: list[tuple[str, str, str | None]], markdown: bool) -> list[str]:
    """What a column means in each table and view that has it."""
    if markdown:
        return [f"## {name}", "", "| in | type | meaning |", "|---|---|---|",
                *[f"| {view} | {kind} | {text or ''} |" for view, kind, text in places]]
    width = max(len(view) for view, _, _ in places)
    return [name, *[f"    {view:<{width}}  {kind:<10} {text or ''}" for view, kind, text in places]]


def _view_lines(view: str, comment: str | None, columns: list[tuple[str, str, str | None]],
                markdown: bool) -> list[str]:
    if markdown:
        rows = [f"| {column} | {kind} | {text or ''} |" for column, kind, text in columns]
        return [
            f"## {view}",
            "",
            comment or "",
            "",
            "| column | type | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    width = max(len(column) for column, _, _ in columns)
    return [view, f"  {comment or ''}",
            *[f"    {column:<{width}}  {kind:<10} {text or ''}" for column, kind, text in columns], ""]


def _macros() -> dict[str, tuple[str, str]]:
    """Macros of the shipped SQL: name -> (call, the comment above it)."""
    found = {}
    pattern = re.compile(r"((?:^--[^\n]*\n)*)^CREATE OR REPLACE MACRO (\w+)\(([^)]*)\)", re.MULTILINE)
    for file in SQL_FILES:
        sql = files("warehouse.sql.texts").joinpath(file).read_text()
        for comment, name, arguments in pattern.findall(sql):
            text = " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
            found[name] = (f"{name}({' '.join(arguments.split())})", text)
    return found
