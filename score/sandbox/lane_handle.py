"""The scorer's handle of a lane: start it, give it programs, notice that it is gone."""

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from score.isolation import bubblewrap, lockdown
from score.protocol.allowed_imports import allowed_modules
from score.protocol.frames import HELLO, OVERLOAD_PATIENCE, SETUP
from score.sandbox.limits import Limits
from score.sandbox.ticket import Ending, Slot, Ticket
from warehouse.store.errors import StageError

START_SECONDS = 120.0       # importing numpy from a network file system is slow the first time
SILENT_SECONDS = 30.0       # beyond the wall limit; setting up a child takes at most 20
DEPTH = 2                   # one program running, one waiting in the lane's socket
ROOT = Path(__file__).resolve().parents[2]
NOT_STARTED = "A lane for running programs could not start"


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

    def __init__(self, config: LaneConfig, limits: Limits) -> None:
        self.limits = limits
        self.output_bytes = limits.output_kib * 1024
        self.slots = [Slot() for _ in range(DEPTH)]
        self.free = list(range(DEPTH))
        self.tickets: deque[Ticket] = deque()
        self.since = time.monotonic()            # start of the oldest ticket
        self.allowed = allowed_modules(config.imports)
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the lane)
        # Credentials with the hello tell the lane's pid.
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 10)    # above a lane's reserved ones
        theirs.close()
        self.process = subprocess.Popen(
            lane_command(config, number), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=self.errors, pass_fds=[number], env=lane_environment(), start_new_session=True, cwd="/")
        os.close(number)
        self.layers = 0
        self.pid = self.process.pid              # of the lane itself, not of bwrap

    def greet(self) -> None:
        """Wait until the lane is ready, give it limits and slots; LaneLost with its own words if it fails."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        if poll.poll(START_SECONDS * 1000):
            message, ancillary, _flags, _address = self.channel.recvmsg(HELLO.size, socket.CMSG_SPACE(12))
            if len(message) == HELLO.size:
                self.layers, address_space = HELLO.unpack(message)
                self.pid = struct.unpack("3i", ancillary[0][2])[0]
                self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                self._set_up(address_space)
                return
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        words = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        raise LaneLost(words[-1] if words else f"no answer within {START_SECONDS:g} s")

    def _set_up(self, address_space: int) -> None:
        limits = self.limits
        descriptors: list[int] = []
        try:
            memory = (address_space or lockdown.address_space(self.pid)) + limits.memory_mib * 2**20
            setup = SETUP.pack(round(limits.cpu_seconds * 1e9), round(limits.wall_seconds * 1e9), memory,
                               self.output_bytes)
            for slot in self.slots:
                descriptors += slot.for_lane()
            socket.send_fds(self.channel, [setup], descriptors)
        except OSError as error:
            raise LaneLost(str(error)) from error
        finally:
            for each in descriptors:
                os.close(each)

    def hand(self, ticket: Ticket) -> None:
        """Give the lane one more program; there must be a free slot."""
        if not self.tickets:
            self.since = time.monotonic()
        ticket.attempts += 1
        self.tickets.append(ticket)
        ticket.slot = self.free.pop()
        try:
            self.channel.send(ticket.order(self.slots[ticket.slot], self.allowed))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LaneLost(str(error)) from error

    def take(self) -> tuple[Ticket, list[Ending]]:
        """The oldest program and how it ended, from the next reply."""
        try:
            reply = self.channel.recv(256)
        except ConnectionResetError as error:
            raise LaneLost(str(error)) from error
        if not reply:
            raise LaneLost("the lane ended")
        self.since = time.monotonic()
        ticket = self.tickets.popleft()
        endings = ticket.endings(reply, self.slots[ticket.slot], self.output_bytes)
        self.free.append(ticket.slot)
        return ticket, endings

    def is_stuck(self) -> bool:
        """True if it was silent for longer than any program can take, or was stopped by a signal."""
        if not self.tickets:
            return False
        longest = self.limits.wall_seconds * self.tickets[0].program.num_limits * OVERLOAD_PATIENCE
        if time.monotonic() - self.since > longest + SILENT_SECONDS:
            return True
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def stop(self) -> None:
        """Kill the lane; its children die with it."""
        self.process.kill()
        self.process.wait()
        self.channel.close()
        for slot in self.slots:
            slot.close()
        self.slots = []


def lane_command(config: LaneConfig, socket_number: int) -> list[str]:
    """Command line of a lane: no user site, no bytecode written, nothing of the caller's sys.path."""
    paths = [str(Path(path).resolve()) for path in config.import_paths]      # a lane runs elsewhere
    text = repr({**asdict(config), "import_paths": paths, "scorer": os.getpid(), "socket": socket_number,
                 "layers": int(config.layers), "readable": readable_folders(config)})
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from score.lane.main import main; main({text})"
    command = [sys.executable, "-s", "-P", "-B", "-c", start]
    if config.layers & lockdown.Layer.BUBBLEWRAP:
        return bubblewrap.wrap(command, readable_folders(config))
    return command


def lane_environment() -> dict[str, str]:
    """Everything a lane's environment holds: single-threaded libraries, and hashes that do not vary.

    Symbols are looked up when libraries are loaded, or every child would do it on pages of its own.
    """
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {**dict.fromkeys(threads, "1"), "PYTHONHASHSEED": "0", "LD_BIND_NOW": "1", "LC_ALL": "C.UTF-8",
            "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}


def readable_folders(config: LaneConfig) -> list[str]:
    """Folders with the interpreter, its libraries and the allowed modules: all that a lane may read."""
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, *bubblewrap.LIBRARY_FOLDERS,
               str(ROOT / "score"), *map(str, folders_of_packages(config)), *config.import_paths]
    return list(dict.fromkeys(str(Path(folder).resolve()) for folder in folders if os.path.isdir(folder)))


def folders_of_packages(config: LaneConfig) -> list[Path]:
    """Where numpy and the allowed packages lie: they load parts of themselves late, from where a .pth file or
    symbolic links have them.
    """
    found = [PathFinder.find_spec(name.partition(".")[0], [*config.import_paths, *sys.path])
             for name in (*config.imports, *config.preload)]
    packages = [spec.origin for spec in found if spec and spec.origin and spec.submodule_search_locations]
    folders = []
    for package in (Path(origin).resolve().parent for origin in (np.__file__, *packages)):
        folders += ([package.parent] if package.parent.name in ("site-packages", "dist-packages") else
                    [package, package.with_name(f"{package.name}.libs")])       # the folder may be a home
    return folders


def start_lanes(config: LaneConfig, limits: Limits, count: int) -> list[LaneProcess]:
    """Lanes that answered, started side by side; StageError when a lane cannot be started."""
    lanes = [LaneProcess(config, limits) for _ in range(count)]
    try:
        for lane in lanes:
            lane.greet()
    except BaseException as error:
        for lane in lanes:
            lane.stop()
        if not isinstance(error, LaneLost):
            raise
        raise StageError(f"{NOT_STARTED}: {error}. Run `warehouse doctor` to see "
                         f"what is missing; the interpreter is {sys.executable}.") from error
    return lanes
