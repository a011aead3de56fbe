"""One program's process, from the fork to `os._exit`: read the job, lock the doors, run, write one frame."""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

from score import imports
from score.child_kinds import InvalidOutput, handler_of
from score.child_modules import MissingFunction
from score.error_classes import CHILD_CLASSES, ErrorClass
from score.frames import Kind, decode_job, encode_error, encode_result
from score.lockdown import LINK_FD, RESULT_FD, RULESET_FD, Lockdown


class OutputLimit(Exception):
    """The answer is larger than the limit."""


def run_child(fds: list[int], ready_fd: int, link_fd: int | None, order: dict[str, int],
              lockdown: Lockdown) -> None:
    """Never returns. `fds` are job, result and, for scripts, stdin and stdout."""
    try:
        lockdown.die_with_lane()
        job = read_all(fds[0])
        kind, seed, modules, source, payload = decode_job(job)
        arrange_descriptors(fds, link_fd, keep=ready_fd)
        imports.import_all(modules)
        handler_of(kind)                     # what the kind itself needs is imported while that is possible
        seed_generators(seed)
        lockdown.enter_child(bool(order["threads"]))
        # The lane learns from here that preparation succeeded, and what it cost; the door is shut before any
        # foreign code runs, so the message cannot be forged.
        os.write(ready_fd, time.process_time_ns().to_bytes(8, "little")
                 + time.monotonic_ns().to_bytes(8, "little"))
        os.close(ready_fd)
    except BaseException:
        os._exit(70)
    try:
        frame = answer(kind, source, payload)
        if len(frame) > order["output_bytes"]:
            frame = failure(OutputLimit(f"{len(frame)} bytes"), "run")
        os.pwrite(RESULT_FD, frame, 0)
    finally:
        os._exit(0)       # neither threads, nor atexit, nor destructors get another turn


def answer(kind: Kind, source: bytes, payload: bytes) -> bytes:
    """The frame for a program: its result, or how it failed."""
    phase = "compile"
    try:
        code = compile(source, "program.py", "exec", dont_inherit=True)
        phase = "run"
        return encode_result(handler_of(kind)(code, payload))
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


def read_all(fd: int) -> bytes:
    """All bytes of a job's memory file."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def arrange_descriptors(fds: list[int], link_fd: int | None, keep: int) -> None:
    """Streams on 0..2, the result on 3, the link on 4, the ruleset on 5, `keep` stays, others close."""
    stdin, stdout = (fds[2], fds[3]) if len(fds) == 4 else (None, None)
    if stdin is not None and stdout is not None:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
    os.dup2(fds[1], RESULT_FD)
    if link_fd is not None:
        os.dup2(link_fd, LINK_FD)
    else:
        os.close(LINK_FD)
    os.closerange(RULESET_FD + 1, keep)
    os.closerange(keep + 1, 1 << 20)


def seed_generators(seed: int) -> None:
    """A program that draws numbers draws the same ones every time it is scored."""
    for name in ("random", "numpy.random"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module.seed(seed & 0xFFFFFFFF)
