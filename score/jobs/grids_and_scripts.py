"""Jobs of grids and scripts, and the handler of each kind of job."""

import atexit
import builtins
import errno
import gc
import io
import os
import stat
import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from score.jobs.modules import function_of, run_module
from score.protocol.frames import MAX_GRID_SIDE, JobKind, decode_grids, encode_grids

GRID_FUNCTION = "transform"
# Names that grid programs use without importing them.
GRID_NAMES: dict[str, Any] = {"np": np, "numpy": np, "List": typing.List, "Tuple": typing.Tuple}  # noqa: UP006
MAIN = {"__builtins__": builtins, "__file__": "/main.py"}         # names that only a script has
STREAMS = ["/dev/stdin", "/dev/stdout"]       # by descriptor
open_file = open
NO_ROWS = (dict, set, frozenset)
# What the methods of arrays call in the end.
MINIMUM, MAXIMUM = np.minimum.reduce, np.maximum.reduce
EXIT = SystemExit


class InvalidOutput(Exception):
    """An output that is not a grid; `flaw` is type, shape, range or count."""

    def __init__(self, flaw: str, message: str) -> None:
        super().__init__(message)
        self.flaw = flaw


def run_grids(code: CodeType, payload: bytes) -> bytes:
    """Call `transform` on every grid, each a fresh int64 array, and return the outputs as one body."""
    inputs = decode_grids(payload)
    transform = function_of(run_module(code, "program", GRID_NAMES), GRID_FUNCTION)
    return encode_grids([as_grid(transform(grid.astype(np.int64))) for grid in inputs])


def as_grid(output: Any) -> np.ndarray:
    """An output as uint8 cells; InvalidOutput unless it is a matrix of integers 0..9, at most 30 x 30."""
    try:
        cells = np.array(output, subok=False)
        if cells.dtype == object and not isinstance(output, NO_ROWS):      # rows that are map or zip objects
            cells = np.array([row if isinstance(row, NO_ROWS) else list(row) for row in output])
    except (ValueError, TypeError) as error:
        raise InvalidOutput("type", f"not an array: {error}") from None
    if cells.dtype.kind not in "iubf":
        raise InvalidOutput("type", f"cells of type {cells.dtype}")
    if cells.ndim != 2 or not (0 < cells.shape[0] <= MAX_GRID_SIDE and 0 < cells.shape[1] <= MAX_GRID_SIDE):
        raise InvalidOutput("shape", f"shape {cells.shape}")
    if cells.dtype.kind == "f" and not np.array_equal(cells, np.rint(cells)):
        raise InvalidOutput("type", "cells that are not whole numbers")
    if MINIMUM(cells, None) < 0 or MAXIMUM(cells, None) > 9:
        raise InvalidOutput("range", f"cells from {cells.min()} to {cells.max()}")
    return cells.astype(np.uint8)


def is_success(status: Any, kind: Any = type, derives: Any = issubclass, number: Any = int) -> bool:
    """Whether a script ends well with this exit status, by no name or method that it may have replaced."""
    return status is None or (derives(kind(status), number) and number.__eq__(status, 0))


def run_script(code: CodeType, payload: bytes) -> bytes:
    """Run the setup that `payload` is, then the program, as `__main__`, stdin and stdout on memory files.

    Exit codes other than 0 are errors.
    """
    sys.stdin = open_file(0, encoding="utf-8", errors="replace", newline="\n", closefd=False)
    sys.stdout = output = open_file(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=output)
    builtins.open = io.open = open_stream
    os.fstat = describe_stream
    sys.setrecursionlimit(20_000)           # what contestants set themselves; the memory limit still holds
    try:
        run_module(code, "__main__", MAIN, payload.decode())
    except EXIT as error:
        if not is_success(error.code):
            raise
    finally:
        atexit._run_exitfuncs()
        flush(output, vars(sys).get("stdout"))
        # As at the end of Python: what the program's names hold is finished, and so written.
        sys.modules.pop("__main__", None)
        gc.collect()
        flush(output, vars(sys).get("stdout"))
    return b""


def flush(*streams: Any) -> None:
    """Write what streams of a program hold, unless it replaced, detached or closed them."""
    for stream in streams:
        with suppress(AttributeError, ValueError):
            stream.flush()


def open_stream(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
    """`open` for /dev/stdin and /dev/stdout, which are open already; there are no other files."""
    if isinstance(file, (str, os.PathLike)) and str(file) in STREAMS:
        file, options["closefd"] = STREAMS.index(str(file)), False
    try:
        return open_file(file, mode, *arguments, **options)
    except PermissionError:
        if str(file).startswith("/") or not {*"wax+"}.isdisjoint(mode):
            raise
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", file) from None


def describe_stream(fd: int) -> os.stat_result:
    """`os.fstat` without the system call, which the filter denies: kind and size only."""
    position = os.lseek(fd, 0, os.SEEK_CUR)
    size = os.lseek(fd, 0, os.SEEK_END)
    os.lseek(fd, position, os.SEEK_SET)
    return os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, os.getuid(), os.getgid(), size, 0, 0, 0))


Handler = Callable[[CodeType, bytes], bytes]
HANDLERS: dict[int, Handler] = {JobKind.GRID: run_grids, JobKind.STDIO: run_script}


def handler_of(kind: int, room: int) -> Handler:
    """The handler of a kind of job, with `room` bytes for its answer. Modules load only where needed."""
    if kind in HANDLERS:
        return HANDLERS[kind]
    if kind == JobKind.CALL:
        from score.jobs.functions import run_calls
        return run_calls
    if kind == JobKind.SERVE:
        from score.jobs.program_end import serve_tests
        return serve_tests
    if kind == JobKind.PLAIN:
        from score.jobs.one_process import run_plainly
        return partial(run_plainly, room=room)
    from score.jobs.tests_end import run_tests
    return partial(run_tests, room=room)
