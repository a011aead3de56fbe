"""Hand a command over to the processes of `warehouse warm`, which have imported already; see warm_server."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from warehouse.store.errors import StageError

VARIABLE = "ROLLHOUSE_WARM"          # where `warehouse warm` listens; any other value disables it
BESIDE = "ROLLHOUSE_BESIDE"          # set: a command's input is still being written, so it waits
AWAKE = "ROLLHOUSE_AWAKE"            # set: a process keeps its GPU between commands; others have room
# Variables that assign a command its GPUs and its rank in a training by several processes.
PLACE = {"CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
         "MASTER_PORT", "ACCELERATE_USE_FSDP", "FSDP_VERSION", "FSDP_RESHARD_AFTER_FORWARD",
         "FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING", BESIDE, AWAKE}
NO_PLACE = {BESIDE, AWAKE}           # of these, what says how to run and not where
# Variables that a shell changes between commands; a running process can follow no other change.
CHANGING = {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "PS1", "PS2", "PS4", VARIABLE} | PLACE
COLD = 0                             # answer: the command must run by itself
CRASHES = (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT)
AGAIN = 256                          # exit code: run it again, in a fresh process

began_with = dict(os.environ)        # before this process changes anything
stays = False                        # whether this process runs several commands; a command may set it
sound = True                         # whether a failed command left this process unchanged; it may say so
spent = 0.0                          # seconds that the command ran before its restart
started = time.perf_counter()        # when this process began the command that it runs


class NewProcess(BaseException):
    """Raised by a command, before it has done anything, if it needs a fresh process."""


def environment(variables: dict[str, str]) -> dict[str, str]:
    """The variables that must be equal for one process to run a command of the other."""
    return {name: value for name, value in variables.items() if name not in CHANGING}


def limits() -> list[Any]:
    """The values of `ulimit`, `nice`, `taskset` and `umask`, which must be equal, too."""
    umask = re.findall(r"^Umask:.*", Path("/proc/self/status").read_text(), re.MULTILINE)
    return [*([*resource.getrlimit(getattr(resource, name))] for name in sorted(dir(resource))
              if name.startswith("RLIMIT_")), os.nice(0), sorted(os.sched_getaffinity(0)), umask]


def folder() -> str | None:
    """The folder of the resident processes, removed with them or at the next start; None without."""
    place = os.environ.get(VARIABLE, "")
    return os.path.dirname(place) if os.path.isabs(place) else None


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def read_number(line: socket.socket) -> int | None:
    """The received number; None if the other side has ended."""
    sent = line.recv(8, socket.MSG_WAITALL)
    return int.from_bytes(sent, "big") if len(sent) == 8 else None


def start_server() -> NoReturn:
    """Become a server of this command, in a process that has opened no object store yet.

    A store's client has threads, which no fork inherits: commands forked from here would wait for them.
    """
    sys.stdout.flush()
    own = [sys.executable, "-P"]
    os.execv(sys.executable, [*own, sys.argv[0], "warm", *own, *sys.argv])


def hand_over() -> int | None:
    """The exit code of this command, run by `warehouse warm`; None if it must run in this process.

    Signals are passed to the process that runs it, and that process ends when this one is killed.
    """
    global spent
    path = os.environ.get(VARIABLE)
    if not path or sys.argv[1:2] in (["warm"], ["loop"], ["arms"], ["demo"]):
        return None
    began = time.monotonic()
    code: int | None = AGAIN
    while code == AGAIN:
        spent = time.monotonic() - began
        code = ask(path)
    return code


def ask(path: str) -> int | None:
    """Hand the command to the listener, as `hand_over` does; AGAIN if the request must be repeated."""
    with socket.socket(socket.AF_UNIX) as line:
        if line.fileno() < 3:        # it has the number of a closed standard stream
            return None
        try:
            line.connect(path)
            place = {name: value for name, value in began_with.items() if name in PLACE}
            request = json.dumps([Path(sys.argv[0]).name, sys.argv[1:], str(Path.cwd()), spent,
                                  place, environment(began_with), limits()]).encode()
            socket.send_fds(line, [number(len(request))], [0, 1, 2])
            line.sendall(request)
            process = read_number(line)
        except OSError:              # it has ended, or its folder is gone
            return None
        return follow(line, process) if process else None


def follow(line: socket.socket, process: int) -> int:
    """Wait for the process that runs the command, and pass signals to it."""
    passed: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        passed.append(number)
        with contextlib.suppress(ProcessLookupError):      # it has just ended
            os.kill(process, number)
    before = [(expected, signal.signal(expected, pass_on)) for expected in (signal.SIGINT, signal.SIGTERM)]
    code = read_number(line)
    for expected, handler in before:
        signal.signal(expected, handler)
    if code is not None and not (code == AGAIN and passed):
        return code
    if passed:                       # it ended by the signal; end this process likewise
        signal.signal(passed[-1], signal.SIG_DFL)
        os.kill(os.getpid(), passed[-1])
    number = end_of(process)
    if number in CRASHES:
        raise StageError(f"The process that ran this command crashed: {signal.strsignal(number)}. Its "
                         "written output is kept: run the same command again. If it crashes again, try "
                         "another --dtype.")
    killed = StageError("The process that ran this command was killed. Its written output is kept: run the "
                        "same command again.")
    killed.exit_code = 128 + signal.SIGKILL     # as without `warehouse warm`: jobs start it again
    raise killed


def end_of(process: int) -> int:
    """The signal that ended a process which its parent has not asked about yet; 0 if none or unknown."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[-1]) & 0x7F      # its last field is the exit status
