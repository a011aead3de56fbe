"""A prompt for SQL over one run, with history and completion of names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.database import connect
from warehouse.dictionary import dictionary_lines
from warehouse.errors import StageError
from warehouse.queries import saved_queries, write_answer
from warehouse.show import completion_lines
from warehouse.store import Warehouse

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


def run_shell(warehouse: Warehouse, *, ask: Callable[[str], str] = input,
              say: Callable[[str], None] = print) -> None:
    """Read queries until the end of input; errors are shown and the shell goes on."""
    connection = connect(warehouse, comments=True)
    names = [name for name, in connection.execute(
        "SELECT DISTINCT name FROM (SELECT view_name AS name FROM duckdb_views() WHERE NOT internal "
        "UNION ALL "
        "SELECT column_name FROM duckdb_columns() WHERE NOT internal UNION ALL SELECT function_name FROM "
        "duckdb_functions() WHERE NOT internal) ORDER BY name").fetchall()]
    _set_up_line_editing([*names, *COMMANDS, *KEYWORDS, *(f"@{name}" for name in saved_queries(warehouse))])
    say(f"{warehouse.root}: {len(warehouse.iterations('completions'))} iterations. .help for help")
    pending = ""
    while True:
        try:
            line = ask("  ...> " if pending else "sql> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            pending = ""
            say("")
            continue
        if not pending and line.strip() == ".quit":
            return
        if not pending and line.strip() == ".refresh":
            connection = connect(warehouse, comments=True)
            continue
        pending = f"{pending}\n{line}" if pending else line
        if not pending.strip():
            pending = ""
        elif pending.lstrip().startswith((".", "@")) or pending.rstrip().endswith(";"):
            _answer(warehouse, connection, pending.strip().rstrip(";"), say)
            pending = ""


def _answer(warehouse: Warehouse, connection: duckdb.DuckDBPyConnection, line: str,
            say: Callable[[str], None]) -> None:
    """Run one query or dot command and print what comes of it."""
    command, _, argument = line.partition(" ")
    try:
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
            say(f"Unknown command {command}; .help lists them.")
        else:
            say(write_answer(warehouse, connection, line))
    except StageError as error:
        say(f"Error: {error}")
    except KeyboardInterrupt:
        say("(interrupted)")


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
