"""A prompt for SQL over one run, with history and completion of names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.look.queries import saved_queries, write_answer
from warehouse.look.show import completion_lines
from warehouse.sql.database import connect, explained
from warehouse.sql.dictionary import dictionary_lines
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

if TYPE_CHECKING:
    import duckdb

HELP = """\
SQL ends with a semicolon and may take several lines.
.views           tables and views        .schema NAME     what a table or view holds
.show COMPLETION one completion          .queries         saved queries; run one with @name key=value
.refresh         see what is new         .quit            leave (also Ctrl-D)"""
HISTORY = Path.home() / ".rollhouse_history"
COMMANDS = (".help", ".views", ".schema", ".show", ".queries", ".refresh", ".quit")
KEYWORDS = ("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "iteration", "purpose", "DESC")


def run_shell(warehouse: Warehouse, *, ask: Callable[[str], str] | None = None,
              say: Callable[[str], None] = print) -> None:
    """Read queries until the end of input; errors are shown and the shell goes on.

    Where the input is no terminal it is a script: answers alone are printed, errors go to stderr, and a
    StageError at the end says that there were some.
    """
    connection = connect(warehouse)
    script = ask is None and not sys.stdin.isatty()
    ask = _next_line if script else ask or input
    warn = partial(print, file=sys.stderr) if script else say
    if not script:
        _set_up_line_editing([*_names(connection), *COMMANDS, *KEYWORDS,
                              *(f"@{name}" for name in saved_queries(warehouse))])
        say(f"{warehouse.root}: {len(warehouse.iterations('completions'))} iterations. .help for help")
    asked = failed = 0
    for statement in _statements(ask, say, script):
        asked += 1
        try:
            if statement == ".refresh":
                connection = connect(warehouse)
            else:
                _answer(warehouse, connection, statement, say)
            continue
        except KeyboardInterrupt:
            if script:
                raise
            say("(interrupted)")
        except BrokenPipeError:  # nobody reads on
            raise
        except StageError as error:
            warn(f"Error: {error}")
        except Exception as error:  # whatever it is, the session and what was typed in it stay
            warn(f"Error: {error} ({type(error).__name__})")
        failed += 1
    if script and failed:
        raise StageError(f"{failed} of {asked} statements failed. Their errors are above.")


def _statements(ask: Callable[[str], str], say: Callable[[str], None], script: bool) -> Iterator[str]:
    """Queries and dot commands as they are typed; the last one of a script may lack its semicolon."""
    pending = ""
    while True:
        try:
            line = ask("  ...> " if pending else "sql> ")
        except EOFError:
            if script and pending.strip():
                yield pending.strip()
            return
        except KeyboardInterrupt:
            if script:
                raise
            pending = ""
            say("")
            continue
        if not pending and line.strip() == ".quit":
            return
        pending = f"{pending}\n{line}" if pending else line
        if not pending.strip():
            pending = ""
        elif pending.lstrip().startswith((".", "@")) or pending.rstrip().endswith(";"):
            yield pending.strip().rstrip(";")
            pending = ""


def _next_line(_: str) -> str:
    """The next line of a script."""
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise StageError(f"The input is not UTF-8 text ({error}). Save it as UTF-8.") from error
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _answer(warehouse: Warehouse, connection: duckdb.DuckDBPyConnection, line: str,
            say: Callable[[str], None]) -> None:
    """Run a dot command, a saved query or SQL statements, and print what comes of each."""
    command, _, argument = line.partition(" ")
    if command == ".help":
        say(HELP)
    elif command == ".views":
        say("\n".join(name for name, in connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY view_name").fetchall()))
    elif command == ".schema":
        say("\n".join(dictionary_lines(argument.strip() or None)))
    elif command == ".show":
        say("\n".join(completion_lines(connection, argument.strip(), color=sys.stdout.isatty())))
    elif command == ".queries":
        say("\n".join(f"@{name:<14} {query.summary}" for name, query in saved_queries(warehouse).items()))
    elif command.startswith("."):
        raise StageError(f"Unknown command {command}; .help lists them.")
    else:
        with explained():
            queries = [line] if line.startswith("@") else [
                statement.query for statement in connection.extract_statements(line)]
        for query in queries:
            if text := write_answer(warehouse, connection, query):
                say(text)


def _names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Views, columns and functions, to complete what is typed."""
    return [name for name, in connection.execute(
        "SELECT DISTINCT name FROM (SELECT view_name AS name FROM duckdb_views() WHERE NOT internal "
        "UNION ALL "
        "SELECT column_name FROM duckdb_columns() WHERE NOT internal UNION ALL SELECT function_name FROM "
        "duckdb_functions() WHERE NOT internal) ORDER BY name").fetchall()]


def _set_up_line_editing(words: list[str]) -> None:
    """History across sessions and completion with Tab, where the terminal has them."""
    if not sys.stdin.isatty():
        return
    import atexit
    import readline

    def complete(text: str, state: int) -> str | None:
        fitting = sorted({word for word in words if word.lower().startswith(text.lower())})
        return fitting[state] if state < len(fitting) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,();=<>")
    libedit = "libedit" in (readline.__doc__ or "")  # what macOS has in the place of GNU readline
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    if HISTORY.exists():
        readline.read_history_file(HISTORY)
    readline.set_history_length(2000)
    atexit.register(readline.write_history_file, HISTORY)
