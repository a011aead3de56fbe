"""The memory files between scorer and lane: a slot holds those of one program, and then of the next."""

from __future__ import annotations

import os
from collections.abc import Iterable


class Slot:
    """Two files that children read and two that they write; a lane and its scorer both have them open.

    What a program wrote is taken away before the next one comes, and nobody but the scorer can write what
    is read. A lane's limit on the size of files keeps programs from flooding the others.
    """

    def __init__(self) -> None:
        self.inputs = [memory_file("input") for _ in range(2)]
        self.outputs = [memory_file("output") for _ in range(2)]

    def for_lane(self) -> list[int]:
        """Descriptors for a lane, to be closed once it has them; the inputs are for reading only."""
        readable = [os.open(f"/proc/self/fd/{each}", os.O_RDONLY | os.O_CLOEXEC) for each in self.inputs]
        writable = [os.dup(each) for each in self.outputs]
        return [readable[0], writable[0], readable[1], writable[1]]

    def fill(self, contents: Iterable[bytes]) -> None:
        """Put contents into the files that children read, in place of what was there."""
        for descriptor, content in zip(self.inputs, contents, strict=False):
            done = 0
            while done < len(content):
                done += os.pwrite(descriptor, content[done:] if done else content, done)
            os.ftruncate(descriptor, len(content))

    def take(self, index: int, limit: int) -> bytes:
        """What was written into an output; the file is empty afterwards."""
        content = os.pread(self.outputs[index], limit, 0)
        if content:
            os.ftruncate(self.outputs[index], 0)
        return content

    def close(self) -> None:
        """Let go of the memory."""
        for descriptor in (*self.inputs, *self.outputs):
            os.close(descriptor)


def memory_file(name: str) -> int:
    """An empty file that exists in memory only."""
    return os.memfd_create(name, os.MFD_CLOEXEC)
