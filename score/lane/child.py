"""One program's process, from the fork to `os._exit`: read the job, lock the doors, run, write one frame."""

import contextlib
import errno
import os
import sys
from typing import Any, NamedTuple

from score.isolation.lockdown import LINK_FD, RESULT_FD, Lockdown
from score.jobs.grids_and_scripts import Handler, InvalidOutput, handler_of
from score.jobs.modules import MissingFunction, lines_of, message_of
from score.lane.ready import ReadyFile
from score.protocol import allowed_imports as imports
from score.protocol.error_classes import CHILD_CLASSES, ErrorClass
from score.protocol.frames import RESULT_HEADER, JobKind, encode_error, encode_result

STDIO, TEST = int(JobKind.STDIO), int(JobKind.TEST)
GENERATORS = ("random", "numpy.random")
PROGRAM = "program.py"       # what the program is compiled as


class OutputLimit(Exception):
    """The answer is larger than the limit."""


class Lane(NamedTuple):
    """Settings and limits of a lane's children. `dataclasses` would add 900 KiB to every fork."""

    pid: int
    lockdown: Lockdown
    ready: ReadyFile
    cpu_ns: int
    wall_ns: int
    output_bytes: int
    last_cpu_limit: bytes        # struct rlimit, which the kernel keeps where no lane watches any more


def run_child(files: tuple[int, ...], link_fd: int, job: list[int], place: int, lane: Lane) -> None:
    """Never returns. `files` are job, result and what follows in the slot; `job` is what ORDER says."""
    try:
        prepared = prepare(files, link_fd, job, place, lane)
    except BaseException:
        os._exit(70)
    try:
        finish(prepared, lane)
    finally:
        os._exit(0)       # neither threads, nor atexit, nor destructors get another turn


def prepare(files: tuple[int, ...], link_fd: int, job: list[int], place: int,
            lane: Lane) -> tuple[Handler, bytes, bytes]:
    """Do everything that comes before foreign code; return handler, source and payload."""
    lane.lockdown.die_with_lane(lane.pid, lane.last_cpu_limit)
    kind, seed, names_bytes, source_bytes, payload_bytes = job
    content = os.pread(files[0], names_bytes + source_bytes + payload_bytes, 0)
    if names_bytes:
        imports.import_all(names := content[:names_bytes].decode().split(","))
        run_threads_in_turn(names, kind)
    # what the kind itself needs is imported while that is possible
    handler = handler_of(kind, lane.output_bytes - RESULT_HEADER.size)
    for name in GENERATORS:     # a program draws the same numbers every time it is scored
        if module := sys.modules.get(name):
            module.seed(seed & 0xFFFFFFFF)
    arrange_streams(files, link_fd, kind)
    lane.lockdown.enter_child(RESULT_FD if link_fd < 0 else LINK_FD)
    lane.ready.report(place)             # preparation succeeded, and what it cost
    source_end = names_bytes + source_bytes
    return handler, content[names_bytes:source_end], content[source_end:]


def run_threads_in_turn(names: list[str], kind: int) -> None:
    """Let threads run where they are started, for a locked process starts none; a program's may fail."""
    def start(thread: Any) -> None:
        with contextlib.suppress(*[] if kind == TEST else [Exception, SystemExit]):
            thread.run()

    pools, threading = map(sys.modules.get, ("concurrent.futures.thread", "threading"))
    if pools and "concurrent.futures.thread" in names:
        pools.ThreadPoolExecutor._adjust_thread_count = lambda self: self._work_queue.get_nowait().run()
    if threading and not {"threading", "concurrent.futures.thread"}.isdisjoint(names):
        threading.Thread.start, threading.Thread.join = start, lambda self, timeout=None: None


def finish(prepared: tuple[Handler, bytes, bytes], lane: Lane) -> None:
    """Run the foreign code and leave its frame."""
    frame = answer(*prepared)
    if len(frame) > lane.output_bytes:
        frame = failure(OutputLimit(f"{len(frame)} bytes"), "run")
    os.pwrite(RESULT_FD, frame, 0)


def answer(handler: Handler, source: bytes, payload: bytes) -> bytes:
    """The frame for a program: its result, or how it failed."""
    phase = "compile"
    try:
        code = compile(source, PROGRAM, "exec", dont_inherit=True)
        phase = "run"
        return encode_result(handler(code, payload))
    except BaseException as error:
        return failure(error, phase)


def failure(error: BaseException, phase: str) -> bytes:
    """The frame of an error; its name and text are foreign code."""
    error_class, message = classify(error, phase), message_of(error)
    name = error.flaw if isinstance(error, InvalidOutput) else type(error).__name__
    try:
        return encode_error(CHILD_CLASSES.index(error_class), str(name), line_of(error) + message)
    except BaseException:
        return encode_error(CHILD_CLASSES.index(error_class), "Exception", "(no message)")


def line_of(error: BaseException) -> str:
    """The innermost line of the program in a traceback, as a prefix of the message."""
    lines = [line for code, line in lines_of(error) if code.co_filename == PROGRAM]
    return f"line {lines[-1]}: " if lines else ""


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


def arrange_streams(files: tuple[int, ...], link_fd: int, kind: int) -> None:
    """A script's streams on 0 and 1, the result on 3, the link on 4.

    Files begin at their beginning: where the program before left them is nobody's business.
    """
    if link_fd >= 0:
        os.dup2(link_fd, LINK_FD)
    elif kind == STDIO:
        for number, stream in enumerate(files[2:]):
            os.dup2(stream, number)
            os.lseek(number, 0, os.SEEK_SET)
    os.dup2(files[1], RESULT_FD)
    os.lseek(RESULT_FD, 0, os.SEEK_SET)
