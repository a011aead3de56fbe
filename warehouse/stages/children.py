"""Processes that end with their parent, and their names."""

import contextlib
import ctypes
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warehouse.store.errors import StageError

DEATH_SIGNAL, NAME = 1, 15           # PR_SET_PDEATHSIG and PR_SET_NAME of prctl(2)
SECONDS_TO_END = 20.0


@contextlib.contextmanager
def child(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, and with this process even if it is killed."""
    process = spawn(command, env=variables)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
        process.kill()
        process.wait()


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, even if this one is killed; options are those of Popen."""
    try:
        return subprocess.Popen(command, preexec_fn=lambda: end_with_parent(signal.SIGTERM), **options)
    except OSError as error:
        raise StageError(f"{command[0]} cannot be run: {error.strerror}. Name a command that is "
                         "installed.") from error


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, number)


def name_process(name: str) -> None:
    """Set the name that `ps -e` and `top` show for this process, at most 15 bytes."""
    ctypes.CDLL(None).prctl(NAME, name.encode()[:15], 0, 0, 0)
