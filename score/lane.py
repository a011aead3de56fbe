"""The lane: a warm process that forks one child per program, watches its clock, and reports how it ended.

It runs as `python -c "from score.lane import main; main(..)"`, holds no targets and reads no job.
"""

from __future__ import annotations

import _socket  # without the module `socket`: what a lane imports, every fork pays for
import gc
import os
import select
import struct
import sys
import time
import warnings
from typing import Any

from score import child, imports
from score.frames import HELLO, HELLO_MAGIC, ORDER, OVERLOAD_PATIENCE, REPLY_CHILD, REPLY_HEADER, Verdict
from score.lockdown import (
    LINK_FD,
    RESULT_FD,
    RLIMIT_AS,
    RLIMIT_CORE,
    RLIMIT_FSIZE,
    RLIMIT_MEMLOCK,
    RLIMIT_MSGQUEUE,
    RLIMIT_NOFILE,
    RULESET_FD,
    SIGKILL,
    Lockdown,
    set_limit,
)

SETUP_SECONDS = 20.0       # for a child to read its job and import what it mentions, on a slow disk
CORES = os.cpu_count() or 1      # threads of one program use up CPU time this many times faster at most
limits_in_force: dict[int, int] = {}
MAX_FDS_SPACE = _socket.CMSG_SPACE(16 * 4)
STARVED_SHARE = 0.02             # of the wall time
SHORTEST_WAIT = 0.002


def main(config: dict[str, Any]) -> None:
    """Prepare, give up every privilege, say hello, then serve orders until the scorer closes the socket."""
    channel = arrange(config["socket"])
    sys.path[1:1] = config["import_paths"]
    imports.check_installed(config["imports"])
    imports.preload(config["preload"])
    address_space = own_address_space()
    lockdown = Lockdown(config["layers"], config["readable"])
    layers = lockdown.enter_lane()
    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()
    os.dup2(1, 2)            # what went wrong so far was for the scorer to read; from here on, nothing is
    channel.send(HELLO.pack(HELLO_MAGIC, layers, address_space))
    while serve_one(channel, lockdown):
        pass


def arrange(socket_number: int) -> _socket.socket:
    """The channel on a high descriptor, 3 to 5 reserved so that nothing that arrives lands there."""
    channel = _socket.socket(fileno=socket_number)
    if channel.fileno() < 10:
        import fcntl
        moved = fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD, 10)
        channel.close()
        channel = _socket.socket(fileno=moved)
    for reserved in (RESULT_FD, LINK_FD, RULESET_FD):
        os.dup2(0, reserved)
    return channel


