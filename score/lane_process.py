"""A lane as the scorer sees it: starting it, what it is working on, and noticing that it is gone."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from score import bubblewrap
from score.flight import Flight
from score.frames import HELLO, HELLO_MAGIC, OVERLOAD_PATIENCE
from score.imports import allowed_modules
from score.limits import Limits
from score.lockdown import Layer
from warehouse.errors import StageError

START_SECONDS = 120.0       # importing numpy from a network file system is slow the first time
SILENT_SECONDS = 30.0       # beyond the wall limit: setting up the child takes at most 20 of them
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """How lanes are started; all lanes of a scorer are alike."""

    layers: int
    imports: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    import_paths: tuple[str, ...] = ()      # folders of the user's own modules


class LaneLost(Exception):
    """The lane ended, or says nothing."""


class LaneProcess:
    """One running lane, its channel, and the programs it was handed, oldest first."""

    def __init__(self, config: LaneConfig) -> None:
        self.flights: deque[Flight] = deque()
        self.since = time.monotonic()            # when the oldest one was begun
        self.allowed = allowed_modules(config.imports)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the lane)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)       # the hello then says the lane's pid
        self.process = subprocess.Popen(
            lane_command(config, theirs.fileno()), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self.errors, pass_fds=[theirs.fileno()], env=lane_environment(), start_new_session=True,
            cwd="/")
        theirs.close()
        self.layers = self.address_space = 0
        self.pid = self.process.pid              # of the lane itself, which bwrap may have started

    def greet(self) -> None:
        """Wait until the lane is ready; StageError with its own words when it fails to start."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        if poll.poll(START_SECONDS * 1000):
            message, ancillary, _flags, _address = self.channel.recvmsg(HELLO.size, socket.CMSG_SPACE(12))
            if len(message) == HELLO.size:
                magic, self.layers, self.address_space = HELLO.unpack(message)
                assert magic == HELLO_MAGIC
                self.pid = struct.unpack("3i", ancillary[0][2])[0]
                self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                self.address_space = self.address_space or address_space_of(self.pid)
                return
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        raise LaneLost(words[-1] if words else f"no answer within {START_SECONDS:g} s")

    def hand(self, flight: Flight, limits: Limits) -> None:
        """Give the lane one more program."""
        if not self.flights:
            self.since = time.monotonic()
        flight.attempts += 1
        self.flights.append(flight)
        try:
            flight.send(self.channel, limits, self.address_space, self.allowed)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LaneLost(str(error)) from error

    def take(self) -> bytes:
        """The next reply; the oldest flight is the one it is about."""
        try:
            reply = self.channel.recv(256)
        except ConnectionResetError as error:
            raise LaneLost(str(error)) from error
        if not reply:
            raise LaneLost("the lane ended")
        self.since = time.monotonic()
        return reply

    def is_stuck(self, limits: Limits) -> bool:
        """True when it has been silent for longer than any program can take, or was stopped by a signal."""
        if not self.flights:
            return False
        patience = limits.wall_seconds * OVERLOAD_PATIENCE + SILENT_SECONDS
        return time.monotonic() - self.since > patience or self.is_stopped()

    def is_stopped(self) -> bool:
        """True if the process is in state T."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def stop(self) -> None:
        """Kill the lane; its children die with it."""
        self.process.kill()
        self.process.wait()
        self.channel.close()
        for flight in self.flights:
            flight.close()


def lane_command(config: LaneConfig, socket_number: int) -> list[str]:
    """Command line of a lane: no user site, no bytecode written, nothing of the caller's sys.path."""
    text = repr({"scorer": os.getpid(), "socket": socket_number, "layers": int(config.layers),
                       "imports": config.imports, "preload": config.preload,
                       "import_paths": config.import_paths, "readable": readable_folders(config)})
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from score.lane import main; main({text})"
    command = [sys.executable, "-s", "-P", "-B", "-c", start]
    if config.layers & Layer.BUBBLEWRAP:
        return bubblewrap.wrapped(command, readable_folders(config))
    return command


def address_space_of(pid: int) -> int:
    """Bytes of address space of a process; LaneLost where that cannot be seen, for limits start from it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    except OSError as error:
        raise LaneLost(f"the lane's memory cannot be looked up in /proc: {error}") from error
    return pages * os.sysconf("SC_PAGE_SIZE")


def lane_environment() -> dict[str, str]:
    """Everything a lane's environment holds: single-threaded libraries, and hashes that do not vary."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**dict.fromkeys(threads, "1"), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin"}


def readable_folders(config: LaneConfig) -> list[str]:
    """Folders with the interpreter, its libraries and the allowed modules: all that a lane may read."""
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, "/usr/lib", "/usr/lib64", "/lib", "/lib64",
               str(ROOT / "score"), *config.import_paths]
    return list(dict.fromkeys(str(Path(folder).resolve()) for folder in folders if os.path.isdir(folder)))


def start_lanes(config: LaneConfig, count: int) -> list[LaneProcess]:
    """Lanes that answered, started side by side; StageError when one cannot be started."""
    lanes = [LaneProcess(config) for _ in range(count)]
    try:
        for lane in lanes:
            lane.greet()
    except BaseException as error:
        for lane in lanes:
            lane.stop()
        if not isinstance(error, LaneLost):
            raise
        raise StageError(f"A lane for running programs could not start: {error}. Run `score doctor` to see "
                         f"what is missing; the interpreter is {sys.executable}.") from error
    return lanes
