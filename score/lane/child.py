"""One program's process, from the fork to `os._exit`: read the job, lock the doors, run, write one frame."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from score.isolation.lockdown import LINK_FD, RESULT_FD, Lockdown
from score.lane.grids_and_scripts import HANDLERS, Handler, InvalidOutput, handler_of
from score.lane.modules import MissingFunction
from score.wire import allowed_imports as imports
from score.wire.error_classes import CHILD_CLASSES, ErrorClass
from score.wire.frames import JobKind, encode_error, encode_grids, encode_result, split_result

if TYPE_CHECKING:
    from score.lane.supervisor import Allowance, Watch


# What grid programs do most. The first time costs Python and numpy lookups that every child would pay for.
WARM_UP = b"""import numpy as np

def transform(grid):
    height, width = grid.shape
    out = np.zeros((height, width), dtype=int)
    out[grid > 0] = grid[grid > 0]
    out[(grid == 1) | (grid != 2) & (grid >= 0)] = 3
    for row in range(height):
        for col in range(width):
            if grid[row, col] == 1 and grid[row][col] < 4:
                out[row, col] = grid[row, col] + 1
    colors, counts = np.unique(grid, return_counts=True)
    rows, cols = np.where(grid != colors[np.argmax(counts)])
    for row, col in np.argwhere(grid == 1):
        out[row - 1, col] = max(int(out[row, col]), 1) % 10
    out[1:, :-1] = out[:-1, 1:].copy()
    if np.any(out) and (out == out.T).all() and len(rows) and rows.min() <= cols.max() and out.sum() > 9:
        out = np.vstack([np.hstack([out, out * 2 - 1]), np.concatenate([out, out], axis=1)])
    for turned in (np.rot90(out), np.fliplr(out), np.flipud(out), np.transpose(out), np.zeros_like(out)):
        cells = [[int(cell) for cell in line] for line in turned.tolist()]
    np.array_equal(np.array(cells), np.tile(grid, (2, 2))), np.pad(grid, 1), np.roll(grid, 1, axis=0)
    return np.where(np.abs(out) > 9, 9, np.abs(out))
