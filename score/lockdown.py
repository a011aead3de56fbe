"""The layers of isolation that a lane and its children put on themselves, from outermost to innermost."""

from __future__ import annotations

import ctypes
import os
from enum import IntFlag

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 38
SIGKILL = 9
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)


class Layer(IntFlag):
    """What a lane is asked for and reports."""

    UNPRIVILEGED = 1       # not root: dropped to nobody, or never was
    BUBBLEWRAP = 2         # its own namespaces, set up by bwrap before Python starts
    LANDLOCK = 4
    SECCOMP = 8


class Lockdown:
    """State that a lane prepares once so that each child needs a few system calls only."""

    def __init__(self, layers: int, readable: list[str]) -> None:
        self.layers = Layer(layers)
        self.readable = readable

    def enter_lane(self) -> int:
        """Lock the lane; the layers in force come back."""
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        self.die_with_lane()
        return int(self.layers)

    def die_with_lane(self) -> None:
        """End this process when its parent ends."""
        prctl(PR_SET_PDEATHSIG, SIGKILL)

    def enter_child(self, threads: int) -> None:
        """Lock the child, just before foreign code."""


def prctl(option: int, value: int, *rest: int) -> None:
    """prctl(2); OSError on failure."""
    if libc.prctl(option, value, *(rest or (0, 0, 0))) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
