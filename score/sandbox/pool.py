"""The pool of lanes: programs in, endings out, with lost lanes replaced and their programs run again."""

from __future__ import annotations

import itertools
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator

from score.protocol.frames import Verdict
from score.sandbox.lane_handle import DEPTH, LaneConfig, LaneLost, LaneProcess, start_lanes
from score.sandbox.limits import Limits
from score.sandbox.program import Program
from score.sandbox.ticket import Ending, Ticket
from warehouse.store.errors import StageError

MAX_ATTEMPTS = 3
MAX_RESTARTS = 100
POLL_MS = 100
CPU_QUOTAS = (("/sys/fs/cgroup/cpu.max", None),                                    # cgroup v2, then v1
              ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
SETUP_VERDICTS = (Verdict.SETUP_FAILED, Verdict.FORK_FAILED)


class LanePool:
    """Running lanes, until `close`; use it as a context."""

    def __init__(self, config: LaneConfig, limits: Limits, num_lanes: int) -> None:
        self.config, self.limits = config, limits
        self.lanes: list[LaneProcess] = []
        self.num_restarts = 0
        self.last_look = time.monotonic()      # at lanes that may be stuck
        self.lanes += start_lanes(config, limits, num_lanes)
        self._listen()

    def __enter__(self) -> LanePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every lane and what runs in it."""
        for lane in self.lanes:
            lane.stop()
        self.lanes = []

    def resize(self, num_lanes: int) -> None:
        """Start or end lanes until there are so many, and count restarts from 0; none of them may be busy."""
        for lane in self.lanes[num_lanes:]:
            lane.stop()
        kept = self.lanes[:num_lanes]
        self.lanes, self.num_restarts = kept + start_lanes(self.config, self.limits, num_lanes - len(kept)), 0
        self._listen()

    def run(self, programs: Iterable[Program | None]) -> Iterator[tuple[int, list[Ending]]]:
        """Index and endings of each program, as they come; no endings mean that lanes kept being lost.

        None among them says that there is none at the moment: it is asked again while any program runs.
        """
        numbers = itertools.count()
        waiting = (Ticket(next(numbers), program) if program else None for program in programs)
        again: deque[Ticket] = deque()         # infrastructure failed: at once
        late: deque[Ticket] = deque()          # out of wall time once: when all others are done
        while True:
            self._hand_out(waiting, again, late)
            if not any(lane.tickets for lane in self.lanes):
                if again or late:
                    continue        # a lane was lost at the hand-over; its replacement is idle
                return
            for ticket, endings in self._collect():
                if must_run_again(endings, ticket):
                    again.append(ticket)
                elif not ticket.is_second and any(each.verdict == Verdict.TIMEOUT_WALL for each in endings):
                    ticket.is_second, ticket.attempts = True, 0
                    late.append(ticket)
                else:
                    yield ticket.number, endings

    def _hand_out(self, waiting: Iterator[Ticket | None], again: deque[Ticket], late: deque[Ticket]) -> None:
        """Keep every lane supplied, idle ones first; a late program has a lane, and a core, for itself."""
        for num_tickets in range(DEPTH):
            for lane in [lane for lane in self.lanes if len(lane.tickets) == num_tickets]:
                ticket = again.popleft() if again else next(waiting, None)
                if ticket is None:
                    break
                self._hand(lane, ticket, again)
        for lane in self.lanes[:usable_cores()] if late else ():
            if late and not lane.tickets:
                self._hand(lane, late.popleft(), again)

    def _hand(self, lane: LaneProcess, ticket: Ticket, again: deque[Ticket]) -> None:
        try:
            lane.hand(ticket)
        except LaneLost:
            again.extend(self._replace(lane))

    def _listen(self) -> None:
        """Wait for what the present lanes say."""
        self.by_fd = {lane.channel.fileno(): lane for lane in self.lanes}
        self.poll = select.poll()
        for fd in self.by_fd:
            self.poll.register(fd, select.POLLIN)

    def _collect(self) -> Iterator[tuple[Ticket, list[Ending]]]:
        """Programs that ended, and those of lanes that were lost (with no endings)."""
        talking = [self.by_fd[fd] for fd, _event in self.poll.poll(POLL_MS)]
        for lane in talking:
            try:
                ticket, endings = lane.take()
            except LaneLost:
                yield from ((ticket, []) for ticket in self._replace(lane))
                continue
            if any(ending.verdict in SETUP_VERDICTS for ending in endings):
                time.sleep(0.05 * ticket.attempts)        # fork fails when memory is short: wait a moment
            yield ticket, endings
        if time.monotonic() - self.last_look > 1.0:
            self.last_look = time.monotonic()
            for lane in [lane for lane in self.lanes if lane.is_stuck()]:
                yield from ((ticket, []) for ticket in self._replace(lane))

    def _replace(self, lane: LaneProcess) -> list[Ticket]:
        """A fresh lane in place of a lost lane, whose programs come back."""
        tickets = list(lane.tickets)
        lane.stop()
        for waiting in tickets[1:]:
            waiting.attempts -= 1              # it never began
        self.lanes.remove(lane)
        self.lanes += start_lanes(self.config, self.limits, 1)
        self._listen()
        self.num_restarts += 1
        if self.num_restarts > MAX_RESTARTS:
            raise StageError(f"Lanes that run programs were lost {self.num_restarts} times. Something on "
                             "this machine ends them, perhaps for want of memory: give it more, or use fewer "
                             "--lanes.")
        return tickets


def must_run_again(endings: list[Ending], ticket: Ticket) -> bool:
    """True while endings say nothing about the program and attempts are left."""
    # SIGKILL that neither the lane nor the CPU limit sent: the OOM killer, or a person
    killed = Verdict.SIGNALED, signal.SIGKILL
    failed = not endings or any(ending.verdict in SETUP_VERDICTS or (ending.verdict, ending.code) == killed
                                for ending in endings)
    return failed and ticket.attempts < MAX_ATTEMPTS


def usable_cores() -> int:
    """Cores that this process may use: its affinity, cut to the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    for quota_file, period_file in CPU_QUOTAS:
        try:
            with open(quota_file) as stream:
                quota, *rest = stream.read().split()
            if period_file:
                with open(period_file) as stream:
                    rest = stream.read().split()
        except OSError:
            continue
        if quota not in ("max", "-1"):
            cores = min(cores, max(1, round(int(quota) / int(rest[0]))))
    return cores
