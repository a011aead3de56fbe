"""The layers of isolation that a lane and its children put on themselves, outermost first."""

import ctypes
import errno
import os
import struct
from enum import IntFlag

from score.isolation import landlock
from score.isolation.seccomp import Filter

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 38
SIGKILL = 9
NOBODY = 65534
CAPABILITY_VERSION = 0x20080522
# What a lane of root needs: to become nobody, to end and be ended as nobody, to read what only root may read.
# Docker grants the stronger DAC_OVERRIDE by default, not DAC_READ_SEARCH.
CAPABILITIES = {"CAP_DAC_OVERRIDE": 1 << 1, "CAP_DAC_READ_SEARCH": 1 << 2, "CAP_KILL": 1 << 5,
                "CAP_SETGID": 1 << 6, "CAP_SETUID": 1 << 7}
# Descriptors of a child: where its answer goes, the link to its tests or its program, where it says that it
# is ready, and the ruleset that waits until its doors close.
RESULT_FD, LINK_FD, READY_FD, RULESET_FD = 3, 4, 5, 6
# From asm-generic/resource.h; the module `resource` would cost every fork its own memory mappings.
RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_CORE = 0, 1, 4
RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_MSGQUEUE = 7, 8, 9, 12

MAX_FDS = 1 << 20
OPEN_FILES = 32             # of a program; its lane holds 24 itself
CAPABILITY_HEADER = struct.pack("<Ii", CAPABILITY_VERSION, 0)
NO_CAPABILITIES = bytes(24)

libc = ctypes.CDLL(None, use_errno=True)
# For children, looked up before they are forked: calls that let go of no lock and keep no errno, because
# every page of memory that they touch is copied.
quick = ctypes.PyDLL(None)
quick_prctl, quick_setrlimit = quick.prctl, quick.setrlimit
quick_syscall, quick_capset = quick.syscall, quick.capset


class Layer(IntFlag):
    """Layers of isolation, as asked of a lane and as reported by it."""

    UNPRIVILEGED = 1       # not root: dropped to nobody, or never was
    BUBBLEWRAP = 2         # namespaces of its own, set up by bwrap before Python starts
    LANDLOCK = 4
    SECCOMP = 8


class Lockdown:
    """Isolation that a lane prepares once, so that each child needs few system calls."""

    def __init__(self, layers: int, readable: list[str], *, is_rehearsal: bool = False) -> None:
        self.layers = Layer(layers)
        self.readable = readable
        self.filter: Filter | None = None
        self.has_rules = Layer.LANDLOCK in self.layers
        self.has_capabilities = False
        self.is_rehearsal = is_rehearsal        # in the lane itself, which keeps its descriptors and its time

    def enter_lane(self) -> int:
        """Lock the lane, which still has to fork and to import; the layers in force come back."""
        lane_rules = -1
        if Layer.SECCOMP in self.layers:
            self.filter = Filter()
        if self.has_rules:
            lane_rules = self._prepare_rules()
        unprivileged = drop_privileges(self.readable)
        self.has_capabilities = permitted_capabilities() != 0
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_DUMPABLE, 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL)
        if lane_rules >= 0:
            landlock.check(libc.syscall(landlock.RESTRICT_SELF, lane_rules, 0), "landlock_restrict_self")
            os.close(lane_rules)
        return int(self.layers | (Layer.UNPRIVILEGED if unprivileged else 0))

    def _prepare_rules(self) -> int:
        """Rules of the lane (read what Python needs), and on RULESET_FD those of its children (nothing)."""
        children_rules = landlock.create_ruleset()
        if children_rules != RULESET_FD:
            os.dup2(children_rules, RULESET_FD)
            os.close(children_rules)
        lane_rules = landlock.create_ruleset()
        for folder in self.readable:
            landlock.allow_reading(lane_rules, folder)
        return lane_rules

    def die_with_lane(self, lane: int, cpu_limit: bytes) -> None:
        """End this process when its lane ends, and limit its CPU time in case no lane watches."""
        if quick_prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0):
            raise OSError("PR_SET_PDEATHSIG")
        if not self.is_rehearsal:
            quick_setrlimit(RLIMIT_CPU, cpu_limit)    # refused if a lower limit holds already
        if os.getppid() != lane:
            os._exit(70)

    def enter_child(self, last_fd: int) -> None:
        """Close every door of a child, just before foreign code, and all descriptors above `last_fd`.

        READY_FD stays open until the child has reported on it.
        """
        if self.has_rules and quick_syscall(landlock.RESTRICT_SELF, RULESET_FD, 0):
            raise OSError("landlock_restrict_self")
        if not self.is_rehearsal:
            os.closerange(last_fd + 1, READY_FD)
            os.closerange(READY_FD + 1, MAX_FDS)
        if self.has_capabilities and quick_capset(CAPABILITY_HEADER, NO_CAPABILITIES):
            raise OSError("capset")
        if self.filter:
            self.filter.install()


def drop_privileges(readable: list[str]) -> bool:
    """Become nobody if root, keeping at most the right to read files, which children give up first.

    The interpreter may lie where nobody cannot read it (below /root), and modules are imported on demand.
    False, with no other capabilities left, where nobody could not read the folders or the scorer could not
    end a process of nobody's, and where the user namespace has no such user.
    """
    if os.geteuid() != 0:
        return True
    held = permitted_capabilities()
    reading = held & CAPABILITIES["CAP_DAC_READ_SEARCH"] or held & CAPABILITIES["CAP_DAC_OVERRIDE"]
    if held & CAPABILITIES["CAP_KILL"] and (reading or nobody_can_read(readable)):
        prctl(PR_SET_KEEPCAPS, 1)
        try:
            become_nobody()
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
    kept = struct.pack("<6I", reading, reading, 0, 0, 0, 0)
    landlock.check(libc.capset(CAPABILITY_HEADER, kept), "capset")
    return os.geteuid() != 0


def become_nobody() -> None:
    """Take the ids of nobody, for good; OSError if that is not allowed."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def nobody_can_read(folders: list[str]) -> bool:
    """True if nobody, without capabilities, can list the folders: tried in a process made for it."""
    pid = os.fork()
    if pid == 0:
        try:
            become_nobody()
            for folder in folders:
                os.listdir(folder)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def permitted_capabilities() -> int:
    """Those of the first 32 capabilities that this process may use, as a mask."""
    data = ctypes.create_string_buffer(24)
    landlock.check(libc.capget(CAPABILITY_HEADER, data), "capget")
    return int(struct.unpack_from("<I", data.raw, 4)[0])


def limit_bytes(value: int) -> bytes:
    """struct rlimit, soft and hard alike."""
    return struct.pack("<2Q", value, value)


def set_limits(address_space: int, output_bytes: int) -> None:
    """Set the kernel's limits on the lane; children inherit them. The lane watches CPU time itself."""
    for which, value in ((RLIMIT_AS, address_space), (RLIMIT_NOFILE, OPEN_FILES), (RLIMIT_CORE, 0),
                         (RLIMIT_FSIZE, output_bytes), (RLIMIT_MEMLOCK, 0), (RLIMIT_MSGQUEUE, 0)):
        landlock.check(libc.setrlimit(which, limit_bytes(value)), f"setrlimit({which})")


def prctl(option: int, value: int) -> None:
    """prctl(2); OSError on failure."""
    landlock.check(libc.prctl(option, value, 0, 0, 0), f"prctl({option})")


def address_space(process: int | str) -> int:
    """Bytes of address space of a process, from which its limit starts; OSError where /proc shows none."""
    with open(f"/proc/{process}/statm", "rb") as stream:
        return int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
