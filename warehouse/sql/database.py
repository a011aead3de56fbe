"""The only module that imports DuckDB: it writes warehouse.sql and runs it into an in-memory connection."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warehouse.sql.catalog import quoted, stored_rows
from warehouse.sql.inventory import Inventory, take_inventory
from warehouse.sql.script import SETTINGS, definitions, keep_script
from warehouse.store.commit import TEMPORARY_MARK, by_address, readable
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection
else:
    Connection = Any  # duckdb takes a while to import, so it is imported when needed

MOST_WARNINGS = 5
READ_OFTEN = ("task_results", "iteration_stats", "adjusted", "signals")     # views; each reads earlier ones
# DuckDB's errors if a file is too large, the disk full or read-only, or the quota used up.
GONE = re.compile(r'No files found that match the pattern "(.*?\.parquet)"')
REFUSED = re.compile(r'(?s)file \\*"(?P<path>.+?)\\*": (?P<why>{})'.format("|".join(
    os.strerror(number) for number in (errno.EFBIG, errno.ENOSPC, errno.EROFS, errno.EDQUOT))))
Answer = TypeVar("Answer")


def refresh_sql(warehouse: Warehouse) -> Path:
    """Write RUN/warehouse.sql if its content has changed; a read-only run keeps the old one."""
    keep_script(warehouse, take_inventory(warehouse))
    return warehouse.root / "warehouse.sql"


def connect(warehouse: Warehouse, *, partial: bool = False, strict: bool = False,
            iteration: int | None = None, inventory: Inventory | None = None) -> Connection:
    """An in-memory connection with every table, view and macro of the run, or of an `inventory` of it.

    With `partial`, parts of unfinished stages are included, to watch a rollout. Damaged stages are left out
    and named on stderr; with `strict` they are a StageError. With `iteration` only the stages of one
    iteration are fetched and read.
    """
    inventory = inventory or take_inventory(warehouse, partial=partial, iteration=iteration)
    tell_left_out(inventory.left_out, strict)
    if not partial and iteration is None:
        keep_script(warehouse, inventory)
    return connect_to(inventory)


def connect_to(inventory: Inventory) -> Connection:
    """A connection with every table, view and macro, and the rows of an inventory."""
    connection = empty_connection()
    with explain_errors():
        connection.execute(stored_rows(inventory))
    return connection


def new_connection() -> Connection:
    import duckdb
    connection = duckdb.connect()
    connection.execute(f"SET enable_progress_bar = false; {SETTINGS}")    # it would be printed among the rows
    return connection


def compute_once(connection: Connection) -> Connection:
    """The connection, with the rows of the views that summaries, alarms and reports read often."""
    for view in READ_OFTEN:
        rows_of(connection, f"CREATE TEMP TABLE {view} AS FROM {view}")
    return connection


def tell_left_out(left_out: Sequence[str], strict: bool) -> None:
    """Name on stderr the unreadable parts of a run; with `strict` raise StageError."""
    if strict and left_out:
        raise StageError(left_out[0])
    for warning in left_out[:MOST_WARNINGS]:
        print(by_address(f"warning: {warning}"), file=sys.stderr)
    if len(left_out) > MOST_WARNINGS:
        print(f"warning: {len(left_out) - MOST_WARNINGS} more; `warehouse check` lists them", file=sys.stderr)


@contextmanager
def explain_errors() -> Iterator[None]:
    """Turn DuckDB's errors into StageErrors with the way out, and its interrupt into KeyboardInterrupt."""
    import duckdb
    try:
        yield
    except (duckdb.InterruptException, RuntimeError) as error:
        if "interrupted" not in str(error).lower():
            raise
        raise KeyboardInterrupt from error
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(str(error).splitlines()[0]) from error
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        if refused := REFUSED.search(str(error)):
            number = next(number for number in errno.errorcode if os.strerror(number) == refused["why"])
            path = Path(refused["path"].partition(TEMPORARY_MARK)[0])
            raise readable(OSError(number, str(error)), path) from error
        if gone := GONE.search(str(error)):
            raise StageError(f"{gone[1]} is gone, as after `warehouse compact`, `prune` or `discard`. Run "
                             "the same command again; `warehouse check RUN` says if it is lost.") from error
        way_out = ("\nRun `warehouse check RUN` to see what is damaged." if ".parquet" in str(error) else "")
        raise StageError(f"{str(error).strip()}{way_out}") from error
    except duckdb.Error as error:
        raise StageError(f"{str(error).strip()}\n{_way_out(str(error))}") from error


def _way_out(said: str) -> str:
    """What helps against an error of a query."""
    if "(BOOLEAN)'" in said:
        return "True counts as 1 in column::int: avg(correct::int)."
    if column := re.search(r'column (?:named )?"(\w+)"', said):
        query = "SELECT 1 FROM duckdb_columns() WHERE NOT internal AND column_name = $1"
        if rows_of(empty_connection(), query, [column[1]]):
            return f"Tables and views with such a column: `warehouse schema {column[1]}`."
        return f"A field of a task is payload->>'{column[1]}' FROM tasks. All columns: `warehouse schema`."
    return "The tables and views: `warehouse schema`."


