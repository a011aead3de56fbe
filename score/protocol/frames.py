"""The binary frames between scorer, lane and program: fixed layouts, checked on the way in, never pickled.

    scorer                                   lane                              child, one per process
      |  <----------------- HELLO: layers --  |
      |  -- SETUP: limits, files of slots ->  |
      |  (writes jobs into a slot)            |
      |  -- ORDER: slot, facts of jobs --->  |  -- fork ----------------------> |
      |                                       |           reads its job, imports, locks the doors
      |                                       |  <------------- time of being ready --  |
      |                                       |           runs; calls go over a link to its tests
      |  <--------------- frame with the result, and stdout, left in the slot --------  |
      |                                       |  -- wait4, or kill at a limit ->
      |  <-- REPLY: verdict, times, memory -- |
"""

import struct
from enum import IntEnum
from typing import Any

import numpy as np

RESULT_MAGIC = b"RHR1"
RESULT_HEADER = struct.Struct("<4sBI")       # magic, status, bytes of body
ERROR_HEADER = struct.Struct("<BHH")         # index into CHILD_CLASSES, bytes of name, bytes of message
COUNT = struct.Struct("<H")
# To a lane, once, with the memory files of its slots: cpu ns, wall ns, address space, output bytes
SETUP = struct.Struct("<QQQI")
# To a lane, per program: number, slot, by what the limits on time are multiplied, then for its own job and
# that of its tests (zeros: none): kind, seed, bytes of modules, of source, of payload. The jobs themselves
# (all three without gaps) lie in the slot.
ORDER = struct.Struct("<QBB BQHII BQHII")
Facts = tuple[int, int, int, int, int]       # what ORDER says of one job
NO_JOB: Facts = (0, 0, 0, 0, 0)
# From a lane: job number, then per child: verdict, exit status or signal, cpu ns, wall ns, peak KiB
REPLY_HEADER = struct.Struct("<QB")
REPLY_CHILD = struct.Struct("<BiQQQ")
# Job and result of the program, then stdin and stdout of a script, or job and result of the tests.
FILES_PER_SLOT = 4
HELLO = struct.Struct("<IQ")                 # layers in force, address space in bytes (0: unknown)
# Said of a test that passed: the program altered an argument, text was run that is not written out, or it was
# skipped. WAYS has all of these by what a process reports: 1, and the bits of what is said.
ALTERED, BUILT, LEFT_OUT = "altered", "built", "skipped"
WAYS = {1 + bits: " ".join(word for place, word in enumerate((ALTERED, BUILT, LEFT_OUT)) if bits >> place & 1)
        for bits in range(8)}
SKIPPED = 5
FAILS = "fails while it is imported"       # said by a lane of a module with an error of its own
# Wall time may take this many times the limit while a program gets some CPU time, but too little of it.
OVERLOAD_PATIENCE = 5
MAX_NAME, MAX_MESSAGE = 80, 500
MAX_GRID_SIDE = 30
COLORS = bytes(range(10))
MAX_NESTING = 256                            # of JSON: plain data takes three levels for each of its own 64


class JobKind(IntEnum):
    """What the child is asked to do with the source."""

    GRID = 1         # call `transform` on grids
    CALL = 2         # call a named function with plain data
    STDIO = 3        # run as a script, stdin to stdout
    SERVE = 4        # answer calls that arrive over the link, until it closes
    TEST = 5         # run tests of the program on the other end of the link
    PLAIN = 6        # run the program and its tests in one process


class Verdict(IntEnum):
    """How a child ended, as its lane saw it."""

    EXITED = 0
    SIGNALED = 1
    TIMEOUT_CPU = 2
    TIMEOUT_WALL = 3
    SETUP_FAILED = 4         # it ended before any foreign code ran
    FORK_FAILED = 5


class BadFrame(ValueError):
    """Bytes that are not a frame; from a program that means it gave no result."""


def encode_grids(grids: list[np.ndarray]) -> bytes:
    """Grids of one byte per cell: a count, then rows, columns and cells of each."""
    parts = [COUNT.pack(len(grids))]
    for grid in grids:
        parts.append(bytes(grid.shape))
        parts.append(grid.astype(np.uint8, copy=False).tobytes())
    return b"".join(parts)


