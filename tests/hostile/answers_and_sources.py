"""Programs whose answer, or whose source text, is the attack."""

from tests.hostile.attack import CONTAINED, Attack, program, returns, verbatim

ARRAY = "class Liar(np.ndarray):\n"

ANSWERS = [
    returns(
        "equal to everything",
        "Same()",
        "invalid_output",
        before="class Same:\n    def __eq__(self, other): return True\n    def __len__(self): return 1",
    ),
    returns(
        "pickles itself into a command",
        "P()",
        "invalid_output",
        before="class P:\n    def __reduce__(self): return os.system, ('true',)",
    ),
    returns(
        "array that lies about its shape",
        "np.zeros((1, 1)).view(Liar)",
        CONTAINED,
        "invalid_output",
        before=f"{ARRAY}    @property\n    def shape(self): return (2, 2)",
    ),
    returns(
        "array that lies about its values",
        "np.full((1, 1), 5).view(Liar)",
        CONTAINED,
        "invalid_output",
        before=f"{ARRAY}    def min(self, *a, **k): return 0\n    def max(self, *a, **k): return 0\n"
        "    def __array__(self, *a, **k): return np.full((1, 1), 5)",
    ),
    returns("900 million cells", "np.broadcast_to(np.uint8(0), (30000, 30000))", "memory", "invalid_output"),
    returns("31 rows", "np.zeros((31, 1), int)", "invalid_output"),
    returns("no rows", "[]", "invalid_output"),
    returns("rows without cells", "[[], []]", "invalid_output"),
    returns("one dimension", "[1, 2]", "invalid_output"),
    returns("three dimensions", "np.zeros((1, 1, 1))", "invalid_output"),
    returns(
        "ten thousand dimensions",
        "nested(10000)",
        "invalid_output",
        "recursion",
        "runtime",
        "crashed",
        before="def nested(n):\n    x = 1\n    for _ in range(n): x = [x]\n    return x",
    ),
    returns(
        "contains itself",
        "loop",
        "invalid_output",
        "recursion",
        "runtime",
        "memory",
        before="loop = []\nloop.append(loop)",
    ),
    returns("ragged", "[[1, 2], [3]]", "invalid_output"),
    returns("nothing", "None", "invalid_output"),
    returns("not a number", "[[float('nan')]]", "invalid_output"),
    returns("infinity", "[[float('inf')]]", "invalid_output"),
    returns("half a colour", "[[0.5]]", "invalid_output"),
    returns("1e300", "[[1e300]]", "invalid_output"),
    returns("minus one", "[[-1]]", "invalid_output"),
    returns("256 + 7", "[[263]]", "invalid_output"),
    returns("2**64 + 7", "[[2**64 + 7]]", "invalid_output"),
    returns("10**1000", "[[10**1000]]", "invalid_output"),
    returns("complex", "[[7j]]", "invalid_output"),
    returns("text", "'7'", "invalid_output"),
    returns("digits as text", "[['7']]", "invalid_output"),
    returns("bytes", "b'7'", "invalid_output"),
    returns("dictionary", "{0: [7]}", "invalid_output"),
    returns("set", "{7}", "invalid_output"),
    returns("dates", "[[np.datetime64('2020')]]", "invalid_output"),
    returns("records", "np.zeros((1, 1), dtype=[('a', 'i4')])", "invalid_output"),
    returns("objects", "np.array([[object()]])", "invalid_output"),
    returns("the function itself", "transform", "invalid_output"),
    returns(
        "sequence without end",
        "Endless()",
        "memory",
        "timeout_cpu",
        "invalid_output",
        "runtime",
        before="class Endless:\n    def __len__(self): return 2**62\n    def __getitem__(self, i): return 1",
    ),
    returns("masked array", "np.ma.array([[5]], mask=[[True]])", CONTAINED, "invalid_output"),
    returns("truth values", "[[True, False]]", CONTAINED),
    returns("whole floats", "[[5.0]]", CONTAINED),
    program(
        "answer that changes while it is read",
        """
        class Row(list):
            def __len__(self):
                self.append(9)
                return list.__len__(self)
        def transform(g):
            return [Row([1]), Row([1])]""",
        CONTAINED,
        "invalid_output",
        "timeout_cpu",
        "memory",
    ),
]

OK = "def transform(g):\n    return [[0]]\n"
SOURCES = [
    verbatim("empty", "", "missing_function"),
    verbatim("no function", "x = 1\n", "missing_function"),
    verbatim("function that is a number", "transform = 7\n", "missing_function"),
    verbatim("syntax error", "def transform(g:\n", "syntax"),
    verbatim("zero byte", OK + "x = '\0'\n", "syntax"),
    verbatim("lone surrogate", OK + "x = '\udc80'\n", "syntax"),
    verbatim("deep parentheses", OK + "x = " + "(" * 5000 + ")" * 5000, "syntax"),
    verbatim("deep unary minus", OK + "x = " + "-" * 20000 + "1", "syntax", CONTAINED, "crashed"),
    verbatim("deep lists", OK + "x = " + "[" * 3000 + "]" * 3000, "syntax"),
    verbatim("deep attributes", OK + "def f():\n    x" + ".a" * 20000, "syntax", CONTAINED, "crashed"),
    verbatim("constant that folds", OK + "x = 'a' * 4096 * 4096 * 4096\n", "memory", "syntax"),
    verbatim("constant power", OK + "x = 2 ** 2 ** 40\n", "memory", "timeout_cpu", "syntax", "runtime"),
    verbatim("too many digits", OK + "x = " + "1" * 5000, "syntax"),
    verbatim(
        "98 functions inside each other",
        "".join("    " * i + f"def f{i}():\n" for i in range(98)) + "    " * 98 + "pass\n" + OK,
        "syntax",
        CONTAINED,
    ),
    verbatim("60,000 lines", OK + "\n" * 60_000, CONTAINED),
    verbatim("one line of 60,000 characters", OK + "x = [" + "0," * 29_000 + "]", CONTAINED),
    verbatim("larger than the limit", OK + "#" * 70_000, "source_too_large"),
    verbatim("20 MB", OK + "#" * 20_000_000, "source_too_large"),
    verbatim("coding that is none", "# coding: nothing-such\n" + OK, "syntax"),
    verbatim("coding utf-16", "# coding: utf-16\n" + OK, "syntax"),
    verbatim("coding of a rare kind", "# coding: cp037\n" + OK, "syntax"),
    verbatim("future that is none", "from __future__ import hostile\n" + OK, "syntax"),
    verbatim("many names", OK + "\n".join(f"a{i} = {i}" for i in range(4000)), CONTAINED),
    verbatim(
        "decorator that runs", "@exit\ndef transform(g):\n    return [[0]]\n", "runtime", "missing_function"
    ),
    verbatim("lambda chain", OK + "x = " + "lambda: " * 3000 + "0", "syntax", CONTAINED, "crashed"),
]

ATTACKS: list[Attack] = ANSWERS + SOURCES
