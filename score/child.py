"""One program's process, from the fork to `os._exit`: read the job, lock the doors, run, write one frame."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from score import imports
from score.child_kinds import Handler, InvalidOutput, handler_of
from score.child_modules import MissingFunction
from score.error_classes import CHILD_CLASSES, ErrorClass
from score.frames import Kind, encode_error, encode_grids, encode_result
from score.lockdown import LINK_FD, RESULT_FD

if TYPE_CHECKING:
    from score.watch import Allowance, Watch


WARM_UP = b"import numpy as np\n\ndef transform(grid):\n    return np.zeros_like(grid)\n"
WARM_UPS = 10        # the interpreter specialises code that ran eight times
GENERATORS = ("random", "numpy.random")


class OutputLimit(Exception):
    """The answer is larger than the limit."""


def run_child(files: tuple[int, ...], link_fd: int, job: list[int], place: int, watch: Watch,
              allowance: Allowance) -> None:
    """Never returns. `files` are job, result and, for scripts, stdin and stdout; `job` what ORDER says."""
    try:
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
        watch.page.report(place)
    except BaseException:
        os._exit(70)
    try:
        source_end = names_bytes + source_bytes
        frame = answer(handler, content[names_bytes:source_end], content[source_end:])
        if len(frame) > allowance.output_bytes:
            frame = failure(OutputLimit(f"{len(frame)} bytes"), "run")
        os.pwrite(RESULT_FD, frame, 0)
    finally:
        os._exit(0)       # neither threads, nor atexit, nor destructors get another turn


def warm_up() -> None:
    """In a lane, before any job: run a program of our own, so that children find caches full."""
    payload = encode_grids([np.zeros((2, 2), np.uint8)])
    for _ in range(WARM_UPS):
        answer(handler_of(Kind.GRID), WARM_UP, payload)
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
    name = error.kind if isinstance(error, InvalidOutput) else type(error).__name__
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
