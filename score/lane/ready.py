"""The file in which a child tells its lane that preparation is over, before any foreign code runs."""

from __future__ import annotations

import ctypes
import os
import struct
import time

from score.isolation.lockdown import READY_FD

STAMP = struct.Struct("<4Q")        # CPU time and monotonic clock in ns, context switches as below
SWITCHES = struct.Struct("<2q")     # those of its own will first, then others: the end of struct rusage
SWITCHES_IN_USAGE, USAGE_BYTES = 128, 144
NOT_READY = bytes(STAMP.size)

getrusage = ctypes.PyDLL(None).getrusage


class ReadyFile:
    """Memory that a lane shares with its children until they close it; a place for each of a pair.

    A file and not a mapping, because a child needs the calls that read and write files anyway.
    """

    def __init__(self) -> None:
        self.file = os.memfd_create("ready", os.MFD_CLOEXEC)
        self.open()

    def open(self) -> None:
        """Have it where children close it."""
        os.dup2(self.file, READY_FD)

    def clear(self, place: int) -> None:
        """Forget the child that had this place."""
        os.pwrite(READY_FD, NOT_READY, place * STAMP.size)

    def stamp(self, place: int) -> tuple[int, int, int, int]:
        """CPU and monotonic ns at which foreign code began, zeros while it has not; and how often the child
        had given up its core by then, and how often it had been taken."""
        stamp = STAMP.unpack(os.pread(READY_FD, STAMP.size, place * STAMP.size))
        return stamp if stamp[0] else (0, 0, 0, 0)             # read while it was being written

    def report(self, place: int, imported: bool) -> None:
        """In a child, once: note the times and let go of the file, before foreign code could change them.

        Only a child that `imported` modules can have waited for something so far.
        """
        pauses, preemptions = own_switches() if imported else (0, 0)
        stamp = STAMP.pack(time.process_time_ns(), time.monotonic_ns(), pauses, preemptions)
        os.pwrite(READY_FD, stamp, place * STAMP.size)
        os.close(READY_FD)


def own_switches() -> tuple[int, int]:
    """How often this process gave up its core by itself, and how often that was taken."""
    usage = ctypes.create_string_buffer(USAGE_BYTES)
    getrusage(0, usage)
    pauses, preemptions = SWITCHES.unpack_from(usage, SWITCHES_IN_USAGE)
    return pauses, preemptions
