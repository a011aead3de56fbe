"""A prompt for SQL over one run, with history and completion of names."""

import sys
from collections.abc import Callable
from pathlib import Path

from warehouse.look.queries import write_answer
from warehouse.sql.database import connect, rows_of, split_statements
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

HISTORY = Path.home() / ".rollhouse_history"
NAMES = """
SELECT DISTINCT name FROM (SELECT view_name AS name FROM duckdb_views() WHERE NOT internal
                           UNION ALL SELECT column_name FROM duckdb_columns() WHERE NOT internal
                           UNION ALL SELECT function_name FROM duckdb_functions() WHERE NOT internal)"""


def run_shell(warehouse: Warehouse, *, ask: Callable[[str], str] = input,
              say: Callable[[str], None] = print) -> None:
    """Answer what is typed until the end of input; errors are shown and the shell goes on."""
    connection = connect(warehouse)
    saved = [f"@{name}" for name in read_config(warehouse.root / "config.toml").get("queries", {})]
    _set_up_line_editing([*(row["name"] for row in rows_of(connection, NAMES)), *saved])
    say(f"{warehouse.root}: SQL ends with a semicolon; `warehouse schema` explains the names; Ctrl-D leaves")
    while True:
        try:
            for statement in _typed_statements(ask):
                if text := write_answer(warehouse, connection, statement):
                    say(text)
        except EOFError:
            return
        except KeyboardInterrupt:
            say("(interrupted)")
        except BrokenPipeError:  # nobody reads on
            raise
        except Exception as error:  # whatever it is, the session and what was typed in it stay
            say(f"Error: {error}" + ("" if isinstance(error, StageError) else f" ({type(error).__name__})"))


def _typed_statements(ask: Callable[[str], str]) -> list[str]:
    """Whole statements, of one line or several; empty where nothing was typed."""
    text = ""
    while True:
        text += ask("  ...> " if text else "sql> ") + "\n"
        if text.startswith("@"):
            return [text.strip()]
        statements, rest = split_statements(text)
        if not rest:
            return statements


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
