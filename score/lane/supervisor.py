"""Forking children, holding them to their limits, and reaping them: what a lane does with an order.

Every page that a lane or a child touches after the fork is copied, which is most of what a program costs;
so this makes few objects (a comprehension makes a function) and asks no enumeration.
"""

from __future__ import annotations

import _signal  # what `signal` wraps, without its enumerations
import _socket
import ctypes
import gc
import os
import struct
import time

from score.isolation.lockdown import SIGKILL
from score.jobs.grids_and_scripts import handler_of
from score.lane.child import Lane, run_child
from score.protocol.frames import OVERLOAD_PATIENCE, REPLY_CHILD, Verdict

SETUP_SECONDS = 20.0             # for a child to read its job and import what it mentions, on a slow disk
STARVED_SHARE = 0.02             # of the wall time
SHORTEST_WAIT = 0.002
UNDECIDED = -1
EXITED, SIGNALED, TIMEOUT_CPU, TIMEOUT_WALL, SETUP_FAILED, FORK_FAILED = map(int, Verdict)
CHILD_ENDED = [_signal.SIGCHLD]
USAGE = struct.Struct("<5q")     # struct rusage: user and system time as seconds and microseconds, peak KiB
NO_USAGE = bytes(144)

libc = ctypes.PyDLL(None)        # its calls let go of no lock and keep no errno: less memory is touched
wait4 = libc.wait4


class Supervisor:
    """Runs children: their limits, and buffers in which the kernel reports how they ended."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.kinds: set[int] = set()         # of jobs; their modules are loaded
        self.status = ctypes.c_int()
        self.usage = ctypes.create_string_buffer(len(NO_USAGE))
        self.status_pointer, self.usage_pointer = ctypes.byref(self.status), ctypes.byref(self.usage)
        # Ends of children are waited for with a timeout; the signal must be neither ignored nor handled.
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_BLOCK, CHILD_ENDED)

    def run(self, files: tuple[int, ...], jobs: list[int], num_limits: int) -> bytes:
        """Run the children of an order to their end; return a report on each."""
        links = _socket.socketpair() if jobs[5] else ()          # if there are tests
        children = []
        self.status.value, self.usage.raw = 0, NO_USAGE       # of the program before
        places = range(2 if links else 1)
        for place in places:
            self.load(jobs[5 * place])
        for place in places:
            self.lane.ready.clear(place)
            link = links[place].fileno() if links else -1
            started = time.monotonic_ns()
            try:
                pid = os.fork()
            except OSError:
                pid = -1
            if pid == 0:
                # A program can read the frames below its own: remove its tests from them.
                del jobs[5 * place + 5:], jobs[:5 * place]
                run_child(files[2 * place:], link, jobs, place, self.lane)
            children.append(Child(pid, place, started, num_limits))
        for end in links:
            end.close()
        self.wait_for(children)
        reports = b""
        for each in children:
            reports += each.report()
        return reports

    def load(self, kind: int) -> None:
        """Load what a kind of job needs when the first comes: lanes that never see it stay small."""
        if kind not in self.kinds:
            handler_of(kind, 0)
            gc.freeze()
            self.kinds.add(kind)

    def wait_for(self, children: list[Child]) -> None:
        """Wait for all children, killing those that pass a limit; the end of the last ends the first."""
        running = []
        for each in children:
            if each.pid > 0:
                running.append(each)
        if len(running) < len(children):               # a fork failed: the others are not run
            for each in running:
                each.kill(self)
            return
        wait = longest = min(self.lane.cpu_ns, self.lane.wall_ns) / 1e9
        while running:
            _signal.sigtimedwait(CHILD_ENDED, max(wait, SHORTEST_WAIT))
            wait = longest
            for each in list(running):
                if not each.has_ended(self):
                    left = each.seconds_left(self.lane)
                    if left > 0:
                        wait = min(wait, left)
                        continue
                    each.kill(self)
                running.remove(each)
                if each is children[-1]:                   # the tests are over: so is the program under test
                    for other in running:
                        other.kill(self)
                        if other.ready_at and (other.verdict != SIGNALED or other.code == SIGKILL):
                            other.verdict = EXITED     # unless it crashed by itself just before
                    return


class Child:
    """One forked program: its pid, its clocks, and how it ended."""

    __slots__ = ("code", "cpu_ns", "num_limits", "peak_kib", "pid", "place", "ready_at", "started", "verdict",
                 "wall_ns")

    def __init__(self, pid: int, place: int, started: int, num_limits: int) -> None:
        self.pid, self.place, self.started, self.num_limits = pid, place, started, num_limits
        self.verdict = UNDECIDED if pid > 0 else FORK_FAILED
        self.code = self.cpu_ns = self.wall_ns = self.peak_kib = self.ready_at = 0

    def seconds_left(self, lane: Lane) -> float:
        """Time that must pass before a limit can be reached; at most 0 when it is, with the verdict set."""
        now = time.monotonic_ns()
        ready_cpu, ready_at = lane.ready.stamp(self.place)
        if not ready_at:
            left = SETUP_SECONDS - (now - self.started) / 1e9
            if left <= 0:
                self.verdict = SETUP_FAILED
            return min(left, 0.05)
        # clock id of another process's CPU time, as clock_getcpuclockid(3) computes it
        cpu = time.clock_gettime_ns((~self.pid << 3) | 2) - ready_cpu
        wall = now - ready_at
        # A program that gets some CPU time but too little is not to blame for a machine that is overloaded.
        patience = OVERLOAD_PATIENCE if cpu > STARVED_SHARE * wall else 1
        cpu_left = lane.cpu_ns * self.num_limits - cpu
        wall_left = lane.wall_ns * self.num_limits * patience - wall
        if cpu_left <= 0:
            self.verdict = TIMEOUT_CPU
        elif wall_left <= 0:
            self.verdict = TIMEOUT_WALL
        return min(cpu_left, wall_left) / 1e9

    def kill(self, supervisor: Supervisor) -> None:
        """End it and wait until it is gone."""
        os.kill(self.pid, SIGKILL)              # not reaped yet, so the pid is still its own
        while not self.has_ended(supervisor, 0):
            pass

    def has_ended(self, supervisor: Supervisor, options: int = os.WNOHANG) -> bool:
        """Reap the child if it ended; the kernel's account of its CPU time decides, not the clock."""
        pointers = supervisor.status_pointer, supervisor.usage_pointer
        if wait4(self.pid, pointers[0], options, pointers[1]) != self.pid:
            return False
        ready_cpu, self.ready_at = supervisor.lane.ready.stamp(self.place)
        self.wall_ns = time.monotonic_ns() - (self.ready_at or self.started)
        user, user_us, system, system_us, self.peak_kib = USAGE.unpack_from(supervisor.usage)
        self.cpu_ns = max(0, (user + system) * 10**9 + (user_us + system_us) * 1000 - ready_cpu)
        ended = os.waitstatus_to_exitcode(supervisor.status.value)
        self.code = abs(ended)
        if self.verdict == UNDECIDED:
            self.verdict = (SETUP_FAILED if not self.ready_at
                            else TIMEOUT_CPU if self.cpu_ns > supervisor.lane.cpu_ns * self.num_limits
                            else SIGNALED if ended < 0 else EXITED)
        return True

    def report(self) -> bytes:
        return REPLY_CHILD.pack(self.verdict, self.code, self.cpu_ns, self.wall_ns, self.peak_kib)
