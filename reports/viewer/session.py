"""A served run: one locked connection to its complete data, replaced when the data changes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from warehouse.objects.bucket import is_address
from warehouse.objects.place import sync_copy
from warehouse.sql.catalog import quoted
from warehouse.sql.database import Connection, check_asks, connect, lock, rows_of, within
from warehouse.sql.inventory import Inventory
from warehouse.sql.rollup import keep_rolled_up
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

MEMORY_MIB = 512
MOST_SECONDS = 20.0     # of a query, before it is cancelled
LOOK_AGAIN = 0.5        # seconds between two looks at the log
SYNC_AGAIN = 30         # seconds between two looks at an object store
Made = TypeVar("Made")


class View(NamedTuple):
    """The complete data of a run, by its `name` in addresses, at one moment; and cached results."""

    name: str
    warehouse: Warehouse
    inventory: Inventory
    connection: Connection
    version: str
    made: dict[str, Any]
    locks: defaultdict[str, threading.Lock]

    def asking(self) -> Asking:
        return Asking(self.connection.cursor())

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """The result of `make`, computed once for this view."""
        with self.locks[name]:
            if name not in self.made:
                self.made[name] = make()
            return self.made[name]


class Asking:
    """A connection that records its queries and cancels slow ones."""

    def __init__(self, cursor: Connection) -> None:
        self._cursor, self.asked = cursor, list[str]()

    def execute(self, query: str, parameters: list[Any] | None = None) -> Connection:
        """Run a query as DuckDB's connection does."""
        self.asked.append(with_values(query, parameters or []))
        with within(self._cursor, MOST_SECONDS):
            return self._cursor.execute(query, parameters or [])

    @property
    def connection(self) -> Connection:
        """Itself, for functions that expect a DuckDB connection."""
        return cast(Connection, self)

    def rows(self, query: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
        return rows_of(self.connection, query, parameters)

    def checked(self, query: str) -> list[dict[str, Any]]:
        """Rows of a query that contains a user's input."""
        check_asks(self._cursor, query)
        return self.rows(query)

    def hold_chosen(self, query: str) -> None:
        """Store the rows of a query, which contains a user's input, as the table `chosen` of this page."""
        check_asks(self._cursor, query)
        self.execute(f"CREATE OR REPLACE TEMP TABLE chosen AS {query}")


def with_values(query: str, parameters: list[Any]) -> str:
    """A query to paste: with its parameters inserted."""
    for number, value in reversed([*enumerate(parameters, start=1)]):       # $1 is the beginning of $10
        shown = quoted(value) if isinstance(value, str) else "NULL" if value is None else str(value)
        query = query.replace(f"${number}", shown)
    return query.strip()


class Session:
    """A served run, by its name in addresses; StageError if this is not a run that can be opened."""

    def __init__(self, path: str | Path, name: str) -> None:
        self.path, self.name = path, name
        self.root = sync_copy(path).absolute()
        open_warehouse(self.root)
        self._lock = threading.Lock()
        self.seen: View | None = None       # the data at the last look; None while the run is being opened
        self.problem = ""       # why it could not be opened
        self.line: Any = None               # of the list of runs, as it was last computed
        self.at_work = threading.Thread()   # computes it anew
        self.is_address, self._look_at = is_address(path), 0.0
        self._sync_at = time.monotonic() + SYNC_AGAIN

    def view(self) -> View:
        """The complete data now; StageError if the run is gone or cannot be read.

        While another thread looks for new data, the data at the last look.
        """
        view = self.seen
        if not self._lock.acquire(blocking=view is None):
            assert view is not None
            return view
        try:
            view = self._newest()
        except StageError as error:
            self.problem = str(error)
            raise
        finally:
            self._lock.release()
        self.problem = ""
        return view

    def _newest(self) -> View:
        started = time.monotonic()
        if self.seen and started < self._look_at:
            return self.seen
        if self.is_address and started > self._sync_at:
            sync_copy(self.path)
            self._sync_at = time.monotonic() + SYNC_AGAIN
        if not self.root.exists():
            self.seen = None
            raise StageError(f"{self.path} is gone: it was moved or removed. Put it back, or serve the "
                             "folder that it is in now.")
        warehouse = self.seen.warehouse if self.seen else open_warehouse(self.root)
        config = warehouse.root / "config.toml"
        version = f"{warehouse.state.head}-{config.stat().st_mtime_ns if config.exists() else 0}"
        if self.seen is None or self.seen.version != version:
            self.seen = open_view(self.root, self.name, version)
        took = time.monotonic() - started
        self._look_at = time.monotonic() + LOOK_AGAIN * max(1.0, 2 * took)
        return self.seen


def open_view(root: Path, name: str, version: str) -> View:
    """Connect to the complete data, and lock the connection to the run."""
    warehouse = open_warehouse(root)
    inventory = keep_rolled_up(warehouse)
    connection = connect(warehouse, inventory=inventory)
    lock(connection, warehouse.root, memory_mib=MEMORY_MIB)
    return View(name, warehouse, inventory, connection, version, {}, defaultdict(threading.Lock))
