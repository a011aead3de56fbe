"""Programs that try to pass tests without doing what is asked: by objects and answers, and by the link.

`f` ought to add two numbers; each cheat is a program that does not. They are written with the code at hand.
"""

from tests.hostile.forgeries import FORGERIES
from tests.hostile.unearned import UNEARNED

# What f returns, by what it tries. `a` are its arguments.
CLASS = "class S{bases}:\n    def __init__(self, *a, **k): pass\n    def __new__(cls, *a, **k):\n" \
        "        return super().__new__(cls)\n{body}\ndef f(*a, **k):\n    return S()\n"
YES, ZERO, SELF = "lambda s, *o, **k: True", "lambda s, *o, **k: 0", "lambda s, *o, **k: s"
ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "mod", "abs", "neg", "round", "float",
              "int", "index", "pow", "floordiv", "divmod")
EVERYTHING = ("eq", "ne", "lt", "le", "gt", "ge", "contains", "bool")


def methods(names: tuple[str, ...], what: str) -> str:
    """Special methods that all do the same."""
    return "".join(f"    __{name}__ = {what}\n" for name in names)


SHAPES = {
    "equal to everything": methods(("eq",), YES), "equal and unequal": methods(("eq",), YES) + methods(
        ("ne",), "lambda s, o: False"),
    "all comparisons": methods(EVERYTHING, YES), "differences of nothing": methods(ARITHMETIC, ZERO),
    "arithmetic gives itself": methods(ARITHMETIC, SELF) + methods(EVERYTHING, YES),
    "remembers an operand":
        "    def __sub__(s, o):\n        S.seen = o\n        return 0\n    __rsub__ = __sub__\n"
        "    __abs__ = lambda s: 0\n    __float__ = lambda s: float(getattr(S, 'seen', 0))\n",
    "any attribute is a method that agrees": "    __getattr__ = lambda s, n: lambda *a, **k: True\n",
    "contains everything": methods(("contains",), YES), "iterates over what equals all":
        methods(("eq",), YES) + "    __iter__ = lambda s: iter([S()] * 2)\n    __len__ = lambda s: 2\n",
    "number of no items": "    __len__ = lambda s: 2\n    __iter__ = lambda s: iter(())\n",
    "number that shrinks": "    seen = 0\n    def __len__(s):\n        s.seen += 1\n"
                           "        return 2 if s.seen == 1 else 0\n    __iter__ = lambda s: iter(())\n",
    "iterator of no items":
        "    __len__ = lambda s: 2\n    __iter__ = lambda s: s\n    def __next__(s): raise StopIteration\n",
    "array that decides":
        methods(("array_ufunc", "array_function"), YES) + "    __array_priority__ = 1000\n",
    "hash like anything": "    __hash__ = lambda s: 3\n    __eq__ = lambda s, o: True\n",
    "class that lies": "    __class__ = property(lambda s: int)\n    __eq__ = lambda s, o: True\n",
    "reflected": methods(("radd", "rsub", "rmul", "req", "rand", "ror", "rxor"), YES),
    "forged mark": "    def _rh_made(s): return True\n    __sub__ = __rsub__ = __abs__ = lambda s, *o: 0\n"
                   "    __lt__ = __le__ = lambda s, o: True\n    __eq__ = lambda s, o: True\n",
}
BASES = ("", "(int)", "(float)", "(str)", "(list)", "(tuple)", "(dict)", "(Exception)")
CHEATS = {f"{name} {base}".strip(): CLASS.format(bases=base, body=body)
          for name, body in SHAPES.items() for base in BASES}
# Names that tests read, which the program defines.
CHEATS |= {f"defines {name}": f"def {name}(*a, **k):\n    return True\ndef f(*a):\n    return 0\n"
           for name in (
    "abs", "all", "any", "len", "sorted", "isinstance", "sum", "range", "zip", "round", "print", "sys",
    "unittest", "AssertionError", "min", "max", "enumerate", "map", "list", "set", "math",
    "pytest", "expected", "want")}
# The link and what stands behind it.
PEER = "import sys\npeer = sys.modules['score.jobs.stand_ins'].peer\n"
RUN_THERE = PEER + \
    "def f(*a):\n    try:\n        {}\n    except Exception:\n        pass\n    return 0\n"
