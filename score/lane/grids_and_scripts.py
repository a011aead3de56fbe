"""What a child does with a program, by kind of job: the foreign code itself runs below here."""

from __future__ import annotations

import io
import sys
import typing
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from score.lane.modules import function_of, run_module
from score.wire.frames import MAX_GRID_SIDE, JobKind, decode_grids, encode_grids

GRID_FUNCTION = "transform"
# Names that grid programs use without importing them.
GRID_NAMES: dict[str, Any] = {"np": np, "numpy": np, "List": typing.List, "Tuple": typing.Tuple}  # noqa: UP006
# What the methods of arrays call in the end.
MINIMUM, MAXIMUM = np.minimum.reduce, np.maximum.reduce


class InvalidOutput(Exception):
    """An output that is no answer; `flaw` is type, shape, range or count."""

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


def run_script(code: CodeType, payload: bytes) -> bytes:
    """Run the program as `__main__`, stdin and stdout on memory files; exit codes other than 0 are errors."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8",
                                  errors="backslashreplace")
    output = sys.stdout
    sys.setrecursionlimit(20_000)           # what contestants set themselves; the memory limit still holds
    try:
        run_module(code, "__main__", {})
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    finally:
        output.flush()
        if sys.stdout is not output:
            sys.stdout.flush()
    return b""


Handler = Callable[[CodeType, bytes], bytes]
HANDLERS: dict[int, Handler] = {JobKind.GRID: run_grids, JobKind.STDIO: run_script}


def handler_of(kind: int) -> Handler:
    """What runs a job; functions come from a module that only their own children load."""
    if kind in HANDLERS:
        return HANDLERS[kind]
    from score.lane import functions
    return {JobKind.CALL: functions.run_calls, JobKind.SERVE: functions.serve_calls,
            JobKind.TEST: functions.run_tests}[JobKind(kind)]
