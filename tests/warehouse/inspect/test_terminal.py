"""Ctrl-C through a real terminal: a query that runs for hours is ended."""

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.building.weather import build_run
from warehouse.store.run_folder import Warehouse

# Three joined ranges take hours; the sum keeps the optimizer from counting them without a look.
# What is answered before it shows that it is under way; nobody types the word.
ENDLESS = ("SELECT 'be' || 'gun' AS word; SELECT sum(a.range * b.range % (c.range + 1)) "
           "FROM range(99999) a, range(99999) b, range(99999) c")


class Terminal:
    """A `warehouse` command at the other end of a pseudo-terminal."""

    def __init__(self, process: int, descriptor: int) -> None:
        self.process, self.descriptor = process, descriptor
        self.unread = ""
        self.ended = False

    def type(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def wait_for(self, words: str, seconds: float = 300) -> str:
        """What was shown up to and including `words`, which must come in time."""
        deadline = time.monotonic() + seconds
        while words not in self.unread:
            ready, _, _ = select.select([self.descriptor], [], [], max(0, deadline - time.monotonic()))
            try:
                more = os.read(self.descriptor, 65536) if ready else b""
            except OSError:  # the command has ended
                more = b""
            assert more, f"no {words!r} in {self.unread!r}"
            self.unread += more.decode(errors="replace")
        shown, _, self.unread = self.unread.partition(words)
        return shown + words

    def exit_code(self) -> int:
        """Wait for the command's end."""
        self.ended = True
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def hang_up(self) -> None:
        os.close(self.descriptor)
        if not self.ended:
            os.kill(self.process, signal.SIGKILL)
            self.exit_code()


@contextmanager
def typing(home: Path, *arguments: object) -> Iterator[Terminal]:
    """A `warehouse` command started with `home` as home directory."""
    command = [sys.executable, "-c", "from warehouse.cli import cli; cli()", *map(str, arguments)]
    process, descriptor = pty.fork()
    if process == 0:
        terminal = {"HOME": str(home), "TERM": "xterm", "COLUMNS": "200"}
        os.execve(sys.executable, command, os.environ | terminal)
    open_terminal = Terminal(process, descriptor)
    try:
        yield open_terminal
    finally:
        open_terminal.hang_up()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run = build_run(folder, iterations=1, evals=(), num_tasks=2, group_size=2)
    return run




def test_ctrl_c_ends_a_query_of_the_command_line(run: Warehouse, tmp_path: Path) -> None:
    with typing(tmp_path, "sql", run.root, ENDLESS) as terminal:
        terminal.wait_for("begun")
        terminal.type("\x03")
        assert "Traceback" not in terminal.wait_for("Aborted!")
        assert terminal.exit_code() == 1
