"""Landlock by its three system calls: rules on files, ports and scopes that a process puts on itself."""

import ctypes
import os
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446     # the same numbers on every machine
VERSION_FLAG, RULE_PATH_BENEATH = 1, 1
EXECUTE, READ_FILE, READ_DIR = 1 << 0, 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}     # bits known, from this version of the interface on
NET_RIGHTS = 0b11                              # bind and connect of TCP ports; from version 4
SCOPES = 0b11                                  # abstract unix sockets and signals; from version 6

libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Version of the interface; 0 where the kernel has no Landlock."""
    return max(0, libc.syscall(CREATE_RULESET, None, 0, VERSION_FLAG))


def create_ruleset() -> int:
    """A ruleset that denies everything this kernel can deny; its descriptor."""
    bits = max(count for since, count in FILE_RIGHTS.items() if since <= version())
    fields = [(1 << bits) - 1]
    if version() >= 4:
        fields.append(NET_RIGHTS)
    if version() >= 6:
        fields.append(SCOPES)
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    return check(libc.syscall(CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")


def allow_reading(ruleset: int, folder: str) -> None:
    """Let a folder and all below it be read and mapped."""
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", EXECUTE | READ_FILE | READ_DIR, descriptor)
        check(libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule {folder}")
    finally:
        os.close(descriptor)


def check(result: int, what: str) -> int:
    """The result of a system call; OSError when it is an error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
