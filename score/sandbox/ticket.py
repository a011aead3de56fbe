"""A program on its way through a lane: the memory files it is handed in, and what comes back in them."""

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from score.protocol.allowed_imports import Allowed
from score.protocol.frames import NO_JOB, ORDER, REPLY_CHILD, REPLY_HEADER, JobKind, Verdict
from score.sandbox.program import Program

VERDICTS = tuple(Verdict)       # a tuple lookup is faster than an enumeration's


@dataclass(slots=True)
class Ending:
    """How one child ended, and what it left behind."""

    verdict: Verdict
    code: int
    cpu_seconds: float
    wall_seconds: float
    max_rss_mib: float
    result: bytes                # begins with the result frame, if there is one; not yet checked
    stdout: bytes | None


class Slot:
    """Two files that children read and two that they write; a lane and its scorer both have them open.

    What a program wrote is taken away before the next program comes, and nobody but the scorer can write what
    is read. A lane's limit on the size of files keeps programs from flooding the others.
    """

    def __init__(self) -> None:
        self.inputs = [os.memfd_create("input") for _ in range(2)]
        self.outputs = [os.memfd_create("output") for _ in range(2)]

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
        for descriptor in (*self.inputs, *self.outputs):
            os.close(descriptor)


@dataclass(slots=True)
class Ticket:
    """A program that was handed to a lane, or will be."""

    number: int
    program: Program
    attempts: int = 0
    is_second: bool = False      # it exceeded its wall time before
    slot: int = -1               # index of its slot in the lane
    # Its name in the lane, random because a program may read it there.
    name: int = field(default_factory=lambda: secrets.randbits(64))

    def order(self, slot: Slot, allowed: Allowed) -> bytes:
        """Fill the slot; the order for its lane."""
        program = self.program
        facts, job = program.job(allowed, program.tests)
        tests_facts, second = NO_JOB, program.handed
        if program.tests is not None:
            tests_facts, second = program.tests.job(allowed, program)
        slot.fill([job, second])
        return ORDER.pack(self.name, self.slot, program.num_limits, *facts, *tests_facts)

    def endings(self, reply: bytes, slot: Slot, output_bytes: int) -> list[Ending]:
        """What the lane said about each child, with what that child wrote."""
        name, num_children = REPLY_HEADER.unpack_from(reply)
        assert name == self.name, "a lane answers in order"
        endings = []
        for index in range(num_children):
            verdict, code, cpu, wall, peak = REPLY_CHILD.unpack_from(
                reply, REPLY_HEADER.size + index * REPLY_CHILD.size)
            result = slot.take(index, output_bytes)
            stdout = slot.take(1, output_bytes) if self.program.kind == JobKind.STDIO else None
            endings.append(Ending(VERDICTS[verdict], code, cpu / 1e9, wall / 1e9, peak / 1024, result,
                                  stdout))
        return endings
