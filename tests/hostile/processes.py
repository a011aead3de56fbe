"""Programs that start, signal, trace or read other processes."""

from tests.hostile.attack import CONTAINED, Attack, attempt, program

STARTS = [
    program("fork bomb", "def transform(g):\n    while True: os.fork()", "sandbox_violation"),
    attempt("fork", "pid = os.fork()\nif pid == 0: os._exit(0)\nreturn True", bites=True),
    attempt(
        "fork that outlives its parent",
        """
        if os.fork() == 0:
            os.setsid()
            libc.usleep(200_000)
            os._exit(0)
        return True""",
        bites=True,
    ),
    attempt(
        "double fork",
        """
        if os.fork() == 0:
            if os.fork() == 0:
                libc.usleep(200_000)
            os._exit(0)
        return True""",
        bites=True,
    ),
    attempt(
        "zombie flood", "for _ in range(50):\n    if os.fork() == 0: os._exit(0)\nreturn True", bites=True
    ),
    attempt(
        "fork through the system call", "pid = libc.syscall(57)\nif pid == 0: libc._exit(0)\nreturn pid > 0"
    ),
    attempt(
        "clone through the system call",
        "pid = libc.syscall(56, 17, 0, 0, 0, 0)\nif pid == 0: libc._exit(0)\nreturn pid > 0",
    ),
    attempt(
        "clone3",
        """
        args = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
        pid = libc.syscall(435, args, 88)
        if pid == 0: libc._exit(0)
        return pid > 0""",
    ),
    attempt("shell command", "return os.system('exit 0') == 0", bites=True),
    attempt("subprocess", "import subprocess\nreturn subprocess.run(['true']).returncode == 0"),
    attempt("posix_spawn", "return os.posix_spawn('/bin/true', ['true'], {}) > 0", bites=True),
    attempt("spawnv", "return os.spawnv(os.P_WAIT, '/bin/true', ['true']) == 0", bites=True),
    program(
        "execve", "def transform(g):\n    os.execv('/bin/sleep', ['hostile-7f3a', '9'])", "sandbox_violation"
    ),
    program(
        "execve through the system call",
        """
        def transform(g):
            argv = (ctypes.c_char_p * 3)(b"hostile-7f3a", b"9", None)
            libc.execve(b"/bin/sleep", argv, None)
            return [[0]]""",
        CONTAINED,
    ),
    attempt("multiprocessing", "import multiprocessing as m\nm.Process(target=print).start()\nreturn True"),
    attempt("pseudo terminal", "import pty\nreturn pty.fork()"),
    attempt("thread", "import _thread\nreturn _thread.start_new_thread(lambda: None, ())", bites=True),
    attempt(
        "thread bomb",
        """
        import _thread, time
        for _ in range(100): _thread.start_new_thread(time.sleep, (1,))
        return True""",
    ),
    attempt(
        "thread through libc",
        """
        handle = ctypes.c_ulong()
        entry = ctypes.cast(libc.getpid, ctypes.c_void_p)
        return libc.pthread_create(ctypes.byref(handle), None, entry, None) == 0""",
        bites=True,
    ),
    attempt(
        "executes a memory file",
        "fd = os.memfd_create('x')\nos.execve(fd, ['hostile-7f3a'], {})\nreturn True",
    ),
]

SIGNALS = [
    attempt("signals its parent", "os.kill(os.getppid(), 0)\nreturn True", bites=True),
    attempt("kills its parent", "os.kill(os.getppid(), 9)\nreturn True"),
    attempt("stops its parent", "os.kill(os.getppid(), 19)\nreturn True"),
    attempt("kills everything", "os.kill(-1, 9)\nreturn True"),
    attempt("kills its group", "os.killpg(0, 9)\nreturn True"),
    attempt(
        "signals a thread of its parent",
        "return libc.syscall(234, os.getppid(), os.getppid(), 0) == 0",
        bites=True,
    ),
    attempt(
        "queues a signal", "return libc.syscall(129, os.getppid(), 0, ctypes.create_string_buffer(128)) == 0"
    ),
    attempt(
        "signals through a pidfd",
        "return libc.syscall(424, os.pidfd_open(os.getppid()), 0, None, 0) == 0",
        bites=True,
    ),
    attempt("outlives its lane", "return libc.prctl(1, 0, 0, 0, 0) == 0", bites=True),
    attempt("leaves its session", "return os.setsid() or True"),
    attempt("changes its group", "os.setpgid(0, 0)\nreturn True", bites=True),
]

OTHERS = [
    attempt("asks to be traced", "return libc.ptrace(0, 0, 0, 0) == 0", bites=True),
    attempt("traces its parent", "return libc.ptrace(16, os.getppid(), 0, 0) == 0"),
    attempt(
        "reads its parent's memory",
        """
        mine = ctypes.create_string_buffer(8)
        local = (ctypes.c_size_t * 2)(ctypes.addressof(mine), 8)
        remote = (ctypes.c_size_t * 2)(id(libc), 8)
        return libc.syscall(310, os.getppid(), local, 1, remote, 1, 0) > 0""",
    ),
    attempt("opens its parent's memory", "return open(f'/proc/{os.getppid()}/mem', 'rb')"),
    attempt("reads its parent's environment", "return open(f'/proc/{os.getppid()}/environ', 'rb').read()"),
    attempt(
        "reads its parent's command line",
        "return open(f'/proc/{os.getppid()}/cmdline', 'rb').read()",
        bites=True,
    ),
    attempt("lists its parent's descriptors", "return os.listdir(f'/proc/{os.getppid()}/fd')"),
    attempt("reads its own mappings", "return open('/proc/self/maps').read()", bites=True),
    attempt("writes its own memory file", "return open('/proc/self/mem', 'r+b')"),
    attempt("lists all processes", "return [p for p in os.listdir('/proc') if p.isdigit()]", bites=True),
    attempt(
        "takes its parent's descriptor", "return libc.syscall(438, os.pidfd_open(os.getppid()), 0, 0) >= 0"
    ),
    attempt(
        "compares kernel objects",
        "return libc.syscall(312, os.getpid(), os.getpid(), 0, 0, 0) >= 0",
        bites=True,
    ),
    attempt(
        "advises its parent's memory",
        "return libc.syscall(440, os.pidfd_open(os.getppid()), None, 0, 4, 0) >= 0",
    ),
]

ATTACKS: list[Attack] = STARTS + SIGNALS + OTHERS
