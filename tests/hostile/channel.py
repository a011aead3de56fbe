"""Programs that forge, break or flood the way their answer takes, or look for what passes by."""

from tests.hostile.attack import CONTAINED, Attack, attempt, program

FRAME = """
import struct
def frame(status, body, length=None):
    return struct.pack("<4sBI", b"RHR1", status, len(body) if length is None else length) + body
"""


def forged(name: str, content: str, *endings: str) -> Attack:
    """Writes a frame of its own making and ends before the real one is written."""
    return program(
        name, f"{FRAME}\ndef transform(g):\n    os.pwrite(3, {content}, 0)\n    os._exit(0)", *endings
    )


FORGERIES = [
    forged("garbage", "os.urandom(4000)", "no_result"),
    forged("header of a huge answer", "frame(1, b'', 0xFFFFFFFF)", "no_result"),
    forged("answer cut off", "frame(1, b'\\x01\\x00\\x05\\x05\\x00')", "no_result"),
    forged("answer with bytes left over", "frame(1, b'\\x01\\x00\\x01\\x01\\x00' + b'x' * 9)", "no_result"),
    forged("more grids than fit", "frame(1, b'\\xff\\xff' + b'\\x01\\x01\\x00' * 5)", "no_result"),
    forged("colour 200", "frame(1, b'\\x01\\x00\\x01\\x01\\xc8')", "no_result"),
    forged("grid without rows", "frame(1, b'\\x01\\x00\\x00\\x05')", "no_result"),
    forged("grid of 255 x 255", "frame(1, b'\\x01\\x00\\xff\\xff' + bytes(255 * 255))", "no_result"),
    forged("unknown status", "frame(9, b'')", "no_result"),
    forged("status of nothing", "frame(0, b'')", "no_result"),
    forged("infrastructure error", "frame(2, struct.pack('<BHH', 14, 0, 0))", "no_result"),
    forged("error class out of range", "frame(2, struct.pack('<BHH', 255, 0, 0))", "no_result"),
    forged("error with wrong lengths", "frame(2, struct.pack('<BHH', 3, 60000, 60000))", "no_result"),
    forged("error that is cut off", "frame(2, b'\\x03')", "no_result"),
    forged(
        "error name of another language", "frame(2, struct.pack('<BHH', 3, 6, 0) + b'\\x1b[31m!')", "runtime"
    ),
    forged("pickle", "b'\\x80\\x04cos\\nsystem\\n(Vtrue\\ntR.'", "no_result"),
    forged(
        "the answer itself", "frame(1, b'\\x01\\x00\\x01\\x01\\x05')", CONTAINED
    ),  # the same as answering [[5]]
    program(
        "the time at which it began",
        """
def transform(g):
    frame = sys._getframe()
    while "lane" not in frame.f_locals: frame = frame.f_back
    for number in [frame.f_locals["lane"].ready.file, *range(4, 64)]:
        try: os.pwrite(number, b"\\xff" * 64, 0)
        except OSError: pass
    while True: pass""",
        "timeout_cpu",
    ),
    program(
        "answer, then hang",
        f"""{FRAME}
def transform(g):
    os.pwrite(3, frame(1, b"\\x01\\x00\\x01\\x01\\x05"), 0)
    while True: pass""",
        "timeout_cpu",
    ),
    program(
        "answer, then crash",
        f"""{FRAME}
def transform(g):
    os.pwrite(3, frame(1, b"\\x01\\x00\\x01\\x01\\x05"), 0)
    ctypes.string_at(0)""",
        "crashed",
    ),
]

FLOODS = [
    program(
        "closes every descriptor",
        "def transform(g):\n    os.closerange(0, 64)\n    return [[0]]",
        "no_result",
    ),
    program(
        "closes the answer's descriptor", "def transform(g):\n    os.close(3)\n    return [[0]]", "no_result"
    ),
    program(
        "writes without end",
        "def transform(g):\n    while True: os.write(3, b'x' * 65536)",
        "output_limit",
    ),
    program(
        "writes far out",
        "def transform(g):\n    os.pwrite(3, b'x', 1 << 40)\n    return [[0]]",
        "output_limit",
    ),
    attempt("lengthens the answer's file", "os.ftruncate(3, 1 << 40)\nreturn True"),
    attempt("seals the answer's file", "import fcntl\nreturn fcntl.fcntl(3, 1033, 8) == 0"),
    program("prints without end", "def transform(g):\n    while True: print('x' * 9999)", "timeout_cpu"),
    program(
        "prints to stderr",
        "def transform(g):\n    sys.stderr.write('x' * 10**7)\n    return [[0]]",
        CONTAINED,
    ),
    program("huge error text", "def transform(g):\n    raise ValueError('x' * 10**7)", "runtime"),
    program(
        "error text that fails",
        """
        class E(Exception):
            def __str__(self): raise RuntimeError
        def transform(g):
            raise E""",
        "runtime",
    ),
    program(
        "error text that is no text",
        """
        class E(Exception):
            def __str__(self): return 5
        def transform(g):
            raise E""",
        "runtime",
    ),
    program(
        "error text with surrogates", "def transform(g):\n    raise ValueError('\\udc80\\ud800')", "runtime"
    ),
    program(
        "error name with control characters",
        """
        def transform(g):
            raise type("\\x1b[2J\\n" * 99, (Exception,), {})""",
        "runtime",
    ),
    program(
        "error that claims to be ours",
        """
        def transform(g):
            raise type("lane_lost", (Exception,), {"kind": "spawn_failed"})("infrastructure")""",
        "runtime",
    ),
]

