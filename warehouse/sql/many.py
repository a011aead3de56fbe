"""Several runs in one SQL: each in its own database, with the same views over all and a column `run`."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from warehouse.sql.catalog import literal_rows, quoted, stored_rows
from warehouse.sql.database import Connection, connect, define, explain_errors, new_connection, tell_left_out
from warehouse.sql.inventory import take_inventory
from warehouse.sql.script import HIDDEN, RUNS_FILE, SQL_FILES, definitions, keep_script, shipped
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+)", re.MULTILINE)
MACRO = re.compile(r"^CREATE OR REPLACE MACRO (\w+)\(([^)]*)\) AS( TABLE)?\b.*?;$", re.MULTILINE | re.DOTALL)
OF_ALL = ("differing_settings", "settings_diff", "gains_over")  # defined over all runs, not in each
RUN_COLUMNS = {"run": "VARCHAR", "folder": "VARCHAR", "run_id": "VARCHAR", "base": "VARCHAR",
               "tokenizer_sha256": "VARCHAR", "tasks_sha256": "VARCHAR", "schema_version": "INTEGER"}


def open_runs(paths: Sequence[str | Path]) -> list[Warehouse]:
    """The run folders; StageError for one that is not a run, and for one given twice."""
    runs = [open_warehouse(path) for path in paths]
    for run, number in Counter(run.root for run in runs).items():
        if number > 1:
            raise StageError(f"{run} is given twice. Name every run once.")
    return runs


def run_names(roots: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's, with parent folders as needed to make it unique."""
    names = [root.name for root in roots]
    for depth in range(2, max((len(root.parts) for root in roots), default=0) + 1):
        number = Counter(names)
        names = ["/".join(root.parts[-depth:]) if number[name] > 1 else name
                 for root, name in zip(roots, names, strict=True)]
    return names


def connect_runs(warehouses: Sequence[Warehouse], *, partial: bool = False,
                 strict: bool = False) -> Connection:
    """A connection over several runs, every view and macro with a first column `run`; for one as `connect`.

    Options as for `connect`. Views are computed within each run, so their numbers equal those of the run
    alone. A view `runs` lists the runs.
    """
    if len(warehouses) == 1:
        return connect(warehouses[0], partial=partial, strict=strict)
    inventories = [take_inventory(each, partial=partial) for each in warehouses]
    tell_left_out([line for inventory in inventories for line in inventory.left_out], strict)
    connection = new_connection()
    runs = {f"run{number}": pair for number, pair in enumerate(zip(warehouses, inventories, strict=True))}
    text = definitions()
    with explain_errors():
        for database in runs:
            connection.execute(f"ATTACH ':memory:' AS {database}")
            define(connection, database)
            connection.execute(f"USE {database}; {_macros_within(database, text)}")
        connection.execute(f"USE memory; {_over_all(warehouses, text)}")
        for database, (warehouse, inventory) in runs.items():       # after the views: see `table_views`
            connection.execute(f"USE {database}; {stored_rows(inventory)}")
            if not partial:
                keep_script(warehouse, inventory)
        connection.execute("USE memory")
    return connection


def _macros_within(database: str, text: str) -> str:
    """The macros of a run, which name tables with the database, because other databases call them.

    DuckDB looks up what a view reads where the view is, and what a macro reads where it is called.
    """
    tables = {*VIEW.findall(text), *(name for name, _, table in MACRO.findall(text) if table)}
    reads = re.compile(rf"\b(FROM|JOIN)(\s+)({'|'.join(sorted(tables))})\b")
    return "\n".join(reads.sub(rf"\1\2{database}.main.\3", macro[0]) for macro in MACRO.finditer(text))


def _over_all(warehouses: Sequence[Warehouse], text: str) -> str:
    """The views and macros over all runs, from the text that made those of one run."""
    names = run_names([warehouse.root for warehouse in warehouses])
    statements = [_runs_view(warehouses, names)]
    for name in dict.fromkeys(VIEW.findall(text)):      # before the macros, which read them
        if name not in (*HIDDEN, *OF_ALL):
            statements.append(f"CREATE VIEW {name} AS {_union(names, f'{{database}}.main.{name}')};")
    for macro in MACRO.finditer(shipped(*SQL_FILES)):
        name, arguments, table = macro.groups()
        if not arguments or (table and name in HIDDEN):       # a part of a view
            continue
        rows = _union(names, _call(name, arguments))
        statements.append(macro[0] if not table or name in OF_ALL else
                          f"CREATE MACRO {name}({arguments}) AS TABLE {rows};")
    return "\n".join([*statements, shipped(RUNS_FILE)])


def _union(names: Sequence[str], source: str) -> str:
    """The rows of a source in every run's database, with the run's name as first column."""
    return "\nUNION ALL ".join(
        f"SELECT {quoted(name)} AS run, * FROM {source.replace('{database}', f'run{number}')}"
        for number, name in enumerate(names))


def _call(name: str, arguments: str) -> str:
    """The call of a run's macro with the arguments of the one over all; `rows` names a table of the run."""
    given = []
    for argument in filter(None, (each.strip() for each in arguments.split(","))):
        parameter, default, _ = argument.partition(":=")
        parameter = parameter.strip()
        given.append(f"{parameter} := {parameter}" if default else
                     f"'{{database}}.main.' || {parameter}" if parameter == "rows" else parameter)
    return f"{{database}}.main.{name}({', '.join(given)})"


def _runs_view(warehouses: Sequence[Warehouse], names: Sequence[str]) -> str:
    rows = [{"run": name, "folder": str(each.root), "run_id": each.run_id, "base": each.base_name,
             "tokenizer_sha256": each.facts.get("tokenizer_sha256"),
             "tasks_sha256": each.state.tasks_sha256, "schema_version": each.facts["schema_version"]}
            for each, name in zip(warehouses, names, strict=True)]
    return f"CREATE VIEW runs AS {literal_rows(rows, RUN_COLUMNS)};"
