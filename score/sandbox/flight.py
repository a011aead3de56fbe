"""One program on its way through a lane: what it is handed, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from score.sandbox.program import Program
from score.sandbox.slots import Slot
from score.wire.allowed_imports import Allowed
from score.wire.frames import NO_JOB, ORDER, REPLY_CHILD, REPLY_HEADER, Verdict, whole_frame

VERDICTS = tuple(Verdict)       # a tuple is asked faster than an enumeration


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
    """A program that was handed to a lane, or will be."""

    number: int
    program: Program
    attempts: int = 0
    is_second: bool = False      # it ran out of wall time before
    slot: int = -1               # which of its lane's slots it has

    def order(self, slot: Slot, allowed: Allowed) -> bytes:
        """Fill the slot; the order for its lane."""
        program = self.program
        facts, job = program.job(allowed)
        tests_facts, second = NO_JOB, program.stdin or b""
        if program.tests is not None:
            tests_facts, second = program.tests.job(allowed)
        slot.fill([job, second])
        return ORDER.pack(self.number, self.slot, *facts, *tests_facts)

    def endings(self, reply: bytes, slot: Slot, output_bytes: int) -> list[Ending]:
        """What the lane said about each child, with what that child wrote."""
        number, num_children = REPLY_HEADER.unpack_from(reply)
        assert number == self.number, "a lane answers in order"
        endings = []
        for index in range(num_children):
            verdict, code, cpu, wall, peak = REPLY_CHILD.unpack_from(
                reply, REPLY_HEADER.size + index * REPLY_CHILD.size)
            result = whole_frame(slot.take(index, output_bytes))
            stdout = None if self.program.stdin is None else slot.take(1, output_bytes)
            endings.append(Ending(VERDICTS[verdict], code, cpu / 1e9, wall / 1e9, peak / 1024, result,
                                  stdout))
        return endings
