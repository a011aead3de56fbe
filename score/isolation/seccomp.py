"""The system call filter of a program's process: an allow-list, assembled as BPF, put on all of its threads.

Everything not listed fails with EPERM. No open, exec, fork, socket, kill, ioctl, stat or memfd: what remains
is memory, the clock, signals of its own, and reading and writing descriptors that it already holds.
"""

import ctypes
import errno
import platform
import struct

# Numbers from the kernel's tables: x86 has its own, aarch64 uses the generic numbers.
X86_64 = {
    "read": 0, "write": 1, "close": 3, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17,
    "pwrite64": 18, "readv": 19, "writev": 20, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28,
    "nanosleep": 35, "getpid": 39, "exit": 60, "uname": 63, "gettimeofday": 96,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "pselect6": 270, "ppoll": 271,
    "set_robust_list": 273, "getrandom": 318, "rseq": 334}
AARCH64 = {
    "close": 57, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67,
    "pwrite64": 68, "pselect6": 72, "ppoll": 73, "exit": 93, "exit_group": 94,
    "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "nanosleep": 101, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124,
    "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigreturn": 139, "times": 153, "uname": 160, "getrusage": 165, "gettimeofday": 169, "getpid": 172,
    "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178,
    "sysinfo": 179, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222, "mprotect": 226,
    "madvise": 233, "getrandom": 278, "rseq": 293}
MACHINES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}     # AUDIT_ARCH_*, numbers
SECCOMP = {"x86_64": 317, "aarch64": 277}         # the call that installs a filter
ALL_BITS, SIGN_BIT = 0xFFFFFFFF, 0x80000000
# Calls restricted to this process: pid 0 is itself, negative clock ids belong to other pids.
OWN_ONLY = {"sched_getaffinity": ALL_BITS, "clock_gettime": SIGN_BIT, "clock_getres": SIGN_BIT,
            "clock_nanosleep": SIGN_BIT}
X32_BIT = 0x40000000            # x86 only: the same kernel entry with other numbers

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
KILL_PROCESS, ERRNO, ALLOW_CALL = 0x80000000, 0x00050000, 0x7FFF0000
NUMBER, ARCH, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32      # offsets in struct seccomp_data
PROT_EXEC = 0x4
SET_MODE_FILTER, SYNCHRONIZE_THREADS = 1, 1

Instruction = tuple[int, int, int, int]        # code, jump if true, jump if false, operand
# The last instructions of every filter, by place from the end: targets of its jumps.
ALLOW, DENY, KILL = range(3)
RETURNS: list[Instruction] = [(RETURN, 0, 0, answer) for answer in (
    ALLOW_CALL, ERRNO | errno.EPERM, KILL_PROCESS)]


class FilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def filter_bytes(machine: str) -> bytes:
    """The filter as an array of struct sock_filter; KeyError for a machine without a table.

    A binary search for the number: the kernel goes through it for each of its calls when it is put on.
    """
    arch, numbers = MACHINES[machine]
    program = [*RETURNS]                    # from its end to its beginning, as jumps lead forward only
    answers = dict.fromkeys(numbers.values(), ALLOW)
    for name in ("mmap", "mprotect"):       # no new code in memory
        answers[numbers[name]] = add_argument(program, THIRD_ARGUMENT, PROT_EXEC, if_set=DENY, if_not=ALLOW)
    for name, bits in OWN_ONLY.items():
        answers[numbers[name]] = add_argument(program, FIRST_ARGUMENT, bits, if_set=DENY, if_not=ALLOW)
    ranges = [(number, answers.get(number, DENY)) for number in range(max(answers) + 2)
              if number == 0 or answers.get(number, DENY) != answers.get(number - 1, DENY)]
    if machine == "x86_64":
        ranges.append((X32_BIT, KILL))
    add_search(program, ranges)
    program.append((LOAD, 0, 0, NUMBER))
    add_jump(program, JUMP_EQUAL, arch, len(program) - 1, KILL)
    program.append((LOAD, 0, 0, ARCH))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in reversed(program))


def add_search(program: list[Instruction], ranges: list[tuple[int, int]]) -> int:
    """Prepend a binary search over ranges (first number, jump target); return its place."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = add_search(program, ranges[:middle]), add_search(program, ranges[middle:])
    return add_jump(program, JUMP_GREATER_EQUAL, ranges[middle][0], above, below)


def add_argument(program: list[Instruction], offset: int, bits: int, *, if_set: int, if_not: int) -> int:
    """Prepend a test of an argument's bits; return its place."""
    add_jump(program, JUMP_ANY_BIT, bits, if_set, if_not)
    program.append((LOAD, 0, 0, offset))
    return len(program) - 1


def add_jump(program: list[Instruction], code: int, operand: int, if_true: int, if_false: int) -> int:
    """Prepend a jump to one of two places; return its place."""
    place = len(program)
    program.append((code, place - if_true - 1, place - if_false - 1, operand))
    return place


def is_known_machine() -> bool:
    """True where a table of system calls exists."""
    return platform.machine() in MACHINES and struct.calcsize("P") == 8


class Filter:
    """A filter in memory, ready to be installed by a child with a single system call."""

    def __init__(self) -> None:
        content = filter_bytes(platform.machine())
        self.buffer = ctypes.create_string_buffer(content, len(content))
        self.program = FilterProgram(len(content) // 8, ctypes.addressof(self.buffer))
        self.pointer = ctypes.byref(self.program)
        self.number = SECCOMP[platform.machine()]
        self.syscall = ctypes.PyDLL(None).syscall      # keeps no errno: children shall touch little memory

    def install(self) -> None:
        """Install it on all threads of this process, for good; OSError if refused."""
        if self.syscall(self.number, SET_MODE_FILTER, SYNCHRONIZE_THREADS, self.pointer) != 0:
            raise OSError("seccomp filter refused")
