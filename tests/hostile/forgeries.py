"""Programs that forge what crosses the link, or search their process for what is expected of them."""

WRITES = "import os, json\ndef f(*a):\n    os.write(4, json.dumps({}).encode() + b'\\n')\n    return 0\n"
VALUES = (
    "['yours', 0]", "['yours', 1]", "['type', 'builtins', 'int']", "['NotImplementedType']", "['ellipsis']",
    "['Decimal', 'sNaN']", "['Fraction', 0, 0]", "['scalar', '<f8', '000000000000f87f']",
    "['scalar', '<M8[s]', '0000000000000080']", "['module', 'builtins']", "['module', 'unittest']",
    "['builtin', 'exec']", "['builtin', 'str.format']", "['error', 0, None, 'AssertionError', [], '', None]",
    "['error', 0, None, 'BaseException', [], '', None]", "['range', 0, 10**15, 1]",
    "['float', ['yours', 0]]",
    "['value', 5, ['class', 6, 'I', [['type', 'builtins', 'int']], ['__eq__', '__sub__'], ['x'], None, None, "
    "False, None], 0]",
    "['value', 5, ['class', 6, 'I', [['type', 'builtins', 'int']], [], [], None, None, False, None], None]",
    "['object', 5, ['class', 6, 'int', [], ['__eq__', '__sub__', '__abs__', '__lt__', '__float__'], "
    "['__eq__', '__class__'], None, 'property', False, None]]",
    "['object', 5, ['class', 6, 'C', [], ['__await__'], [], None, 'CoroutineType', True, None]]",
    "['object', 5, ['class', 6, 'C', [['type', 'builtins', 'list']], ['__eq__'], [], None, None, "
    "False, None]]")
FORGERIES = {f"{kind} {value}": WRITES.format(f"['{kind}', False, None, [], [], {value}]")
             for value in VALUES for kind in "=!"}
FORGERIES |= {f"rows {rows}": WRITES.format(f"['=', False, None, [], {rows}, [0]]") for rows in (
    "[['array', [0], '<f8', '']]", "[['objects', [0], []]]", "[['array', [], '<f8', '000000000000f87f']]",
    "[['defaultdict', [], ['builtin', 'len']]]", "[['Counter', []]]", "[['set', [['float', 'nan']]]]",
    "[['list', [[0], [0]]]]", "[['dict', [0, [0]]]]")}
FORGERIES |= {f"alters {altered}": WRITES.format(f"['=', False, {altered}, [], [], 0]") for altered in (
    "[[[0, ['list', []]]], []]", "[1]", "'x'", "[[], [['list', []]]]")}
FORGERIES |= {f"tells {events}": WRITES.format(f"['=', False, None, {events}, [], 0]") for events in (
    "[['stdout', '3' * 10**6]]", "[['warning', 'SystemExit', 'x']]", "[['log', 'root', 50, 'x']]", "{}",
    "[['stdout', '\\ud800']]", "[[]]", "[['stderr', []]]")}
FORGERIES |= {f"answers {value} before it is asked": (
    "import os, json\nos.write(4, b'[\"ready\"]\\n' + (json.dumps(['=', False, None, [], [], "
    f"{value}]).encode() + b'\\n') * 50)\ndef f(*a): return 0\n") for value in ("True", "0", "None")}
SEARCHES = "import gc, os, re, sys\ndef found():\n    out = []\n    {}\n    return out\ndef f(*a):\n" \
           "    for text in found():\n        match = re.search(r'(?:==|,|is)\\s*(\\d+)', str(text))\n" \
           "        if match: return int(match[1])\n    return 0\n"
EACH_FILE = "for d in range(64):\n        try: {}\n        except Exception: pass"
FORGERIES |= {f"searches: {how}": SEARCHES.format(how) for how in (
    EACH_FILE.format("out.append(os.pread(d, 1 << 16, 0))"),
    EACH_FILE.format("import mmap; out.append(mmap.mmap(d, 4096)[:])"),
    "out += [o for o in gc.get_objects() if isinstance(o, (str, list)) and 'assert' in str(o)[:9999]]",
    "frame = sys._getframe()\n    while frame:\n        out += map(repr, frame.f_locals.values())\n"
    "        frame = frame.f_back",
    "out += os.environ.values()", "out += sys.argv", "import linecache; out += linecache.getlines('test')")}
BASES = ("list", "tuple", "dict", "set", "frozenset", "str", "bytes", "int", "float", "complex", "bytearray")
FORGERIES |= {f"f is a class of {base}": (
    f"class f({base}):\n    def __new__(cls, *a): return {base}.__new__(cls)\n    def __init__(s, *a): pass\n"
    "    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 3\n    __sub__ = __rsub__ = lambda s, o: 0\n")
    for base in BASES}