CHEATS |= {f"asks the tests: {code}": RUN_THERE.format(code) for code in (
    "peer.ask('getattr', __import__('builtins'), 'exec')('import os; os._exit(0)')",
    "peer.ask('call', __import__('os')._exit, (0,), {})", "peer.ask('getattr', int, '__subclasses__')()",
    "peer.ask('getattr', __import__('sys'), '_getframe')()", "peer.ask('name', 'want')",
    "peer.ask('setattr', __import__('builtins'), 'abs', lambda x: 0)",
    "peer.ask('patch', 'builtins', 'abs', lambda x: 0)", "peer.ask('elsewhere', 'sys', 'exit', (0,))",
    "peer.ask('special', '__call__', exec, 'raise SystemExit(0)')", "peer.ask('entry')",
    "peer.ask('special', '__getitem__', __import__('sys').modules, 'tests')",
    "peer.ask('stdin', '__class__', 1)", "peer.ask('finish', f)", "peer.ask('subclass', 'int', (), {})",
    "peer.events.append(['warning', 'exec', 'x'])", "peer.events.append([['stdout']])",
    "peer.events.append(['stdout', 'x' * 10**8])", "peer.lent[:] = [lambda *a: True] * 50")}
WRITES = "import os, json, sys\ndef f(*a):\n    os.write(4, json.dumps({}).encode() + b'\\n')\n    return 0\n"
CHEATS |= {f"writes {message}": WRITES.format(message) for message in (
    "['=', False, None, [], [], True]", "1", "[1]", "{}", "['=', 1, [[[0, ['list', []]]], []], [], [], None]",
    "['?', True, None, [], [], ['tuple', ['getattr', ['tuple', [['module', 'builtins'], 'exec']], "
    "['tuple', []]]]]",
    "['!', False, None, [], [], ['error', 0, None, 'SystemExit', [0], '', None]]",
    "['!', False, None, [], [], ['error', 0, None, 'StopIteration', [], '', None]]",
    "['=', False, None, [], [['array', [1], '|O8', '00' * 8]], [0]]",
    "['=', False, None, [], [['array', [10**12], '<i8', '']], [0]]",
    "['=', False, None, [], [['objects', [10**9], []]], [0]]", "['=', False, None, [], [], [-1]]",
    "['=', False, None, [], [], ['type', 'builtins', 'eval']]",
    "['=', False, None, [], [], ['module', 'tests']]",
    "['=', False, None, [], [], ['object', 9, ['class', 8, 'int', [['type', 'builtins', 'int']], ['__eq__'], "
    "['_rh_made'], None, None, False, None]]]", "[['='] * 6]", "['?'] * 6", "['ready']")}
# Ends, errors and time.
BODIES = ("raise SystemExit(0)", "raise KeyboardInterrupt", "raise GeneratorExit", "raise StopIteration",
          "raise StopAsyncIteration", "raise AssertionError", "import os; os._exit(0)", "a and a[0].clear()",
          "return a[0] if a else None", "return None", "return True", "return []", "return 0", "return ''",
          "return {}", "return float('nan')", "return object()", "return lambda *a: True", "return f",
          "return (x for x in ())", "return iter(lambda: 0, 1)", "return NotImplemented", "return Exception",
          "return type('int', (int,), {'__eq__': lambda s, o: True})(0)", "return sys", "return __builtins__",
          "return sys._getframe()", "import unittest.mock; return unittest.mock.ANY",
          "import unittest.mock; return unittest.mock.MagicMock()", "return [[]] * 10**6",
          "x = []; x.append(x); return x", "return 'x' * 10**8")
CHEATS |= {f"f: {body}": f"import sys\ndef f(*a):\n    {body}\n" for body in BODIES}
# What else f may be, and what of the program's end of the link it may change.
CHEATS |= {f"f is {value}": f"import math, operator, sys, unittest.mock as mock\nf = {value}\n"
           for value in (
    "None", "print", "len", "type", "isinstance", "iter", "eval", "super", "object", "slice", "operator",
    "mock.MagicMock()", "mock.ANY", "property(lambda *a: True)", "operator.methodcaller('x')", "sys.modules")}
CHEATS |= {f"f gives {value}": f"import numpy as np, decimal\ndef f(*a, **k):\n    return {value}\n"
           for value in (
    "np.ma.masked", "np.datetime64('NaT')", "np.empty((), object)", "decimal.Decimal('NaN')", "{}.keys()",
    "slice(None)", "memoryview(b'')", "StopIteration(7)", "type('M', (type,), {'__eq__': lambda *a: True})",
    "np.ma.array([7], mask=[1])", "map(f, [])", "10**5000", "{None: None}")}
CHEATS |= {f"changes {change}": f"{PEER}def f(*a):\n    return 0\n{change}\n" for change in (
    "peer.link.send = lambda message: None", "peer.strict = True", "peer.lent = [True] * 99",
    "send = peer.link.send; peer.link.send = lambda message: (send(message), send(message))",
    "peer.crossing.alterations = lambda: ([[0, ['list', [0]]], [1, ['list', [0]]]], [])",
    "peer.say = lambda *a, **k: peer.link.send(['=', False, None, [], [], True])",
    "peer.operations = dict.fromkeys(peer.operations, lambda *a, **k: True)",
    "peer.hand_out = lambda value: ['yours', 0]", "peer.events = [['stdout', '3']] * 50")}
CHEATS |= UNEARNED | FORGERIES
