"""The binary frames between scorer, lane and program: fixed layouts, checked on the way in, never pickled."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np

JOB_MAGIC, RESULT_MAGIC = b"RHJ1", b"RHR1"
JOB_HEADER = struct.Struct("<4sBQHII")   # magic, kind, seed, bytes of modules, of source, of payload
RESULT_HEADER = struct.Struct("<4sBI")       # magic, status, bytes of body
ERROR_HEADER = struct.Struct("<BHH")         # index into CHILD_CLASSES, bytes of name, bytes of message
COUNT = struct.Struct("<H")
# To a lane: job number, children (1 or 2), descriptors of each, cpu ns, wall ns, address space, open files,
# output bytes, threads
ORDER = struct.Struct("<QBBQQQII?")
# From a lane: job number, then per child: verdict, exit status or signal, cpu ns, wall ns, peak KiB
REPLY_HEADER = struct.Struct("<QB")
REPLY_CHILD = struct.Struct("<BiQQQ")
HELLO = struct.Struct("<4sIQ")               # magic, layers in force, address space in bytes (0: not known)
HELLO_MAGIC = b"RHL1"
# Wall time may take this many times the limit while a program gets some CPU time, but too little of it.
OVERLOAD_PATIENCE = 5
MAX_NAME, MAX_MESSAGE = 80, 500
MAX_GRID_SIDE = 30


class Kind(IntEnum):
    """What the child is asked to do with the source."""

    GRID = 1         # call `transform` on grids
    CALL = 2         # call a named function with plain data
    STDIO = 3        # run as a script, stdin to stdout
    SERVE = 4        # answer calls that arrive over the link, until it closes
    TEST = 5         # run tests whose `candidate` is the program on the other end of the link


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


def encode_job(kind: Kind, seed: int, modules: list[str], source: bytes, payload: bytes) -> bytes:
    """The bytes that a child reads: what to do, the modules it wants, the program, and its inputs."""
    names = ",".join(modules).encode()
    header = JOB_HEADER.pack(JOB_MAGIC, kind, seed, len(names), len(source), len(payload))
    return header + names + source + payload


def decode_job(frame: bytes) -> tuple[Kind, int, list[str], bytes, bytes]:
    """Kind, seed, modules, source and payload of a job."""
    magic, kind, seed, names_length, source_length, payload_length = JOB_HEADER.unpack_from(frame)
    source_start = JOB_HEADER.size + names_length
    source_end = source_start + source_length
    if magic != JOB_MAGIC or len(frame) != source_end + payload_length:
        raise BadFrame("not a job")
    names = frame[JOB_HEADER.size:source_start].decode()
    modules = names.split(",") if names else []
    return Kind(kind), seed, modules, frame[source_start:source_end], frame[source_end:]


def encode_grids(grids: list[np.ndarray]) -> bytes:
    """Grids of at most 255 x 255 cells of one byte: a count, then rows, columns and cells of each."""
    parts = [COUNT.pack(len(grids))]
    for grid in grids:
        parts.append(bytes(grid.shape))
        parts.append(np.ascontiguousarray(grid, dtype=np.uint8).tobytes())
    return b"".join(parts)


def decode_grids(body: bytes, *, max_side: int = 255, max_value: int = 255) -> list[np.ndarray]:
    """The grids of a body, every byte accounted for; BadFrame where a side or a cell is out of range."""
    if len(body) < COUNT.size:
        raise BadFrame("no count")
    offset, grids = COUNT.size, []
    for _ in range(COUNT.unpack_from(body)[0]):
        shape = body[offset:offset + 2]
        if len(shape) < 2 or not (0 < shape[0] <= max_side and 0 < shape[1] <= max_side):
            raise BadFrame("shape out of range")
        end = offset + 2 + shape[0] * shape[1]
        if end > len(body):
            raise BadFrame("cells cut off")
        grid = np.frombuffer(body, dtype=np.uint8, count=shape[0] * shape[1], offset=offset + 2)
        if grid.max() > max_value:
            raise BadFrame("cell out of range")
        grids.append(grid.reshape(shape[0], shape[1]))
        offset = end
    if offset != len(body):
        raise BadFrame("bytes left over")
    return grids


def encode_result(body: bytes) -> bytes:
    """A program's answer."""
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


def decode_json(body: bytes) -> Any:
    """Plain JSON; BadFrame for anything else, deep nesting included."""
    import json  # here, because lanes import this module and every fork pays for what they hold
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {type(error).__name__}") from None


def split_result(frame: bytes) -> tuple[int, bytes]:
    """Status (1 answer, 2 error) and body of a result frame."""
    if len(frame) < RESULT_HEADER.size:
        raise BadFrame("no frame")
    magic, status, length = RESULT_HEADER.unpack_from(frame)
    if magic != RESULT_MAGIC or status not in (1, 2) or len(frame) != RESULT_HEADER.size + length:
        raise BadFrame("malformed frame")
    return status, frame[RESULT_HEADER.size:]
