"""The file in which a child tells its lane that preparation is over, before any foreign code runs."""

import os
import struct
import time

from score.isolation.lockdown import READY_FD

STAMP = struct.Struct("<2Q")        # CPU time and monotonic clock in ns
NOT_READY = bytes(STAMP.size)


class ReadyFile:
    """Memory that a lane shares with its children until they close it; a place for each of a pair.

    A file and not a mapping, because a child needs the calls that read and write files anyway.
    """

    def __init__(self) -> None:
        self.file = os.memfd_create("ready", os.MFD_CLOEXEC)
        self.open()

    def open(self) -> None:
        """Put it on the descriptor that children close."""
        os.dup2(self.file, READY_FD)

    def clear(self, place: int) -> None:
        """Forget the child that had this place."""
        os.pwrite(READY_FD, NOT_READY, place * STAMP.size)

    def stamp(self, place: int) -> tuple[int, int]:
        """CPU and monotonic ns at which foreign code began; zeros while it has not."""
        stamp = STAMP.unpack(os.pread(READY_FD, STAMP.size, place * STAMP.size))
        return stamp if stamp[0] else (0, 0)             # zeros while it is being written

    def report(self, place: int) -> None:
        """In a child, once: note the times and let go of the file, before foreign code could change them."""
        os.pwrite(READY_FD, STAMP.pack(time.process_time_ns(), time.monotonic_ns()), place * STAMP.size)
        os.close(READY_FD)