"""
WARM_UPS = 10        # the interpreter specialises code that ran eight times
GENERATORS = ("random", "numpy.random")


class OutputLimit(Exception):
    """The answer is larger than the limit."""


def run_child(files: tuple[int, ...], link_fd: int, job: list[int], place: int, watch: Watch,
              allowance: Allowance) -> None:
    """Never returns. `files` are job, result and, for scripts, stdin and stdout; `job` what ORDER says."""
    try:
        prepared = prepare(files, link_fd, job, place, watch, allowance)
    except BaseException:
        os._exit(70)
    try:
        finish(prepared, allowance)
    finally:
        os._exit(0)       # neither threads, nor atexit, nor destructors get another turn


def prepare(files: tuple[int, ...], link_fd: int, job: list[int], place: int, watch: Watch,
            allowance: Allowance) -> tuple[Handler, bytes, bytes]:
    """All that comes before foreign code; what runs the job, its source and its payload."""
    watch.lockdown.die_with_lane(watch.pid, allowance.last_cpu_limit)
    kind, seed, names_bytes, source_bytes, payload_bytes = job
    content = os.pread(files[0], names_bytes + source_bytes + payload_bytes, 0)
    if names_bytes:
        imports.import_all(content[:names_bytes].decode().split(","))
    handler = handler_of(kind)           # what the kind itself needs is imported while that is possible
    if names_bytes or watch.has_generators:
        seed_generators(seed)
    arrange_streams(files, link_fd)
    watch.lockdown.enter_child(RESULT_FD if link_fd < 0 else LINK_FD, allowance.threads)
    # The lane learns from here that preparation succeeded, and what it cost.
    watch.ready.report(place, names_bytes > 0 or kind not in HANDLERS)
    source_end = names_bytes + source_bytes
    return handler, content[names_bytes:source_end], content[source_end:]


def finish(prepared: tuple[Handler, bytes, bytes], allowance: Allowance) -> None:
    """Run the foreign code and leave its frame."""
    frame = answer(*prepared)
    if len(frame) > allowance.output_bytes:
        frame = failure(OutputLimit(f"{len(frame)} bytes"), "run")
    os.pwrite(RESULT_FD, frame, 0)


def warm_up(watch: Watch, allowance: Allowance) -> None:
    """In a lane, before any job: do what children do, but for what could not be undone.

    They then find caches full and code specialised. RuntimeError if our own program does not run.
    """
    payload = encode_grids([np.array([[0, 1], [1, 2]], np.uint8)])
    files = os.memfd_create("job"), os.memfd_create("result")
    os.pwrite(files[0], WARM_UP + payload, 0)
    lockdown, lane = watch.lockdown, watch.pid
    watch.lockdown, watch.pid = Lockdown(0, []), os.getppid()
    watch.lockdown.is_rehearsal = True
    for _ in range(WARM_UPS):
        job = [int(JobKind.GRID), 0, 0, len(WARM_UP), len(payload)]
        finish(prepare(files, -1, job, 0, watch, allowance), allowance)
        watch.ready.open()
    watch.lockdown, watch.pid = lockdown, lane
    status, body = split_result(os.pread(files[1], allowance.output_bytes, 0))
    if status != 1:
        raise RuntimeError(f"a program that every lane runs first failed: {body!r}")
    for number in files:
        os.close(number)
    os.dup2(0, RESULT_FD)
    del sys.modules["program"]


def answer(handler: Handler, source: bytes, payload: bytes) -> bytes:
    """The frame for a program: its result, or how it failed."""
    phase = "compile"
    try:
        code = compile(source, "program.py", "exec", dont_inherit=True)
        phase = "run"
        return encode_result(handler(code, payload))
    except BaseException as error:
        return failure(error, phase)


def failure(error: BaseException, phase: str) -> bytes:
    """The frame of an error; its text is asked for only once and under guard, for it is foreign code too."""
    error_class = classify(error, phase)
    try:
        message = str(error)
    except BaseException:
        message = "(no message)"
    name = error.flaw if isinstance(error, InvalidOutput) else type(error).__name__
    try:
        return encode_error(CHILD_CLASSES.index(error_class), str(name), message)
    except BaseException:
        return encode_error(CHILD_CLASSES.index(error_class), "Exception", "(no message)")


def classify(error: BaseException, phase: str) -> ErrorClass:
    """Error class by phase and type: a parser that overflows raises MemoryError, still bad syntax."""
    if phase == "compile":
        return ErrorClass.SYNTAX
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return ErrorClass.OUTPUT_LIMIT
    for kind, error_class in ((InvalidOutput, ErrorClass.INVALID_OUTPUT),
                              (MissingFunction, ErrorClass.MISSING_FUNCTION),
                              (OutputLimit, ErrorClass.OUTPUT_LIMIT),
                              (ModuleNotFoundError, ErrorClass.IMPORT_NOT_ALLOWED),
                              (RecursionError, ErrorClass.RECURSION),
                              (MemoryError, ErrorClass.MEMORY),
                              (PermissionError, ErrorClass.SANDBOX_VIOLATION)):
        if isinstance(error, kind):
            return error_class
    return ErrorClass.RUNTIME


def arrange_streams(files: tuple[int, ...], link_fd: int) -> None:
    """A script's streams on 0 and 1, the result on 3, the link on 4.

    Files begin at their beginning: where the program before this one left them is nobody's business.
    """
    if link_fd >= 0:
        os.dup2(link_fd, LINK_FD)
    elif len(files) == 4:
        for number, stream in enumerate(files[2:]):
            os.dup2(stream, number)
            os.lseek(number, 0, os.SEEK_SET)
    os.dup2(files[1], RESULT_FD)
    os.lseek(RESULT_FD, 0, os.SEEK_SET)


def seed_generators(seed: int) -> None:
    """A program that draws numbers draws the same ones every time it is scored."""
    for name in GENERATORS:
        module: Any = sys.modules.get(name)
        if module is not None:
            module.seed(seed & 0xFFFFFFFF)
