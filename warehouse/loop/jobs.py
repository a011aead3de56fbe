"""Commands that a loop runs concurrently; they end with the loop, and their output is collected."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from warehouse.stages import warm
from warehouse.stages.children import SECONDS_TO_END, spawn


class Job:
    """A running command in its own session: Ctrl-C reaches only the loop, which tells the command to stop."""

    def __init__(self, words: Sequence[str], folder: Path, place: Mapping[str, str] | None = None) -> None:
        self.words = list(words)
        self.output = folder / f"{time.monotonic_ns()}-{words[0]}"
        with self.output.open("wb") as output:
            self.process = spawn([find(words[0]), *words[1:]], stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=output, start_new_session=True,
                                 # The original value, or it would import by itself.
                                 env=warm.began_with | {**(place or {})})

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.process.poll()

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def stop(self) -> None:
        """Tell it to stop; finished work is kept."""
        self.process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Wait until it has ended after a request; kill it if it does not end."""
        try:
            return self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()


def stop_all(jobs: Sequence[Job]) -> None:
    """Tell commands to stop, and wait until all have ended; finished work is kept."""
    for job in jobs:
        job.stop()
    for job in jobs:
        job.end()


def find(name: str) -> str:
    """A command of this environment, even if the environment is not activated."""
    own = Path(sys.argv[0]).parent / name
    return str(own) if own.is_file() else shutil.which(name) or name
