"""Programs that go for files, the network, or the kernel itself."""

import platform

from tests.hostile.attack import CONTAINED, Attack, attempt

# BAIT stands for a file that anybody may read and write, in a folder that anybody may write to.
FILES = [
    attempt("reads a file", "return open('BAIT').read()", bites=True),
    attempt("appends to a file", "return open('BAIT', 'a').write('x')", bites=True),
    attempt("truncates a file", "return libc.truncate(b'BAIT', 0) == 0", bites=True),
    attempt("removes a file", "os.remove('BAIT')\nreturn True"),
    attempt("renames a file", "os.rename('BAIT', 'BAIT.hostile-7f3a')\nreturn True"),
    attempt("changes a file's mode", "os.chmod('BAIT', 0)\nreturn True"),
    attempt("changes a file's times", "os.utime('BAIT', (1, 1))\nreturn True"),
    attempt("sees that a file exists", "return os.stat('BAIT')", bites=True),
    attempt("asks for access", "return os.access('BAIT', os.R_OK)", bites=True),
    attempt("links a file", "os.link('BAIT', 'BAIT.hostile-7f3a')\nreturn True"),
    attempt(
        "makes a symbolic link", "os.symlink('/etc/passwd', 'BAIT.hostile-7f3a')\nreturn True", bites=True
    ),
    attempt("makes a folder", "os.mkdir('BAIT.hostile-7f3a')\nreturn True", bites=True),
    attempt(
        "makes a thousand folders", "[os.mkdir(f'BAIT.hostile-7f3a.{i}') for i in range(1000)]\nreturn True"
    ),
    attempt("makes a pipe in the file system", "os.mkfifo('BAIT.hostile-7f3a')\nreturn True", bites=True),
    attempt("makes a device", "os.mknod('BAIT.hostile-7f3a', 0o20666, os.makedev(1, 3))\nreturn True"),
    attempt("writes to /tmp", "return open('/tmp/hostile-7f3a', 'w')", bites=True),
    attempt("writes to shared memory", "return open('/dev/shm/hostile-7f3a', 'w')", bites=True),
    attempt("writes to its folder", "return open('hostile-7f3a', 'w')"),
    attempt("writes home", "return open(os.path.expanduser('~/hostile-7f3a'), 'w')"),
    attempt("writes beside numpy", "return open(np.__path__[0] + '/hostile-7f3a.py', 'w')"),
    attempt("reads the password file", "return open('/etc/passwd').read()", bites=True),
    attempt("lists the root", "return os.listdir('/')", bites=True),
    attempt("lists its folder", "return os.listdir('.')", bites=True),
    attempt("names its folder", "return os.getcwd()", bites=True),
    attempt("changes its folder", "os.chdir('/tmp')\nreturn True", bites=True),
    attempt("reads a link", "return os.readlink('/proc/self/exe')", bites=True),
    attempt("opens through the system call", "return libc.syscall(257, -100, b'BAIT', 0) >= 0", bites=True),
    attempt(
        "opens through openat2",
        "return libc.syscall(437, -100, b'BAIT', (ctypes.c_uint64 * 3)(), 24) >= 0",
        bites=True,
    ),
    attempt("opens by handle", "return libc.syscall(304, -100, ctypes.create_string_buffer(64), 0) >= 0"),
    attempt("saves with numpy", "np.save('BAIT.hostile-7f3a', np.ones(3))\nreturn True", bites=True),
    attempt("loads with numpy", "return np.fromfile('BAIT', dtype=np.uint8).size", bites=True),
    attempt("maps a file with numpy", "return np.memmap('BAIT', dtype=np.uint8, mode='r+').size"),
    attempt(
        "writes with pathlib", "import pathlib\npathlib.Path('BAIT').write_text('x')\nreturn True", bites=True
    ),
    attempt("makes a temporary file", "import tempfile\nreturn tempfile.mkstemp(prefix='hostile-7f3a')"),
    attempt("loads a library", "return ctypes.CDLL('libresolv.so.2')"),
    attempt("exhausts descriptors", "fds = [os.pipe() for _ in range(60000)]\nreturn True"),
    attempt("opens one pipe", "return os.pipe()", bites=True),
    attempt("watches files", "return libc.inotify_init() >= 0", bites=True),
    attempt(
        "leaves a database",
        "import sqlite3\nsqlite3.connect('BAIT.hostile-7f3a').execute('create table t(x)')",
    ),
]

NETWORK = [
    attempt(
        "TCP to the machine",
        "import _socket\ns = _socket.socket()\nreturn s.connect_ex(('127.0.0.1', 1)) != 1",
        bites=True,
    ),
    attempt(
        "TCP server",
        "import _socket\ns = _socket.socket()\ns.bind(('127.0.0.1', 0))\nreturn True",
        bites=True,
    ),
    attempt("UDP", "import _socket\nreturn _socket.socket(2, 2).sendto(b'x', ('127.0.0.1', 9))", bites=True),
    attempt("name look-up", "import _socket\nreturn _socket.getaddrinfo('localhost', 80)"),
    attempt(
        "abstract unix socket",
        "import _socket\ns = _socket.socket(1)\ns.bind('\\0hostile-7f3a')\nreturn True",
        bites=True,
    ),
    attempt("netlink", "import _socket\nreturn _socket.socket(16, 3, 0)", bites=True),
    attempt("raw packets", "import _socket\nreturn _socket.socket(17, 3, 3)"),
    attempt("socket pair", "import _socket\nreturn _socket.socketpair()", bites=True),
    attempt("socket through libc", "return libc.socket(2, 1, 0) >= 0", bites=True),
    attempt("vsock", "return libc.socket(40, 1, 0) >= 0"),
    attempt("web page", "import urllib.request\nreturn urllib.request.urlopen('http://127.0.0.1:1')"),
]

