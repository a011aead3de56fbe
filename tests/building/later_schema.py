"""This project as it will be when a schema version has added columns: what a run of today has to bear."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from warehouse.maintain import check
from warehouse.sql import inventory
from warehouse.store import parts, run_folder, schema

LATER = schema.SCHEMA_VERSION + 1
ADDED = {"samples": schema.Column("surprise", schema.FLOAT, "Added later.", since=LATER),
         "prompts": schema.Column("added", schema.COUNT, "Added later.", since=LATER)}


@contextmanager
def later_schema() -> Iterator[None]:
    """One more column in two tables, and the schema version after this one."""
    with ExitStack() as stack:
        for module in (check, inventory, parts, run_folder, schema):
            stack.enter_context(patch.object(module, "SCHEMA_VERSION", LATER))
        tables = {table: (*columns, ADDED[table]) if table in ADDED else columns
                  for table, columns in schema.TABLES.items()}
        stack.enter_context(patch.dict(schema.TABLES, tables))
        yield
