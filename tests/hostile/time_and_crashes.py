"""Programs that do not end, or end in a way that is no answer."""

from tests.hostile.attack import CONTAINED, Attack, attempt, program

CPU, WALL = "timeout_cpu", "timeout_wall"

HANGS = [
    program("infinite loop", "def transform(g):\n    while True: pass", CPU),
    program("infinite loop at import", "while True: pass", CPU),
    program(
        "loop that catches everything",
        """
        def transform(g):
            while True:
                try:
                    while True: pass
                except BaseException: pass""",
        CPU,
    ),
    program("hang in C: sum of a range", "def transform(g):\n    return [[sum(range(10**12))]]", CPU),
    program(
        "hang in C: power of integers", "def transform(g):\n    return [[7 ** (7 ** 9) % 10]]", CPU, "memory"
    ),
    program(
        "hang in C: convolution",
        "def transform(g):\n    return np.convolve(np.ones(10**6), np.ones(10**6))",
        CPU,
    ),
    program(
        "hang in C: regular expression",
        """
        import re
        def transform(g):
            return re.match("(a+)+$", "a" * 64 + "b")""",
        CPU,
    ),
    program(
        "ignores SIGTERM",
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        def transform(g):
            while True: pass""",
        CPU,
    ),
    program(
        "handles SIGXCPU",
        """
        signal.signal(signal.SIGXCPU, lambda *a: None)
        def transform(g):
            while True: pass""",
        CPU,
    ),
    program(
        "blocks all signals",
        """
        def transform(g):
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            while True: pass""",
        CPU,
    ),
    program("sleeps", "import time\ndef transform(g):\n    time.sleep(10**6)", WALL),
    program(
        "deadlock",
        "import _thread\ndef transform(g):\n    a = _thread.allocate_lock()\n    a.acquire(); a.acquire()",
        WALL,
    ),
    program(
        "infinite generator as answer", "def transform(g):\n    return list(iter(int, 1))", CPU, "memory"
    ),
    program(
        "error whose text hangs",
        """
        class E(Exception):
            def __str__(self):
                while True: pass
        def transform(g):
            raise E""",
        CPU,
    ),
    program(
        "answer that hangs on conversion",
        """
        class A:
            def __array__(self, *a, **k):
                while True: pass
        def transform(g):
            return A()""",
        CPU,
    ),
    program(
        "hangs at exit",
        """
        import atexit
        @atexit.register
        def never():
            while True: pass
        def transform(g):
            return [[0]]""",
        CONTAINED,
    ),
    program(
        "hangs in a destructor",
        """
        class D:
            def __del__(self):
                while True: pass
        d = D()
        def transform(g):
            return [[0]]""",
        CONTAINED,
    ),
    attempt("stops itself", "os.kill(os.getpid(), signal.SIGSTOP)\nreturn True"),
    attempt("waits for a signal", "signal.pause()\nreturn False"),
    attempt("reads standard input", "return sys.stdin.read(1)"),
    attempt("alarm instead of limit", "return signal.setitimer(signal.ITIMER_REAL, 100)"),
]

ENDS = [
    program("exit 0", "def transform(g):\n    sys.exit(0)", "runtime"),
    program("exit 0 at import", "sys.exit(0)", "runtime"),
    program("_exit 0", "def transform(g):\n    os._exit(0)", "no_result"),
    program("_exit 0 through libc", "def transform(g):\n    libc._exit(0)", "no_result"),
    program("abort", "def transform(g):\n    os.abort()", "crashed"),
    program("reads address 0", "def transform(g):\n    ctypes.string_at(0)", "crashed"),
    program("writes address 8", "def transform(g):\n    ctypes.memset(8, 1, 8)", "crashed"),
    program(
        "jumps into data",
        """
        def transform(g):
            code = ctypes.create_string_buffer(b"\\xc3" * 16)
            ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(code))()""",
        "crashed",
    ),
    program("keyboard interrupt", "def transform(g):\n    raise KeyboardInterrupt", "runtime"),
    program("bare BaseException", "def transform(g):\n    raise BaseException", "runtime"),
    program("stop iteration", "def transform(g):\n    raise StopIteration", "runtime"),
    program("recursion", "def transform(g):\n    return transform(g)", "recursion"),
    program(
        "recursion without limit",
        """
        sys.setrecursionlimit(10**9)
        def transform(g):
            return transform(g)""",
        "recursion",
        "memory",
        "crashed",
        CPU,
    ),
    program(
        "recursion in C",
        """
        sys.setrecursionlimit(10**9)
        class R:
            def __repr__(self):
                return repr([self])
        def transform(g):
            return repr(R())""",
        "recursion",
        "memory",
        "crashed",
        CPU,
    ),
    program(
        "deep object freed",
        """
        def transform(g):
            x = None
            for _ in range(10**6):
                x = [x]
            del x
            return [[0]]""",
        CONTAINED,
        CPU,
    ),
    program(
        "kills itself", "def transform(g):\n    os.kill(os.getpid(), signal.SIGKILL)", "sandbox_violation"
    ),
    program(
        "raises a signal", "def transform(g):\n    signal.raise_signal(signal.SIGTERM)", "sandbox_violation"
    ),
    program("pretends to be out of memory", "def transform(g):\n    raise MemoryError", "memory"),
    program("pretends a violation", "def transform(g):\n    raise PermissionError", "sandbox_violation"),
]

MEMORY = [
    program("list without end", "def transform(g):\n    x = [0]\n    while True: x += x", "memory"),
    program("string doubling", "def transform(g):\n    x = 'x'\n    while True: x += x", "memory"),
    program("50 GB of bytes", "def transform(g):\n    return bytearray(50 << 30)", "memory"),
    program("array of ones", "def transform(g):\n    return np.ones(1 << 31)", "memory"),
    program("lazy terabyte", "def transform(g):\n    return np.zeros(1 << 37)", "memory"),
    program(
        "dictionary without end",
        "def transform(g):\n    d = {}\n    while True: d[len(d)] = [0] * 999",
        "memory",
        CPU,
    ),
    program(
        "goes on after MemoryError",
        """
        def transform(g):
            kept = []
            while True:
                try: kept.append(bytearray(1 << 20))
                except MemoryError: pass""",
        CPU,
    ),
    program(
        "shared mapping",
        "import mmap\ndef transform(g):\n    mmap.mmap(-1, 64 << 30)",
        "import_not_allowed",
        "runtime",
        "memory",
    ),
    attempt(
        "memory mapped through libc",
        """
        libc.mmap.restype = ctypes.c_ssize_t
        return libc.mmap(None, ctypes.c_size_t(64 << 30), 3, 34, -1, 0) != -1""",
    ),
    attempt("memory file", "return os.memfd_create('hostile-7f3a') >= 0", bites=True),
    attempt("locked memory", "return libc.mlockall(3) == 0"),
    attempt("heap moved by hand", "return libc.sbrk(ctypes.c_ssize_t(8 << 30)) == -2"),
]

ATTACKS: list[Attack] = HANGS + ENDS + MEMORY
