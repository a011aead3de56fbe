"""The page on which a child tells its lane that preparation is over, before any foreign code runs."""

from __future__ import annotations

import ctypes
import struct
import time

PAGE_BYTES = 4096
PROT_READ_WRITE, MAP_SHARED_ANONYMOUS = 0x3, 0x21
TIMES = struct.Struct("<QQ")        # CPU time and monotonic clock in ns; 0 until the child is ready

libc = ctypes.PyDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
munmap = libc.munmap


class ReadyPage:
    """Memory that a lane shares with its children until they give it up; a place for each of a pair."""

    def __init__(self) -> None:
        self.address = libc.mmap(None, PAGE_BYTES, PROT_READ_WRITE, MAP_SHARED_ANONYMOUS, -1, 0)
        if self.address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError("no page to share with children")
        self.page = (ctypes.c_char * PAGE_BYTES).from_address(self.address)

    def clear(self, place: int) -> None:
        """Forget the child that had this place."""
        TIMES.pack_into(self.page, place * TIMES.size, 0, 0)

    def times(self, place: int) -> tuple[int, int]:
        """CPU and monotonic ns at which foreign code began; zeros while it has not."""
        cpu, wall = TIMES.unpack_from(self.page, place * TIMES.size)
        return cpu, wall

    def report(self, place: int) -> None:
        """In a child, once: note the times and let go of the page, before foreign code could change them."""
        TIMES.pack_into(self.page, place * TIMES.size, time.process_time_ns(), time.monotonic_ns())
        if munmap(self.address, PAGE_BYTES) != 0:
            raise OSError("munmap")
