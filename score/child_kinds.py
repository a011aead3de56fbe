"""What a child does with a program, by kind of task: the foreign code itself runs below here."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from score.frames import MAX_GRID_SIDE, Kind, decode_grids, encode_grids

GRID_FUNCTION = "transform"
# Names that grid programs use without importing them.
GRID_NAMES: dict[str, Any] = {"np": np, "numpy": np, "List": typing.List, "Tuple": typing.Tuple}  # noqa: UP006


class InvalidOutput(Exception):
    """An output that is no answer; `kind` is type, shape, range or count."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class MissingFunction(Exception):
    """The program defines no function of the name asked for."""


class OutputLimit(Exception):
    """The answer is larger than the limit."""


def run_module(code: CodeType, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Execute the program's top level as module `name`; its namespace comes back."""
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__.update(names)
    exec(code, module.__dict__)
    return module.__dict__


def function_of(namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """The function called `name`; MissingFunction if there is none."""
    function = namespace.get(name)
    if not callable(function):
        raise MissingFunction(f"the program defines no function {name}")
    return function


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
    if cells.min() < 0 or cells.max() > 9:
        raise InvalidOutput("range", f"cells from {cells.min()} to {cells.max()}")
    return cells.astype(np.uint8)


HANDLERS: dict[Kind, Callable[[CodeType, bytes], bytes]] = {Kind.GRID: run_grids}