def own_address_space() -> int:
    """Bytes of address space of this process; 0 without /proc, then the scorer looks it up."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def serve_one(channel: _socket.socket, lockdown: Lockdown) -> bool:
    """Run one order; False when the scorer is gone."""
    message, ancillary, _flags, _address = channel.recvmsg(ORDER.size, MAX_FDS_SPACE)
    if not message:
        return False
    fds = struct.unpack(f"{len(ancillary[0][2]) // 4}i", ancillary[0][2])
    number, num_children, num_fds, cpu_ns, wall_ns, address_space, open_files, output_bytes, threads = (
        ORDER.unpack(message))
    order = {"cpu_ns": cpu_ns, "wall_ns": wall_ns, "address_space": address_space, "open_files": open_files,
             "output_bytes": output_bytes, "threads": threads, "cores": CORES if threads else 1}
    set_limits(order)
    links: list[_socket.socket] = list(_socket.socketpair()) if num_children == 2 else []
    children = []
    for index in range(num_children):
        link = links[index].fileno() if links else None
        children.append(Child(list(fds[index * num_fds:(index + 1) * num_fds]), link, order, lockdown))
    for open_here in (*fds, *(link.detach() for link in links)):
        os.close(open_here)
    watch(children, order)
    reply = REPLY_HEADER.pack(number, num_children) + b"".join(each.report() for each in children)
    channel.send(reply)
    return True


def set_limits(order: dict[str, int]) -> None:
    """Limits that the kernel keeps, on the lane, from which children inherit them; CPU time is watched.

    They are the same for all orders of a lane, so this is done once.
    """
    wanted = {RLIMIT_AS: order["address_space"], RLIMIT_NOFILE: order["open_files"],
              RLIMIT_FSIZE: order["output_bytes"], RLIMIT_CORE: 0, RLIMIT_MEMLOCK: 0, RLIMIT_MSGQUEUE: 0}
    if wanted != limits_in_force:
        for which, value in wanted.items():
            set_limit(which, value)
        limits_in_force.update(wanted)


class Child:
    """One forked program: its pid, its clocks, and how it ended."""

    def __init__(self, fds: list[int], link_fd: int | None, order: dict[str, int],
                 lockdown: Lockdown) -> None:
        self.verdict: Verdict | None = None
        self.code = self.cpu_ns = self.wall_ns = self.peak_kib = 0
        self.ready: tuple[int, int] | None = None          # cpu and monotonic ns when foreign code began
        self.started = time.monotonic_ns()
        self.ready_fd, write_fd = os.pipe2(os.O_NONBLOCK)
        try:
            self.pid = os.fork()
        except OSError:
            self.verdict = Verdict.FORK_FAILED
            os.close(self.ready_fd)
            os.close(write_fd)
            return
        if self.pid == 0:
            child.run_child(fds, write_fd, link_fd, order, lockdown)
        os.close(write_fd)
        self.pidfd = os.pidfd_open(self.pid)

    def check_ready(self) -> None:
        """Learn whether preparation is over, from bytes that only the trusted part of the child can write."""
        if self.ready is None:
            try:
                message = os.read(self.ready_fd, 16)
            except BlockingIOError:
                return
            if len(message) == 16:
                self.ready = int.from_bytes(message[:8], "little"), int.from_bytes(message[8:], "little")

    def seconds_left(self, order: dict[str, int]) -> float:
        """Time that must pass before a limit can be reached; at most 0 when one is, with the verdict set."""
        self.check_ready()
        now = time.monotonic_ns()
        if self.ready is None:
            left = SETUP_SECONDS - (now - self.started) / 1e9
            if left <= 0:
                self.verdict = Verdict.SETUP_FAILED
            return min(left, 0.05)
        # clock id of another process's CPU time, as clock_getcpuclockid(3) computes it
        cpu = time.clock_gettime_ns((~self.pid << 3) | 2) - self.ready[0]
        wall = now - self.ready[1]
        # A program that gets some CPU time but too little is not to blame for a machine that is overloaded.
        patience = OVERLOAD_PATIENCE if cpu > STARVED_SHARE * wall else 1
        cpu_left, wall_left = order["cpu_ns"] - cpu, order["wall_ns"] * patience - wall
        if cpu_left <= 0:
            self.verdict = Verdict.TIMEOUT_CPU
        elif wall_left <= 0:
            self.verdict = Verdict.TIMEOUT_WALL
        return min(cpu_left / order["cores"], wall_left) / 1e9

    def finish(self, order: dict[str, int], kill: bool) -> None:
        """Reap the child; the kernel's account of its CPU time decides, not the clock that was polled."""
        if kill:
            os.kill(self.pid, SIGKILL)          # not reaped yet, so the pid is still its own
        _pid, status, usage = os.wait4(self.pid, 0)
        self.check_ready()
        ready_cpu, ready_wall = self.ready or (0, self.started)
        self.wall_ns = time.monotonic_ns() - ready_wall
        self.cpu_ns = max(0, round((usage.ru_utime + usage.ru_stime) * 1e9) - ready_cpu)
        self.peak_kib = usage.ru_maxrss
        if self.ready is None and self.verdict is None:
            self.verdict = Verdict.SETUP_FAILED
        if self.cpu_ns > order["cpu_ns"] and self.verdict is None:
            self.verdict = Verdict.TIMEOUT_CPU
        signaled = os.WIFSIGNALED(status)
        self.code = os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status)
        if self.verdict is None:
            self.verdict = Verdict.SIGNALED if signaled else Verdict.EXITED
        os.close(self.pidfd)
        os.close(self.ready_fd)
        self.pidfd = -1

    def report(self) -> bytes:
        assert self.verdict is not None
        return REPLY_CHILD.pack(self.verdict, self.code, self.cpu_ns, self.wall_ns, self.peak_kib)


def watch(children: list[Child], order: dict[str, int]) -> None:
    """Wait for all children, killing those that pass a limit; the end of the last one ends the first."""
    running = [each for each in children if each.verdict is None]
    if len(running) < len(children):                       # one could not be forked: the others are not run
        for each in running:
            each.finish(order, kill=True)
        return
    poll = select.poll()
    for each in running:
        poll.register(each.pidfd, select.POLLIN)
    first_wait = min(order["cpu_ns"] / order["cores"], order["wall_ns"]) / 1e9
    wait = first_wait
    while running:
        ended = {fd for fd, _event in poll.poll(max(wait, SHORTEST_WAIT) * 1000)}
        wait = first_wait
        for each in list(running):
            over = each.pidfd not in ended and (left := each.seconds_left(order)) <= 0
            if each.pidfd in ended or over:
                poll.unregister(each.pidfd)
                running.remove(each)
                each.finish(order, kill=over)
                if each is children[-1]:                   # the tests are over: so is the program under test
                    for other in running:
                        other.finish(order, kill=True)
                        other.verdict = Verdict.EXITED if other.ready else other.verdict
                    running = []
                    break
            else:
                wait = min(wait, left)
