"""Start a command as a container would: no namespaces, no mounts, no tracing, and a kernel without Landlock.

    python -m tests.hostile.confined COMMAND ..

Puts a seccomp filter on itself that refuses these system calls the way Docker's does, then becomes COMMAND.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

from score.isolation.lockdown import PR_SET_NO_NEW_PRIVS
from score.isolation.seccomp import (
    ALLOW_CALL,
    ERRNO,
    FIRST_ARGUMENT,
    JUMP_ANY_BIT,
    JUMP_EQUAL,
    LOAD,
    NUMBER,
    RETURN,
    FilterProgram,
    Instruction,
)

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
NAMESPACES = 0x7E020000        # CLONE_NEW*: mount, cgroup, uts, ipc, user, pid, net
REFUSED = {"x86_64": {"ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166, "setns": 308,
                      "process_vm_readv": 310, "bpf": 321, "userfaultfd": 323, "keyctl": 250},
           "aarch64": {"ptrace": 117, "pivot_root": 41, "mount": 40, "umount2": 39, "setns": 268,
                       "process_vm_readv": 270, "bpf": 280, "userfaultfd": 282, "keyctl": 219}}
CLONING = {"x86_64": (56, 272), "aarch64": (220, 97)}          # clone, unshare: flags come first
MISSING = (435, 444, 445, 446)                                 # clone3 and Landlock, alike on both


def container_filter(machine: str) -> bytes:
    """Everything is allowed but what containers are refused."""
    program: list[Instruction] = [(LOAD, 0, 0, NUMBER)]
    for number in MISSING:
        program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    for number in REFUSED[machine].values():
        program += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    for number in CLONING[machine]:
        program += [(JUMP_EQUAL, 0, 4, number), (LOAD, 0, 0, FIRST_ARGUMENT),
                    (JUMP_ANY_BIT, 0, 1, NAMESPACES), (RETURN, 0, 0, ERRNO | errno.EPERM),
                    (RETURN, 0, 0, ALLOW_CALL)]
    return b"".join(struct.pack("<HBBI", *each) for each in [*program, (RETURN, 0, 0, ALLOW_CALL)])


def confine() -> None:
    """Put the filter on this process and all that come after it."""
    libc = ctypes.CDLL(None, use_errno=True)
    content = container_filter(platform.machine())
    buffer = ctypes.create_string_buffer(content, len(content))
    program = FilterProgram(len(content) // 8, ctypes.addressof(buffer))
    if (libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)):
        raise OSError(ctypes.get_errno(), "the filter was refused")


if __name__ == "__main__":
    confine()
    os.execvp(sys.argv[1], sys.argv[1:])