# System calls of x86-64 with arguments that do no harm; any answer but EPERM means that it was let through.
X86_CALLS = {
    "bpf": "321, 0, None, 0",
    "userfaultfd": "323, 0",
    "perf_event_open": "298, None, 0, -1, -1, 0",
    "add_key": "248, b'user', b'hostile-7f3a', b'x', 1, -3",
    "keyctl": "250, 0, -3, 0",
    "shmget": "29, 0, 4096, 512",
    "msgget": "68, 0, 512",
    "semget": "64, 0, 1, 512",
    "unshare": "272, 0",
    "setns": "308, -1, 0",
    "mount": "165, None, None, None, 0, None",
    "pivot_root": "155, b'/', b'/'",
    "chroot": "161, b'/'",
    "setuid": "105, 65534",
    "setresuid": "117, -1, -1, -1",
    "capset": "126, None, None",
    "personality": "135, -1",
    "kexec_load": "246, 0, 0, None, 0",
    "init_module": "175, None, 0, b''",
    "reboot": "169, 0, 0, 0, None",
    "swapoff": "168, b'/none'",
    "iopl": "172, 0",
    "ioperm": "173, 0, 1, 0",
    "io_uring_setup": "425, 1, None",
    "timerfd_create": "283, 1, 0",
    "eventfd2": "290, 0, 0",
    "signalfd4": "289, -1, None, 8, 0",
    "epoll_create1": "291, 0",
    "fanotify_init": "300, 0, 0",
    "memfd_secret": "447, 0",
    "pkey_alloc": "330, 0, 0",
    "modify_ldt": "154, 0, None, 0",
    "arch_prctl": "158, 0x1004, None",
    "prctl": "157, 3, 0, 0, 0, 0",
    "seccomp": "317, 2, 0, None",
    "landlock_create_ruleset": "444, None, 0, 1",
    "ptrace": "101, 0, 0, 0, 0",
    "process_vm_writev": "311, 0, None, 0, None, 0, 0",
    "quotactl": "179, 0, None, 0, None",
    "acct": "163, None",
    "syslog": "103, 10, None, 0",
    "sethostname": "170, b'x', 1",
    "clock_settime": "227, 0, None",
    "adjtimex": "159, None",
    "sched_setaffinity": "203, 0, 0, None",
    "setpriority": "141, 0, 0, 0",
    "ioprio_set": "251, 1, 0, 0",
    "prlimit64": "302, 0, 7, None, None",
    "setrlimit": "160, 7, None",
    "vmsplice": "278, 3, None, 0, 0",
    "splice": "275, 3, None, 3, None, 0, 0",
    "sendfile": "40, 3, 3, None, 0",
    "mq_open": "240, b'hostile-7f3a', 0",
    "remap_file_pages": "216, 0, 0, 0, 0, 0",
    "ioctl": "16, 0, 0x5412, None",
    "fcntl": "72, 3, 1, 0",
    "dup2": "33, 3, 9",
    "rt_sigqueueinfo": "129, 0, 0, None",
    "alarm": "37, 0",
    "setitimer": "38, 0, None, None",
    "timer_create": "222, 0, None, None",
    "getcpu": "309, None, None, None",
    "mincore": "27, None, 0, None",
    "mlock2": "325, None, 0, 0",
    "move_pages": "279, 0, 0, None, None, None, 0",
    "mbind": "237, None, 0, 0, None, 0, 0",
    "process_mrelease": "448, -1, 0",
    "name_to_handle_at": "303, -100, b'/', None, None, 0",
    "statfs": "137, b'/', None",
    "statx": "332, -100, b'/', 0, 0, None",
    "newfstatat": "262, -100, b'/', None, 0",
    "getdents64": "217, 3, None, 0",
    "copy_file_range": "326, 3, None, 3, None, 0, 0",
    "fallocate": "285, 3, 0, 0, 1",
    "ftruncate": "77, 3, 1",
}


def system_call(name: str, arguments: str) -> Attack:
    return attempt(
        f"system call {name}",
        f"""
        ctypes.set_errno(0)
        return libc.syscall({arguments}) >= 0 or ctypes.get_errno() != 1""",
    )


KERNEL = [system_call(name, arguments) for name, arguments in X86_CALLS.items()]
KERNEL += [
    attempt("clock changed", "import time\ntime.clock_settime(0, 1)\nreturn True"),
    attempt("nice value", "return os.nice(1)", bites=True),
    attempt("affinity", "os.sched_setaffinity(0, {0})\nreturn True", bites=True),
    attempt(
        "limits",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\nreturn True",
        bites=True,
    ),
    attempt("executable memory", "return libc.mmap(0, 4096, 7, 34, -1, 0) != -1", bites=True),
    attempt(
        "memory made executable",
        """
        libc.mmap.restype = ctypes.c_size_t
        page = libc.mmap(None, 4096, 3, 34, -1, 0)
        return libc.mprotect(ctypes.c_size_t(page), 4096, 7) == 0""",
        bites=True,
    ),
    attempt(
        "characters typed into the terminal", "import fcntl\nreturn fcntl.ioctl(0, 0x5412, b'x') is not None"
    ),
    attempt(
        "call through the x32 entry",
        "return libc.syscall(0x40000000 + 39) > 0",
        endings=(CONTAINED, "crashed"),
    ),
]

ATTACKS: list[Attack] = (
    FILES + NETWORK + (KERNEL if platform.machine() == "x86_64" else KERNEL[len(X86_CALLS) :])
)
