"""The lane: a warm process that forks one child per program, watches its clock, and reports how it ended.

It runs as `python -c "from score.lane.main import main; main(..)"`, holds no targets and reads no job.
"""

import _socket  # without the module `socket`: what a lane imports, every fork pays for
import gc
import importlib
import os
import struct
import sys
import warnings
from typing import Any

from score.isolation import lockdown
from score.isolation.lockdown import LINK_FD, READY_FD, RESULT_FD, RULESET_FD, Lockdown
from score.jobs.modules import lines_of
from score.lane.child import Lane
from score.lane.ready import ReadyFile
from score.lane.supervisor import Supervisor
from score.lane.warm_up import rehearse
from score.protocol import allowed_imports as imports
from score.protocol.frames import FAILS, FILES_PER_SLOT, HELLO, ORDER, REPLY_CHILD, REPLY_HEADER, SETUP

OFTEN_IMPORTED = ("copy",)               # by grid programs; small, and nothing that a lane has anyway
SPARE_CPU_SECONDS, LAST_CPU_FACTOR = 60, 10        # for imports, and for a lane that is slow to watch
FDS_SPACE = _socket.CMSG_SPACE(64 * 4)
# Objects that fill holes in Python's memory, so that what a child makes lies together on few pages: measured
# in lanes, they spare it one page of twenty, and filling more thoroughly spares few more.
FILLERS_PER_SIZE = 200
fillers: list[bytes] = []


def main(config: dict[str, Any]) -> None:
    """Prepare, give up every privilege, say hello, then serve orders until the scorer closes the socket."""
    channel = _socket.socket(fileno=config["socket"])
    for reserved in (RESULT_FD, LINK_FD, READY_FD, RULESET_FD):       # nothing that arrives lands there
        os.dup2(0, reserved)
    sys.path += config["import_paths"]       # last, so that nothing there stands in for a standard module
    imports.check_imports(config["imports"])
    for name in (*OFTEN_IMPORTED, *config["preload"]):
        load(name)
    doors, ready = Lockdown(config["layers"], config["readable"]), ReadyFile()
    try:
        address_space = lockdown.address_space("self")
    except OSError:
        address_space = 0            # where /proc is not shown; the scorer looks it up
    layers = doors.enter_lane()
    warnings.simplefilter("ignore")
    rehearse(ready)
    os.dup2(1, 2)            # the scorer reads errors of the start only
    channel.send(HELLO.pack(layers, address_space))
    serve(channel, doors, ready)


def load(name: str) -> None:
    """Import a module; ImportError with file and line where its own code fails."""
    try:
        importlib.import_module(name)
    except ImportError:
        raise
    except Exception as error:
        *_, (code, line) = lines_of(error)
        words = " ".join(str(error).split())         # the scorer reads one line
        # A syntax error says where itself.
        where = "" if isinstance(error, SyntaxError) else f" in {code.co_filename}, line {line}"
        raise ImportError(f"{name} {FAILS}: {type(error).__name__}: {words}{where}.") from error


def serve(channel: _socket.socket, doors: Lockdown, ready: ReadyFile) -> None:
    """Take the limits and the slots, then run one order after the other."""
    message, ancillary, _flags, _address = channel.recvmsg(SETUP.size, FDS_SPACE)
    if not message:
        return
    fds = struct.unpack(f"{len(ancillary[0][2]) // 4}i", ancillary[0][2])
    slots = [fds[start:start + FILES_PER_SLOT] for start in range(0, len(fds), FILES_PER_SLOT)]
    cpu_ns, wall_ns, address_space, output_bytes = SETUP.unpack(message)
    lockdown.set_limits(address_space, output_bytes)
    supervisor = Supervisor(Lane(
        os.getpid(), doors, ready, cpu_ns, wall_ns, output_bytes,
        lockdown.limit_bytes(SPARE_CPU_SECONDS + cpu_ns * LAST_CPU_FACTOR // 10**9)))
    gc.collect()
    fillers.extend(bytes(size) for size in range(0, 480, 16) for _ in range(FILLERS_PER_SIZE))
    gc.freeze()
    while order := channel.recv(ORDER.size):
        number, slot, num_limits, *jobs = ORDER.unpack(order)
        del order                # the next program can see this frame
        reports = supervisor.run(slots[slot], jobs, num_limits)
        channel.send(REPLY_HEADER.pack(number, len(reports) // REPLY_CHILD.size) + reports)
        del reports
