"""Harmless attacks that are run in the real lanes before anything foreign: none may reach its effect."""

import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from score.protocol.frames import BadFrame, JobKind, decode_grids, encode_grids, encode_result, split_result
from score.sandbox.pool import LanePool
from score.sandbox.program import Program
from score.sandbox.ticket import Ending

REACHED = 7
ATTACK = """import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)

def attempt():
{body}

def transform(grid):
    try:
        reached = attempt()
    except BaseException:
        reached = False
    return [[7 if reached else 0]]
"""
# Each returns something true if the attack succeeded, or leaves such an answer.
BODIES = {
    "read a file": "return open({path!r}).read()",
    "write a file": "return open({path!r}, 'a').write('x')",
    "see that a file exists": "return os.stat({path!r})",
    "list a folder": "return os.listdir('/')",
    "look at its own process": "return open('/proc/self/status').read()",
    "fork": "pid = os.fork()\nif pid == 0:\n    os._exit(0)\nreturn pid",
    "run a command": "return os.system('true') == 0",
    "replace itself": "os.execv('/bin/sh', ['sh', '-c', 'printf \"{frame}\" >&3'])",
    "signal its parent": "os.kill(os.getppid(), 0)\nreturn True",
    "open a socket": "return libc.socket(1, 1, 0) >= 0",
    "make a memory file": "return os.memfd_create('x') >= 0",
    "be traced": "return libc.ptrace(0, 0, 0, 0) == 0",
    "make a timer": "return libc.timerfd_create(1, 0) >= 0",
    "map code": "return libc.mmap(0, 4096, 7, 34, -1, 0) not in (-1, None)",
    "change its limits": "return libc.setrlimit(7, (ctypes.c_ulong * 2)(24, 24)) == 0",
    "change its identity": "os.setuid(os.getuid())\nreturn True",
    "leave its namespaces": "return libc.unshare(0x10000000) == 0",
    "find an open descriptor": "def is_open(fd):\n    try:\n        os.lseek(fd, 0, 1)\n"
                               "    except OSError as error:\n"
                               "        return error.errno != 9\n    return True\n"
                               "return [fd for fd in range(4, 64) if is_open(fd)]",
}


def reached_effects(pool: LanePool) -> list[str]:
    """Names of the attacks that reached their effect, or ended in no way that can be read."""
    with bait() as path:
        programs = [attack_program(body, path) for body in BODIES.values()]
        endings = dict(pool.run(programs))
    return [name for index, name in enumerate(BODIES) if not contained(endings[index])]


def attack_program(body: str, path: Path) -> Program:
    """One attack as a grid program, with the file that it goes for."""
    forged = "".join(f"\\\\{byte:03o}" for byte in encode_result(encode_grids([np.full((1, 1), REACHED)])))
    body = textwrap.indent(body.replace("{path!r}", repr(str(path))).replace("{frame}", forged), "    ")
    return Program(JobKind.GRID, ATTACK.format(body=body), encode_grids([np.zeros((1, 1), np.uint8)]))


def contained(endings: list[Ending]) -> bool:
    """True if the attack ran and says that it got nowhere, or was stopped on its way."""
    if not endings:
        return False
    try:
        status, body = split_result(endings[0].result)
        return status == 2 or int(decode_grids(body)[0][0, 0]) != REACHED
    except (BadFrame, IndexError):
        return True


@contextmanager
def bait() -> Iterator[Path]:
    """A file that anybody may read and write, outside of every sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "bait"
        path.write_text("secret")
        path.chmod(0o666)
        yield path