def decode_grids(body: bytes, like: bytes = b"") -> list[np.ndarray]:
    """The grids of a body, as many as in the body `like`; BadFrame where a byte, side or cell is another."""
    if len(body) < COUNT.size or not body.startswith(like[:COUNT.size]):
        raise BadFrame("no count, or another one")
    offset, grids = COUNT.size, []
    for _ in range(COUNT.unpack_from(body)[0]):
        shape = body[offset:offset + 2]
        if len(shape) < 2 or not (0 < shape[0] <= MAX_GRID_SIDE and 0 < shape[1] <= MAX_GRID_SIDE):
            raise BadFrame("shape out of range")
        cells = body[offset + 2:offset + 2 + shape[0] * shape[1]]
        if len(cells) != shape[0] * shape[1]:
            raise BadFrame("cells cut off")
        if cells.translate(None, COLORS):               # what is left when all legal cells are taken out
            raise BadFrame("cell out of range")
        grids.append(np.frombuffer(cells, np.uint8).reshape(shape[0], shape[1]))
        offset += 2 + len(cells)
    if offset != len(body):
        raise BadFrame("bytes left over")
    return grids


def encode_result(body: bytes) -> bytes:
    return RESULT_HEADER.pack(RESULT_MAGIC, 1, len(body)) + body


def encode_error(class_index: int, name: str, message: str) -> bytes:
    """A program's failure, by its place in CHILD_CLASSES."""
    name_bytes = name[:MAX_NAME].encode("utf-8", "backslashreplace")[:4 * MAX_NAME]
    message_bytes = message[:MAX_MESSAGE].encode("utf-8", "backslashreplace")[:8 * MAX_MESSAGE]
    body = ERROR_HEADER.pack(class_index, len(name_bytes), len(message_bytes)) + name_bytes + message_bytes
    return RESULT_HEADER.pack(RESULT_MAGIC, 2, len(body)) + body


def decode_error(body: bytes, num_classes: int) -> tuple[int, str, str]:
    """Class index, exception name and message of a failure, cut to their caps."""
    if len(body) < ERROR_HEADER.size:
        raise BadFrame("error cut off")
    index, name_length, message_length = ERROR_HEADER.unpack_from(body)
    if index >= num_classes or len(body) != ERROR_HEADER.size + name_length + message_length:
        raise BadFrame("malformed error")
    name = body[ERROR_HEADER.size:ERROR_HEADER.size + name_length].decode("utf-8", "replace")[:MAX_NAME]
    message = body[ERROR_HEADER.size + name_length:].decode("utf-8", "replace")[:MAX_MESSAGE]
    return index, name if name.isidentifier() else "Exception", message


def finite(text: str) -> float:
    """A number of JSON; ValueError for one that a float cannot hold."""
    if (value := float(text)) - value == 0:
        return value
    raise ValueError(f"{text} is too large")


def decode_json(body: bytes) -> Any:
    """Plain JSON; BadFrame for anything else, deep nesting included."""
    import json  # imported here, because every fork pays for what a lane imports
    try:
        value = json.loads(body, parse_constant=int, parse_float=finite)    # NaN and Infinity are none
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {type(error).__name__}") from None
    level = [value]
    for _ in range(MAX_NESTING):
        level = [item for each in level if isinstance(each, (list, dict))
                 for item in (each.values() if isinstance(each, dict) else each)]
    if level:           # writing it again would overflow the stack
        raise BadFrame("nested too deep")
    return value


def split_result(content: bytes) -> tuple[int, bytes]:
    """Status (1 answer, 2 error) and body of the result frame that `content` begins with."""
    if len(content) < RESULT_HEADER.size:
        raise BadFrame("no frame")
    magic, status, length = RESULT_HEADER.unpack_from(content)
    end = RESULT_HEADER.size + length
    if magic != RESULT_MAGIC or status not in (1, 2) or len(content) < end:
        raise BadFrame("malformed frame")
    return status, content[RESULT_HEADER.size:end]
