"""A command in a fork of `warehouse warm`: run as if it had been started normally."""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from warehouse.stages import warm
from warehouse.stages.children import end_with_parent, name_process

LAST_WORDS_LOST = 120                # Python's exit code where output cannot be written at the end


class Job(NamedTuple):
    """A command to run: its connection, name, arguments and folder, its earlier running time, its standard
    streams, and the variables that assign its GPUs.
    """

    line: socket.socket
    name: str
    words: list[str]
    folder: str
    spent: float
    streams: list[int]
    place: dict[str, str]


def fork(work: Callable[[], int]) -> int:
    """Fork a process that does some work and always ends with its exit code; return its id."""
    process, code = os.fork(), 1
    if process == 0:
        try:
            become_job()
            code = work()
        except ConnectionError:                        # the command was killed: nobody reads the code
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            clean_up()
            os._exit(code)
    return process


def become_job() -> None:
    """First steps of a fork: end with its parent, reset signal handlers, drop inherited clean-ups."""
    end_with_parent(signal.SIGKILL)
    os.setsid()
    atexit._clear()                                    # the parent runs its own
    weakref.finalize._registry.clear()                 # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False   # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def clean_up(_code: int = 0) -> None:
    """Run a fork's own clean-ups, not those of its parent."""
    atexit._run_exitfuncs()


def run_job(job: Job, command: Any, before_the_end: Callable[[int], object] = clean_up) -> int:
    """Run a command as if it had been started with these words, in this folder, on these streams."""
    for number, stream in enumerate(job.streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering, errors=errors, closefd=False)
        for number, mode, buffering, errors in ((0, "r", -1, None), (1, "w", -1, None),
                                                (2, "w", 1, "backslashreplace")))
    os.chdir(job.folder)
    for variable in warm.PLACE:
        os.environ.pop(variable, None)
    os.environ.update(job.place)
    at = job.place.get("RANK") or job.place.get("CUDA_VISIBLE_DEVICES")
    name_process(f"{job.name}@{at}" if at else job.name)
    sys.argv = [job.name, *job.words]
    warm.started, warm.spent, warm.sound = time.perf_counter(), job.spent, True
    finished = threading.Event()
    job.line.sendall(warm.number(os.getpid()))
    threading.Thread(target=end_with_client, args=(job.line.dup(), finished), daemon=True).start()
    code = call(command, job)
    for written in (sys.stdout, sys.stderr):
        try:
            written.flush()
        except OSError:              # a full disk, a reader that is gone
            code, warm.sound = code or LAST_WORDS_LOST, False
    nowhere = os.open(os.devnull, os.O_RDWR)           # readers of the command wait for its end
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)
    before_the_end(code)
    finished.set()
    job.line.sendall(warm.number(code))
    return code


def call(command: Any, job: Job) -> int:
    """The exit code of a click command; AGAIN if a new process has to run it."""
    try:
        command.main(args=job.words, prog_name=job.name)
    except SystemExit as end:
        if isinstance(end.code, str):
            tell(end.code)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except warm.NewProcess as why:
        tell(str(why))
        return warm.AGAIN
    except BaseException:
        tell(traceback.format_exc().rstrip())
        return 1
    return 0


def tell(words: str) -> None:
    with contextlib.suppress(OSError):
        print(words, file=sys.stderr)


def end_with_client(line: socket.socket, finished: threading.Event) -> None:
    """Kill this process when the client of its command is killed."""
    with line, contextlib.suppress(OSError):
        line.recv(1)
    if not finished.is_set():
        os.kill(os.getpid(), signal.SIGKILL)
