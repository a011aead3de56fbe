"""One program on its way through a lane: the memory files it reads and writes, and its order."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass, field

from score.frames import ORDER, REPLY_CHILD, REPLY_HEADER, RESULT_HEADER, RESULT_MAGIC, Verdict
from score.imports import Allowed
from score.limits import Limits
from score.program import Program


@dataclass(slots=True)
class Ending:
    """How one child ended, and what it left behind."""

    verdict: Verdict
    code: int
    cpu_seconds: float
    wall_seconds: float
    max_rss_mib: float
    result: bytes                # the result frame as it was left, not yet checked
    stdout: bytes | None


@dataclass(slots=True)
class Flight:
    """A program that was handed to a lane."""

    number: int
    program: Program
    attempts: int = 0
    alone: bool = False          # run a second time with nothing beside it
    jobs: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def send(self, channel: socket.socket, limits: Limits, address_space: int,
             allowed: Allowed) -> None:
        """Write the memory files and send the order; the descriptors stay open here until `close`."""
        output_bytes = limits.output_kib * 1024
        descriptors: list[int] = []
        for program in self.program.processes:
            self.jobs.append(memory_file(program.job(allowed)))
            self.results.append(sealed_file(output_bytes))
            descriptors += [self.jobs[-1], self.results[-1]]
            if program.stdin is not None:
                self.jobs.append(memory_file(program.stdin))
                self.outputs.append(sealed_file(output_bytes))
                descriptors += [self.jobs[-1], self.outputs[-1]]
        num_children = len(self.program.processes)
        order = ORDER.pack(self.number, num_children, len(descriptors) // num_children,
                           round(limits.cpu_seconds * 1e9), round(limits.wall_seconds * 1e9),
                           address_space + limits.memory_mib * 2**20, limits.open_files, output_bytes,
                           limits.threads)
        socket.send_fds(channel, [order], descriptors)

    def endings(self, reply: bytes, output_bytes: int) -> list[Ending]:
        """What the lane said about each child, with what that child wrote."""
        number, num_children = REPLY_HEADER.unpack_from(reply)
        assert number == self.number and num_children == len(self.results), "a lane answers in order"
        found = []
        for index, result in enumerate(self.results):
            verdict, code, cpu, wall, peak = REPLY_CHILD.unpack_from(
                reply, REPLY_HEADER.size + index * REPLY_CHILD.size)
            stdout = None
            if self.outputs:
                written = os.lseek(self.outputs[index], 0, os.SEEK_CUR)
                stdout = os.pread(self.outputs[index], min(max(written, 0), output_bytes), 0)
            found.append(Ending(Verdict(verdict), code, cpu / 1e9, wall / 1e9, peak / 1024,
                                read_frame(result, output_bytes), stdout))
        return found

    def close(self) -> None:
        """Let go of the memory files."""
        for descriptor in (*self.jobs, *self.results, *self.outputs):
            os.close(descriptor)
        self.jobs, self.results, self.outputs = [], [], []


def read_frame(descriptor: int, limit: int) -> bytes:
    """Header and body of a result, as far as the file goes; empty when the header is none."""
    header = os.pread(descriptor, RESULT_HEADER.size, 0)
    if len(header) < RESULT_HEADER.size or not header.startswith(RESULT_MAGIC):
        return b""
    length = RESULT_HEADER.unpack(header)[2]
    return header + os.pread(descriptor, min(length, limit), RESULT_HEADER.size)


def memory_file(content: bytes) -> int:
    """A memory file with `content`, which nobody can change."""
    descriptor = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view):]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def sealed_file(size: int) -> int:
    """An empty memory file that can never be larger than `size`: no program can flood it."""
    descriptor = os.memfd_create("result", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor
