"""Processes that run a loop's commands after importing once, started by `warehouse warm COMMAND`.

    command                    warehouse warm                      job
    connect, [0, 1, 2], request -->
                               fork, or hand it to the resident
                               <---------------- process id -------
    signals ------------------------------------------------------>
                               <---------------- exit code --------

A job is a fork of a process that has imported the rooms and opened no GPU. Commands that keep an engine, a
policy or lanes (`STAYS` in their room's cli) run one after the other in one resident fork per place
(`warm.PLACE`: GPUs, and the rank in a joint training). A job ends with its command, and all end with COMMAND.
"""

import contextlib
import importlib
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tqdm import tqdm

from warehouse.stages import warm
from warehouse.stages.children import SECONDS_TO_END, child
from warehouse.stages.warm_job import Job, clean_up, fork, run_job

FOLDER = "rollhouse-warm-"           # prefix of the socket's folder, in the temporary directory
IDLE, ENDS = b".", b"!"              # messages of a resident process after a command
SOCKET = f"{zlib.crc32(os.uname().nodename.encode()):08x}"      # one per machine
LONGEST_PLACE = 70                   # of a socket's folder; the whole path has at most 107 bytes
GPU_DEVICES = "/dev/nvidia"
PORT = "MASTER_PORT"

Residents = dict[tuple[str, tuple[tuple[str, str], ...]], "Resident"]       # by command and place


@dataclass
class Resident:
    """The process that runs all commands of a name at a place, one after the other."""

    process: int
    line: socket.socket
    busy: bool = False


def run_warm(command: Sequence[str]) -> int:
    """Run COMMAND, and its commands in processes that have imported already; return its exit code."""
    # torch counts GPUs through the driver's library, not through the driver, which would not survive a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    rooms = load_rooms()
    os.environ.pop(warm.VARIABLE, None)                # from an outer server: jobs stay in this one
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < LONGEST_PLACE else "/tmp"
    sweep(place)
    with tempfile.TemporaryDirectory(prefix=FOLDER, dir=place) as folder, socket.socket(
            socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/new")
        listener.listen()
        os.rename(f"{folder}/new", f"{folder}/{SOCKET}")   # a sweep may find it only once it listens
        more = {warm.VARIABLE: f"{folder}/{SOCKET}"}
        if touches_gpu():
            more = {warm.VARIABLE: "off"}
            print("Importing opened the GPU, so each command imports by itself.", file=sys.stderr)
        with child(command, warm.began_with | more) as served:
            return serve(listener, rooms, served)


def sweep(place: str) -> None:
    """Remove the folders of this machine's killed servers, which nobody listens to."""
    for left in Path(place).glob(f"{FOLDER}*/{SOCKET}"):
        with socket.socket(socket.AF_UNIX) as line, contextlib.suppress(OSError):
            line.setblocking(False)
            try:
                line.connect(str(left))
            except ConnectionRefusedError:
                shutil.rmtree(left.parent, ignore_errors=True)


def load_rooms() -> dict[str, Any]:
    """The commands by name, imported with everything they need (`LOADS` in each room's cli)."""
    rooms, modules = {}, list[str]()
    for entry in entry_points(group="rollhouse"):
        rooms[entry.name] = entry.load()
        room = sys.modules[entry.module]
        modules += getattr(room, "LOADS", ())
        getattr(room, "prepare_to_load", bool)()
    for module in tqdm(modules, desc="importing", leave=False, disable=not sys.stderr.isatty()):
        importlib.import_module(module)
    return rooms


def touches_gpu() -> bool:
    """Whether this process has opened a GPU: then its forks cannot use one."""
    for opened in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            if os.readlink(opened).startswith(GPU_DEVICES):
                return True
    return False


def serve(listener: socket.socket, rooms: dict[str, Any], served: subprocess.Popen[bytes]) -> int:
    """Start a job for every command that connects, until the served one ends; return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: served.terminate())
    signal.signal(signal.SIGINT, signal.SIG_IGN)       # the served command gets Ctrl-C itself
    common: list[Any] = [warm.environment(warm.began_with), warm.limits()]
    residents: Residents = {}
    forks, reported = set[int](), set[str]()
    with selectors.DefaultSelector() as events:
        ended = os.pidfd_open(served.pid)
        events.register(listener, selectors.EVENT_READ)
        events.register(ended, selectors.EVENT_READ)
        while served.poll() is None:
            if not any(key.fileobj is listener for key, _ in events.select()):
                continue
            with listener.accept()[0] as line:
                answer(line, rooms, common, residents, forks, reported)
                forks -= {process for process in forks if os.waitpid(process, os.WNOHANG)[0]}
        os.close(ended)
    for resident in residents.values():
        if not has_ended(resident) and not resident.busy:
            await_end(resident)
    code = served.returncode
    return code if code >= 0 else 128 - code


def answer(line: socket.socket, rooms: dict[str, Any], common: list[Any],
           residents: Residents, forks: set[int], reported: set[str]) -> None:
    """Start the job that a command requests, or tell the command to run by itself.

    The reason is printed once (`reported`), so that repeated imports do not go unnoticed.
    """
    head, streams = receive_streams(line, 3)
    try:
        with line.makefile("rb") as reader:
            name, words, folder, spent, place, *state = json.loads(reader.read(int.from_bytes(head, "big")))
        if name in rooms and state == common:
            start(Job(line, name, words, folder, spent, streams, place), rooms, residents, forks)
        else:
            line.sendall(warm.number(warm.COLD))
            if name in rooms and (why := difference(state, common)) not in reported:
                reported.add(why)
                print(f"{name} imports by itself, because {why} differs from `warehouse warm`.",
                      file=sys.stderr)
    except (ValueError, OSError):    # client or resident was killed, or fork or print failed
        pass
    finally:
        for stream in streams:
            os.close(stream)


def difference(state: list[Any], common: list[Any]) -> str:
    """What keeps a command from running here: variables or limits."""
    (has, _), (wanted, _) = state, common
    names = sorted(name for name in has.keys() | wanted.keys() if has.get(name) != wanted.get(name))
    return ", ".join(names) or "a limit (ulimit, nice, taskset or umask)"


def receive_streams(line: socket.socket, count: int) -> tuple[bytes, list[int]]:
    """Eight bytes and the open files sent with them, which started programs do not inherit."""
    head, streams, _, _ = socket.recv_fds(line, 8, count)
    for stream in streams:
        os.set_inheritable(stream, False)
    return head, streams


def start(job: Job, rooms: dict[str, Any], residents: Residents, forks: set[int]) -> None:
    """Run a job in a fork, or in the idle resident process of its command.

    Processes that train together form a group once; for a group on another port, the old ones end.
    """
    command = rooms[job.name]
    room = sys.modules[command.callback.__module__ if command.callback else __name__]
    if not getattr(room, "STAYS", False):
        forks.add(fork(lambda: run_job(job, command)))
        return
    key = job.name, tuple(sorted(item for item in job.place.items() if item[0] not in warm.NO_PLACE))
    for other in [*residents]:
        if other[0] == job.name and dict(other[1]).get(PORT) != job.place.get(PORT):
            if not has_ended(residents[other]):
                if residents[other].busy:
                    continue
                await_end(residents[other])
            del residents[other]
    resident = residents.get(key)
    if resident is None or has_ended(resident):
        resident = residents[key] = fork_resident(job, command)
    if resident.busy:
        forks.add(fork(lambda: run_job(job, command)))
        return
    resident.busy = True
    request = json.dumps([job.words, job.folder, job.spent, job.place]).encode()
    socket.send_fds(resident.line, [warm.number(len(request))], [job.line.fileno(), *job.streams])
    resident.line.sendall(request)


def has_ended(resident: Resident) -> bool:
    """Whether the process has ended or is ending; records what it finished meanwhile."""
    said = IDLE
    while said == IDLE:                                # it may have been killed after it said so
        try:
            said = resident.line.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:                        # it was killed before it read its message
            said = ENDS
        resident.busy = False
    await_end(resident)
    return True


def await_end(resident: Resident) -> None:
    """Close the connection of a process, which ends it, and wait until it has cleaned up."""
    resident.line.shutdown(socket.SHUT_RDWR)            # forks of this process also hold it
    resident.line.close()
    ended = os.pidfd_open(resident.process)
    if not select.select([ended], [], [], SECONDS_TO_END)[0]:
        os.kill(resident.process, signal.SIGKILL)
    os.close(ended)
    os.waitpid(resident.process, 0)


def fork_resident(first: Job, command: Any) -> Resident:
    """A process that waits for commands, `first` included, until its line is closed or one of them fails.

    A command refused before it began (`warm.sound`) does not end it; a command that clears `warm.stays` is
    its last.
    """
    ours, theirs = socket.socketpair()

    def goes_on(code: int) -> bool:
        return warm.stays and (code == 0 or warm.sound)

    def be_ready(code: int) -> None:
        theirs.sendall(IDLE if goes_on(code) else ENDS)
        if not warm.stays:
            clean_up()

    def stay() -> int:
        for inherited in (ours, first.line):           # the first job's streams are sent like later ones
            inherited.close()
        for stream in first.streams:
            os.close(stream)
        warm.stays = True
        code = 0
        while goes_on(code):
            head, passed = receive_streams(theirs, 4)
            if not head:
                break
            with theirs.makefile("rb") as reader:
                words, folder, spent, place = json.loads(reader.read(int.from_bytes(head, "big")))
            job = Job(socket.socket(fileno=passed[0]), first.name, words, folder, spent, passed[1:], place)
            with job.line:
                code = run_job(job, command, before_the_end=be_ready)
        return code

    with theirs:
        return Resident(fork(stay), ours)