INSIDE = [
    program(
        "replaces _exit",
        "os._exit = lambda code: None\ndef transform(g):\n    return [[0]]",
        CONTAINED,
        "no_result",
    ),
    program(
        "replaces the encoder",
        """
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "") == "score.lane.child":
                module.encode_result = lambda body: b"x" * 99
        def transform(g):
            return [[0]]""",
        CONTAINED,
        "no_result",
    ),
    program(
        "replaces the classifier",
        """
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "") == "score.lane.child":
                module.classify = lambda error, phase: "lane_lost"
        def transform(g):
            raise ValueError""",
        "no_result",
    ),
    program(
        "removes every module",
        "def transform(g):\n    sys.modules.clear()\n    return [[0]]",
        CONTAINED,
        "no_result",
        "runtime",
        "import_not_allowed",
    ),
    attempt(
        "poisons numpy for the next",
        "np.fliplr = lambda g: g\nnp.array = None\nreturn False",
        endings=(CONTAINED, "runtime", "invalid_output"),
    ),
    attempt(
        "poisons the builtins",
        "import builtins\nbuiltins.len = lambda x: 3\nbuiltins.isinstance = None\nreturn False",
        endings=(CONTAINED, "runtime", "no_result"),
    ),
    program(
        "traces what follows",
        """
        sys.settrace(lambda *a: (_ for _ in ()).throw(ValueError))
        def transform(g):
            return [[0]]""",
        CONTAINED,
        "runtime",
        "no_result",
    ),
    attempt(
        "finds an open descriptor",
        """
        for fd in range(4, 256):
            try: os.lseek(fd, 0, 1)
            except OSError as error:
                if error.errno == 9: continue
            return True
        return False""",
    ),
    attempt("duplicates the answer's descriptor", "return os.dup(3) >= 0", bites=True),
    attempt(
        "finds targets in frames",
        """
        frame, seen = sys._getframe(), []
        while frame:
            seen += [*frame.f_locals.values(), *frame.f_globals.values()]
            frame = frame.f_back
        return any(b"EXPECTED" + b"-OUTPUT" in v for v in seen if isinstance(v, bytes))""",
    ),
    attempt(
        "finds targets among objects",
        """
        import gc
        gc.unfreeze()
        texts = [v for o in gc.get_objects() if isinstance(o, dict) for v in list(o.values())]
        return any("TARGET" + "-GRID" in v for v in texts if isinstance(v, str) and len(v) < 9999)""",
    ),
    attempt(
        "finds the program before it in the heap",
        """
        libc.sbrk.restype = ctypes.c_size_t
        page = libc.sbrk(0) // 4096 * 4096
        needle = ("HONEST" + "-PROGRAM").encode()
        while libc.pwrite(3, ctypes.c_void_p(page - 4096), ctypes.c_size_t(8), ctypes.c_long(0)) == 8:
            page -= 4096                     # writing from memory that is not there fails instead of crashing
            if needle in ctypes.string_at(page, 4096): return True
        return False""",
    ),
    attempt("reads a secret from the environment", "return 'HOSTILE_SECRET' in os.environ"),
    attempt(
        "reads a secret through libc",
        "libc.getenv.restype = ctypes.c_char_p\nreturn libc.getenv(b'HOSTILE_SECRET')",
    ),
    attempt("imports the scorer", "import score.sandbox.outcomes\nreturn True"),
    attempt("imports the warehouse", "import warehouse.store.run_folder\nreturn True"),
    attempt("imports from the working folder", "sys.path.insert(0, '')\nimport conftest\nreturn True"),
]

ATTACKS: list[Attack] = FORGERIES + FLOODS + INSIDE
