"""The page on which a child tells its lane that preparation is over, before any foreign code runs."""

from __future__ import annotations

import ctypes
import struct
import time

PAGE_BYTES = 4096
PROT_READ_WRITE, MAP_SHARED_ANONYMOUS = 0x3, 0x21
TIMES = struct.Struct("<QQ")        # CPU time and monotonic clock in ns; 0 until the child is ready
SWITCHES = struct.Struct("<2q")     # context switches, those of its own will first: the end of struct rusage
SWITCHES_IN_USAGE = 128
PLACE_BYTES, USAGE = 256, 64        # of each child: the times, then from here on struct rusage

libc = ctypes.PyDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.getrusage.argtypes = [ctypes.c_int, ctypes.c_void_p]
munmap, getrusage = libc.munmap, libc.getrusage


class ReadyPage:
    """Memory that a lane shares with its children until they give it up; a place for each of a pair."""

    def __init__(self) -> None:
        self.address = libc.mmap(None, PAGE_BYTES, PROT_READ_WRITE, MAP_SHARED_ANONYMOUS, -1, 0)
        if self.address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError("no page to share with children")
        self.page = (ctypes.c_char * PAGE_BYTES).from_address(self.address)

    def clear(self, place: int) -> None:
        """Forget the child that had this place."""
        TIMES.pack_into(self.page, place * PLACE_BYTES, 0, 0)

    def times(self, place: int) -> tuple[int, int]:
        """CPU and monotonic ns at which foreign code began; zeros while it has not."""
        cpu, wall = TIMES.unpack_from(self.page, place * PLACE_BYTES)
        return cpu, wall

    def switches(self, place: int) -> tuple[int, int]:
        """How often the child had given up its core by then, and how often it had been taken."""
        pauses, preemptions = SWITCHES.unpack_from(self.page, place * PLACE_BYTES + USAGE + SWITCHES_IN_USAGE)
        return pauses, preemptions

    def report(self, place: int) -> None:
        """In a child, once: note the times and let go of the page, before foreign code could change them."""
        getrusage(0, self.address + place * PLACE_BYTES + USAGE)
        TIMES.pack_into(self.page, place * PLACE_BYTES, time.process_time_ns(), time.monotonic_ns())
        if munmap(self.address, PAGE_BYTES) != 0:
            raise OSError("munmap")