def split_statements(script: str) -> list[str]:
    """The statements of a text, without semicolons and blank ones."""
    import duckdb
    text, statements, begin, empty = script.encode(), [], 0, True
    for offset, kind in duckdb.tokenize(script):
        if text[offset:offset + 1] == b";":
            statements += [] if empty else [text[begin:offset].decode().strip()]
            begin, empty = offset + 1, True
        elif kind != duckdb.token_type.comment:
            empty = False
    return statements if empty else [*statements, text[begin:].decode()]


def changes(connection: Connection, statement: str) -> bool:
    """Whether a statement makes or changes an in-memory table, rather than selecting."""
    return _kinds(connection, statement)[-1:] in (
        ["CREATE"], ["INSERT"], ["UPDATE"], ["DELETE"], ["ALTER"], ["DROP"])


def _kinds(connection: Connection, script: str) -> list[str]:
    """What each statement of a text is, as SELECT or CREATE."""
    with explain_errors():
        return [part.type.name for part in connection.extract_statements(script)]


def lock(connection: Connection, folder: Path, *, memory_mib: int) -> None:
    """From now on the connection reads only files in `folder`, and its settings cannot be changed."""
    connection.execute(f"SET memory_limit = '{memory_mib}MiB'; SET temp_directory = ''; "
                       f"SET allowed_directories = [{quoted(f'{folder}/')}]; "
                       "SET enable_external_access = false; SET lock_configuration = true")


def check_asks(connection: Connection, query: str) -> None:
    """StageError unless a text is a single statement that only reads."""
    kinds = _kinds(connection, query)
    if kinds != ["SELECT"]:
        raise StageError("Only a single query that changes nothing is possible here: "
                         f"this is {', '.join(kinds) or 'nothing'}. Write a condition, as reward > 0.")


@contextmanager
def within(connection: Connection, seconds: float) -> Iterator[None]:
    """Interrupt the block's query after `seconds` and raise a StageError."""
    from duckdb import InterruptException
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (InterruptException, KeyboardInterrupt) as error:
        raise StageError(f"The query took longer than {seconds:g} s and was cancelled. Query fewer "
                         "iterations, as iteration = 7 AND ..") from error
    finally:
        timer.cancel()


def empty_connection() -> Connection:
    """A connection with every table, view and macro and no rows."""
    connection = new_connection()
    define(connection, "memory")
    return connection


def define(connection: Connection, database: str) -> None:
    """Give a database of a connection every table, view and macro.

    To copy them from a file takes a tenth of the time that DuckDB takes to check them.
    """
    import duckdb
    try:
        connection.execute(f"ATTACH {quoted(str(_defined()))} AS defined (READ_ONLY); "
                           f"COPY FROM DATABASE defined TO {database}; DETACH defined")
    except (OSError, duckdb.IOException):      # no room for the file, or somebody removed or damaged it
        connection.execute(f"USE {database}; {definitions()}; RESET search_path")


def _defined() -> Path:
    """The user's file of the definitions in the temporary directory, made if there is none."""
    import duckdb
    folder = Path(tempfile.gettempdir(), f"rollhouse-sql-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(folder)          # another user could have put something else there
    text = definitions()
    path = folder / hashlib.sha256(f"{duckdb.__version__} {text}".encode()).hexdigest()[:16]
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with duckdb.connect(Path(scratch, "defined")) as connection:
                connection.execute(text)
            Path(scratch, "defined").replace(path)
    return path


def interruptible(connection: Connection, work: Callable[[], Answer]) -> Answer:
    """Do `work`, which queries `connection`; Ctrl-C ends the query and raises KeyboardInterrupt.

    Python handles signals only in its main thread, so the query runs in another one. The signal is recorded
    instead of raised: an exception while a thread starts would leave it running unnoticed.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    stopped, before = threading.Event(), signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:            # not if Ctrl-C is ignored or has another handler
        signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            future = pool.submit(work)
            while not future.done():
                if stopped.is_set():
                    connection.interrupt()              # repeatedly: a query that has not begun ignores it
                wait([future], timeout=0.05)
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
    if stopped.is_set():
        raise KeyboardInterrupt
    return future.result()


def rows_of(connection: Connection, query: str, parameters: list[Any] | None = None) -> list[dict[str, Any]]:
    with explain_errors():
        cursor = connection.execute(query, parameters or [])
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def keys_of(connection: Connection, option: str, query: str, texts: Sequence[str],
            numbers: Sequence[str] = (), *, may_lack: Sequence[str] = (),
            hint: str = "Select it.") -> list[dict[str, Any]]:
    """Rows of an option's query that name something, with the given columns of texts and of whole numbers."""
    with explain_errors():
        answer = connection.execute(query)              # None if the query returns nothing
        names = [column[0] for column in answer.description or []] if answer else []
        rows = [dict(zip(names, row, strict=True)) for row in answer.fetchall()] if answer else []
    for name in (*texts, *numbers):
        if name not in names and name not in may_lack:
            raise StageError(f"{option} gives no column '{name}' but {', '.join(names) or 'none'}. {hint}")
    for name, value in ((name, row.get(name)) for row in rows for name in (*texts, *numbers)):
        whole = isinstance(value, int | float | Decimal) and value % 1 == 0
        if value is not None and not (isinstance(value, str) if name in texts else whole):
            kind = "text" if name in texts else "a whole number"
            raise StageError(f"{option} gives {value} as {name}, which is not {kind}. Correct the query.")
    return rows
