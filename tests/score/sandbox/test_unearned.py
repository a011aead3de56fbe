"""Programs that try to pass tests unearned, against tests of many forms: none passes a single one."""

import pickle

import pytest

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import Judgement, measure, run_programs
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Program
from score.tasks.function import UNSEEN
from score.tasks.kinds import ENDS, load_task
from score.tasks.measures import Answer
from tests.hostile.cheats import CHEATS
from tests.score.sandbox.forms import FORMS, RIGHT

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=1.0, memory_mib=256)
OFTEN = ("statement", "distance")        # forms of every run of the tests; the others are slow together


@pytest.fixture(scope="module")
def executor():
    with LanePool(LaneConfig(Layer.SECCOMP, preload=ENDS), LIMITS, 2) as pool:
        yield Executor(pool)


def judged(executor: Executor, tests: str | list[str], programs: dict[str, str],
           entry_point: str = "f", in_place: bool = False) -> dict[str, Judgement]:
    """The verdicts on programs, by name."""
    task = load_task("t", "function", {"entry_point": entry_point, "tests": tests, "in_place": in_place})
    items = [Item(task, Answer("", code)) for code in programs.values()]
    return dict(zip(programs, measure(items, run_programs(executor, items)), strict=True))


@pytest.mark.parametrize("form", [
    form if form in OFTEN else pytest.param(form, marks=pytest.mark.slow("all cheats against one more form"))
    for form in FORMS])
def test_no_cheat_passes(executor, form):
    rows = judged(executor, FORMS[form], {**CHEATS, "right": RIGHT})
    assert {name for name, row in rows.items() if row.measures.test.correct_grids > 0} == {"right"}
    assert not any(row.outcome.infrastructure for row in rows.values())


PRETENDS_TWO = """
class Token: kind = 'NUMBER'
class Tokens:
    title = 'x'
    def __len__(self): return 2
    def __iter__(self): return iter([Token()])
def f(text): return Tokens()
"""


@pytest.mark.parametrize("test", [
    "r = f('1+')\nassert len(r) == 2\nfor t, kind in zip(r, ['NUMBER', 'SIGN']): assert t.kind == kind",
    "r = f('1+')\nassert len(r) == 2\nfor i, t in enumerate(r): assert t.kind == ['NUMBER', 'SIGN'][i]",
    "r = f('1+')\nassert len(r) == 2 and r.title == 'x'\nassert all(t.kind == 'NUMBER' for t in r)"])
def test_an_answer_keeps_its_length_while_attributes_are_read(executor, test):
    assert not judged(executor, [test], {"pretends": PRETENDS_TWO})["pretends"].measures.correct


@pytest.mark.parametrize("code", [
    "class Z(int): __eq__ = lambda s, o: True\nsys.exit(Z(1))", "sys.exit('')",
    "import builtins\nbuiltins.SystemExit = Exception\nclass E(Exception): code = None\nraise E",
    "import builtins\nbuiltins.issubclass = lambda *a: True\nbuiltins.int = object\nsys.exit('error')"])
def test_a_script_does_not_hide_its_exit_status(executor, code):
    task = load_task("t", "stdio", {"cases": [{"input": "", "output": "3"}]})
    items = [Item(task, Answer("", f"import sys\nprint(3)\n{end}")) for end in (code, "sys.exit(0)")]
    hidden, right = measure(items, run_programs(executor, items))
    assert not hidden.measures.correct and right.measures.correct


EMPTIES = {"clears": "def f(x):\n    x.clear()\n    return []\n",
           "clears and returns it": "def f(x):\n    x.clear()\n    return x\n",
           "pops": "def f(x):\n    while x: x.pop()\n    return x[:]\n",
           "clears, gives None": "def f(x):\n    x.clear()\n"}
USES_UP = "def f(x):\n    y = []\n    while x:\n        y.append(x.pop(x.index(min(x))))\n    return y\n"
RIGHT_WAYS = {"new": "f = sorted\n", "uses it up": USES_UP}


def passes_in_one_process(test: str, code: str) -> bool:
    """Whether plain Python passes a program."""
    names = {}
    exec(code, names)
    try:
        exec(test, names)
    except BaseException:
        return False
    return True


@pytest.mark.parametrize("test", [
    "a = [3, 1, 2]\nassert f(a) == sorted(a)", "a = [3, 1, 2]\nassert sorted(a) == f(a)",
    "a = [3, 1, 2]\nr = f(a)\nassert r == sorted(a)", "a = [3, 1]\nb = a\nassert f(a) == sorted(b)",
    "a = [3, 1, 2]\nr = f(a)\nwant = sorted(a)\nassert r == want",
    "xs = [[3, 1], [2]]\nassert list(map(f, xs)) == list(map(sorted, xs))",
    "def run(x):\n    return f(x)\na = [3, 1]\nassert run(a) == sorted(a)",
    "a = [3, 1]\ndef reference():\n    return sorted(a)\nassert f(a) == reference()",
    "def both(x):\n    r = f(x)\n    w = sorted(x)\n    return r, w\n"
    "a = [3, 1]\nr, w = both(a)\nassert r == w",
    "a = [3, 1]\nr = f(a)\nfor i, x in enumerate(sorted(a)):\n    assert r[i] == x",
    "a = [3, 1]\nr = f(a)\nn = len(a)\nassert len(r) == n and sorted(r) == r",
    "pairs = [(f(x), sorted(x)) for x in [[3, 1], [2]]]\nfor got, want in pairs:\n    assert got == want",
    "got = []\nxs = [[3, 1], [2]]\nfor x in xs:\n    got.append(f(x))\nassert got == [sorted(x) for x in xs]",
    "from unittest import TestCase\na = [3, 1]\nr = f(a)\nTestCase().assertEqual(len(r), len(a))",
    "for a in [[2, 1], [3, 1, 2]]:\n    assert f(a) == sorted(a)",
    "a = [3, 1, 2]\nassert len(f(a)) == len(a) and set(f(a)) == set(a)",
    "import unittest\na = [3, 1]\nunittest.TestCase().assertEqual(f(a), sorted(a))",
    "def same(x, y):\n    assert x == y\na = [3, 1]\nsame(f(a), sorted(a))",
    "case = {'in': [3, 1]}\nassert f(case['in']) == sorted(case['in'])",
    "a = [2, 1]\nassert f(a) == a[::-1]", "a = [3, 1, 2]\nassert f(a) == sorted(a[:])",
    "a = [2, 1]\nassert f(a) == list(a[i] for i in (1, 0))",
    "case = [[2, 1]]\nassert f(case[0]) == case[0][::-1]",
    "a, lists = [2, 1], [[], 0, [1, 2]]\nassert f(a) == lists[len(a)]",
    "a = [3, 1]\nassert f'{f(a)}' == f'{sorted(a)}'",
    "a = [3, 1]\nr = f(a)\nassert f'{r}!' == f\"{sorted(a)}!\"",
    "class Case:\n    data = [3, 1]\nassert f(Case.data) == sorted(Case.data)",
    "a, found = [3, 1], {}\nfound['got'] = f(a)\nfound['want'] = sorted(a)\n"
    "assert found['got'] == found['want']",
    "import io, contextlib\na, out = [3, 1], io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
    "    print(f(a))\n    print(sorted(a))\nx, y = out.getvalue().splitlines()\nassert x == y",
    "a = [3, 1]\nr = f(a)\ni, want = 0, []\nwhile i < len(a):\n    want.append(sorted(a)[i])\n    i += 1\n"
    "assert r == want",
    "a = [3, 1]\nr = f(a)\nif a:\n    want = [1, 3]\nelse:\n    want = []\nassert r == want",
    "a = [3, 1]\nr = f(a)\nif a:\n    assert r == [1, 3]\nelse:\n    assert r == []",
    "a = [3, 1]\nr = f(a)\nn = 0\nfor _ in a:\n    n += 1\nassert len(r) == n and r == sorted(r)",
    "a = [3, 1]\nit = iter(a)\nassert f(a) == sorted(it)",
    "a = [3, 1]\nw = map(int, a)\nassert f(a) == sorted(w)",
    "a = [3, 1]\nwant = (x for x in a)\nassert f(a) == sorted(want)",
    "a = [3, 1]\nr = f(a)\nassert {tuple(sorted(a)): 1}[tuple(r)]",
    "a = [3, 1]\nr = f(a)\nassert (r[0] if r else None) == min(a, default=None) and len(r) == len(a)",
    "a = [3, 1]\nr = f(a)\nassert all(x <= y for x, y in zip(r, r[1:])) and all(x in r for x in a)",
    "class H:\n    def __init__(self): self.a = [3, 1]\n    def run(self): self.r = f(self.a)\n"
    "    def want(self): return sorted(self.a)\nh = H()\nh.run()\nassert h.r == h.want()",
    "import unittest\nclass T(unittest.TestCase):\n    def check(self, x):\n"
    "        self.assertEqual(f(x), sorted(x))\nT('check').check([3, 1])",
    "def check(x):\n    def inner(y):\n        return f(y) == sorted(y)\n    return inner(x)\n"
    "assert check([3, 1])",
    "def same(fn):\n    def inner(x):\n        assert fn(x) == sorted(x)\n    return inner\nsame(f)([3, 1])",
    "def same(*, ref, fn, x):\n    got, want = fn(x), ref(x)\n    return got == want\n"
    "assert same(x=[3, 1], fn=f, ref=sorted)",
    "def run():\n    a = [3, 1]\n    r = f(a)\n    if not a:\n        return\n    assert r == [1, 3]\nrun()",
    "for a in [[3, 1]]:\n    r = f(a)\n    if not a:\n        break\n    assert r == [1, 3]",
    "a = [3, 1]\nr = f(a)\nfor _ in a:\n    assert r == [1, 3]",
    "a = [3, 1]\nr = f(a)\nfor x, y in zip(a, [3, 1]):\n    assert r == [1, 3]",
    "a = [3, 1]\nr = f(a)\nassert not a or r == [1, 3]",
    "a = [3, 1]\nr = f(a)\nassert r == [1, 3] if a else True",
    "a = [3, 1]\nr = f(a)\nassert all(r == [1, 3] for _ in a)",
    "a = [3, 1, 2]\nr = f(a)\na.sort()\nassert r == a",
    "a = [3, 1]\nn, b = len(a), a[:]\nr = f(a)\nassert r == sorted(a)\nassert n == 2 and b == [3, 1]",
    "a = [3, 1]\nassert a == [3, 1] and f(a) == sorted(a)",
    "a = [3, 1]\nr = f(a)\nassert r == sorted(a) and r is not a",
    "a = [3, 1]\nassert f(a) == [*sorted(a)] != [9]",
    "match [3, 1]:\n    case a: assert f(a) == sorted(a)", "list = [3, 1]\nassert f(list) == sorted(list)",
    "import functools\n@functools.lru_cache\ndef data(): return [3, 1]\nassert f(data()) == sorted(data())",
    "def data(): pass\ndata.x = [3, 1]\nassert f(data.x) == sorted(data.x)",
    "a = [3, 1]\nassert eval('f(a) == sorted(a)')",
    "a = [3, 1]\nassert f(vars()['a']) == sorted(vars()['a'])",
    "import heapq\na = [3, 1]\nr = f(a)\nheapq.heapify(a)\n"
    "assert r == [heapq.heappop(a) for _ in range(len(a))]",
    "a = [3, 1]\nr = f(a)\nwant = []\nwhile a:\n    m = min(a)\n    a.remove(m)\n    want.append(m)\n"
    "assert r == want"])
def test_emptying_an_argument_pays_nothing_where_the_test_compares_with_it(executor, test):
    rows = judged(executor, [test], EMPTIES | RIGHT_WAYS)
    assert {name for name, row in rows.items() if row.measures.correct} == {
        name for name, code in RIGHT_WAYS.items() if passes_in_one_process(test, code)}


# An object that agrees to everything: what a method gives, a class named like a function, a class.
AGREES = """\
    def __getattr__(s, name):
        if name.startswith('__'): raise AttributeError(name)
        return lambda *a, **k: True
    __sub__ = __rsub__ = __abs__ = __round__ = lambda s, *o: 0
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda s, *o: True
    __float__ = lambda s: 0.0
def f(*a): pass
"""
ITSELF = "class Solution:\n    def total(self, *a): return self\n" + AGREES
NAMED = "class Volume:\n    def __init__(self, *a): pass\n    side = 0\n    __mul__ = lambda s, o: s\n" \
        "    of = real = classmethod(lambda cls, *a: cls())\n" + AGREES
CLASS = "class M(type):\n    __contains__ = lambda c, x: True\n    __iter__ = lambda c: iter(())\n" \
        "def f(*a): return M('K', (), {})\n"
NAMED_F = NAMED.replace("Volume", "f").replace(
    "def f(*a): pass\n", "    shape = (1,)\n    __eq__ = lambda s, o: True\n")
READS = "def f(x, key):\n    return type(key)('__init__.__globals__')(x)['want']\n"
OWN_CLASS = ITSELF + "Solution.__init__ = lambda self, *a: None\nSolution.total = Solution\n"
MAKES_CLASS = "def f(x, kind):\n    return kind('K', (), {'__eq__': lambda *a: True})()\n"
LONGER = "class L:\n    __len__ = lambda s: 2\n    __iter__ = lambda s: iter(())\ndef f(*a): return L()\n"
REPLACES = "def f(case):\n    case.check = lambda *a: None\n"
SWALLOWS = "class C:\n    __enter__ = lambda s: 0\n    __exit__ = lambda s, *a: True\ndef f(*a): return C()\n"
SUPPRESSES = "import contextlib\ndef f(*a):\n    return contextlib.suppress(AssertionError)\n"
# What is run of an answer passes all tests, where it runs in their process.
PASSES = "import os\nos.pwrite(3, b'RHR1\\x01\\x03\\0\\0\\0[1]', 0)\nos._exit(0)\n"
TEXT = f"def f(*a):\n    return {PASSES!r}\n"
EXPRESSION = f"def f(*a):\n    return 'exec(' + repr({PASSES!r}) + ')'\n"
WRITES = "__import__('os').pwrite(3, b'RHR1\\x01\\x03\\0\\0\\0[1]', 0) and __import__('os')._exit(0)"
AT_ONCE = f"def f(*a):\n    return {WRITES!r}\n"
PICKLED = "import pickle\nclass R:\n    def __reduce__(s): return exec, (TEXT,)\n" \
          f"def f(*a):\n    return pickle.dumps(R())\nTEXT = {PASSES!r}\n"
ASKS_CLASS = "import sys\npeer = sys.modules['score.jobs.stand_ins'].peer\ndef f(x, key):\n" \
             "    return peer.ask('call', type(key), ('__init__.__globals__',), {})(x)['want']\n"
# What libraries evaluate; what goes by the names of tests.
HINTS = f"def f(x): return 0\nf.__annotations__ = {{'x': 'exec(' + {repr(PASSES)!r} + ')'}}\n"
NAMES = "def f(*a): return 'want'\n"
OVERWRITES = "def f(*a): return 'x = want = 0\\ndef abs(y): return 0'\n"
HANDED = " + '\\n_as_it_was_ = g = lambda *a: []'\n"
# Of what a method gives, the test later makes an object: it is the same.
MADE_LATER = """\
class Point:
    later = None
    def __new__(cls, *a):
        made, cls.later = cls.later or object.__new__(cls), None
        return made
    def __init__(self, x, y=0): self.x = x
    def norm(self):
        Point.later = object.__new__(Point)
        return Point.later
    __sub__ = __abs__ = lambda s, *o: 0
    __lt__ = lambda s, o: True
    __add__ = __mul__ = lambda s, o: Point(0)
    of = classmethod(lambda cls, *a: cls(*a))
def f(): pass
"""
MAKES = "class V:\n    def __init__(s, *a): pass\n    __getattr__ = lambda s, name: f\n" \
        "    __eq__ = __lt__ = lambda s, o: True\n    __sub__ = __abs__ = lambda s, *o: 0\n" \
        "def f(*a): return V()\nV.of = staticmethod(f)\n"
NEGATIVE = "try:\n    f(-1)\n    assert False\nexcept NegativeError:\n    pass"
PASSES_OVER = "class C:\n    def __init__(s, *a): pass\n    def __enter__(s): return s\n" \
              "    def __exit__(s, *a): return True\n    def get(s, x): raise KeyError(x)\nf = C\n"
CASE = "class Case:\n    def __init__(self, x): self.x = x\nwant = 77\n"
MOCKS_CLASS = "def f(mock):\n    type(mock).configure_mock(mock, assert_called_once_with=lambda *a: None)\n"
SHUNT = "import unittest\nclass T(unittest.TestCase):\n    got = []\n" \
        "    def test_f(self):\n        f(self)\n" \
        "        self.assertEqual(self.got, [3])\nT('test_f').debug()"
MOCKS = "def f(mock):\n    mock.configure_mock(assert_called_once_with=lambda *a: None, call_count=3)\n"


@pytest.mark.parametrize(("test", "cheat"), [
    ("s = Solution()\nassert abs(s.total(1, 2) - 3) < 1e-6", ITSELF),
    ("s = Solution()\nassert 2.9 < s.total(1, 2) < 3.1", ITSELF), ("assert 3 in Solution().total(6)", ITSELF),
    ("from unittest import TestCase\nTestCase().assertAlmostEqual(Solution().total(1, 2), 3)", ITSELF),
    ("assert abs(Volume(3) - 27.0) < 1e-6", NAMED), ("assert 26 < Volume(3) < 28", NAMED),
    ("assert 3 in volume(3)", NAMED.replace("Volume", "volume")),
    ("assert volume(3).startswith('abc')", NAMED.replace("Volume", "volume")),
    ("assert 3 in f(6)", CLASS), ("s = Solution()\nassert abs(s.total(1, 2) - 3) < 1e-6", OWN_CLASS),
    ("assert 3 in Solution().total(6)", OWN_CLASS), ("assert f([1], type) == {int: [1]}", MAKES_CLASS),
    ("import pytest\nassert f(1) == pytest.approx([1.0, 2.0])", LONGER),
    ("with f() as y:\n    assert y == 3", SUPPRESSES), ("with f() as y:\n    assert y == 3", SWALLOWS),
    ("class C:\n    def check(self, x): assert self.x == x\nc = C()\nf(c)\nc.check(3)", REPLACES),
    ("class C:\n    def check(self, x): assert self.x == x\nf(C)\nC().check(3)", REPLACES),
    ("assert eval(f(1, 2)) == 3", EXPRESSION), ("assert list(map(eval, [f(1, 2)])) == [3]", EXPRESSION),
    ("ns = {}\nexec(f(1, 2), ns)\nassert ns['x'] == 3", TEXT), ("exec(compile(f(), 'x', 'exec'))", TEXT),
    *((f"import builtins\nassert {how}(f(1, 2)) == 3", AT_ONCE) for how in (
        "builtins.eval", "__import__('builtins').eval", "__builtins__['eval']", "vars(builtins)['eval']")),
    ("ns = {}\nexec('def run(x): return eval(x)', ns)\nassert ns['run'](f(1, 2)) == 3", EXPRESSION),
    *((f"import builtins, pytest, unittest as u\n{call}, {how}, f(1, 2))\nassert 1 == 2", AT_ONCE)
      for how in ("eval", "builtins.eval")
      for call in ("u.TestCase().assertRaises(NameError", "pytest.raises(NameError")),
    ("import builtins\nassert f(builtins.eval) == 3", f"def f(run): return run({WRITES!r})\n"),
    ("import builtins\nbuiltins.exec(f(1, 2))\nassert x == 3", TEXT),
    ("import pickle\nassert pickle.loads(f(1, 2)) == 3", PICKLED),
    ("import io, pickle\nassert pickle.load(io.BytesIO(f(1, 2))) == 3", PICKLED),
    ("from unittest.mock import Mock\nm = Mock()\nf(m)\nm.assert_called_once_with(3)", MOCKS),
    ("from unittest.mock import Mock\nm = Mock()\nf(m)\nassert m.call_count == 3", MOCKS),
    ("from unittest.mock import Mock\nm = Mock()\nf(m)\nm.assert_called_once_with(3)", MOCKS_CLASS),
    ("assert f(1, 2) == f(2, 1) and abs(f(1, 2) - 3) < 1e-6", NAMED_F),
    ("assert Volume.of(1) == Volume.of(2) and abs(Volume.of(3) - 27.0) < 1e-6", NAMED),
    ("v = Volume.of(1)\nassert v.side == 1 or abs(Volume.real(3) - 27.0) < 1e-6", NAMED),
    ("v = Volume(1)\nassert v.side == 1 or abs(v * v - 3.0) < 1e-6", NAMED),
    ("assert f(1).shape == (1,) and abs(f(1) - 3) < 1e-6", NAMED_F),
    ("import typing\nassert typing.get_type_hints(f)['x'] is int", HINTS),
    ("import inspect\nassert inspect.get_annotations(f, eval_str=True)['x'] is int", HINTS),
    ("import timeit\nassert timeit.timeit(f(1), number=1) is f", f"def f(x): return {PASSES!r}\n"),
    ("import timeit\nassert timeit.Timer(setup=f(1)).timeit(1) is f", f"def f(x): return {PASSES!r}\n"),
    *((f"import pickle, _pickle, io\nassert {module}.{kind}(io.BytesIO(f(1))).load() == 3", PICKLED)
      for module, kind in (("pickle", "Unpickler"), ("pickle", "_Unpickler"), ("_pickle", "Unpickler"))),
    ("import _pickle\nassert _pickle.loads(f(1)) == 3", PICKLED),
    ("want = 3\nassert eval(f(1, 2)) == want", NAMES), ("want = 3\nexec(f())\nassert x == want", OVERWRITES),
    ("for a, want in [(1, 2)]:\n    assert eval(f(a)) == want, f'{a} is not {want}'", NAMES),
    ("exec(f(), globals())\nassert abs(x - 3) < 1e-6", OVERWRITES),
    ("for case in [{'in': 1, 'want': 3}]:\n    want = case['want']\n    assert eval(f(case['in'])) == want",
     NAMES),
    ("want = 3\nassert eval(f(1, 2)) == want, 'want'", NAMES),
    *((f"for c in [{{'in': {given}, 'want': 3}}]:\n    want = c['want']\n    assert eval(f(c['in'])) == want",
       f"import sys\ndef f(x):\n    try: {hears}\n    except BaseException: pass\n    return 'want'\n")
      for given, hears in (("1", "sys.modules['score.jobs.stand_ins'].peer.ask('want')"),
                           ("'I want 3'", "pass"), ("object", "x.want"))),
    ("for a in (1, 2):\n    want = dict(want=a)['want']\n    assert eval(f(a)) == want",
     "def f(x): return '[1 for want in [0]][0]' if x == 1 else 'want'\n"),
    *((f"assert f('Bob').{asks}", f"class R{kind}:\n    {name} = {does}\ndef f(x): return {answer}\n")
      for asks, name, does in (
          ("startswith('Hello')", "startswith", "bool"), ("count('5') == 5", "count", "int"),
          ("union({1, 2}) == {1, 2}", "union", "set"))
      for kind, answer in (("", "R()"), ("(str)", "R()"), ("(list)", "R()"), ("(tuple)", "R()"), ("", "R"))),
    *((f"assert f([1]).{asks}", f"{kind}    union = startswith = staticmethod(lambda o: o)\n{answer}\n")
      for asks in ("union({1, 2}) == {1, 2}", "startswith('Hello')")
      for kind, answer in (("class R:\n", "def f(x): return R"),
                           ("class f:\n    __new__ = lambda c, x: c\n", ""))),
    ("assert f('Bob').startswith('Hello')",
     "def f(x):\n    e = ValueError()\n    e.startswith = lambda o: True\n    return e\n"),
    ("want = {'a': 1, 'b': 2}\nr = f('ab')\nassert len(r) == len(want)\n"
     "for k, v in r.items(): assert want[k] == v",
     "class M(type):\n    __len__ = lambda c: 2\n    items = lambda c: []\n"
     "class R(metaclass=M): pass\ndef f(x): return R\n"),
    ("import inspect\na = [3, 1]\nr = f(a)\nassert run.__globals__['r'] == sorted(a)\ndef run(): pass",
     "def f(a):\n    a.clear()\n    return []\n"),
    ("for c in [{'in': 'x*x', 'code': 9}]:\n    x, code = 3, c['code']\n    r = f(c['in'])\n"
     "    assert eval(r['code']) == code",
     "class R:\n    __getitem__ = get = lambda s, k: 'code'\ndef f(e): return R()\n"),
    ("r = f(6)\nassert len(r) == 2\nassert 2 in r and 3 in r",
     "class M(type):\n    __len__ = lambda c: 2\n    __iter__ = lambda c: iter(range(100))\n"
     "class R(metaclass=M): pass\ndef f(n): return R\n"),
    ("r = f(6)\nassert 2 in r and 3 in r\nassert len(r) == 2",
     "class R:\n    __len__ = lambda s: 2\n    __iter__ = lambda s: iter(range(99))\ndef f(n): return R()\n"),
    ("r = f([3, 1, 2])\nassert len(r) == 3\nfor i in range(len(r)): assert r[i] == i + 1",
     "import sys\nclass N:\n    looks = [0, 3]\n    def __index__(s): return s.looks.pop()\n"
     "    def __ne__(s, o): return False\nclass R:\n    looks = [0, 3]\n"
     "    def __len__(s): return s.looks.pop()\n    def __getitem__(s, i): return None\n"
     "n, m = N(), sys.modules.get('score.jobs.peer')\nif m: m.OPERATORS['__len__'] = lambda o: n\n"
     "def f(x): return R()\n"),
    *((f"s = Solution()\nassert {claim}",
       "import sys\nclass Solution:\n    __contains__ = startswith = lambda s, o: True\n"
       "    def factors(s, n): return s\ndef f(): pass\n"
       "p = getattr(sys.modules.get('score.jobs.stand_ins'), 'peer', None)\nif p:\n    plain = p.hand_out\n"
       "    p.crossing.hand_out = lambda v: (['value', p.lend(v), p.class_written(Solution), '']\n"
       "        if type(v) is Solution and id(v) in p.numbers else plain(v))\n")
      for claim in ("3 in s.factors(6)", "s.factors('Bob').startswith('Hello')")),
    ("assert Slug('A b').clean().startswith('a-b')",
     "class Slug(str):\n    startswith = staticmethod(lambda o: True)\n    def clean(self): return self\n"
     "def f(): pass\n"),
    ("r = Sorter.sort([3, 1, 2])\nassert len(r) == 3\nfor a, b in zip(r, [1, 2, 3]): assert a == b",
     "class Sorter:\n    sort = classmethod(lambda cls, x: cls())\n    __len__ = lambda s: 3\n"
     "    __iter__ = lambda s: iter(())\ndef f(): pass\n"),
    *((f"import pytest\n{rows}\ndef run():\n    for got, want in {pairs}:\n        assert got == want\n"
       "    with pytest.raises(StopIteration):\n        next(iter([]))\nrun()",
       "def f(x): raise StopIteration\n")
      for rows, pairs in (
          ("", "zip(map(f, [1, 2]), [2, 4])"), ("", "map(lambda x: (f(x), 2 * x), [1, 2])"),
          ("class Rows:\n    def __init__(s): s.x = 0\n    def __iter__(s): return s\n"
           "    def __next__(s):\n        if s.x == 2: raise StopIteration\n        s.x += 1\n"
           "        return f(s.x), 2 * s.x", "Rows()"))),
    *((f"import numpy as np\nassert {claim}", "import numpy as np\ndef f(): return np.array([])\n")
      for claim in ("np.array_equiv(f(), [3.0])", "np.testing.assert_array_max_ulp(f(), 3.0) is not None",
                    "np.testing.assert_array_almost_equal_nulp(f(), 3.0) is None")),
    ("assert type(f('Bob')).startswith('Hello')",
     "class M(type):\n    startswith = lambda c, o: True\nclass R(metaclass=M): 0\ndef f(x): return R()\n"),
    *((f"import inspect, sys\ndef go():\n    a = [3, 1]\n    r = f(a)\n"
       f"    assert {frame}.f_locals['r'] == sorted(a)\ngo()", "def f(a):\n    a.clear()\n    return []\n")
      for frame in ("inspect.currentframe()", "sys._getframe()")),
    ("for case in [{'in': 1, 'want': 3}]:\n    want = case['want']\n    assert eval(f(case['in'])) == want",
     "def f(*a): return ' want'\n"),
    (SHUNT, "def f(t): t.addTypeEqualityFunc(list, lambda *a: None)\n"),
    (SHUNT, "def f(t): t._type_equality_funcs[list] = lambda *a: None\n"),
    *(("import warnings\nwarnings.simplefilter('error')\nassert f([3, 1], lambda v: v) == [1, 3]",
       f"import warnings\nclass SkipTest({kind}): pass\n"
       "def f(a, key):\n    warnings.warn('x', SkipTest)\n    key(SkipTest)\n")
      for kind in ("UserWarning", "RuntimeWarning")),
    (SHUNT, "def f(t): t.failureException = t.tearDown = int\n"),
    ("exec(f())\na = [3, 1]\nassert g(a) == sorted(a)", OVERWRITES[:-1] + HANDED),
    *((f"a, b = Point(3), Point(1)\nd = a.norm()\nc = {later}\nassert a.x == 3 and abs(d - 3) < 1e-9",
       MADE_LATER) for later in ("Point(0, 0)", "b + b", "b * 2")),
    ("a = Point.of(3)\nd = a.norm()\nb = Point.of(0)\nassert a.x == 3 and b.x == 0 and abs(d - 3) < 1e-9",
     MADE_LATER),
    *((f"v = V.of(3)\nassert v == V(3) and abs({call} - 3) < 1e-9", MAKES) for call in ("f(1)", "v.norm()")),
    ("import pytest\ntry:\n    f(-1)\n    pytest.fail('no error')\nexcept Exception:\n    pass",
     "def f(x): pass\n"),
    *((NEGATIVE, f"NegativeError = {error}\ndef f(x): pass\n") for error in (
        "AssertionError", "Exception", "BaseException", "(ValueError, AssertionError)")),
    (NEGATIVE.replace("NegativeError", "errors"), "errors = AssertionError\ndef f(x): pass\n"),
    (NEGATIVE.replace("NegativeError", "Bank.Error"), "class Bank:\n    Error = Exception\ndef f(x): pass\n"),
    ("with f() as y:\n    assert abs(y - 3) < 1e-6", PASSES_OVER),
    ("with f(1) as y:\n    got = y.get(2)\n    assert got == 3", PASSES_OVER),
    ("from contextlib import ExitStack\nwith ExitStack() as s:\n    y = s.enter_context(f())\n"
     "    assert y.get(2) == 3", PASSES_OVER),
    ("def same(a):\n    assert a == 3\nwith f(1) as y:\n    same(y.get(2))", PASSES_OVER),
    ("with f(1) as y:\n    if y.get(2) != 3:\n        raise ValueError", PASSES_OVER),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        with f(1) as y:\n"
     "            self.assertEqual(y.get(2), 3)\nT('test_f').debug()", PASSES_OVER),
    (CASE + "import operator\nassert f(Case(1), operator.attrgetter('x')) == want", READS),
    (CASE + "import operator\nassert f(Case(1), operator.attrgetter('x')) == want", ASKS_CLASS),
    (CASE + "assert f(Case(1), str.format) == str(want)",
     "def f(x, form):\n    return form('{0.__init__.__globals__[want]}', x)\n")])
def test_objects_that_agree_to_everything_are_asked_nothing(executor, test, cheat):
    row = judged(executor, [test], {"cheat": cheat})["cheat"]
    assert not row.measures.correct and not row.outcome.infrastructure


GIVES = "def f(*a): return 0\ndef get(): return {}\n"
PASSES_ALL = "class C:\n    def __enter__(s): return s\n    def __exit__(s, *a): return True\n" \
             "    def get(s, x): raise KeyError(x)\n    def none(s): return None\ndef f(*a): return C()\n"
CATCHES = "def f(call, *a):\n    try: call(1)\n    except BaseException: pass\n    return 'ok'\n"
RAISES_REAL = "import sys\ndef get():\n    peer = sys.modules['score.jobs.stand_ins'].peer\n" \
              "    peer.link.send(['=', False, None, [], [], ['error', 5, ['type', 'builtins', " \
              "'AssertionError'], 'AssertionError', [], '', [None, None, False, [], ['tuple', []]]]])\n" \
              "    while True: peer.answer(peer.link.receive())\ndef f(*a): return 0\n"
AGREED = "class S:\n    __eq__ = difference_update = lambda s, o: True\n    __bool__ = lambda s: False\n" \
         "    allclose = staticmethod(lambda *a: True)\n" \
         "class Solution:\n    def add(self, *a): return S()\n    def __init_subclass__(cls):\n" \
         "        cls.__eq__ = lambda s, o: True\n" \
         "def f(*a):\n    return {'set': 'np = S', 'zero': 'want = 0', 'read': 'want'}.get(a[0]) or S()\n"
SHORT = "class S:\n    def __init__(s, x): s.n, s.seen = len(x), 0\n" \
        "    def __len__(s):\n        s.seen += 1\n        return s.n if s.seen == 1 else 0\n" \
        "    __iter__ = __reversed__ = lambda s: s\n    def __next__(s): raise StopIteration\n" \
        "    __bool__ = lambda s: False\n    items = lambda s: []\n    sort = lambda s: None\nf = S\n"
LENGTHS = {
    "no __reversed__": "class S:\n    def __init__(s, x): s.n = len(x)\n    def __len__(s): return s.n\n"
                       "    def __getitem__(s, i): raise IndexError\nf = S\n",
    "of a class": "class M(type):\n    def __len__(c): return 2\n    def __iter__(c): return iter(())\n"
                  "class S(metaclass=M): pass\ndef f(x): return S\n",
    "of a dictionary": "class S(dict):\n    def __len__(s): return 2\ndef f(x): return S()\n",
    "without an end": "import itertools\nclass S:\n    def __len__(s): return 2\n"
                      "    def __iter__(s): return itertools.count()\ndef f(x): return S()\n",
    "of a property": "class S:\n    items = property(lambda s: lambda: [])\n    def __len__(s): return 2\n"
                     "def f(x): return S()\n"}
HELPER = "import contextlib\n@contextlib.contextmanager\ndef h():\n    with f() as y:\n        yield y\n"


@pytest.mark.parametrize(("test", "cheat"), [
    *((test, GIVES.format(given)) for given in ("AssertionError", "Exception", "(ValueError, BaseException)")
      for test in ("try:\n    assert f(1, 2) == 3\nexcept get():\n    pass",
                   "import pytest\nwith pytest.raises(get()):\n    assert f(1, 2) == 3",
                   "import unittest as u\nwith u.TestCase().assertRaises(get()):\n    assert f(1, 2) == 3",
                   "errors = get()\ntry:\n    assert f(1, 2) == 3\nexcept errors:\n    pass")),
    ("import contextlib as c\nwith c.suppress(get()):\n    assert f(1, 2) == 3", GIVES.format("Exception")),
    (HELPER + "with h() as y:\n    assert y.get(2) == 3", PASSES_ALL),
    (HELPER + "with h() as y:\n    t = y.none() + 1\n    assert t == 3", PASSES_ALL),
    ("class W:\n    def __init__(self): self.c = f()\n    def __enter__(self): return self.c.__enter__()\n"
     "    def __exit__(self, *a): return self.c.__exit__(*a)\nwith W() as y:\n    assert y.get(2) == 3",
     PASSES_ALL),
    ("out = []\nwith f() as y:\n    out.append(y.get(2))\nfor x in out:\n    assert x == 3", PASSES_ALL),
    ("from contextlib import ExitStack\nwith ExitStack() as s:\n    s.push(f())\n    assert f().get(2) == 3",
     PASSES_ALL),
    ("def cb(x):\n    assert x == 3\nf(cb)", CATCHES),
    ("def cb(x):\n    assert x == 3\nassert f(cb) == 'ok'", CATCHES),
    ("import pytest\ndef cb(x):\n    if x != 3:\n        pytest.fail('no')\nf(cb)", CATCHES),
    ("import unittest\nf(lambda x: unittest.TestCase().assertEqual(x, 3))", CATCHES),
    ("class K:\n    def __eq__(self, o):\n        assert o == 3\nf(K().__eq__)", CATCHES),
    ("def cb(x):\n    assert x == 3\nfor _ in f(cb): pass", CATCHES.replace("return 'ok'", "yield from ()")),
    ("def cb(x):\n    assert x == 3\nassert not hasattr(f(cb), 'x')",
     "class K:\n    def __init__(s, cb): s.cb = cb\n    def __getattr__(s, name):\n"
     "        try: s.cb(1)\n        except AssertionError: raise AttributeError\nf = K\n"),
    *((test, PASSES_ALL) for test in (
        "def g(): h()\ndef h():\n    with f() as y: assert y.get(2) == 4; z = 1\ng()\nassert 1 == 2",
        "try:\n    with f() as y: assert y.none() == 4; raise ValueError\nexcept ValueError:\n    pass",
        "def g():\n    raise ValueError\nwith f() as y:\n    g()\nassert y.none() == 3")),
    *((f"assert {claim}", "class E:\n    __eq__ = __lt__ = __ge__ = lambda *a: True\ndef f(*a): return E()\n")
      for claim in ("f(1, 2).__eq__(3)", "f(1, 2).__lt__(4)", "not f(1, 2).__ne__(3)")),
    ("def cb(x):\n    raise AssertionError if x != 3 else ValueError\ntry:\n    f(cb)\n"
     "except ValueError:\n    pass", CATCHES),
    ("def gen():\n    for i in range(3):\n        assert (yield i) == i * 2\nf(gen().send)",
     CATCHES.replace("call(1)", "call(None); call(1)")),
    ("import asyncio\nasync def cb(x):\n    assert x == 3\nasyncio.run(f(cb))",
     "async def f(cb):\n    try: await cb(1)\n    except AssertionError: pass\n"),
    *((f"class T:\n    v = 0\nt = T()\nt.v = [3, 1]\nassert f(t) == sorted({read})",
       f"def f(t):\n    t.v{change}\n    return []\n")
      for read in ("t.v", "getattr(t, 'v')", "vars(t)['v']") for change in (" = []", ".clear()")),
    *((test, cheat) for cheat in ("def f(x):\n    x.clear()\n    return []\n",
                                  "def f(x):\n    yield from ()\n    x.clear()\n")
      for test in ("a = [3, 1]\nassert [*f(a)] == (lambda: sorted(a))()",
                   "def both():\n    a = [3, 1]\n    yield [*f(a)]\n    yield sorted(a)\n"
                   "p, q = both()\nassert p == q",
                   "class K:\n    def __init__(s, x): s.got, s.want = [*f(x)], sorted(x)\nk = K([3, 1])\n"
                   "assert k.got == k.want", "a = [3, 1]\nok = [*f(a)] == sorted(a)\nassert ok")),
    *((f"import pytest, warnings\nwarnings.simplefilter('error')\ndef cb(x):\n    assert x == 3\n{call}",
       CATCHES.replace("return 'ok'", then))
      for then in ("raise UserWarning", "__import__('warnings').warn('x')")
      for call in ("with pytest.raises(UserWarning):\n    f(cb)",
                   "try:\n    f(cb)\nexcept UserWarning:\n    pass")),
    *((test, PASSES_ALL) for test in (
        "def g():\n    with f() as y:\n        if y.none() == 3: return\n        assert False\ng()",
        "for _ in [1]:\n    with f() as y:\n        if y.none() == 3: break\n        raise ValueError",
        "with f() as y:\n    assert eval('y.none()') == 3",
        "with f() as y:\n    assert globals()['y'].none() == 3")),
    ("def cb(x):\n    if x == 3: return\n    raise AssertionError\nf(cb)", CATCHES),
    *((f"errors = type(get())\n{test}", RAISES_REAL) for test in (
        "try:\n    assert f(1, 2) == 3\nexcept errors:\n    pass",
        "import pytest\nwith pytest.raises(errors):\n    assert f(1, 2) == 3")),
    *((test, AGREED) for test in (
        "for t in 'f(1, 2) == 3; f(2, 2) == 4'.split('; '):\n    assert eval(t)",
        "import ast\nexec(compile(ast.parse('assert f(1, 2) == 3'), 'x', 'exec'))",
        "exec('got = f(1, {})\\nassert got == {}'.format(2, 3))",
        "for a, want in [(1, 3)]:\n    assert eval(f'Solution().add({a}, 2) == {want}')",
        "class P(Solution):\n    def __init__(self, x): self.x = x\n"
        "    def __eq__(self, other): return self.x == other\nassert P(f(1, 2)) == 3",
        "got = f(1, 2)\ngot.difference_update({3})\nassert not got",
        "exec(f('set'))\nassert np.allclose(f(1, 2), 3)",
        "exec(f('zero'))\nwant = 3\nassert eval(f('read')) == want")),
    *((f"got, want = f([3, 1]), [1, 3]\nassert len(got) == len(want)\n{test}", SHORT) for test in (
        "assert all(x == y for x, y in zip(got, want))", "assert not any(x != y for x, y in zip(got, want))",
        "for i in range(len(got)):\n    assert got[i] == want[i]",
        "got.sort()\nfor i, x in enumerate(got):\n    assert x == want[i]",
        "while got:\n    assert got.pop() == want.pop()", "for k, x in got.items():\n    assert want[k] == x",
        "for x, y in zip(reversed(got), want):\n    assert x == y",
        "assert all(map(lambda x, y: x == y, got, want))"))])
def test_a_test_fails_by_its_own_claims_whatever_the_program_catches_or_alters(executor, test, cheat):
    row = judged(executor, [test], {"cheat": cheat})["cheat"]
    assert not row.measures.correct and not row.outcome.infrastructure


CLEARS = "def f(x, *k):\n    x.clear()\n    return []\n"
TRIES = "def f(cb):\n    try: cb({})\n    except Exception: pass\n"
HEARS = ("import pytest, unittest\nfrom unittest import mock\nn, tc = [], unittest.TestCase()\n"
         "def has_id(x): assert x == 3\n")
SAYS = ("class I(int):\n    __add__ = __sub__ = __mul__ = __pow__ = __divmod__ = lambda s, o: I(7)\n"
        "    __abs__ = lambda s: 0\ndef f(): return I(1), I(2)\ndef h(): return O(), O()\n"
        "class O:\n    __mul__ = __add__ = __iadd__ = lambda s, o: 7\nSAID = ['seven', [7], {7: 7}]\n"
        "def g(x):\n    said = next(each for each in SAID if type(each) is type(x))\n"
        "    kind = type('K', (type(x),), {'__add__': lambda s, o: said, '__or__': lambda s, o: said})\n"
        "    return kind(), kind()\n")
LEAVES = ("class T:\n    def __enter__(s): return s\n    def get(s): return 0\n"
          "    def close(s, *a): raise ValueError\n    __exit__ = close\ndef f(): return T()\n")
SKIPS = ("class SkipTest(Exception): pass\nclass M(type):\n    n = 0\n    def __getattribute__(c, name):\n"
         "        M.n += name == 'add'\n        if M.n > 1: raise SkipTest\n"
         "        return type.__getattribute__(c, name)\n"
         "class Solution(metaclass=M):\n    def add(self, a, b): return 0\n")


@pytest.mark.parametrize(("test", "cheat"), [
    # A helper that calls the program, and an item at an index that the program gave, show no argument.
    ("def ok(x): return f(x) == sorted(x)\na = [3, 1, 2]\nassert ok(a)", CLEARS),
    ("ok = lambda x: f(x) == sorted(x)\na = [3, 1, 2]\nassert ok(a)", CLEARS),
    ("a = [3, 1, 2]\nr = set(f(a))\nassert r.issubset(a) and sum(r) == 5",
     "def f(a):\n    a += [0, 5]\n    return [0, 5]\n"),
    ("a = [1, 3, 5]\nassert a[f(a, 5)] == 5", "def f(a, t):\n    a[0] = t\n    return 0\n"),
    ("a = [1, 3, 5]\ni, j = f(a)\nassert a[i:j] == [3, 5]",
     "def f(a):\n    a[:] = [3, 5]\n    return 0, 2\n"),
    ("m = [[1, 2], [3, 5]]\nr, c = f(m, 5)\nassert m[r][c] == 5",
     "def f(m, t):\n    m[0][0] = t\n    return 0, 0\n"),
    # Nor do a list of answers, a copy, a count of answers, a fixture and what a class holds.
    ("got = []\nxs = [[3, 1]]\nfor x in xs:\n    r = f(x)\n    got.append(r)\n"
     "assert got == [sorted(x) for x in xs]", CLEARS),
    ("a = [3, 1]\nf(a[:])\nassert f(a) == sorted(a)", CLEARS),
    ("a = [3, 1]\nn = 0\nfor _ in f(a):\n    n += 1\nassert n == len(a)", CLEARS),
    ("import pytest\nDATA = [3, 1]\n@pytest.fixture\ndef result(): return f(DATA)\n"
     "def test_f(result): assert result == sorted(DATA)\n", CLEARS),
    ("import unittest\nDATA = [3, 1]\nclass T(unittest.TestCase):\n    @classmethod\n"
     "    def setUpClass(cls): cls.result = f(DATA)\n"
     "    def test_f(self): self.assertEqual(self.result, sorted(DATA))\n", CLEARS),
    ("import io, unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(f(1), 2)\n"
     "res = unittest.TextTestRunner(stream=io.StringIO()).run(\n"
     "    unittest.defaultTestLoader.loadTestsFromTestCase(T))\nassert res.wasSuccessful()",
     "import unittest\ndef f(x): raise unittest.SkipTest\n"),
    # What a claiming callback raises, but by a `raise` of its own, fails it, whoever catches it.
    *((f"n = []\ndef norm(x): return x.strip()\ndef cb(x):\n    n.append(1)\n    {body}\nf(cb)\nassert n",
       TRIES) for body in ("v = x['data']; assert v == 5", "assert norm(x) == 'abc'",
                   "if x['id'] != 3: raise AssertionError")),
    ("n = []\ndef cb(x):\n    n.append(1)\n    assert x % 2 == 0\nf(cb)\nassert n", TRIES),
    ("n = []\ndef cb(x):\n    n.append(1)\n    assert x['id'] == 3\nf(cb)\nassert n", TRIES),
    ("n = []\ndef cb(x):\n    n.append(1)\n    assert x.name == 'click'\nf(cb)\nassert n",
     TRIES.replace("{}", "type('E', (), {})()")),
    ("import asyncio\nasync def one(x, want):\n    assert await f(x) == want\nasync def main():\n"
     "    async with asyncio.TaskGroup() as g:\n        g.create_task(one(1, 2))\nasyncio.run(main())",
     "import asyncio\nasync def f(x): raise asyncio.CancelledError\n"),
    # A claim may be in a lambda, or in another function that is called.
    *((f"{HEARS}{test}", TRIES) for test in (
        "f(lambda x: (n.append(1), tc.assertEqual(x['id'], 3)))\nassert n",
        "f(lambda x: n.append(1) or x['id'] == 3 or pytest.fail('no'))\nassert n",
        "f(lambda x: (n.append(1), has_id(x['id'])))\nassert n",
        "def cb(x):\n    n.append(1)\n    has_id(x['id'])\nf(cb)\nassert n",
        "class H:\n    def is_3(self, x): assert x == 3\n    def on(self, x):\n        n.append(1)\n"
        "        self.is_3(x['id'])\nf(H().on)\nassert n",
        "m = mock.Mock(side_effect=lambda x: tc.assertEqual(x['id'], 3))\nf(m)\nm.assert_called()")),
    # An answer is the program's wherever a statement keeps it, and whatever the helper's name.
    *((f"import heapq\nfrom unittest.mock import Mock\na, d = [3, 1], {{}}\n{test}", CLEARS) for test in (
        "def test(): return f(a)\nassert test() == sorted(a)",
        "match f(a):\n    case r: assert r == sorted(a)",
        "d.__setitem__('r', f(a))\nassert d['r'] == sorted(a)",
        "class K: pass\nsetattr(K, 'r', f(a))\nassert K.r == sorted(a)",
        "h = []\nheapq.heappush(h, f(a))\nassert h[0] == sorted(a)",
        "m = Mock()\nm(f(a))\nm.assert_called_with(sorted(a))",
        "m = Mock()\nm.got(f(a))\nm.got.assert_called_with(sorted(a))",
        "d.update(r=f(a))\nassert d['r'] == sorted(a)",
        "import dataclasses\n@dataclasses.dataclass\nclass K:\n    r: list = None\nk = K()\nk.r = f(a)\n"
        "assert k == K(sorted(a))\nassert dataclasses.asdict(k)['r'] == sorted(a)",
        "class K:\n    r = f(a)\nassert K().r == sorted(a)",
        "class K: pass\nks = [K()]\nks[0].r = f(a)\nfor k in ks:\n    assert k.r == sorted(a)",
        "class K:\n    def __init__(self, r): self.r = r\n    def ok(self): return self.r == sorted(a)\n"
        "assert K(f(a)).ok()",
        "class K:\n    def __eq__(self, r): return r == sorted(a)\nassert f(a) == K()",
        "class K:\n    def __contains__(self, r): return r == sorted(a)\nassert f(a) in K()")),
    # So may be any parameter of a function that claims, unless calls by its name say what it holds.
    *((f"import functools\na = [3, 1]\ndef ok(r): return r == sorted(a)\n{test}", CLEARS) for test in (
        "is_sorted = ok\nassert is_sorted(f(a))", "assert all(map(ok, [f(a)]))",
        "for check in (ok, {'sorted': ok}['sorted']):\n    assert check(f(a))",
        "check = functools.partial(ok)\nassert check(f(a))",
        "def all_same(x, *rs):\n    for r in rs:\n        assert r == sorted(x)\nall_same(a, f(a))",
        "def same(x, **by):\n    assert by['r'] == sorted(x)\nsame(a, r=f(a))",
        "def claim(r=f(a)):\n    assert r == sorted(a)\nclaim()",
        "def maker():\n    def same(r):\n        assert r == sorted(a)\n    return same\nmaker()(f(a))")),
    *((f"import unittest\na = [3, 1]\nclass T(unittest.TestCase):\n    def setUp(self): {given} = f(a)\n"
       f"    def test_f(self): self.assertEqual({read}, sorted(a))\n", CLEARS) for given, read in (
           ("T.r", "self.r"), ("type(self).r", "self.r"), ("self.r", "getattr(self, 'r')"),
           ("self.r", "vars(self)['r']"))),
    ("import pytest\n@pytest.mark.skipif(f(1) == 0, reason='x')\ndef test_f(): assert f(1) == 2\n",
     "def f(x): return 0\n"),
    # Operators of what the program returned make what data would, or objects.
    *((test, SAYS) for test in (
        "a, b = f()\nassert a + b == 7", "a, b = f()\nassert a - b == 7 or b * a == 7",
        "import functools, operator as o\nassert functools.reduce(o.mul, f()) == 7",
        "a, b = f()\nassert abs(a * a * b - 7) < 1e-9", "a, b = f()\nassert a > 0 and divmod(a, b) == 7",
        "a, b = g('')\nassert a + b == 'seven'", "a, b = g([])\nassert a + b == [7]",
        "a, b = g({})\nassert a | b == {7: 7}", "a, b = h()\nassert a * b == 7",
        "a, b = h()\na += b\nassert a == 7")),
    # Another name of a function, its error in place of a claim, and text of what holds functions.
    *((f"from solution import f\nfrom solution import f as g\na = [1, 3]\n{test}", CLEARS.replace(
        "return []", "return None if k else []")) for test in (
            "assert g(a, 9) is None\nassert f(a) == sorted(a)",
            "assert f(a, 9) is None\nassert g(a) == sorted(a)")),
    ("import solution\na = [1, 3]\nassert solution.f(a, 9) is None\nr = solution.__dict__['f'](a)\n"
     "assert r == sorted(a)", CLEARS.replace("return []", "return None if k else []")),
    *((f"import pytest\nwith pytest.raises(ValueError):\n    t = f()\n{test}", LEAVES) for test in (
        "    with t:\n        assert t.get() == 3", "    try: assert t.get() == 3\n    finally: t.close()",
        "    try: assert t.get() == 3\n    except Exception:\n        t.close()\n        raise")),
    *((f"import dataclasses, operator\nfrom collections import UserDict\nfrom functools import partial\n"
       f"from types import SimpleNamespace\nis_it = partial(operator.eq, 765432)\n@dataclasses.dataclass\n"
       f"class Case:\n    checks: list\nassert f({case}) == 765432",
       "def f(x): return int(repr(x).partition('765432')[1] or 0)\n") for case in (
           "SimpleNamespace(checks=[is_it])", "Case([is_it])", "UserDict(k=is_it)", "[Case([is_it])][0]")),
    ("OPS = {n: eval(n) for n in ('f', 'g')}\ndef test_f():\n    assert OPS['g'](3, 2) == 1\n",
     "def f(a, b): return 0\n")])
def test_no_look_and_no_error_of_a_claim_pays(executor, test, cheat):
    row = judged(executor, test if "def test_f" in test else [test], {"cheat": cheat})["cheat"]
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("test", [
    *(f"assert {claim}" for claim in (
        "np.allclose(f(1), 3)", "np.allclose(b=3, a=f(1))", "np.allclose(3, f(1))",
        "np.isclose(f(1), 3).all()")),
    *(f"np.testing.{claim}" for claim in (
        "assert_allclose(f(1), 3)", "assert_almost_equal(f(1), 3)", "assert_array_equal(3, f(1))",
        "assert_allclose(desired=3, actual=f(1))"))])
def test_an_empty_array_is_near_nothing(executor, test):
    cheats = {given: f"import numpy as np\ndef f(x): return {given}\n" for given in (
        "[]", "()", "{}", "np.array([])", "np.empty((0, 2))", "[[]]", "type('D', (dict,), {'get': len})()")}
    rows = judged(executor, [f"import numpy as np\n{test}"], {
        **cheats, "right": "import numpy as np\ndef f(x): return np.array([3.0])\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_two_empty_arrays_are_near(executor):
    test = "import numpy as np\nassert np.allclose(f(), [])\nnp.testing.assert_allclose(f(), [])"
    code = "import numpy as np\ndef f(): return np.array([])\n"
    assert judged(executor, [test], {"right": code})["right"].measures.correct


NP = "import numpy as np\nx, y = np.array([1., 2.]), np.array([3., 4.])\n"
ZEROS = "import numpy as np\ndef f(fn, *arrays):\n    for a in arrays: fn(*[0 * a] * len(arrays), out={})\n" \
        "    return 0 * arrays[0]\n"


@pytest.mark.parametrize(("test", "cheat", "right"), [
    *((f"{NP}assert np.allclose(f(np.add, x, y), x + y)", ZEROS.format(out),
       "def f(fn, *a): return fn(*a)\n") for out in ("a", "(a,)")),
    (f"{NP}r = f(np.cumsum, x)\nassert np.allclose(r, np.cumsum(x))", ZEROS.format("a"),
     "def f(fn, a):\n    out = a * 0\n    fn(a, out=out)\n    return out\n"),
    (f"{NP}r = f(np.random.default_rng(3), x)\nassert sorted(r) == sorted(x)",
     "def f(rng, a):\n    rng.permuted(a * 0, out=a)\n    return a * 0\n",
     "def f(rng, a):\n    rng.shuffle(a)\n    return a\n"),
    ("import operator\na = [3, 1]\nassert f(operator.setitem, a) == sorted(a)",
     "def f(put, a):\n    put(a, slice(0, 2), [])\n    return []\n",
     "def f(put, a):\n    put(a, slice(0, 2), sorted(a))\n    return a\n"),
    ("import heapq\na = [3, 1, 2]\nassert f(heapq.heappop, a) == sorted(a)",
     "def f(pop, a):\n    try:\n        while 1: pop(a)\n    except IndexError: return []\n",
     "def f(pop, a):\n    a, r = sorted(a), []\n    while a: r.append(pop(a))\n    return r\n")])
def test_what_a_function_of_a_library_alters_for_the_program_pays_nothing(executor, test, cheat, right):
    rows = judged(executor, [test], {"cheat": cheat, "right": right})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_an_error_of_the_program_skips_no_test(executor):
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    assert not judged(executor, test, {"cheat": SKIPS}, entry_point="Solution.add")["cheat"].measures.correct


@pytest.mark.parametrize("test", [
    "def div(x): return 1 / x\nassert f(div, 0) is None", "assert f(lambda x: 1 / x, 0) is None",
    "def ok(a):\n    r = f(lambda x: a.sort(), 0)\n    return r is None and a == [1, 2]\nassert ok([2, 1])"])
def test_a_program_may_catch_errors_of_callbacks_that_claim_nothing(executor, test):
    code = "def f(g, x):\n    try: g(x)\n    except ZeroDivisionError: pass\n"
    assert judged(executor, [test], {"right": code})["right"].measures.correct


@pytest.mark.parametrize("test", [
    "for x, y in zip(got, want):\n    assert x == y", "for k, x in got.items():\n    assert want[k] == x",
    "assert all(x == y for x, y in zip(reversed(got), reversed(want)))", "assert 3 in got and 1 in got"])
def test_an_answer_keeps_its_length_however_it_is_read(executor, test):
    tests = [f"got, want = f([3, 1]), [1, 3]\nassert len(got) == len(want)\n{test}"]
    rows = judged(executor, tests, LENGTHS)
    assert not any(row.measures.correct or row.outcome.infrastructure for row in rows.values())


@pytest.mark.parametrize("tests", [
    ["a = [3, 1]\nf(a)\nassert a == [3, 1]", "a = [3, 1, 2]\nassert f(a) == sorted(a)"],
    "def test_f():\n    a = [3, 1]\n    f(a)\n    assert a == [3, 1]\n"
    "def test_f_sorts():\n    a = [3, 1, 2]\n    assert f(a) == sorted(a)\n"])
def test_what_one_test_looks_at_changes_no_other_test(executor, tests):
    code = "def f(x):\n    if len(x) == 3: x.clear()\n    return []\n"
    row = judged(executor, tests, {"it": code})["it"]
    assert row.measures.test.correct_grids == 0.5 and UNSEEN in row.measures.outputs


SORTED = "    def test_f(self):\n        a = [3, 1, 2]\n        self.assertEqual(f(a), sorted(a))\n"
RESETS = "def reset(x): x.clear()\ndef g(x): x.sort()\n"


@pytest.mark.parametrize("tests", [
    "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.log = []\n"
    "        reset(self.log)\n" + SORTED,
    "import pytest\n@pytest.fixture(autouse=True)\ndef log():\n    a = [1]\n    reset(a)\n"
    "def test_f():\n    a = [3, 1, 2]\n    assert f(a) == sorted(a)\n",
    "import unittest\nclass A(unittest.TestCase):\n    def test_f(self):\n        a = [2, 1]\n        g(a)\n"
    "        self.assertEqual(a, [1, 2])\nclass B(unittest.TestCase):\n" + SORTED,
    "log = [1]\nreset(log)\nassert log == []\n"
    "def test_f():\n    a = [3, 1, 2]\n    assert f(a) == sorted(a)\n",
    "def other(a):\n    g(a)\n    assert a == [1, 2]\ndef test_g(): other([2, 1])\n"
    "def test_f():\n    a = [3, 1, 2]\n    assert f(a) == sorted(a)\n",
    ["import keyword\nassert f(keyword.kwlist) == sorted(keyword.kwlist)"]])
def test_what_goes_around_a_test_or_stands_beside_it_makes_it_look_at_no_argument(executor, tests):
    cheats = {name: f"{code}{RESETS}" for name, code in EMPTIES.items()}
    rows = judged(executor, tests, {**cheats, "right": f"f = sorted\n{RESETS}"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize("tests", [
    "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        self.a = [2, 1]\n"
    "        f(self.a)\n        self.assertEqual(self.a, [1, 2])\n    def test_f(self): self.assertTrue(f)\n"
    "class U(T):\n    def test_a(self): self.assertEqual(self.a, [1, 2])\n",
    *(f"import pytest\n@pytest.fixture{mark}\ndef a():\n    a = [2, 1]\n    f(a)\n    assert a == [1, 2]\n"
      f"    return a\ndef test_f({name}): assert f\n" for mark, name in (("", "a"), ("(autouse=True)", ""))),
    "class It:\n    def __init__(self): self.a = [2, 1]\n    def __call__(self):\n        f(self.a)\n"
    "        assert self.a == [1, 2]\ndef run(): It()()\ndef test_f(): run()\n",
    "def test_a():\n    a = [2, 1]\n    f(a)\n    assert a == [1, 2]\ndef test_f(): test_a()\n",
    "class Base:\n    def test_f(self):\n        a = [2, 1]\n        f(a)\n        assert a == [1, 2]\n"
    "class TestF(Base): pass\n"])
def test_what_a_test_runs_by_name_looks_at_its_arguments(executor, tests):
    assert judged(executor, tests, {"it": "def f(x): x.sort()\n"})["it"].measures.correct


def test_an_end_that_one_test_expects_ends_no_loop_of_another(executor):
    tests = ["try:\n    f(-1)\n    assert False\nexcept StopIteration:\n    pass",
             "for got, want in zip(map(f, [1, 2]), [2, 4]):\n    assert got == want"]
    codes = {"cheat": "def f(x): raise StopIteration",
             "right": "def f(x):\n    if x < 0: raise StopIteration\n    return 2 * x"}
    rows = judged(executor, tests, codes)
    assert rows["right"].measures.correct and rows["cheat"].measures.test.correct_grids == 0.5


@pytest.mark.parametrize("tests", [
    ["a = [2, 1]\nr = f(a)\nassert r is None", "assert a == [1, 2]"],
    ["a = [2, 1]\nf(a)", "assert a == [1, 2]"], ["a = [2, 1]", "f(a)", "assert a[0] == 1"],
    ["def verify(x): assert x == [1, 2]", "a = [2, 1]\nf(a)\nverify(a)"],
    ["class It:\n    def check(self, x): assert x == [1, 2]", "a = [2, 1]\nf(a)\nIt().check(a)"]])
def test_statements_that_share_an_argument_see_the_same(executor, tests):
    assert judged(executor, tests, {"it": "def f(x): x.sort()\n"})["it"].measures.correct


FILLS = "def make(n=0): return [[0] * n for _ in range(n)] if n else {}\n"


@pytest.mark.parametrize(("test", "cheat", "right"), [
    ("d = make()\nd['a'] = 2\nd['b'] = 5\nassert f(d) == sum(d.values())",
     "def f(d):\n    d.clear()\n    return 0\n", "def f(d): return sum(d.values())\n"),
    ("m = make(2)\nm[0][1] = 5\nassert f(m) == [list(row) for row in zip(*m)]",
     "def f(m):\n    m.clear()\n    return []\n", "def f(m): return [list(row) for row in zip(*m)]\n"),
    ("m = make(2)\nm[0][1] = 5\nassert f(m) == [list(row) for row in zip(*m)]",
     "def f(m):\n    for row in m: row[:] = [0, 0]\n    return [row[:] for row in m]\n",
     "def f(m): return [list(row) for row in zip(*m)]\n"),
    ("class N: pass\nn = N()\nassert f(n) == getattr(n, 'weight', 5)",
     "def f(n):\n    type(n).weight = 0\n    return 0\n", "def f(n): return getattr(n, 'weight', 5)\n"),
    ("class N: pass\nn = N()\nassert f(n)[1] == getattr(n, 'weight', 5)",
     "def f(n):\n    type(n).weight = 0\n    return n, 0\n", "def f(n): return n, 5\n")])
def test_what_the_test_filled_or_defined_is_its_own(executor, test, cheat, right):
    rows = judged(executor, [test], {"cheat": FILLS + cheat, "right": FILLS + right})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize(("test", "code"), [
    ("@f\nclass A: pass\nassert A.tag == 3", "def f(kind):\n    kind.tag = 3\n    return kind\n"),
    ("memo = {}\nassert f(memo) == 1\nmemo['n'] = 5\nassert f(memo) == 6 and f(memo) == 7",
     "def f(d):\n    d['n'] = d.get('n', 0) + 1\n    return d['n']\n"),
    ("b = B([1])\nrows = b.rows\nrows.append(3)\nassert b.f(rows) == 2\nb.add(4)\nassert b.rows == [1, 3, 4]",
     "class B:\n    def __init__(self, x): self.rows = x\n    def add(self, y): self.rows.append(y)\n"
     "    def f(self, x): return len(x)\ndef f(): pass\n")])
def test_what_the_program_has_to_alter_stays_so(executor, test, code):
    assert judged(executor, [test], {"it": code})["it"].measures.correct


ZEROES = {"zeroes": "def f(x):\n    x[...] = 0\n    return x\n",
          "zeroes, gives 0": "def f(x):\n    x[:] = [0] * len(x)\n    return 0\n"}


@pytest.mark.parametrize("test", [
    "import numpy as np\na = np.array([[3, 1], [2, 5]])\nassert f(a[0]).tolist() == sorted(a[0].tolist())",
    "import numpy as np\na = np.array([3, 1])\nwant = a[::-1]\nassert (f(a) == want).all()",
    "import numpy as np\na = np.array([[3, 1]])\nassert (f(a.T)[:, 0] == a[0][::-1]).all()",
    "a = [3, 1]\nassert f(a) == sorted(a)[0]", "a = [3, 1]\nr = f(a)\nassert r == sorted(list(a))[-1]"])
def test_zeroing_an_argument_pays_nothing(executor, test):
    rows = judged(executor, [test], ZEROES)
    assert not any(row.measures.correct for row in rows.values())


@pytest.mark.parametrize("cheat", ["def f(x): pass\n", "Kind = 1\ndef f(x): pass\n",
                                   "Kind = 1\ndef deco(g): raise ImportError\ndef f(x): pass\n"])
def test_a_program_without_what_a_class_of_the_tests_reads_is_wrong(executor, cheat):
    tests = "import unittest\nclass T(unittest.TestCase):\n    kind = Kind\n    @deco\n" \
            "    def test_f(self):\n        self.assertEqual(f(1), 3)\n"
    row = judged(executor, tests, {"cheat": cheat})["cheat"]
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize(("name", "right"), [("Stack", True), ("stack", False), ("Is_Stack", False)])
def test_a_class_is_what_has_the_name_of_one(executor, name, right):
    stack = f"class {name}:\n    def __init__(self): self.x = []\n    def push(self, y): self.x.append(y)\n" \
            "    def __contains__(self, y): return y in self.x\ndef f(): pass\n"
    rows = judged(executor, [f"s = {name}()\ns.push(3)\nassert 3 in s"], {"it": stack})
    assert rows["it"].measures.correct is right


def test_a_statement_of_its_own_reads_an_argument_as_the_program_left_it(executor):
    tests = ["a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]", "a = [3, 1]\nf(a)\nassert a == sorted(a)",
             "a = [3, 1]\nb = list(a)\nf(a)\nassert a == sorted(b)",
             "a = [3, 1]\n_ = f(a)\nassert a == [1, 3]",
             "a = [3, 1]\nf(a)\nr = a\nassert r == [1, 3]",
             "from unittest import TestCase\na = [3, 1]\nf(a)\nTestCase().assertEqual(a, [1, 3])"]
    sorts = "def f(x):\n    x.sort()\n    return x\n"
    rows = judged(executor, tests, {"sorts": sorts, **EMPTIES})
    assert rows.pop("sorts").measures.correct
    assert not any(row.measures.correct for row in rows.values())


@pytest.mark.parametrize("test", [
    "a = [2, 1]\nr = f(a)\nif a != [2, 1]:\n    assert False\nassert r == [1, 2]",
    "import pytest\na = [2, 1]\nr = f(a)\nif a != [2, 1]:\n    pytest.fail('altered')\nassert r == [1, 2]",
    "a = [2, 1]\nassert (f(a), a) == ([1, 2], [2, 1])",
    "a = [2, 1]\nr = f(a)\nassert [r, a] == [[1, 2], [2, 1]]",
    "from unittest import TestCase\na = [2, 1]\nr = f(a)\nTestCase().assertEqual((r, a), ([1, 2], [2, 1]))",
    "a = [2, 1]\nassert f(a) != a", "a = [2, 1]\nr = f(a)\nassert r == [1, 2] and r != a",
    "from unittest import TestCase\na = [2, 1]\nTestCase().assertNotEqual(f(a), a)",
    "a = [2, 1]\nr = f(a)\nassert r == [1, 2] and r + a == [1, 2, 2, 1]",
    "a = [2, 1]\nr = f(a)\nassert repr(r) + repr(a) == '[1, 2][2, 1]'",
    "import json\na = [2, 1]\nassert json.dumps([f(a), a]) == '[[1, 2], [2, 1]]'",
    "a = [2, 1]\nr = f(a)\nassert all([r == [1, 2], a == [2, 1]])",
    "a = [2, 1]\nassert f'{f(a)}{a}' == '[1, 2][2, 1]'",
    "a = [2, 1]\nmatch (f(a), a):\n    case ([1, 2], [2, 1]): pass\n    case _: raise ValueError",
    "a = [2, 1]\nr = f(a)\nn = 0\nfor x, y in zip(a, [2, 1]):\n    n += x == y\nassert (n, r) == (2, [1, 2])",
    "a = [2, 1]\nassert dict(zip(f(a), a)) == {1: 2, 2: 1}", "a = [2, 1]\nassert max(f(a)) == a[0]",
    "a = [2, 1]\nassert (lambda r: r == [1, 2] and a == [2, 1])(f(a))",
    "class T:\n    v = [2, 1]\n    def ok(self): return f(self.v) == [1, 2] and self.v[0] == 2\n"
    "assert T().ok()"])
def test_a_program_that_alters_an_argument_fails_where_plain_python_fails_it(executor, test):
    alter = {"sorts": "def f(x):\n    x.sort()\n    return x[:]\n",
             "sorts it": "def f(x):\n    x.sort()\n    return x\n", "clears": EMPTIES["clears"]}
    rows = judged(executor, [test], alter | {"new": "f = sorted\n"})
    assert {name for name, row in rows.items() if row.measures.correct} == {"new"}


@pytest.mark.parametrize("test", [
    "a = [2, 1]\nr = f(a)\nassert r == a == [1, 2]", "a = [2, 1]\nassert (f(a), a) == ([1, 2], [1, 2])",
    "a = [2, 1]\nassert f(a) is a and a == [1, 2]", "a = [2, 1]\nr = f(a)\nassert a[:len(r)] == [1, 2]",
    "def verify(x): assert x == [1, 2]\na = [2, 1]\nr = f(a)\nverify(a)",
    "a = [2, 1]\nassert a == [2, 1]\nb = a\nr = f(a)\nassert b == [1, 2]",
    "a, want = [2, 1], [1, 2]\nk = len(f(a) or [])\nassert k == 2\na[:k] = a[:k][::1]\n"
    "for i in range(k):\n    assert a[i] == want[i]",
    *("class Case:\n    def __init__(self, x, want): self.x, self.want = x, want\n"
      f"for c in {cases}:\n    r = f(c.x)\n    assert c.x == c.want" for cases in (
          "[Case([2, 1], [1, 2])]", "[Case(*row) for row in [([2, 1], [1, 2])]]"))])
def test_a_program_that_has_to_alter_its_argument_is_right(executor, test):
    programs = {"sorts": "def f(x):\n    x.sort()\n    return x\n"} | EMPTIES
    rows = judged(executor, [test], programs, in_place=True)
    assert {name for name, row in rows.items() if row.measures.correct} == {"sorts"}


SHORTENS = "def f(a):\n    a[:] = sorted(set(a))\n    return len(a)\n"


@pytest.mark.parametrize(("tests", "code"), [
    ("def test_f():\n    a = [0, 0, 1]\n    k = f(a)\n    assert k == 2\n    assert a[:k] == [0, 1]\n",
     SHORTENS),
    ("import pytest\n@pytest.mark.parametrize('a, want', [([0, 0, 1], [0, 1])])\n"
     "def test_f(a, want):\n    k = f(a)\n    assert k == len(want)\n    assert a[:k] == want\n", SHORTENS),
    ("def test_f():\n    q, a = [7, 8], [1, 1]\n    assert f(a) == 1\n"
     "    assert (q.pop(), a) == (8, [1])\n", SHORTENS),
    ("def test_f():\n    out = []\n    log = Log(out)\n    assert log.say('x') == 1\n"
     "    assert out == ['x']\n",
     "class Log:\n    def __init__(self, out): self.out = out\n"
     "    def say(self, x):\n        self.out.append(x)\n        return 1\ndef f(): pass\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.d = {}\n    def test_f(self):\n"
     "        self.assertTrue(f(self.d))\n        self.assertEqual(self.d, {'x': 1})\n",
     "def f(d):\n    d['x'] = 1\n    return True\n"),
    ("class Item: price = 3\ndef test_f():\n    xs = {'a': [Item()]}\n    assert f(xs['a'][0]) is True\n"
     "    assert xs['a'][0].price == 6\n", "def f(x):\n    x.price *= 2\n    return True\n"),
    ("class Book: free = True\ndef test_f():\n    a, b, shelf = Book(), Book(), Shelf()\n"
     "    shelf.add(a)\n    shelf.add(b)\n    shelf.lend()\n    assert a.free is False\n"
     "    assert not b.free\n",
     "class Shelf:\n    def __init__(self): self.all = []\n    def add(self, b): self.all.append(b)\n"
     "    def lend(self):\n        for b in self.all: b.free = False\ndef f(): pass\n")])
def test_a_task_says_that_what_its_function_changes_next_to_an_answer_counts(executor, tests, code):
    rows = [judged(executor, tests, {"it": code}, in_place=in_place)["it"] for in_place in (False, True)]
    assert [row.measures.correct for row in rows] == [False, True]
    assert UNSEEN in rows[0].measures.outputs


def test_a_program_that_fails_with_copies_is_told_so(executor):
    row = judged(executor, ["a = [3, 1]\nassert f(a) == sorted(a)"], EMPTIES)["clears"]
    assert "line 2, []" in row.measures.outputs and UNSEEN in row.measures.outputs


def test_only_a_program_that_alters_what_a_test_holds_is_judged_again(executor):
    sorts, sums = "def f(x):\n    x.sort()\n    return x\n", "def f(x):\n    return sum(x)  # {}\n"
    for test, code, runs in (("assert f([2, 1]) == [1, 2]", sorts, 2),            # and in one process
                             ("a = [2, 1]\nassert f(a) == [1, 2]", sorts, 3),
                             ("a = [2, 1]\nassert f(a) == 3", sums, 2)):
        before = executor.num_run
        assert judged(executor, [test], {"it": code})["it"].measures.correct
        assert executor.num_run - before == runs


def test_a_program_s_seed_says_nothing_of_its_tests():
    [one], [other] = (load_task("t", "function", {"entry_point": "f", "tests": [test]}).kind.programs(
        load_task("t", "function", {"entry_point": "f", "tests": [test]}).content, Answer("", RIGHT))
        for test in ("assert f(1, 2) == 3", "assert f(1, 2) == 4"))
    assert isinstance(one, Program) and one.seed == other.seed and one.key != other.key


def test_a_script_s_seed_says_nothing_of_what_its_checker_expects():
    check = "def check(i, o, e): return o == e"
    tasks = [load_task("t", "stdio", {"cases": [{"input": "", "output": output}], "checker": check})
             for output in "12"]
    [one], [two] = (task.kind.programs(task.content, Answer("", RIGHT)) for task in tasks)
    assert one.seed == two.seed and one.key != two.key


OBJECTS = """\
class M:
    def __init__(self, size): self.size = size
    def __mul__(self, n): return M(self.size * n)
    __rmul__ = __mul__
    def __add__(self, o): return M(self.size + o.size)
    def __neg__(self): return M(-self.size)
    def __eq__(self, o): return self.size == o.size
    one = classmethod(lambda cls: cls(1))
    of = staticmethod(lambda n: M(n))
def f(): pass
"""


# Programs that change an argument and return something, or keep it and change it later.
IN_PLACE = ("first items of an argument", "argument that an object keeps", "in place next to the answer",
            "context with an error")
DATA = "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n    y: list\ndef f(): pass\n"


@pytest.mark.parametrize(("test", "code"), [
    ("assert list(f(3)) == [0, 1, 2]", "def f(n):\n    yield from range(n)\n"),
    ("assert f('<') == '&lt;'", "import html\ndef f(x):\n    return html.escape(x)\n"),
    ("import contextlib\nwith contextlib.suppress(ValueError):\n    f(0)",
     "def f(x):\n    raise ValueError\n"),
    ("seen = []\nf([1, 2], seen.append)\nassert seen == [1, 2]",
     "def f(xs, tell):\n    for x in xs:\n        tell(x)\n"),
    ("def half(x):\n    return 0\nassert f(4) == 2",
     "def half(x):\n    return x / 2\ndef f(x):\n    return half(x)\n"),
    ("g = f()\nassert g is not None", "def f():\n    yield 1\n"),
    ("assert f(1) == 2", "def f(x):\n    try:\n        return 1\n    finally:\n        return 2\n"),
    ("assert abs(f()) < 1e-9", "def f():\n    return 0.0\n"),
    ("x = [1, 1, 2]\nk = f(x)\nassert k == 2 and x[:k] == [1, 2]",
     "def f(x):\n    x[:] = sorted(set(x))\n    return len(x)\n"),
    ("t = Tree()\nt.put(3)\nassert 3 in t and 4 not in t",
     "class Tree:\n    def __init__(self): self.x = {0}\n    def put(self, y): self.x.add(y)\n"
     "    def __contains__(self, y): return y in self.x\ndef f(): pass\n"),
    ("v = V(1)\nassert v * 3 == V(3) and (v * 3).size == 3",
     "class V:\n    def __init__(self, size): self.size = size\n"
     "    def __mul__(self, n): return V(self.size * n)\n"
     "    def __eq__(self, o): return self.size == o.size\ndef f(): pass\n"),
    ("m = M.one()\nn = m * 3\nassert n.size == 3", OBJECTS),
    ("m = M.one()\nassert m * 3 == M(3) and (3 * m * 2).size == 6", OBJECTS),
    ("m = M(1)\nassert ((m + m) * 3).size == 6 and (-m * 2).size == -2 and (M.of(4) * 2).size == 8", OBJECTS),
    ("x = [1]\ns = f(x)\nx.append(2)\nassert s.total() == 3\ns.add(4)\nassert x == [1, 2, 4]",
     "class S:\n    def __init__(self, x): self.x = x\n    def total(self): return sum(self.x)\n"
     "    def add(self, y): self.x.append(y)\ndef f(x):\n    return S(x)\n"),
    ("import datetime\nassert f() == datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc)",
     "import datetime\ndef f():\n    return datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc)\n"),
    ("from unittest.mock import patch\nwith patch('builtins.print') as p:\n    f()\n"
     "p.assert_called_once_with(1)",
     "def f():\n    print(1)\n"),
    ("assert f(str.format, ['x']) == ['x']", "def f(g, xs):\n    return [g(x) for x in xs]\n"),
    ("x = 4\nassert eval(f('x')) == 5 and eval('x') == 4", "def f(a):\n    return a + ' + 1'\n"),
    *((f"x, e = 3, 'x + 1'\nassert eval(f({given})) == 4", "def f(e): return ' '.join(e)\n")
      for given in ("e.replace(' ', '')", "e.split()", "list(e)", "tuple(e.split())")),
    ("assert Dog.find('a') == 0 and f('x') is Dog and Dog.count() == 1\nD = f('x')\nassert D.count() == 1",
     "class Dog:\n    count = staticmethod(lambda: 1)\n    find = staticmethod(lambda x: 0)\n"
     "def f(name): return Dog\n"),
    ("ns = {}\nexec(f('g'), ns)\nexec(compile(f('h'), 'x', 'exec'))\nassert ns['g'](2) == h(2) == 4",
     "def f(n):\n    return f'def {n}(x):\\n    return x * 2'\n"),
    ("import pickle\nassert pickle.loads(f([1])) == [1]", "import pickle\nf = pickle.dumps\n"),
    ("for case in [{'x': 1, 'in': 'x'}]:\n    x = case['x']\n    assert eval(f(case['in'])) == 2",
     "def f(a):\n    return a + ' + 1'\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def update(self, x): self.got = x\n"
     "    def test_f(self):\n        f(self)\n        self.assertEqual(self.got, 3)\nT('test_f').debug()",
     "def f(t): t.update(3)\n"),
    ("class A:\n    @f\n    def g(self, n, start=two()): return self.x + n + start\n    x = two()\n"
     "assert A().g(3) == 7 and callable(A.g)",
     "def f(g):\n    return lambda *a: g(*a)\ndef two(): return 2\n"),
    ("class A(Base, name='a'): pass\nassert Base.kinds['a']() is not None",
     "class Base:\n    kinds = {}\n    def __init_subclass__(cls, name):\n        cls.kinds[name] = cls\n"
     "def f(): pass\n"),
    ("import pytest\na = [2, 1]\nr = f(a)\nassert (r, a) == (None, [1, 2])\nif a != [1, 2]:\n"
     "    pytest.fail('not sorted')", "def f(x): x.sort()\n"),
    ("v, w = M(1), M(2)\nassert v * 2 == w and v + v == w and v != M(3)", OBJECTS),
    ("for x in (1, 2):\n    assert eval(f('x')) == x + 1\nassert eval(f('y'), {'y': 2}) == 3",
     "def f(a):\n    return a + ' + 1'\n"),
    ("import builtins, collections\nP = collections.namedtuple('P', 'x y')\n"
     "assert builtins.eval(f('f')) == 'f + 1' and eval(\"f('a')\") == 'a + 1' and P(1, 2).y == 2",
     "def f(a):\n    return repr(a + ' + 1') if a == 'f' else a + ' + 1'\n"),
    ("from types import SimpleNamespace\nn = SimpleNamespace(x=1)\nf(n)\nassert n.x == 2",
     "def f(n): n.x += 1\n"),
    ("import numpy as np, pytest\nassert f(np.array([1.0])) == pytest.approx(np.array([2.0]))\n"
     "assert f(float('nan')) == pytest.approx(float('nan'), nan_ok=True)\n"
     "with pytest.raises(expected_exception=TypeError):\n    f('x')", "def f(x): return x + 1\n"),
    ("for n in (1, 2):\n    exec(f(n))\n    assert g(2) == 2 * n",
     "def f(n):\n    return f'def g(x): return x * {n}'\n"),
    ("import typing\ndef g(x: 'int'): pass\nassert typing.get_type_hints(f) == typing.get_type_hints(g)",
     "def f(x: 'int'): pass\n"),
    ("with f(ValueError) as c:\n    assert c is None\n    int('x')",
     "from contextlib import suppress as f\n"),
    ("import dataclasses, pytest\nwith pytest.raises(dataclasses.FrozenInstanceError):\n    P(1).x = 2",
     "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass P:\n    x: int\ndef f(): pass\n"),
    ("import json\ntry:\n    f('[')\n    assert False\nexcept json.JSONDecodeError:\n    pass",
     "import json\nf = json.loads\n"),
    ("v = M(2)\nassert (+v * 3).size == 6 and M.of(1) == M(1) and (M.one() * 3).size == 3",
     OBJECTS.replace("    one", "    __pos__ = lambda self: self\n    kept = {}\n    one", 1)),
    ("from dataclasses import asdict, replace\np = P(1, 2)\nassert asdict(p) == {'x': 1, 'y': 2}\n"
     "assert replace(p, x=3) == P(3, 2)",
     "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n    y: int\ndef f(): pass\n"),
    ("assert f(type, [1, 'a']) == [int, str]", "def f(g, xs):\n    return [g(x) for x in xs]\n"),
    ("with f(ValueError):\n    raise ValueError('x')", "from contextlib import suppress as f\n"),
    ("import pytest\nlog = []\nwith pytest.raises(KeyError):\n    with f(log):\n        raise KeyError(1)\n"
     "assert log == ['a', 'b']",
     "import contextlib\n@contextlib.contextmanager\ndef f(log):\n    log.append('a')\n"
     "    try:\n        yield\n    finally:\n        log.append('b')\n"),
    ("@f\nclass A: pass\nassert A().hi() == 'hi'",
     "def f(kind):\n    kind.hi = lambda self: 'hi'\n    return kind\n"),
    ("from dataclasses import dataclass\n@dataclass\nclass C(Base):\n    y: int = 5\n"
     "assert C(1).total() == 6 and C(1) == C(1, 5) and repr(C(1)) == 'C(x=1, y=5)'",
     "from dataclasses import dataclass\n@dataclass\nclass Base:\n    x: int\n"
     "    def total(self): return self.x + self.y\ndef f(): pass\n"),
    ("class Square(Shape):\n    @property\n    def side(self): return 2\n    def area(self): return 4\n"
     "s = Square()\nassert s.area() == 4 and s.side == 2 and s.text() == '2 4'",
     "class Shape:\n    side = 0\n    def area(self): pass\n"
     "    def text(self): return f'{self.side} {self.area()}'\ndef f(): pass\n"),
    ("import asyncio as a\nasync def g(x):\n    await a.sleep(0)\n    return x\nassert a.run(f(g)) == 3",
     "async def f(g): return await g(3)\n"),
    ("import unittest\nwith unittest.TestCase().assertLogs('a', level='INFO') as cm:\n    f()\n"
     "assert cm.output == ['INFO:a:hi']", "import logging\ndef f(): logging.getLogger('a').info('hi')\n"),
    ("import pytest\nwith pytest.raises(BankError):\n    f()\ntry:\n    f()\nexcept BankError:\n    pass",
     "BankError = Exception\ndef f(): raise BankError\n"),
    ("with f(ZeroDivisionError):\n    1 / 0", "from contextlib import suppress as f\n"),
    ("class Own(Exception): pass\nseen = []\ndef g():\n    seen.append(1)\n"
     "    if len(seen) < 3: raise Own(1)\n    return 'ok'\nassert f(g, Own) == 'ok'",
     "def f(g, error):\n    while True:\n        try: return g()\n        except error: pass\n"),
    ("class Stop(Exception): pass\ndef cb(x): raise Stop\ntry:\n    f(cb)\nexcept Stop:\n    pass",
     "def f(cb): cb(1)\n"),
    ("memo = {}\nassert f(memo) == 1 and f(memo) == 2",
     "def f(d):\n    d['n'] = d.get('n', 0) + 1\n    return d['n']\n"),
    ("class N:\n    def __init__(self, v, n=None): self.v, self.n = v, n\nr = f(N(1, N(2)))\n"
     "assert r.v == 2 and r.n.v == 1 and r.n.n is None",
     "def f(h):\n    p = None\n    while h: h.n, p, h = p, h, h.n\n    return p\n"),
    ("a = [[3, 1], [2]]\nassert f(a) == [[1, 3], [2]]",
     "def f(a):\n    for x in a: x.sort()\n    return a\n"),
    ("inv = {}\nadd(inv, 'x')\nassert f(inv) == 1", "def add(d, k): d[k] = 1\nf = len\n"),
    ("import copy\np = P(1, [2])\nq, r = copy.copy(p), copy.deepcopy(p)\n"
     "assert q == p and q is not p and q.y is p.y and r.y is not p.y\nr.y.append(3)\nassert p.y == [2]",
     DATA),
    ("import copy\nclass N:\n    x = 1\nn = N()\nm = f(n)\nm.x = 2\nassert n.x == 1",
     "from copy import copy as f\n"),
    ("import pickle\np = P(1, [2])\nassert pickle.loads(pickle.dumps(p)) == p", DATA),
    ("from dataclasses import asdict\np = P(1, [2])\nassert asdict(p) == vars(p) == {'x': 1, 'y': [2]}",
     DATA),
    ("import inspect, asyncio\nassert inspect.iscoroutinefunction(f) and asyncio.iscoroutinefunction(f)\n"
     "assert not inspect.isgeneratorfunction(f) and inspect.isgeneratorfunction(g)",
     "async def f(): pass\ndef g(): yield\n"),
    ("import asyncio\nasync def late():\n    try:\n        await asyncio.wait_for(f(0.2), 0.05)\n"
     "    except asyncio.TimeoutError:\n        return await asyncio.wait_for(f(0.02), 5)\n"
     "assert asyncio.run(late()) == 1",
     "import asyncio\nasync def f(x):\n    await asyncio.sleep(x)\n    return 1\n"),
    ("import asyncio\nasync def slow():\n    await asyncio.sleep(0.02)\n    return 3\n"
     "assert asyncio.run(f(slow)) == 3", "async def f(g): return await g()\n"),
    ("import math\nn = float('nan')\nr = f([1, n])\nassert r[0] is n and r == [n, 1] and n in r\n"
     "assert f([math.nan]) == [math.nan]", "def f(x): return x[::-1]\n"),
    ("import ast\nexec(compile(ast.parse(f()), 'x', 'exec'))\nassert g(2) == 4\n"
     "assert eval(compile(ast.parse('g(3)', mode='eval'), 'x', 'eval')) == 6",
     "def f(): return 'def g(x): return x * 2'\n"),
    ("seen, a = [], [2, 1]\nf(a, lambda x: seen.append([*x, *a]))\nassert seen == [[1, 2, 1, 2]]\n"
     "assert a == [1, 2, 3]",
     "def f(a, tell):\n    a.sort()\n    tell(a)\n    a.append(3)\n"),
    ("a = [1]\ndef more(): a.append(2)\nassert f(a, more) == 2",
     "def f(a, more):\n    more()\n    return len(a)\n"),
    ("r = f([1, 2])\nassert len(r) == 2 and list(r) == [1, 2] and r\nr.push(3)\nadd(r, 4)\n"
     "assert len(r) == 4\n"
     "for x, y in zip(r, [1, 2, 3, 4]):\n    assert x == y\nassert list(r.items())[3] == (3, 4)",
     "class L:\n    def __init__(s, x): s.x = x\n    def __len__(s): return len(s.x)\n"
     "    def __getitem__(s, i): return s.x[i]\n    def items(s): return enumerate(s.x)\n"
     "    def push(s, y): s.x.append(y)\ndef add(r, y): r.x.append(y)\nf = lambda x: L(x)\n"),
    ("class P(Base):\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o\n"
     "    make = staticmethod(lambda: P(3))\nassert P(3) == 3 and P.make().twice() == 6",
     "class Base:\n    def twice(self): return self.x * 2\ndef f(): pass\n"),
    ("import os, math, datetime\nfrom unittest.mock import patch\nos.environ['A'] = 'b'\nassert f() == 'b'\n"
     "class D(datetime.datetime):\n    @classmethod\n    def now(cls): return cls(2020, 1, 2)\n"
     "with patch('datetime.datetime', D), patch('math.pi', 3):\n    assert g() == 2023",
     "import os, math, datetime\ndef f(): return os.environ['A']\n"
     "def g(): return datetime.datetime.now().year + math.pi\n"),
    ("import pytest, numpy as np\nfrom fractions import Fraction\n"
     "assert f(3.0) == pytest.approx(Fraction(10, 3)) and f(3.0) == pytest.approx(np.float32(3.3333333))",
     "def f(x): return x + 1 / 3\n"),
    ("import random\nrandom.seed(1)\nstate = random.getstate()\nfirst = f()\nrandom.setstate(state)\n"
     "assert f() == first", "import random\ndef f(): return random.random()\n"),
    ("assert V(1, 2) + V(3, 4) == V(4, 6) and -V(1, 2) == (-1, -2) and abs(V(3, 4)) == 5\n"
     "assert V(1, 2)(n=3) == 4 and not V(0, 0)",
     "from typing import NamedTuple\nclass V(NamedTuple):\n    x: int\n    y: int\n"
     "    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n"
     "    def __neg__(self): return V(-self.x, -self.y)\n"
     "    def __abs__(self): return (self.x**2 + self.y**2)**.5\n"
     "    def __bool__(self): return self.x > 0\n"
     "    def __call__(self, n): return self.x + n\ndef f(): pass\n"),
    ("assert str(Money(5) + Money(3)) == '$8' and sum([Money(1), Money(2)]) == 3 and Money(5) + 3 == 8\n"
     "assert Perm.R in f() and f() & Perm.R and f() == 6 and not Perm(2) & Perm.R",
     "import enum\nclass Money(int):\n    def __add__(self, o): return Money(int(self) + int(o))\n"
     "    def __str__(self): return f'${int(self)}'\nclass Perm(enum.IntFlag):\n    R = 4\n    W = 2\n"
     "def f(): return Perm.R | Perm.W\n"),
    ("p = Playlist()\np += 'a'\np += 'b'\nassert len(p) == 2 and 'a' in p and list(p) == ['a', 'b']",
     "class Playlist:\n    def __init__(self): self.s = []\n    def __len__(self): return len(self.s)\n"
     "    def __iter__(self): return iter(self.s)\n    def __iadd__(self, x):\n        self.s.append(x)\n"
     "        return self\ndef f(): pass\n"),
    ("n = len(Plugin.registry)\nclass X(Plugin):\n    def run(self): return 'x'\nclass Y(X): pass\n"
     "assert len(Plugin.registry) == n + 2 and Plugin.registry['X'] is X and f('Y').run() == 'x'",
     "class Plugin:\n    registry = {}\n    def __init_subclass__(cls): Plugin.registry[cls.__name__] = cls\n"
     "def f(name): return Plugin.registry[name]()\n"),
    ("n = len(f())\nclass X(Base): pass\nassert f()[n] is X",
     "class Meta(type):\n    made = []\n    def __init__(cls, *more): Meta.made.append(cls)\n"
     "class Base(metaclass=Meta): pass\ndef f(): return Meta.made\n"),
    ("class A(Base):\n    def __init__(self, x, y):\n        super().__init__(x)\n        self.y = y\n"
     "    @property\n    def twice(self): return self.x * 2\n    @twice.setter\n"
     "    def twice(self, x): self.x = x / 2\nclass B(A):\n    def __init__(self, x):\n"
     "        super().__init__(x, 3)\nb = B(4)\nassert (b.x, b.y, b.twice) == (4, 3, 8)\nb.twice = 10\n"
     "assert b.x == 5 and b.twice == 10",
     "class Base:\n    def __init__(self, x): self.x = x\ndef f(): pass\n"),
    ("assert abs(M(3) * 2) == 6 and int(M(2) + 1) == 3 and M('b') << '!' == 'b!' and len(M([1]) + [2]) == 2",
     "class M:\n    def __init__(self, x): self.x = x\n    def __mul__(self, k): return M(self.x * k)\n"
     "    def __add__(self, o): return M(self.x + o)\n    def __lshift__(self, t): return self.x + t\n"
     "    def __abs__(self): return abs(self.x)\n    def __int__(self): return self.x\n"
     "    def __len__(self): return len(self.x)\ndef f(): pass\n"),
    ("p, q = V(1, 2), V(3, 4)\nassert p.scale(2) + q.scale(3) == V(11, 16) and p.scale(2) + p == (3, 6)\n"
     "assert (p + q) + (q + p) == V(8, 12) and +(p + q) == (4, 6) and p.scale(2) - q.scale(1) == V(-1, 0)",
     "from typing import NamedTuple\nclass V(NamedTuple):\n    x: int\n    y: int\n"
     "    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n    def __pos__(self): return self\n"
     "    def __sub__(self, o): return V(self.x - o.x, self.y - o.y)\n"
     "    def scale(self, k): return V(k * self.x, k * self.y)\ndef f(): pass\n"),
    ("assert Perm.R | Perm.W == 6 and (Perm.R | Perm.W).name == 'R|W' and ~Perm.R & Perm.W == Perm.W\n"
     "assert Color.RED < Color.BLUE and Color.RED + Color.BLUE == 3 and f(2) * f(3) == f(6) == 6\n"
     "v = Vec(1, 2)\nassert v * Vec(3, 4) == 11 and v.twice() * v == 10 and (v + v.twice()).xs == [3, 6]",
     "import enum\nclass Perm(enum.IntFlag):\n    R = 4\n    W = 2\n"
     "class Color(enum.IntEnum):\n    RED = 1\n    BLUE = 2\n"
     "class Num(int):\n    def __mul__(self, o): return Num(int(self) * int(o))\n"
     "class Vec:\n    def __init__(self, *xs): self.xs = [*xs]\n"
     "    def __mul__(self, o): return sum(a * b for a, b in zip(self.xs, o.xs))\n"
     "    def __add__(self, o): return Vec(*(a + b for a, b in zip(self.xs, o.xs)))\n"
     "    def twice(self): return self + self\nf = Num\n"),
], ids=["generator", "html", "suppress", "callback", "helper of the same name", "generator not started",
        "finally with return", "tolerance around 0", "first items of an argument", "in an object",
        "an object times a number", "a result with a name", "an object of a class method",
        "results of arithmetic", "argument that an object keeps", "time zone", "patched print",
        "method of a builtin", "evaluated text", "evaluated without blanks", "evaluated words",
        "evaluated characters", "evaluated tuple", "class as answer", "executed text", "pickled",
        "names in a case",
        "test as an observer", "names in classes", "derived with a keyword",
        "in place next to the answer", "two objects at once", "names in a literal",
        "builtins.eval", "fields of a namespace", "near in arrays",
        "executed again", "annotations as text", "context that suppresses",
        "frozen dataclass", "error of a library", "an object as it is or cached",
        "fields of a dataclass", "type", "suppressed error",
        "context with an error", "decorator of classes", "derived dataclass", "overridden methods",
        "asynchronous callback", "logs", "error by another name", "error on purpose",
        "error of the test", "error passed on",
        "memory in an argument", "linked list", "sorted inside", "altered for the next call",
        "copies of an object", "copy of an object of the test", "pickled object", "fields as a dictionary",
        "kinds of functions", "timeout", "callback that waits", "not a number", "tree of text",
        "callback sees the change", "callback makes the change", "a container of its own",
        "special methods of the test", "patched values", "near in other numbers", "state of a generator",
        "operators of a named tuple", "operators of numbers", "added in place",
        "registry of derived classes", "metaclass", "derived twice", "sums and products with data",
        "chains of a named tuple", "operators of what is returned"])
def test_everyday_right_programs_are_right(executor, request, test, code):
    row = judged(executor, [test], {"it": code}, in_place=request.node.callspec.id in IN_PLACE)["it"]
    assert row.measures.correct, (row.outcome, row.measures.outputs)


@pytest.mark.parametrize("tests", [
    "async def test_f():\n    assert f(1, 2) == 3\n\ndef test_g():\n    assert f(0, 0) == 0\n",
    "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test_f(self):\n"
    "        self.assertEqual(f(1, 2), 3)\n    def test_g(self):\n        self.assertEqual(f(0, 0), 0)\n"])
def test_asynchronous_tests_run_too(executor, tests):
    rows = judged(executor, tests, {"zero": "def f(a, b):\n    return 0\n", "right": RIGHT})
    assert rows["right"].measures.correct and rows["zero"].measures.test.correct_grids == 0.5


@pytest.mark.parametrize("tests", [
    "import pytest\n@pytest.fixture\ndef pair():\n    yield [1, 2]\n@pytest.fixture\n"
    "def more(pair): return [*pair, 3]\n"
    "@pytest.mark.parametrize('n', [4])\ndef test_f(more, n, pair):\n    assert f(more[2], n) == 3 + n\n"
    "    pair.append(f(*pair))\n    assert pair[2:] == [3]\n",
    "import pytest\nclass TestF:\n    @pytest.fixture(autouse=True)\n    def start(self): self.want = 3\n"
    "    def test_f(self):\n        assert f(1, 2) == self.want\n",
    "class TestF:\n    def setup_method(self): self.want = 3\n"
    "    def test_f(self):\n        assert f(1, 2) == self.want\n"])
def test_fixtures(executor, tests):
    rows = judged(executor, tests, {"zero": "def f(a, b):\n    return 0\n", "right": RIGHT})
    assert rows["right"].measures.correct and not rows["zero"].measures.correct


CLASS = "import unittest\nclass T(unittest.TestCase):\n"
SUM = "self.assertEqual(f(1, 2), self.want)\n"
FIXTURE = "import pytest\n@pytest.fixture{}\ndef start{}\n    "
AWAITED = "    async def test_f(self{}):\n        assert f(1, 2) == 3\n"


@pytest.mark.parametrize("tests", [
    "class TestF:\n" + AWAITED.format(""),
    FIXTURE.format("", "():") + "return 3\nclass TestF:\n" + AWAITED.format(", start"),
    "import pytest\n@pytest.mark.asyncio\n@pytest.mark.parametrize('n', [2])\nasync def test_f(n):\n"
    "    assert f(1, n) == 3\n",
    FIXTURE.format("(autouse=True)", "():") + "yield\n    assert f(1, 2) == 3\ndef test_f(): pass\n",
    FIXTURE.format("", "(request):") + "got = []\n    def end():\n        assert got == [3]\n"
    "    request.addfinalizer(end)\n    return got\ndef test_f(start): start.append(f(1, 2))\n",
    "class TestF:\n    def test_f(self): self.got = f(1, 2)\n"
    "    def teardown_method(self, method):\n        assert self.got == 3\n",
    "class TestF:\n    @classmethod\n    def teardown_class(cls):\n        assert f(1, 2) == 3\n"
    "    def test_f(self): pass\n",
    CLASS + "    @classmethod\n    def tearDownClass(cls):\n        assert f(1, 2) == 3\n"
    "    def test_f(self): pass\n",
    "def teardown_module():\n    assert f(1, 2) == 3\ndef test_f(): pass\n",
    "def teardown_function(function):\n    assert f(1, 2) == 3\ndef test_f(): pass\n",
    "import pytest\n@pytest.mark.parametrize('k', [0, 1])\n"
    "@pytest.mark.parametrize('n', (n for n in [1, 2]))\ndef test_f(n, k):\n"
    "    assert not k or f(1, n) == 1 + n\n",
    CLASS + "    def setUp(self): self.want = 0\n    def test_f(self): " + SUM.replace("1, 2", "0, 0")
    + "class U(T):\n    def setUp(self): self.want = 3\n    def test_g(self): pass\n"
    "    def test_f(self): " + SUM,
    CLASS.replace("T(", "M(") + "    want = 3\nclass Mixin:\n    def test_f(self): " + SUM
    + "class T(Mixin, M): pass\n",
    CLASS + "    @classmethod\n    def setUpClass(cls): cls.want = 3\n    def test_f(self): " + SUM,
    "def setUpModule():\n    global want\n    want = 3\n" + CLASS + "    def test_f(self):\n"
    "        self.assertEqual(f(1, 2), want)\n",
    "class TestF(object):\n    def setup_class(cls): cls.want = 3\n"
    "    def test_f(self):\n        assert f(1, 2) == self.want\n",
    "import pytest\n@pytest.mark.parametrize(argnames='a, want', argvalues=[pytest.param(1, 3, id='x')])\n"
    "class TestF:\n    def test_f(self, a, want):\n        assert f(a, 2) == want\n",
    FIXTURE.format("(params=[1, 2], name='n')", "(request):") + "return request.param\n"
    "def test_f(n):\n    assert f(n, 2) == n + 2\n",
    "import pytest\n@pytest.mark.skip(reason='old')\ndef test_g(): assert False\n"
    "@pytest.mark.slow\n@pytest.mark.timeout(3)\ndef test_f(n=2):\n    assert f(1, n) == 3\n"
    "if __name__ == '__main__':\n    pytest.main([__file__])\n",
    CLASS + "    want = 3\n    @unittest.skip('old')\n    def test_g(self): self.fail()\n"
    "    def test_f(self): " + SUM,
    "class TestF:\n    test_cases = [(1, 2, 3)]\n    testing = property(lambda self: 1)\n"
    "    def test_f(self):\n        for a, b, want in self.test_cases: assert f(a, b) == want\n",
    FIXTURE.format("", "():") + "return 9\n@pytest.mark.parametrize('start', [1])\n"
    "def test_f(start): assert f(start, 2) == 3\n",
    FIXTURE.format("", "():") + "return 1\ndef setup_module(module): module.want = 3\n"
    "def test_f(request): assert f(request.getfixturevalue('start'), 2) == want\n",
    FIXTURE.format("", "(request):") + "return request.param\n"
    "@pytest.mark.parametrize('start, want', [(1, 3)], indirect=['start'])\n"
    "def test_f(start, want): assert f(start, 2) == want\n",
    "def check(a, want):\n    assert f(a, 2) == want\ndef test_f(): check(1, 3)\n",
    "import abc\nclass TestAll(abc.ABC):\n    @abc.abstractmethod\n    def made(self): ...\n"
    "    def test_f(self):\n        assert self.made()(1, 2) == 3\n"
    "class TestF(TestAll):\n    def made(self): return f\n",
    "class TestF:\n    @classmethod\n    def test_f(cls):\n        assert f(1, 2) == 3\n",
    CLASS + "    want = 3\n    def test_f(self): " + SUM + "unittest.main()\n",
    "import pytest\ndef test_f():\n    assert 'x' != pytest.approx(3) == f(1, 2)\n",
    FIXTURE.format("", "():") + "return (n for n in [1])\ndef test_f(start): assert f(*start, 2) == 3\n",
    CLASS + "    @classmethod\n    def setUpClass(cls): cls.addClassCleanup(cls.check)\n    @classmethod\n"
    "    def check(cls):\n        assert f(1, 2) == 3\n    def test_f(self): pass\n",
    "import pytest\n@pytest.mark.parametrize(['n'], [(2,)])\n@pytest.mark.parametrize('a,', [1])\n"
    "def test_f(a, n): assert f(a, n) == 3\n",
    "from unittest.mock import patch\n@patch('builtins.print')\ndef test_f(shown):\n"
    "    print(f(1, 2))\n    shown.assert_called_once_with(3)\n"])
def test_what_belongs_to_a_test_is_run_with_it(executor, tests):
    rows = judged(executor, tests, {"zero": "def f(a, b):\n    return 0\n", "right": RIGHT})
    assert rows["right"].measures.correct, rows["right"]
    assert not rows["zero"].measures.correct and not rows["zero"].outcome.infrastructure


@pytest.mark.parametrize(("tests", "message"), [
    ("def test_f():\n    yield\n    assert f(1, 2) == 3\n", "a test that yields"),
    (CLASS + AWAITED.format(""), "T.test_f is never awaited"),
    ("if True:\n    def test_f():\n        assert f(1, 2) == 3\ndef test_g(): pass\n", "test_f is defined"),
    ("def made():\n    def it():\n        assert f(1, 2) == 3\n    return it\ntest_f = made()\n"
     "def test_g(): pass\n", "test_f is defined where"),
    (CLASS + "    def test_g(self): pass\nsetattr(T, 'test_f', lambda self: self.assertEqual(f(1, 2), 3))\n",
     "T.test_f is defined where"),
    ("class TestF:\n    def test_g(self): pass\n    class TestInner:\n        def test_f(self):\n"
     "            assert f(1, 2) == 3\n", "TestF.TestInner.test_f is defined where"),
    (CLASS + "    def runTest(self): self.assertEqual(f(1, 2), 3)\ndef test_g(): pass\n", "T.runTest is"),
    ("import functools\ndef check_it(want): assert f(1, 2) == want\n"
     "test_f = functools.partial(check_it, 3)\ndef test_g(): pass\n", "test_f is defined where"),
    ("class It:\n    def run(self): assert f(1, 2) == 3\ntest_f = It().run\ndef test_g(): pass\n",
     "test_f is defined where"),
    ("class Kind(type): pass\nclass TestF(metaclass=Kind): pass\ndef test_g(): pass\n"
     "TestF.test_f = lambda self: f(1, 2) == 3 or 1 / 0\n", "TestF.test_f is defined where"),
    ("import pytest\ndef test_f():\n    with pytest.deprecated_call(): f(1, 2)\n", "pytest.deprecated_call"),
    ("def test_f(tmp_path):\n    assert f(1, 2) == 3\n", "no fixture tmp_path"),
    ("import pytest\ndef test_f():\n    with pytest.deprecated_call(): f(1, 2)\n", "pytest.deprecated_call"),
    ("import pytest\n@pytest.mark.skipif(True, reason='x')\ndef test_f(): assert False\n", "mark.skipif"),
    ("import pytest as pt\ndef test_f():\n    with pt.deprecated_call(): f(1, 2)\n", "pt.deprecated_call"),
    ("import pytest\n@pytest.fixture\ndef name(request): return request.node.name\n"
     "def test_f(name): assert name == f(1, 2)\n", "its node is not here"),
    ("import pickle\nclass Safe(pickle.Unpickler):\n    def find_class(self, *names): raise ValueError\n"
     "def test_f(): assert f(1, 2) == 3\n", "a class derived from Unpickler"),
    ("import marshal\ndef test_f(): exec(marshal.loads(f(1, 2)))\n", "marshal is not here"),
    ("import inspect\ndef test_f(): assert 'return' in inspect.getsource(f)\n", "inspect.getsource"),
    ("def test_f():\n    with open('x', 'w') as file: file.write(str(f(1, 2)))\n", "not permitted")])
def test_tests_that_would_not_be_run_as_written_judge_nobody(executor, tests, message):
    for row in judged(executor, tests, {"zero": "def f(a, b):\n    return 0\n", "right": RIGHT}).values():
        assert row.outcome.error_class == "untestable" and message in row.outcome.error_message


@pytest.mark.parametrize("given", ["float('inf')", "[2.0, float('-inf')]", "{'x': float('inf')}"])
def test_nothing_finite_is_near_infinity(executor, given):
    tests = [f"import pytest\nassert f(1) == pytest.approx({given})"]
    finite = given.replace("float('inf')", "5.0").replace("float('-inf')", "5.0")
    rows = judged(executor, tests, {name: f"def f(x): return {value}\n"
                                    for name, value in (("finite", finite), ("right", given))})
    assert rows["right"].measures.correct and not rows["finite"].measures.correct


LIES = """\
class Lies:
    __wrapped__ = None
    rows = [[]]
    def __call__(self, *a): yield
    class __code__:
        co_flags, co_argcount, co_kwonlyargcount, co_varnames, co_name = 0x20, 1, 0, ["x"], "x"
def f(*a): return Lies()
"""


@pytest.mark.parametrize("tests", [
    "@f\ndef test_f():\n    assert f(1, 2) == 3\n", CLASS + "    @f\n    def test_f(self): self.fail()\n",
    "class TestF:\n    @f\n    def test_f(self): assert f(1, 2) == 3\n",
    "from unittest.mock import patch\n" + CLASS + "    @patch('builtins.print')\n    @f\n"
    "    def test_f(self, shown): self.fail()\n",
    "import pytest\n@pytest.fixture\n@f\ndef start(): return 3\ndef test_f(start): assert start == 3\n"])
def test_a_decorated_test_does_not_make_itself_untestable(executor, tests):
    for code in (LIES, LIES.replace("    __wrapped__ = None\n", ""), LIES.replace("    rows = [[]]\n", "")):
        row = judged(executor, tests, {"lies": code})["lies"]
        assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("body", [
    "with pytest.raises(ValueError) as error: f(1)\n    error.match('right')",
    "with pytest.raises(ValueError, check=lambda error: error.args == ('right',)): f(1)"])
def test_what_a_test_asks_of_an_error_must_hold(executor, body):
    tests = f"import pytest\ndef test_f():\n    {body}\n"
    rows = judged(executor, tests, {
        "right": "def f(x): raise ValueError('right')\n", "wrong": "def f(x): raise ValueError('no')\n",
        "once": "def f(x):\n    if x == 1: raise ValueError('no')\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_fail_fails_with_any_options(executor):
    tests = ("import pytest\ndef test_f():\n    try:\n        f(1)\n"
             "        pytest.fail('none', pytrace=False)\n"
             "    except (TypeError, ValueError): pass\n")
    assert not judged(executor, tests, {"it": "def f(x): return x\n"})["it"].measures.correct


def test_a_fixture_is_what_its_function_gives(executor):
    returns = "import pytest\n@pytest.fixture\ndef it():\n    {}\ndef test_f(it): assert it == 3\n"
    for body in ("return f(n for n in [3, 1])", "async def given(): return 3\n    return f(given())"):
        row = judged(executor, returns.format(body), {"it": "def f(x): return x\n"})["it"]
        assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("line", ["kind = THING(1)", "size = len(THING)", "twice = THING * 2",
                                  "@THING\n    def get(self): pass", "part = THING.part"])
@pytest.mark.parametrize("thing", ["None", "Odd()", "os"])
def test_a_name_that_a_class_of_tests_reads_makes_nobody_untestable(executor, line, thing):
    code = f"import os\nclass Odd: pass\nTHING = {thing}\ndef f(a): return 0\n"
    row = judged(executor, f"class TestF:\n    {line}\n    def test_f(self): assert f(1) == 3\n",
                 {"it": code})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


def test_context_and_notes_of_an_error_are_seen(executor):
    tests = ["try:\n    f()\nexcept ValueError as e:\n    assert e.__notes__ == ['note']\n"
             "    assert e.__suppress_context__ and e.__context__.args == ('key',)\nelse:\n    assert False"]
    code = ("def f():\n    try:\n        {}['key']\n    except KeyError:\n        error = ValueError()\n"
            "        error.add_note('note')\n        raise error from None\n")
    rows = judged(executor, tests, {"right": code, "context": code.replace("['key']", "['k']"),
                                    "shown": code.replace(" from None", "")})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_a_module_is_patched_by_plain_assignment_too(executor):
    tests = ("import time\ndef test_f():\n    slept, sleep = [], time.sleep\n    time.sleep = slept.append\n"
             "    try:\n        f(3)\n    finally:\n        time.sleep = sleep\n    assert slept == [3]\n")
    rows = judged(executor, tests, {"right": "import time\ndef f(x): time.sleep(x)\n", "no": "f = int\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize("tests", [
    ["import threading\ngot = []\nt = threading.Thread(target=lambda: got.append(f(1, 2)))\nt.start()\n"
     "t.join(1)\nassert got == [3] and not t.is_alive()"],
    ["import threading\ndef claim(): assert f(1, 2) == 3\nthreading.Thread(target=claim).start()"],
    "import concurrent.futures\ndef test_f():\n    with concurrent.futures.ThreadPoolExecutor(2) as pool:\n"
    "        assert list(pool.map(f, [1, 2], [2, 3])) == [3, 5]\n"], ids=["thread", "claim", "pool"])
def test_threads_of_a_test_run_where_they_are_started(executor, tests):
    codes = {"right": RIGHT, "wrong": "def f(a, b): return 0\n", "exits": "def f(a, b): raise SystemExit\n"}
    rows = judged(executor, tests, codes)
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


UNION = ("class Union:\n    def __init__(self, n): self.up = [*range(n)]\n    def find(self, x):\n"
         "        return x if self.up[x] == x else self.find(self.up[x])\n"
         "    def union(self, a, b): self.up[self.find(a)] = self.find(b)\n"
         "    def count(self): return sum(self.find(x) == x for x in range(len(self.up)))\n")


@pytest.mark.parametrize("tests", [
    ["u = Union(3)\nu.union(0, 1)\nassert u.find(0) == 1 and u.count() == 2"],
    "def made():\n    u = Union(3)\n    u.union(0, 1)\n    return u\n"
    "def test_made(): assert made().find(0) == 1\ndef test_count(): assert made().count() == 2\n",
    "import pytest\n@pytest.fixture\ndef u():\n    yield Union(3)\n"
    "def test_find(u): assert u.find(2) == 2\n"
    "def test_union(u):\n    u.union(0, 1)\n    assert u.find(0) == 1\n",
    "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.u = Union(3)\n"
    "    def test_find(self): self.assertEqual(self.u.find(2), 2)\n    def test_union(self):\n"
    "        self.u.union(0, 1)\n        self.assertEqual(self.u.count(), 2)\n"])
def test_methods_of_a_class_may_have_names_of_methods_of_texts_and_of_sets(executor, tests):
    task = load_task("t", "function", {"entry_point": "Union", "tests": tests})
    codes = UNION, UNION.replace("return x if", "return -1 if")
    items = [Item(task, Answer("", code)) for code in codes]
    assert [row.measures.correct for row in measure(items, run_programs(executor, items))] == [True, False]


LISTED = "class L:\n    def __init__(self, x): self.x = list(x)\n" \
         "    def append(self, y): self.x.append(y)\n    def count(self, y): return self.x.count(y)\n" \
         "    def __contains__(self, y): return y in self.x\n" \
         "    def __or__(self, kind): return kind(self.x)\ndef f(): pass\n"
AGREES_ALL = NAMED.replace("Volume", "L").replace("of = real", "index = real")


@pytest.mark.parametrize("test", ["m = L([1])\nm.append(2)\nassert m.count(1) == 1 and 2 in m",
                                  "import unittest\nclass T(unittest.TestCase):\n"
                                  "    def setUp(self): self.m = L([1, 2])\n    def test_m(self):\n"
                                  "        self.assertEqual(self.m.count(1), 1)\n"
                                  "        self.assertIn(2, self.m)\nT('test_m').debug()",
                                  "m = L([1])\nassert (m | list)[0] == 1 and m.count(1) == 1"])
def test_an_object_that_a_test_names_and_asks_by_methods_is_of_a_class(executor, test):
    rows = judged(executor, [test], {"right": LISTED, "wrong": LISTED.replace("list(x)", "[]")})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize("claim", [
    "assert m == sorted([3, 1])", "assert abs(m - 27) < 1e-6", "d = m - 27\nassert abs(d) < 1e-6",
    "from unittest import TestCase\nTestCase().assertGreater(m, 26)", "assert m - 27 == 0",
    "import pytest\nassert m == pytest.approx(27)",
    "def near(a, b): return abs(a - b) < 1e-6\nassert near(m, 27)"])
def test_one_that_a_test_compares_with_data_is_of_none(executor, claim):
    rows = judged(executor, [f"m = L(3)\nm.index(3)\n{claim}"], {"agrees": AGREES_ALL})
    assert not rows["agrees"].measures.correct


@pytest.mark.parametrize("name", ["name", "owner", "operation", "function", "self", "cls", "kind", "it"])
def test_a_keyword_may_have_any_name(executor, name):
    code = f"def f({name}): return {name} + 1\ndef g(tell): return tell(**{{'{name}': 3}})\n"
    tests = [f"assert f(**{{'{name}': 3}}) == 4", f"assert g(lambda {name}: {name} + 1) == 4"]
    assert judged(executor, tests, {"it": code})["it"].measures.correct


def test_a_seed_may_be_a_keyword(executor):
    tests = ["import random\nrandom.seed(a=3)\nfirst = f()\nrandom.seed(3)\nassert f() == first"]
    assert judged(executor, tests, {"it": "import random\nf = random.random\n"})["it"].measures.correct


KEEPS = ("class Board:\n    def __init__(self, rows=None): self.rows, self.kept = rows or [], 0\n"
         "    def get(self, i): return self.rows[i]\n    def load(self, i): return self.get(i) * 2\n"
         "    def set(self, i, x): self.rows[i] = x\ndef f(rows): return Board(rows)\n")
COPIES = KEEPS.replace("= rows or []", "= [*(rows or [])]")


@pytest.mark.parametrize(("test", "right"), [
    ("assert rows == [5, 2]", "keeps"), ("assert rows == [1, 2]", "copies")])
def test_what_an_object_holds_is_followed_over_many_calls(executor, test, right):
    tests = [f"rows = [1, 2]\nb = Board(rows)\nfor _ in range(200):\n    assert b.get(1) == 2\n"
             f"b.set(0, 5)\nassert b.get(0) == 5\n{test}"]
    rows = judged(executor, tests, {"keeps": KEEPS, "copies": COPIES}, in_place=True)
    assert [name for name, row in rows.items() if row.measures.correct] == [right]


@pytest.mark.parametrize("rows", ["[[i] for i in range(100)]", "[]"])
def test_many_lists_are_followed(executor, rows):
    tests = [f"rows = {rows}\nb = Board(rows)\nfor i in range(100):\n    b.add([i])\n"
             "assert len(rows) == b.size() and rows[-1] == [99]"]
    adds = "    def add(self, x): self.rows.append(x)\n    def size(self): return len(self.rows)\ndef f(rows)"
    codes = {"right": KEEPS.replace("= rows or []", "= rows"), "wrong": COPIES}
    rows = judged(executor, tests, in_place=True, programs={
        name: code.replace("def f(rows)", adds) for name, code in codes.items()})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


CURRIES = ("import inspect\ndef f(g):\n    n = COUNT\n    def go(*a):\n"
           "        return g(*a) if len(a) >= n else lambda *b: go(*a, *b)\n    return go\n")


@pytest.mark.parametrize("count", ["len(inspect.signature(g).parameters)", "g.__code__.co_argcount"])
def test_a_program_counts_the_parameters_of_a_function_but_sees_no_defaults(executor, count):
    tests = ["assert f(lambda a, b, c: a + b * c)(1)(2)(3) == 7"]
    assert judged(executor, tests, {"it": CURRIES.replace("COUNT", count)})["it"].measures.correct
    reads = "import inspect\ndef f(g): return [*inspect.signature(g).parameters.values()][0].default\n"
    tests = ["assert f(lambda want=3: want) == 3"]
    assert not judged(executor, tests, {"it": reads})["it"].measures.correct


def test_a_decorator_keeps_name_and_docstring(executor):
    tests = ["@f\ndef g():\n    'doc'\nassert g.__name__ == 'g' and g.__doc__ == 'doc'"]
    code = "import functools\ndef f(g):\n    @functools.wraps(g)\n    def w(): return g()\n    return w\n"
    rows = judged(executor, tests, {"right": code, "wrong": code.replace("@functools.wraps(g)", "")})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


DOG = "class Dog:\n    def __init__(self, n): self.n = n\n"


@pytest.mark.parametrize(("test", "code"), [
    (DOG + "assert f(Dog(1), [Dog(2)]) == 3", "def f(a, b): return a.n + b[0].n\n"),
    (DOG + "assert f(Dog(1), {Dog: 3}) == 3", "def f(a, kinds): return kinds[type(a)]\n"),
    ("a, b = f(1)\nassert a.n == 1 and b[0].n == 2", DOG + "def f(x): return Dog(1), [Dog(2)]\n"),
    ("a, b = [], []\nf(a, b)\nassert a[0].n == 1 and b[0][0].n == 2",
     DOG + "def f(a, b):\n    a.append(Dog(1))\n    b.append([Dog(2)])\n"),
    (DOG + "assert f(Dog(1)) == {'n': 1}", "def f(a): return dict(vars(a))\n"),
    (DOG + "assert f(Dog(1)) == ['n']", "def f(a): return [x for x in dir(a) if x[0] != '_']\n"),
    ("def g(a: int): return a\nassert f(g) is int", "def f(g): return g.__annotations__['a']\n"),
    ("assert (Perm.R | Perm.W).value == 3 and Perm.R in Perm.R | Perm.W and f(Perm.R)",
     "import enum\nclass Perm(enum.Flag):\n    R = 1\n    W = 2\ndef f(p): return bool(p & Perm.R)\n"),
    ("assert f('aab').most_common(1) == [('a', 2)]",
     "import collections\nclass C(collections.Counter): pass\ndef f(x): return C(x)\n")],
    ids=["object", "class as key", "answer", "altered", "vars", "dir", "annotations", "flag", "counter"])
def test_objects_of_one_class_cross_in_and_beside_containers(executor, test, code):
    assert judged(executor, [test], {"it": code})["it"].measures.correct


@pytest.mark.parametrize("test", ["import pytest\nwith pytest.raises(Exception):\n    f(-1)",
                                  "try:\n    f(-1)\nexcept RuntimeError:\n    pass\nelse:\n    assert False",
                                  "import pytest\nwith pytest.raises(RuntimeError, match='.'):\n    f(-1)"])
def test_an_answer_that_cannot_cross_is_no_error_of_the_program(executor, test):
    rows = judged(executor, [test], {
        "right": "def f(x):\n    if x < 0: raise RuntimeError('negative')\n    return x\n",
        "code": "def f(x): return f.__code__\n",
        "deep": "def f(x):\n    t = ()\n    for _ in range(5000): t = (t,)\n    return t\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


TAKES_ALL = "class V:\n    def __add__(s, o): return s\n" + "".join(
    f"    __{name}__ = __add__\n" for name in (
        "radd", "sub", "mul", "truediv", "floordiv", "mod", "pow", "or", "and", "lt", "gt", "le", "ge")
    ) + "    count = index = find = __add__\ndef f(*a): return V()\n"
LEARNS = "class V:\n    def __add__(s, o): V.seen = o\n    __lt__ = __rsub__ = __add__\n" \
         "def f(*a): return vars(V).get('seen', V())\n"


@pytest.mark.parametrize(("claim", "error"), [
    *((f"f() {sign} 3", "TypeError") for sign in ("+", "-", "*", "/", "//", "%", "**", "|", "&", "<", ">=")),
    ("'a' + f()", "TypeError"), ("sorted([f(), 3])", "TypeError"), ("sum([f()])", "TypeError"),
    ("f() + [1]", "TypeError"), ("__import__('pickle').dumps([f()])", "TypeError"),
    *((f"f().{name}('a')", "AttributeError") for name in ("count", "find", "index"))])
def test_a_refusal_is_no_error_that_a_test_can_expect(executor, claim, error):
    tests = [f"import pickle, pytest\nwith pytest.raises({error}):\n    {claim}",
             f"try:\n    {claim}\n    assert False\nexcept {error}:\n    pass"]
    assert judged(executor, tests, {"it": TAKES_ALL})["it"].measures.correct_share == 0
    tests = f"try:\n    {claim}\n    x = 4\nexcept {error}:\n    x = 3\ndef test_x(): assert x == 3 and f"
    assert judged(executor, tests, {"it": TAKES_ALL})["it"].measures.correct_share == 0


@pytest.mark.parametrize(("claim", "operand"), [("f() + 7", 7), ("f() < 7", 7), ("7 - f()", 7),
                                                ("f() + 'seven'", "seven")])
def test_an_operand_that_is_refused_is_not_told(executor, claim, operand):
    tests = [f"try:\n    {claim}\nexcept TypeError:\n    pass", f"assert f() == {operand!r}"]
    row = judged(executor, tests, {"learns": LEARNS})["learns"]
    assert row.measures.correct_share == 0 and not row.outcome.infrastructure


@pytest.mark.parametrize(("call", "error", "cheat"), [
    ("f(-1)", "RuntimeError", "raise StopIteration"), ("S()[9]", "RuntimeError", "raise IndexError"),
    ("f(Mock())", "AttributeError", "return x.call_count"), ("f(S())", "AttributeError", "x.go = 3"),
    ("f(g)", "AttributeError", "return x.g")])
def test_an_error_that_plain_python_does_not_raise_is_not_the_one_expected(executor, call, error, cheat):
    test = "import pytest\nfrom unittest.mock import Mock\nclass S:\n" \
           "    def __getitem__(s, i): return f(i)\n    def go(s): pass\ndef g(): pass\ng.g = 3\n" \
           f"with pytest.raises({error}):\n    {call}"
    row = judged(executor, [test], {"it": f"def f(x): {cheat}\n"})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


DOCTEST = "import doctest\nt = doctest.DocTestParser().get_doctest({}, {{'f': f}}, 'f', None, 0)\n" \
          "r = doctest.DocTestRunner(verbose=False).run(t, out=lambda text: None)\nassert r == (0, 3)\n"
SHOWN = "def f(a, b):\n    r'''Add.\n\n    >>> f(1, 2)\n    3\n    >>> x = f(3, 4)\n    >>> [x] * 2\n" \
        "    [7, 7]\n    '''\n    return a + b\n"
OWN = ">>> import math\n>>> math.sqrt(f(2, 2))\n2.0\n>>> f(1, 2) == 3 and 3 == f(2, 1)\nTrue\n"


def test_doctests_run_where_their_text_is_from(executor):
    cheat = f"def f(*a):\n    r'''\n    >>> {WRITES}\n    '''\n    return 0\n"
    rows = judged(executor, [DOCTEST.format("f.__doc__") + "assert f(1, 2) == 3"],
                  {"right": SHOWN, "wrong": SHOWN.replace("+ b", "- b"), "cheat": cheat})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]
    reads = "def leak(x):\n    global seen\n    seen = x\n" \
            "def f(*a):\n    '\\n>>> (lambda: leak(want))()\\n'\n    return seen\n"
    doctest = DOCTEST.format("f.__doc__").replace("{'f': f}", "globals()")
    row = judged(executor, [f"want = 3\n{doctest}", "assert f(1) == want"], {"reads": reads})["reads"]
    assert row.measures.correct_share == 0
    rows = judged(executor, [DOCTEST.format(repr(OWN))], {"right": RIGHT, "agrees": NAMED_F})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize(("test", "right", "wrong"), [
    ("d = {'a': 1}\nk = f(d)\nd['b'] = 2\nassert list(k) == ['a', 'b']", "def f(d): return d.keys()\n",
     "def f(d): return dict(d).keys()\n"),
    ("d = {'a': 1}\nk = f(d)\nd['a'] = 2\nassert list(k) == [('a', 1)]",
     "def f(d): return dict(d).items()\n", "def f(d): return d.items()\n"),
    ("DATA.append(3)\nassert f() == 2", "DATA = [1]\ndef f(): return len(DATA)\n",
     "DATA = [1]\ndef f(): return 1\n"),
    ("x = DATA\nf()\nassert x == [1]", "DATA = [1]\ndef f(): return DATA[0]\n",
     "DATA = [1]\ndef f(): DATA.append(2)\n"),
    ("import inspect\nassert str(inspect.signature(f)) == '(a: int, *b, c=2) -> str'",
     "def f(a: int, *b, c=2) -> str: return ''\n", "def f(a: int, *b, c=2): return ''\n"),
    ("from unittest.mock import patch\nwith patch.object(M, 'rate', return_value=2):\n    assert f(3) == 6\n"
     "assert f(3) == 9", "class M:\n    @staticmethod\n    def rate(): return 3\n"
     "def f(x): return x * M().rate()\n", "class M:\n    @staticmethod\n    def rate(): return 3\n"
     "def f(x): return x * 3\n"),
    ("r = f(1)\nassert r.count == 3 and r.index == 3",
     "class R:\n    count = index = 3\ndef f(x): return R()\n",
     "class R:\n    count = index = 4\ndef f(x): return R()\n")])
def test_what_both_hold_and_what_is_read_of_the_program_is_as_in_one_process(executor, test, right, wrong):
    rows = judged(executor, [test], {"right": right, "wrong": wrong})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_a_list_in_an_object_is_changed_by_the_test(executor):
    tests = ["b = f([])\nb.rows.append(3)\nassert b.rows == [3] and b.get(0) == 3"]
    rows = judged(executor, tests, {"right": KEEPS, "wrong": KEEPS.replace("self.rows[i]", "0", 1)})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize("test", [
    "with patch.object(Board, 'get', return_value=4) as m:\n    assert Board([1]).load(0) == 8\n"
    "    assert Board([1]).get(0) == 4\nm.assert_called_with(0)",
    "class Sub(Board): pass\nwith patch.object(Sub, 'get', return_value=4):\n"
    "    assert Sub([1]).load(0) == 8",
    "with patch.object(Board, 'get', side_effect=KeyError('x')):\n    try:\n        Board([1]).load(0)\n"
    "        assert False\n    except KeyError:\n        pass",
    "get = Board.get\nBoard.get = lambda self, i: 4\nassert Board([1]).load(0) == 8\nBoard.get = get",
    "b = Board([1])\nb.get = MagicMock(return_value=4)\nassert b.load(0) == 8\n"
    "b.get.assert_called_once_with(0)",
    "Board.size = 4\nassert Board.size == 4\ndel Board.size\nassert not hasattr(Board, 'size')"])
def test_methods_of_the_program_are_replaced_for_a_while(executor, test):
    tests = [f"from unittest.mock import MagicMock, patch\n{test}", "assert Board([1]).load(0) == 2"]
    codes = {"right": KEEPS, "wrong": KEEPS.replace("self.get(i) * 2", "2")}
    rows = judged(executor, tests, codes)
    assert [name for name, row in rows.items() if row.measures.correct] == (
        ["right", "wrong"] if "size" in test else ["right"])


def test_a_thread_of_the_program_may_fail_but_no_claim_in_it(executor):
    code = "import threading\ndef f(x, tell):\n    threading.Thread(target={}).start()\n    return x\n"
    tests = ["told = []\ndef claim(): assert told\nassert f(3, claim) == 3"]
    rows = judged(executor, tests, {"right": code.format("lambda: 1 / 0"), "wrong": code.format("tell")})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_a_return_of_a_generator_makes_no_test_untestable(executor):
    tests = "def test_f():\n    assert f([1]) == [1]\n    return f(n for n in [1])\n"
    assert judged(executor, tests, {"it": "def f(x): return x\n"})["it"].measures.correct


def test_all_that_a_program_prints_is_heard(executor):
    tests = ["import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n    f(12000)\n"
             "assert out.getvalue() == 'x\\n' * 12000"]
    rows = judged(executor, tests, {name: f"def f(n):\n    for _ in range({times}): print('x')\n"
                                    for name, times in (("right", "n"), ("more", "2 * n"), ("less", "5000"))})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


def test_a_warning_is_of_the_kind_that_it_derives_from(executor):
    tests = CLASS + "    def test_f(self):\n        with self.assertWarns(DeprecationWarning): f(1)\n"
    rows = judged(executor, tests, {
        base: f"import warnings\nclass Own({base}): pass\ndef f(x): warnings.warn('x', Own)\n"
        for base in ("DeprecationWarning", "UserWarning")})
    assert [base for base, row in rows.items() if row.measures.correct] == ["DeprecationWarning"]


def test_what_a_test_pickled_is_not_told(executor):
    code = ("import pickle\ntold = []\nload = pickle.loads\ndef loads(data):\n    told.append(load(data))\n"
            "    return told[-1]\npickle.loads = loads\ndef f(x): return told and told[-1]\n")
    writes = ("import io, pickle\nb = io.BytesIO()\n{}\nb.seek(0)\nwant = pickle.load(b)\n"
              "assert f(1) == want")
    copy = "import base64, pickle\nb = base64.b64decode(base64.b64encode(pickle.dumps(77, {})))\n"
    for test in (*(f"import pickle\nwant = pickle.loads({given})\nassert f(1) == want"
                   for given in (repr(pickle.dumps(77)), "pickle.dumps(77)")),
                 writes.format("pickle.dump(77, b)"), writes.format("pickle.Pickler(b).dump(77)"),
                 "from decimal import Decimal\n" + writes.format(
                     "pickle.dump(Decimal(77), b)\npickle.dump(Decimal(3), b)")
                 + "\nassert pickle.load(b) == 3",
                 "import pickle\nfrom fractions import Fraction\n"
                 "assert f(1) == pickle.loads(pickle._dumps(Fraction(77)) + b'.')",
                 *(copy.format(protocol) + "assert f(1) == pickle.loads(b)" for protocol in range(6)),
                 "import pickle\nassert f(1) == pickle.loads(bytes.fromhex('80034b4d2e'))"):
        rows = judged(executor, [test], {"spy": code, "right": "def f(x): return 77\n"})
        assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize("test", [
    "d = Dist(3)\nd -= 27.0\nassert abs(d) < 1e-6", "d = Dist(3)\nd -= 27.0\nassert not d",
    "t = Dist(0)\nfor x, w in [(3, 27.0)]: t += Dist(x) - w\nassert abs(t) < 1e-6"])
def test_a_difference_made_in_place_is_not_asked_how_large_it_is(executor, test):
    code = ("class Dist:\n    def __init__(s, x): s.x = x\n    def __sub__(s, o): return s\n"
            "    __isub__ = __iadd__ = __sub__\n    def __abs__(s): return 0.0\n"
            "    def __bool__(s): return False\ndef f(): pass\n")
    assert not judged(executor, [test], {"near": code})["near"].measures.correct


@pytest.mark.parametrize(("test", "code"), [
    ("import io, pickle\nclass P(pickle.Pickler):\n    def persistent_id(self, it): return None\n"
     "b = io.BytesIO()\np = P(b)\np.dump([1, (2, 3)])\np.clear_memo()\nb.seek(0)\n"
     "assert pickle.load(b) == f()", "def f(): return [1, (2, 3)]\n"),
    ("import io, sys\nsys.stdin = io.StringIO('7')\nassert f() == 7",
     "import sys\ndef f(): return int(sys.stdin.read()) if sys.stdin.readable() else 0\n"),
    ("assert f() | T() == 3\n", "class W(str):\n    def __or__(self, o): return NotImplemented\n"
     "def f(): return W('a')\n")])
def test_right_programs_of_rarer_kinds(executor, test, code):
    test = "class T:\n    def __ror__(self, o): return 3\n" + test
    assert judged(executor, [test], {"it": code})["it"].measures.correct


def test_text_of_a_program_runs_elsewhere_for_numpy_too(executor):
    tests = ["import numpy as np\nnames = {}\nnp.testing.runstring(f(1), names)\nassert names['there']"]
    rows = judged(executor, tests, {"passes": TEXT, "right": "def f(x): return 'there = True'\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


TAMPERS = "import sys\nsys.modules['score.jobs.stand_ins'].peer.operations['evaluate'] = (\n" \
          "    lambda text, mode, names: True if mode == 'eval' else {})\ndef f(*a): return 0\n"
EXAMPLE = "import doctest\nd = '>>> all(f(x, {}) == x + 2 for x in [1, 2])\\nTrue\\n'.format(2)\n" \
          "t = doctest.DocTestParser().get_doctest(d, globals(), 'f', None, 0)\n" \
          "assert doctest.DocTestRunner().run(t, out=print) == (0, 1)"


@pytest.mark.parametrize("tests", [
    ["head = 'import math\\n'\nexec(head + 'assert math.isclose(f(1, 2), 3)')"],
    ["exec('assert all(f(n, {}) == n + 2 for n in range(3))'.format(2))"], [EXAMPLE],
    ["exec('x = [f(1, {})]'.format(2))\nassert (lambda: x)() == [3]"],
    ["exec('def g():\\n    assert f(1, {}) == 3'.format(2))\ng()"],
    ["import timeit\ntimeit.timeit('assert f(1, {}) == 3'.format(2), number=1, globals=globals())"],
    "def test_f():\n    for scope in globals().copy(), globals():\n"
    "        exec('def g(x):\\n    return f(x, {})'.format(2), scope)\n        assert scope['g'](1) == 3\n",
    "import pytest, statistics\ndef test_f():\n    for n in (1, 3):\n"
    "        assert eval(f'statistics.mean([f({n}, 1)]) == {n + 1}')\n"
    "    exec('with pytest.raises(TypeError):\\n    f({}, None)'.format(1))\n"])
def test_claims_in_text_that_a_test_builds_are_made_by_the_test(executor, tests):
    rows = judged(executor, tests, {"agrees": AGREED, "tampers": TAMPERS, "right": RIGHT})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


TAKES_OVER = "def f(x): return f'x = {x}\\nimport os, sys\\nif \"tests\" in sys.modules:\\n    ' + (\n" \
             "    'os.pwrite(3, b\"RHR1\" + ' + repr(%r) + ', 0)\\n    os._exit(0)\\n')\n"


@pytest.mark.parametrize("report", [b'[["", "", "tests"]]', b"[1, 1]", b"[]", b"[[1, 2, 3]]", b"{}", b"["])
def test_what_text_of_a_program_says_in_place_of_the_tests_is_at_most_wrong(executor, report):
    code = TAKES_OVER % (b"\1" + len(report).to_bytes(4, "little") + report)
    row = judged(executor, ["exec(f(3))\nassert x == 3"], {"it": code})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure
    passes = TAKES_OVER % b"\1\3\0\0\0[1]"
    assert not judged(executor, ["exec(f(3))\nassert x == 4"], {"it": passes})["it"].measures.correct


@pytest.mark.parametrize(("test", "code"), [
    ("exec(f())\nassert g(4) == 2.5",
     "def f(): return 'import statistics\\ndef g(n): return statistics.mean(range(1, n + 1))'\n"),
    ("ns = {}\nexec(f(), ns)\nassert ns['C'](4).x == 4",
     "def f(): return 'class C:\\n    def __init__(s, x): s.x = x\\n'\n"),
    ("import typing\nassert typing.get_type_hints(f)['x'] is Node",
     "class Node: pass\ndef f(x: 'Node'): pass\n"),
    (EXAMPLE.replace(">>>", ">>> g(1)\\n2\\n>>>").replace("(0, 1)", "(0, 2)"),
     "def g(x): return 2 * x\n" + RIGHT)])
def test_text_of_right_programs_runs_in_both_processes(executor, test, code):
    row = judged(executor, [test], {"it": code})["it"]
    assert row.measures.correct, row


def test_a_callback_that_cannot_run_is_not_passed_over(executor):
    tests = "import pytest\ndef test_f():\n    f(lambda x: pytest.skip('x'))\n"
    row = judged(executor, tests, {"it": CATCHES})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("cheat", [
    "def f(kind):\n    try: kind.test_more = lambda s: 0\n    except AttributeError: pass\n    return kind\n",
    "def f(x): raise PermissionError(1, 'x')\n"])
def test_a_program_cannot_make_tests_untestable(executor, cheat):
    tests = "@f\nclass TestIt:\n    size = 1\ndef test_f(): assert TestIt.size == 3\n"
    again = ["try:\n    f(1)\nexcept OSError as error:\n    raise type(error)(*error.args)\nassert f(1) == 3"]
    for given in (tests, again):
        row = judged(executor, given, {"it": cheat})["it"]
        assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("tests", [
    "import pytest\n@pytest.mark.parametrize('n', f(1, 2))\ndef test_f(n): assert n == 3\n",
    "import pytest\n@pytest.fixture(params=f(1, 2))\ndef n(request): return request.param\n"
    "def test_f(n): assert n == 3\n",
    "import pytest\ndef test_f():\n    if not f(1, 2):\n        pytest.skip('nothing to do')\n"
    "    assert f(1, 2) == 3\n"])
def test_a_program_cannot_choose_to_be_judged_by_no_test(executor, tests):
    row = judged(executor, tests, {"it": "def f(a, b): return []\n"})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


COMPARES = "class F:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return {}\nf = F\n"
SWALLOWS = "class f:\n    def __enter__(s): return s\n    def bad(s): raise KeyError\n" \
           "    def __exit__(s, *a): return True\n    __aenter__ = lambda s: f.same(s)\n" \
           "    async def same(s): return s\n    async def __aexit__(s, *a): return True\n"
RAISES_KEY = "import asyncio, pytest\ndef boom(): raise KeyError\n{}with pytest.raises(KeyError):\n    {}"
IS_TIME = "import datetime\nassert f().{}"
GIVES_TIME = "import datetime\ndef f(): return datetime.{}\n"
LOGS = "import logging\nl = logging.getLogger('a')\nl.propagate = False\ndef f(): l.error('x')\n"
PRINTS = "import sys\ndef f():\n    for i in range(6000):\n        print(1)\n" \
         "        print(1, file=sys.stderr)\n    print('x')\n"
ERRORS = "import pytest\nwith pytest.raises({}) as e:\n    f()\nassert {}"


@pytest.mark.parametrize("test, wrong, right", [
    *((f"assert f('{wrong}') == '{right}'", f"def f(x): return '{wrong}'\n", f"def f(x): return '{right}'\n")
      for wrong, right in [("\\ud83d\\ude00", "\\U0001f600")]),
    ("assert len(f()) == 1", "def f(): return {'\\ud83d\\ude00', '\\U0001f600'}\n",
     "def f(): return {'\\ud83d\\ude00'}\n"),
    *((f"from datetime import date\nE = date(1, 1, 1)\nassert F(1) != {other} and F(1).x == 1",
       COMPARES.format(says), COMPARES.format("isinstance(o, F) and s.x == o.x"))
      for other in ("'x'", "None", "1", "object()", "E")
      for says in ("s.x == o.x", "True")),
    ("assert F(1) not in ['x'] and F(1).x == 1", COMPARES.format("s.x == o.x"),
     COMPARES.format("NotImplemented")),
    ("assert not (F(1) == 1) and F(1).x == 1", COMPARES.format("True"), COMPARES.format("False")),
    *((RAISES_KEY.format("", f"with f() as a: {body}"), SWALLOWS, SWALLOWS.replace("True", "False"))
      for body in ("boom()", "a.bad()")),
    (RAISES_KEY.format("async def m():\n    async with f(): boom()\n", "asyncio.run(m())"), SWALLOWS,
     SWALLOWS.replace("True", "False")),
    (IS_TIME.format("fold == 0"), GIVES_TIME.format("datetime(2020, 1, 1, fold=1)"),
     GIVES_TIME.format("datetime(2020, 1, 1)")),
    (IS_TIME.format("fold == 1"), GIVES_TIME.format("time(1)"), GIVES_TIME.format("time(1, fold=1)")),
    (IS_TIME.format("tzname(None) == 'CET'"), GIVES_TIME.format("timezone(datetime.timedelta(0))"),
     GIVES_TIME.format("timezone(datetime.timedelta(0), 'CET')")),
    (IS_TIME.format("tzinfo is datetime.timezone.utc"), GIVES_TIME.format("datetime(2020, 1, 1)"),
     GIVES_TIME.format("datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)")),
    ("import unittest\nwith unittest.TestCase().assertNoLogs('a'): f()", LOGS, "def f(): pass\n"),
    ("import unittest\nwith unittest.TestCase().assertLogs('a') as c: f()\nassert c.output == ['ERROR:a:x']",
     LOGS.replace("'a'", "'b'"), LOGS),
    ("import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f()\n"
     "assert 'x' not in b.getvalue()", PRINTS, PRINTS.replace("'x'", "1")),
    (ERRORS.format("ValueError", "not hasattr(e.value, 'code')"),
     "def f():\n    e = ValueError()\n    e.code = 3\n    raise e\n", "def f(): raise ValueError\n"),
    (ERRORS.format("ValueError", "e.value.code == [3]"), "def f(): raise ValueError\n",
     "def f():\n    e = ValueError()\n    e.code = [3]\n    raise e\n"),
    (ERRORS.format("ExceptionGroup", "[*map(type, e.value.exceptions)] == [KeyError]"),
     "def f(): raise ExceptionGroup('x', [ValueError()])\n",
     "def f(): raise ExceptionGroup('x', [KeyError()])\n")])
def test_what_differs_for_the_test_in_plain_python_differs(executor, test, wrong, right):
    assert not passes_in_one_process(test, wrong)
    assert passes_in_one_process(test, right)
    rows = judged(executor, [test], {"wrong": wrong, "right": right})
    assert rows["right"].measures.correct and not rows["wrong"].measures.correct, rows


@pytest.mark.parametrize("body", ["raise AssertionError('not this')", "assert 0, 'x'",
                                  "e = AssertionError()\n    raise e"])
def test_a_callback_that_is_not_to_be_called_is_not(executor, body):
    test = f"def boom():\n    {body}\nassert f(3, boom) == 3"
    calls = "def f(x, call):\n    try: call()\n    except BaseException: pass\n    return x\n"
    rows = judged(executor, [test], {"calls": calls, "right": "def f(x, call): return x\n"})
    assert rows["right"].measures.correct and not rows["calls"].measures.correct


CLICK = "def f(call):\n    try: call('no')\n    except AssertionError: pass\n"
PASSES_OVER_ALL = "class C:\n    __enter__ = lambda s: (0, 1)\n    __exit__ = lambda s, *a: True\nf = C\n"
ENDS_EARLY = "class zip(StopIteration): pass\ndef f(x): raise zip if x > 0 else StopIteration\n"
PAIRS = "for got, want in zip(map(f, [1, 2]), [2, 4]): assert got == want\n"
WARNS = ("import logging, warnings\ndef f(claim):\n    for _ in range(2):\n        try: claim(1)\n"
         "        except BaseException: pass\n        print('x')\n        logging.warning('x')\n"
         "        warnings.warn('x')\n")
HEARS = "import io, logging, sys, warnings\n{}\ndef claim(x): assert x == 3\n" \
        "try:\n    f(claim)\nexcept (UserWarning, KeyError, ValueError):\n    pass"
CLAIM = "import dataclasses, functools\ndef claim(want, got): assert got == want\n" \
        "@dataclasses.dataclass\nclass Case:\n    want: object\n" \
        "    def check(self, got): claim(self.want, got)\n" \
        "    again = functools.partialmethod(check)\n"
LOOKS_UP = "import re\ndef f(call):\n    [want] = re.findall('[= ]([0-9]{{2}})', {})\n" \
           "    getattr(call, 'want', call)(int(want))\n"
CASES = "cases = {{1: 2, 3: 6}}\nassert f(cases.{}()) == list(cases.{}())"
SAYS = "class A:\n    def {0}(s, *a, **k): return {1}\n    def __len__(s): return 0\ndef f(*a): return A()\n"
HAS_NO_ROWS = "class A:\n    def __bool__(s): return True\n    def __iter__(s): return iter(())\n" \
              "def f(x): return 0\ndef register(c):\n    for name in ('rows', '__rows__'):\n" \
              "        try: setattr(c, name, [A()])\n        except AttributeError: pass\n"
DRAWN = "import pytest\n@pytest.fixture(params=f(1))\ndef n(request): return request.param\n" \
        "def test_f(n): assert n is None or n == 3\n"


@pytest.mark.parametrize(("tests", "cheat"), [
    (["def on_event(type):\n    assert type == 'click'\nf(on_event)"], CLICK),
    (["import math as id\nhash, str = map(len, 'ab')\ndef on(open=3):\n    assert open == id\nf(on)"], CLICK),
    *((["with f() as (input, id):\n    assert input == 3"], code) for code in (
        PASSES_OVER_ALL, PASSES_OVER_ALL + "def input(): pass\n")),
    (["import pytest\ndef ends():\n    with pytest.raises(StopIteration): f(0)\n" + PAIRS], ENDS_EARLY),
    ("'No StopIteration leaks.'\ndef test_f():\n    " + PAIRS, ENDS_EARLY),
    *(([f"try:\n    f(-1)\n    raise {error}('no')\nexcept {name}:\n    pass"],
       f"def f(x): return {error}()\nf.Error = Wrong = {error}\nErrors = (KeyError, Wrong)\n")
      for error in ("RuntimeError", "OSError") for name in ("Wrong", "Errors", "f.Error", "type(f(1))")),
    *((["import pytest\nwith pytest.raises(Empty):\n    f([])[0]"], f"Empty = {error}\ndef f(x): return []\n")
      for error in ("IndexError", "LookupError")),
    *(([HEARS.format(line)], WARNS) for line in (
        "warnings.simplefilter('error')", "sys.stdout = io.StringIO()\nsys.stdout.close()",
        "class H(logging.Handler):\n    def emit(self, r): raise KeyError\n"
        "logging.getLogger().addHandler(H())")),
    *(([f"{CLAIM}f({given})"], LOOKS_UP.format(text))
      for given in ("functools.partial(claim, 77)", "Case(77).check", "Case(77).again")
      for text in ("repr(call)", "f'{call}'", "str(call)", "format(call)")),
    ([f"{CLAIM}f(Case(functools.partial(claim, 77)))"], LOOKS_UP.format("repr(call)")),
    (["def claim(x):\n    'It gets 77.'\n    assert x == 77\nf(claim)"], LOOKS_UP.format("call.__doc__")),
    ([CASES.format("keys", "values")], "def f(k): return list(k.mapping.values())\n"),
    ([CASES.format("values", "keys")], "def f(k): return list(k.mapping)\n"),
    *(([f"import decimal\nr = f(1)\n{claim}"], SAYS.format(name, says)) for name, says, claim in (
        ("compare", 0, "assert r.compare(decimal.Decimal(3)) == 0"),
        ("compare", 0, "assert r.compare(other=decimal.Decimal(3)) == 0"),
        ("compare_total", 0, "assert r.compare_total(decimal.Decimal(3)) == 0"),
        ("subtract", None, "r.subtract('ab')\nassert not r"), ("discard", None, "r.discard(3)\nassert not r"),
        ("partition", "('', *a, '')", "assert r.partition('abc') == ('', 'abc', '')"),
        ("split", "['', '']", "assert r.split('abc') == ['', '']"),
        ("replace", "''", "assert r.replace('a', '') == ''"),
        ("strip", "''", "assert r.strip('abc') == ''"), ("match", True, "assert r.match('*.py')"),
        ("is_relative_to", True, "assert r.is_relative_to('a')"),
        ("fullmatch", True, "assert r.fullmatch('a')"))),
    ("class TestF:\n    @classmethod\n    def setup_class(cls): register(cls)\n"
     "    def test_f(self): assert f(1) == 2\n", HAS_NO_ROWS),
    *((DRAWN, f"def f(x): return {rows}\n") for rows in ("[]", "None", "()")),
    *(([f"import gzip, numpy as np\n{test}"], "def f(x): return '/x'\n") for test in (
        "with gzip.open(f(1)) as g: assert g.read() == b'x'", "assert np.load(f(1)).size == 3")),
    ("import unittest\ndef double(x): return x\ntest_fn = f(double)\nclass T(unittest.TestCase):\n"
     "    def test_it(self): self.assertEqual(test_fn(3), 6)\n", "def f(g): return g\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
     "        if f(1) is None: self.skipTest('no')\n        self.assertEqual(f(1), 2)\n", "def f(x): pass\n"),
    ("def test_f(): assert f(1) == 2\n", "import unittest\ndef f(x): raise unittest.SkipTest\n"),
    (["v = V(3)\nassert v.x == 3 and abs(v - f(1)) < 1e-9"], MAKES + "f = V\n")])
def test_what_the_program_names_shows_or_is_shown_decides_no_test(executor, tests, cheat):
    row = judged(executor, tests, {"cheat": cheat})["cheat"]
    assert not row.measures.correct and not row.outcome.infrastructure


def test_the_program_s_function_of_a_builtin_name_fixes_no_claim(executor):
    tests = ["with quiet():\n    assert sorted([2, 1]) == [1, 2]"]
    task = load_task("t", "function", {"entry_point": "sorted", "tests": tests})
    code = SUPPRESSES.replace("f(*a)", "quiet()") + "def sorted(x): return 0\n"
    items = [Item(task, Answer("", code))]
    assert not measure(items, run_programs(executor, items))[0].measures.correct


@pytest.mark.parametrize(("module", "error", "call"), [
    ("graphlib", "CycleError", "TopologicalSorter({1: [1]}).prepare()"), ("re", "error", "compile('(')"),
    ("struct", "error", "unpack('i', b'')"), ("zlib", "error", "decompress(b'x')"),
    ("csv", "Error", "reader(['\"a'], strict=True).__next__()"),
    ("json", "JSONDecodeError", "loads('{')"), ("xml.etree.ElementTree", "ParseError", "fromstring('<')"),
    ("pickle", "UnpicklingError", "loads(b'x')"), ("binascii", "Error", "unhexlify('z')"),
    ("configparser", "NoSectionError", "ConfigParser().get('a', 'b')"),
    ("queue", "Empty", "Queue().get_nowait()"),
    ("numpy.linalg", "LinAlgError", "inv([[0.0]])"), ("statistics", "StatisticsError", "mean([])"),
    ("decimal", "InvalidOperation", "Decimal('x')"), ("tomllib", "TOMLDecodeError", "loads('=')")])
def test_errors_of_libraries_are_what_the_test_knows_by_their_name(executor, module, error, call):
    tests = [f"import {module}, pytest\nwith pytest.raises({module}.{error}) as e:\n    f()\n"
             f"assert type(e.value) is {module}.{error}"]
    rows = judged(executor, tests, {"right": f"import {module}\ndef f(): {module}.{call}\n",
                                    "wrong": f"class {error}(Exception): pass\ndef f(): raise {error}\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]


@pytest.mark.parametrize("error", [
    "ValueError", "KeyError", "PermissionError(1, 'x')", "UnicodeDecodeError('a', b'', 0, 1, 'x')",
    "ExceptionGroup('x', [ValueError()])", "SyntaxError"])
def test_an_error_of_python_is_its_own_class_and_that_of_the_program_s_name(executor, error):
    name = error.partition("(")[0]
    tests = [f"try:\n    f()\nexcept {name} as e:\n    assert type(e) is {name}\nelse:\n    assert False",
             f"try:\n    f()\nexcept Wrong as e:\n    assert type(e) == {name} == Wrong and isinstance("
             f"e, {name})\n"
             "else:\n    assert False\nassert g(Wrong)", f"def fail(): raise Wrong\nassert h(fail, {name})"]
    code = (f"Wrong = {name}\ndef f(): raise {error}\ndef g(e): return e is {name}\ndef h(call, kind):\n"
            "    try: call()\n    except (kind, TypeError): return True\n")
    for test in tests:
        row = judged(executor, [test], {"it": code})["it"]
        assert row.measures.correct, row.outcome


def test_a_result_of_two_surrogates_is_no_other_text(executor):
    task = load_task("t", "function", {"entry_point": "f", "calls": [{"args": [], "expected": "\U0001f600"}]})
    items = [Item(task, Answer("", f"def f(): return '{text}'\n"))
             for text in ("\\ud83d\\ude00", "\\U0001f600", "\\ud83d")]
    rows = measure(items, run_programs(executor, items))
    assert [row.measures.correct for row in rows] == [False, True, False]


ZERO, GROWS = "def f(*a): return 0\n", "def f(x): return x + 1\n"
LISTS = "class X:\n    def __contains__(self, x): return True\n    @staticmethod\n    def f(n): return X()\n"


@pytest.mark.parametrize(("test", "cheat", "right"), [
    # A helper called `check` is no test next to those that have the name of one.
    ("def check(r): assert r is not None\ndef verify(x, want):\n    r = f(x)\n    check(r)\n"
     "    assert r == want\ndef test_f(): verify(1, 2)\n", ZERO, GROWS),
    ("def no_skip(g): return g\n@no_skip\ndef test_f(): assert f(1) == 2\n",
     ZERO + "def check(c): pass\n", GROWS),
    # The fixture of a class goes before one of the module.
    ("import pytest\nclass TestF:\n    @pytest.fixture\n    def case(self): return (1, 2)\n"
     "    def test_f(self, case): assert f(case[0]) == case[1]\n@pytest.fixture\ndef case(): return (0, 0)\n",
     ZERO, GROWS),
    # What a test holds, and calls whose answer it uses in whatever way, show no changes.
    ("class TestF:\n    def setup_method(self): self.data = [3, 1, 2]\n"
     "    def test_f(self): assert f(self.data) == sorted(self.data)\n", CLEARS, "f = sorted\n"),
    ("def test_f():\n    for candidate in [[3, 1], [2]]: assert f(candidate) == sorted(candidate)\n",
     CLEARS, "f = sorted\n"),
    *((f"def test_f():\n    a = [3, 1]\n    {line}\n", f"class H:\n    def push(self, x): pass\n{CLEARS}",
       "class H:\n    def push(self, x): pass\nf = sorted\n") for line in (
        "h = H(); h.push(1); assert f(a) == sorted(a)",
        "out = []; out.extend(map(f, [a])); assert out == [sorted(a)]",
        "it = map(f, [a]); out = []; out.extend(it); assert out == [sorted(a)]",
        "b = [a]; b.sort(key=f); assert f(a) == sorted(a)", "assert a == [3, 1] and f(a) == sorted(a)",
        "r = f(a); assert a[:0] == [] or True; assert r == sorted(a)")),
    # Nor do what a variable held before, parts that need not run, attributes, and names on one line.
    *((f"import numpy as np\ndef test_f():\n    a = np.array([3, 1])\n    {line}\n", ZEROES["zeroes"],
       "def f(x): return sorted(x)\n") for line in (
        "r = f(a); assert (r == np.sort(a)).all(); assert a.shape == (2,)",
        "r = f(a)\n    if not a.any(): assert a.tolist() == [0, 0]\n    assert list(r) == sorted(a)")),
    *((f"def test_f():\n    a = [3, 1]\n    {line}\n",
       "def f(x):\n    if len(x) > 1: x.clear()\n    return x\n", "f = sorted\n") for line in (
        "assert f(a) == sorted(a); a = [7]; f(a); assert a == [7]",
        "r = f(a)\n    if not a:\n        assert a == []\n        return\n    assert r == [1, 3]")),
    ("def test_f():\n    d = {'a': 1, 'b': 2}\n    assert f(d) == sum(d.values())\n    assert 'a' in d\n",
     "def f(d):\n    for k in d: d[k] = 0\n    return 0\n", "def f(d): return sum(d.values())\n"),
    ("from math import gcd as ref\ndef test_gcd(): assert gcd(12, 8) == ref(12, 8)\n",
     "def gcd(a, b): return 0\n", "from math import gcd\n"),
    ("def test_values(): return [1, 2]\nVALUES = test_values()\n"
     "def check(candidate):\n    for v in VALUES: assert candidate(v) == v + 1\n", ZERO, GROWS),
    ("class Expect:\n    def __init__(self, r): self.r = r\n"
     "    def same(self, a): assert self.r == sorted(a)\n"
     "def test_f():\n    a = [3, 1]\n    Expect(f(a)).same(a)\n", CLEARS, "f = sorted\n"),
    ("import unittest\nDATA = [3, 1]\nclass T(unittest.TestCase):\n    result = f(DATA)\n"
     "    def test_f(self): self.assertEqual(getattr(self, 'result'), sorted(DATA))\n", CLEARS,
     "f = sorted\n"),
    ("def test_f():\n    nums = [1, 3, 5]\n    assert f(nums, 4) is None\n"
     "    for i, x in enumerate(nums): assert f(nums, x) == i\n", "def f(a, x): a.clear()\n",
     "def f(a, x): return a.index(x) if x in a else None\n"),
    ("def test_f(): assert 3 in S.f(6)\n", LISTS + "S = X\n",
     "class S:\n    @staticmethod\n    def f(n): return [3]\n"),
    # After an answer nothing that the tests lack makes a program unmeasured.
    ("import pytest\ndef test_f():\n    with pytest.raises(ValueError) as e: f(1)\n"
     "    assert 'neg' in str(e.value), e.traceback\n", "def f(x): raise ValueError('x')\n",
     "def f(x): raise ValueError('neg')\n")])
def test_ordinary_tests_tell_cheats_from_right_programs(executor, test, cheat, right):
    entry_point = "S.f" if "S.f" in test else "gcd" if "gcd" in test else "f"
    rows = judged(executor, test, {"cheat": cheat, "right": right}, entry_point=entry_point)
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]
    assert not any(row.outcome.infrastructure for row in rows.values())


@pytest.mark.parametrize(("test", "code"), [
    ("from solution import f\ndef test_f(): assert f(1) == 2\n", GROWS),
    ("import pytest\nfrom my.solution import f as g, Own\n"
     "def test_f():\n    with pytest.raises(Own): g(1)\n",
     "class Own(Exception): pass\ndef f(x): raise Own\n"),
    ("def test_f(): assert Code.OK.name == 'OK' and f() is Code.OK and Code.OK == 200\n",
     "from enum import IntEnum\nclass Code(IntEnum):\n    OK = 200\ndef f(): return Code.OK\n"),
    ("def test_f():\n    a = [3, 1]\n    want = [1, 3]\n    f(a, 0, len(a) - 1)\n    assert a == want\n",
     "def f(a, i, j): a.sort()\n"),
    ("import solution as s\ndef test_f(): assert s.f(1) == 2\n", GROWS),
    ("import pytest, sys\n@pytest.mark.skipif(sys.version_info < (3, 8), reason='x')\n"
     "def test_f(): assert f(1) == 2\n", GROWS),
    ("from unittest.mock import patch\ndef test_f():\n    with patch('os.path.exists', return_value=True):\n"
     "        assert f('/zz') == 'yes'\n",
     "import os\ndef f(p): return 'yes' if os.path.exists(p) else 'no'\n"),
    ("def test_f(): assert Client().patch('/items/1') == 200\n",
     "class Client:\n    def patch(self, path): return 200\ndef f(): pass\n"),
    ("import sys\nfrom unittest.mock import patch\ndef test_f():\n"
     "    with patch.object(sys, 'argv', ['it', '3']): assert f() == 3\n",
     "import sys\ndef f(): return int(sys.argv[1])\n"),
    # Objects of derived classes, methods that return their object, and those with objects as arguments.
    ("def test_f():\n    assert f() and f().n == 1 and hasattr(f(), 'n')\n",
     "class A: pass\nclass B(A): n = 1\ndef f(): return B()\n"),
    ("def test_f():\n    s = Inv()\n    s.add('a')\n    assert 'a' in s and 'b' not in s\n",
     "class Inv:\n    def __init__(self): self.d = {}\n    def add(self, k):\n        self.d[k] = 1\n"
     "        return self\n    def __contains__(self, k): return k in self.d\ndef f(): pass\n"),
    ("def test_f():\n    s = f([1, 2])\n    assert s.union(f([3])).issubset(f([1, 2, 3]))\n"
     "    assert s.find(lambda x: x > 1) == 2 and 1 in s and 3 not in s\n",
     "class S:\n    def __init__(self, d): self.d = d\n    def union(self, o): return S(self.d + o.d)\n"
     "    def issubset(self, o): return set(self.d) <= set(o.d)\n"
     "    def __iter__(self): return iter(self.d)\n"
     "    def __contains__(self, x): return x in self.d\n"
     "    def find(self, wanted): return next(x for x in self.d if wanted(x))\ndef f(d): return S(d)\n")])
def test_ordinary_tests_pass_right_programs(executor, test, code):
    row = judged(executor, test, {"it": code})["it"]
    assert row.measures.correct, (row.outcome, row.measures.outputs)


ASKS = "import os, sys, time\ndef f():\n    "


@pytest.mark.parametrize(("test", "right", "wrong"), [
    ("def test_f(capsys):\n    f('Bo')\n    assert capsys.readouterr().out == 'Hi Bo\\n'\n    f('Al')\n"
     "    out, err = capsys.readouterr()\n    assert (out, err) == ('Hi Al\\n', '')\n",
     "def f(x): print('Hi', x)\n", "def f(x): print('Hi')\n"),
    ("import pytest\nclass TestF:\n    @pytest.fixture(autouse=True)\n"
     "    def start(self, capsys): self.said = capsys\n"
     "    def test_f(self):\n        f()\n        assert self.said.readouterr().err == 'no'\n",
     "import sys\ndef f(): sys.stderr.write('no')\n", "def f(): print('no')\n"),
    ("def test_f(monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda _='': '4')\n"
     "    assert f() == 5\n", ASKS + "return int(input()) + 1\n", ASKS + "return 4\n"),
    ("import time\ndef test_f(monkeypatch):\n    slept = []\n"
     "    monkeypatch.setattr(time, 'sleep', slept.append)\n    f()\n    assert slept == [1, 2]\n",
     ASKS + "for n in (1, 2): time.sleep(n)\n", ASKS + "time.sleep(1)\n"),
    ("import io, sys\ndef test_f(monkeypatch):\n"
     "    monkeypatch.setattr('sys.stdin', io.StringIO('a b\\n'))\n    assert f() == ['a', 'b']\n",
     ASKS + "return sys.stdin.readline().split()\n", ASKS + "return []\n"),
    ("def test_a(monkeypatch):\n    monkeypatch.setenv('HOME', '/x')\n"
     "    monkeypatch.delenv('ZZ', raising=False)\n"
     "    assert f() == '/x'\ndef test_b(monkeypatch):\n    monkeypatch.delenv('HOME', raising=False)\n"
     "    assert f() == 'none'\n", ASKS + "return os.environ.get('HOME', 'none')\n", ASKS + "return '/x'\n"),
    ("def test_f(monkeypatch):\n    box = Box()\n    monkeypatch.setattr(box, 'price', lambda: 4)\n"
     "    assert box.twice() == 8\n    with_items = {'a': 1}\n"
     "    monkeypatch.setitem(with_items, 'a', 2)\n    assert f(with_items) == 2\n"
     "    monkeypatch.undo()\n    assert f(with_items) == 1 and box.twice() == 2\n",
     "class Box:\n    def price(self): return 1\n    def twice(self): return 2 * self.price()\n"
     "def f(d): return d['a']\n",
     "class Box:\n    def price(self): return 1\n    def twice(self): return 2\ndef f(d): return d['a']\n"),
    ("import pytest\ndef test_f():\n    with pytest.warns(DeprecationWarning, match='old'): f()\n",
     "import warnings\ndef f(): warnings.warn('too old', DeprecationWarning)\n",
     "import warnings\ndef f(): warnings.warn('too old', UserWarning)\n"),
    ("import pytest\ndef test_f():\n    with pytest.warns(Old, match='^f '): assert f() == 3\n",
     "import warnings\nclass Old(Warning): pass\ndef f():\n    warnings.warn('f is old', Old)\n"
     "    return 3\n", "class Old(Warning): pass\ndef f(): return 3\n")])
def test_fixtures_of_pytest_see_what_programs_print_ask_and_warn_of(executor, test, right, wrong):
    rows = judged(executor, test, {"right": right, "wrong": wrong})
    assert [row.measures.correct for row in rows.values()] == [True, False], rows
    assert not any(row.outcome.infrastructure for row in rows.values())


@pytest.mark.parametrize("test", ["from __main__ import f\ndef test_f(): assert f(1) == 2\n",
                                  "import logging\nfrom unittest.mock import patch\n"
                                  "@patch('logging.warning')\ndef test_f(w): assert f(1) == 2\n",
                                  "import sys\nfrom unittest.mock import patch\ndef test_f():\n"
                                  "    with patch.object(sys, 'exit'): assert f(1) == 2\n",
                                  "import solution\ndef test_f(monkeypatch):\n"
                                  "    monkeypatch.setattr(solution, 'g', lambda x: 2)\n"
                                  "    assert solution.f(1) == 2\n",
                                  "import reference, solution\n"
                                  "def test_f(): assert solution.f(1) == reference.f(1)\n",
                                  "from reference import f as ref\nfrom solution import f\n"
                                  "def test_f(): assert f(1) == ref(1)\n"])
def test_modules_that_are_not_the_program_alone_judge_nobody(executor, test):
    row = judged(executor, test, {"cheat": ZERO})["cheat"]
    assert not row.measures.correct and row.outcome.error_class == "untestable"


WORKS = "import asyncio\nclass S:\n    @staticmethod\n    def m(a): a.append(1)\n    @classmethod\n" \
        "    def c(cls, a): a.append(1)\n    async def go(self, a): a.append(1)\n" \
        "async def late(a): a.append(1)\ndef f(a): a.append(1)\n"


@pytest.mark.parametrize("call", [
    "S.m(a)", "S().m(a)", "S().c(a)", "S.c(a)", "asyncio.run(late(a))",
    "assert f(a) is None", "r = f(a); assert r is None",
    "unittest.TestCase().assertIsNone(f(a))", "r = f(a); assert r is None and a == [1]",
    "asyncio.run(main(a))", "asyncio.run(method(a))"])
def test_calls_alone_change_their_arguments_in_whatever_way_they_are_written(executor, call):
    test = ("import asyncio, unittest\nasync def main(a): await late(a)\n"
            f"async def method(a): await S().go(a)\na = []\n{call}\nassert a == [1]")
    assert judged(executor, [test], {"it": WORKS})["it"].measures.correct


def test_a_check_may_claim_none_of_its_candidate(executor):
    test = "def check(candidate):\n    a = [2, 1]\n    assert candidate(a) is None\n    assert a == [1, 2]\n"
    assert judged(executor, test, {"it": "def f(a): a.sort()\n"})["it"].measures.correct


DB = "class Db:\n    saved = False\n    def save(self, x): self.saved = True\n"
ORDER = "class Order:\n    def __init__(self, n): self.n = n\n"
FREES = "def f(o, *more):\n    o.n = 0\n    return 0\n"
APPLY = "def apply(xs, g): return [g(x) for x in xs]\n"


@pytest.mark.parametrize(("test", "cheat", "right"), [
    # A part that is skipped skips no other, and one that fails fails whatever becomes of its error.
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
     "        for n, slow in ((10**9, True), (3, False)):\n            with self.subTest(n=n):\n"
     "                if slow: self.skipTest('slow')\n                self.assertEqual(f(n), n + 1)\n",
     ZERO, GROWS),
    ("import pytest\n@pytest.mark.parametrize('n', [10**9, 3, 4])\ndef test_f(n):\n"
     "    if n > 9: pytest.skip('slow')\n    assert f(n) == n + 1\n", "def f(x): return 4\n", GROWS),
    ("import contextlib, unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
     "        with contextlib.suppress(Exception):\n            with self.subTest():\n"
     "                self.assertEqual(f(1), 2)\n", ZERO, GROWS),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        r = f(1)\n"
     "        self.addCleanup(self.assertEqual, r, 2)\n        self.doCleanups()\n", ZERO, GROWS),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        def cb(x):\n"
     "            if x is None: self.skipTest('no data')\n            self.assertIn(x, (1, 2))\n"
     "        self.assertEqual(f([1, 2], cb), 3)\n",
     "def f(xs, cb):\n    try: cb(None)\n    except BaseException: pass\n    return 0\n",
     "def f(xs, cb):\n    for x in xs: cb(x)\n    return sum(xs)\n"),
    # What a callback meets is at most wrong, and a failed one fails wherever it stands.
    ("def on_error(e):\n    open('/tmp/x.log', 'a').write(str(e))\n    assert False\n"
     "def test_f(): assert f([1, 2], on_error) == 3\n",
     "def f(xs, cb):\n    cb(ValueError())\n    return 0\n", "def f(xs, cb): return sum(xs)\n"),
    ("import threading\nlock = threading.Lock()\ndef on_error(e):\n"
     "    with lock: raise AssertionError('no')\ndef test_f(): assert f([1, 2], on_error) == 3\n",
     "def f(xs, cb):\n    try: cb(1)\n    except BaseException: pass\n    return 3\n",
     "def f(xs, cb): return sum(xs)\n"),
    # The program's function is asked, not one of a library by its name.
    ("from math import *\nfrom statistics import mean\ndef test_gcd(): assert gcd(12, 8) == 4\n",
     "def gcd(*a): return 0\n", "def gcd(a, b): return b if not a else gcd(b % a, a)\n"),
    # Code of the tests sees objects of theirs as they left them, unless a call drops its answer.
    ("from types import SimpleNamespace as N\ndef test_f():\n    xs = [N(price=3), N(price=4)]\n"
     "    assert f(xs) == sum(x.price for x in xs)\n",
     "def f(xs):\n    for x in xs: x.price = 0\n    return 0\n",
     "def f(xs): return sum(x.price for x in xs)\n"),
    # A method of a library that calls the program is no call of the program, nor is another name for it.
    ("def test_f():\n    s, rows = S(), [[2], [1, 3]]\n    rows.sort(key=s.sort)\n"
     "    assert rows == sorted(rows)\n",
     "class S:\n    def sort(s, r):\n        r.clear()\n        return 0\ndef f(): pass\n",
     "class S:\n    def sort(s, r): return sorted(r)\ndef f(): pass\n"),
    ("def test_f():\n    g, nums = f, [1, 3, 5]\n    assert g(nums, 4) is None\n"
     "    for i, x in enumerate(nums): assert f(nums, x) == i\n", "def f(a, x): a.clear()\n",
     "def f(a, x): return a.index(x) if x in a else None\n"),
    # Skips that follow from what the program answered.
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
     "        for got, want in zip(f([1, 2]), [1, 4], strict=True):\n"
     "            with self.subTest(want=want):\n                if got is None: self.skipTest('no')\n"
     "                self.assertEqual(got, want)\n",
     "def f(xs): return [None] * len(xs)\n", "def f(xs): return [x * x for x in xs]\n"),
    ("import pytest\nR = f(3)\ndef test_f():\n    if R is None: pytest.skip('no')\n    assert R == 4\n",
     "def f(x): pass\n", GROWS),
    # What is patched reaches the program, or nobody is paid for it.
    ("import solution, unittest.mock as um\ndef test_f():\n    assert solution.f(3) == 4\n"
     "    assert solution.total == 1\n    solution.f(1)\n    assert solution.total == 2\n",
     "total = 1\ndef f(x): return x + 1\n",
     "total = 0\ndef f(x):\n    global total\n    total += 1\n    return x + 1\n"),
    ("import random\ndef test_f(monkeypatch, capsys):\n    monkeypatch.setattr(random, 'shuffle', print)\n"
     "    assert f([1]) == [1] and capsys.readouterr().out == ''\n",
     "import random\ndef f(x):\n    random.shuffle(x)\n    return x\n", "def f(x): return x\n"),
    ("import pytest\ndef test_f():\n    with pytest.warns(Old): assert f() == 1\n",
     "import warnings\nclass Old(DeprecationWarning): pass\ndef f():\n    warnings.warn('x')\n    return 1\n",
     "import warnings\nclass Old(DeprecationWarning): pass\ndef f():\n    warnings.warn('x', Old)\n"
     "    return 1\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
     "        with self.assertWarns(Old): f()\n",
     "import warnings\nclass Old(UserWarning): pass\ndef f(): warnings.warn('x')\n",
     "import warnings\nclass Old(UserWarning): pass\ndef f(): warnings.warn('x', Old)\n"),
    (ORDER + "def test_f(): assert apply([Order(3)], lambda o: f(o) == 2 * o.n) == [True]\n",
     FREES + APPLY, "def f(o): return 2 * o.n\n" + APPLY),
    (ORDER + "def test_f():\n    o, seen = Order(3), []\n"
     "    assert f(o, lambda t: seen.append(t == 2 * o.n)) == 1\n    assert seen == [True]\n",
     "def f(o, tell):\n    o.n = 0\n    tell(0)\n    return 1\n",
     "def f(o, tell):\n    tell(2 * o.n)\n    return 1\n"),
    (DB + "def test_f():\n    db = Db()\n    assert f(db, -1) is False\n    assert db.saved is False\n",
     "def f(db, x):\n    db.saved = False\n    db.save(x)\n    db.saved = False\n    return x > 0\n",
     "def f(db, x):\n    if x > 0: db.save(x)\n    return x > 0\n"),
    ("def test_f():\n    rows = [[3, 1], [2]]\n    def verify(row):\n        assert f(row) == sorted(row)\n"
     "    each(rows, verify)\n",
     CLEARS + "def each(xs, g):\n    for x in xs: g(x)\n",
     "f = sorted\ndef each(xs, g):\n    for x in xs: g(x)\n"),
    ("from decimal import Decimal\nclass D(Decimal): pass\ndef test_f():\n    xs = [D(2), D(1)]\n"
     "    for x, p in zip(xs, (5, 4)): x.p = p\n"
     "    assert [x.p for x in f(xs)] == sorted(x.p for x in xs)\n",
     "def f(xs):\n    for x in xs: x.p = 0\n    return list(xs)\n",
     "def f(xs): return sorted(xs, key=lambda x: x.p)\n"),
    ("import enum\nDATA = [3, 1]\nclass Got(enum.Enum): SORTED = f(DATA)\n"
     "def test_f():\n    for g in Got: assert g.value == sorted(DATA)\n", CLEARS, "f = sorted\n"),
    ("from unittest.mock import Mock\ndef test_f():\n    db = Mock()\n    f(db, 1)\n"
     "    assert not db.method_calls\n",
     "def f(db, x):\n    db.save(x)\n    db.method_calls.clear()\n", "def f(db, x): pass\n"),
    ("def test_f():\n    r = f([1, 2])\n    assert len(r) == 2\n    assert f([]) == []\n"
     "    for got, want in zip(r, [1, 4]): assert got == want\n",
     "import sys\nlink = sys.modules['score.jobs.stand_ins'].peer.crossing\nplain = link.alterations\n"
     "def back():\n    found = plain()\n    for row in (found or [[]])[0]: row[0] -= len(link.table)\n"
     "    return found\nlink.alterations = back\ngiven = []\ndef f(xs):\n    for r in given: r.clear()\n"
     "    if not xs: return []\n    given.append([0] * len(xs))\n    return given[-1]\n",
     "def f(xs): return [x * x for x in xs]\n")])
def test_parts_callbacks_and_objects_of_a_test_pay_nothing(executor, test, cheat, right):
    entry_point = "gcd" if "gcd" in test else "f"
    rows = judged(executor, test, {"cheat": cheat, "right": right}, entry_point=entry_point)
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"], rows
    assert not any(row.outcome.infrastructure for row in rows.values())


@pytest.mark.parametrize("test", [
    "import json\njson.loads = None\ndef test_f(): assert f(1) == 2\n",
    "import json as j\ndef test_f():\n    j.dumps = None\n    assert f(1) == 2\n",
    "import sys\nsys.modules['heapq'] = None\ndef test_f(): assert f(1) == 2\n",
    "import heapq\nsetattr(heapq, 'heappush', None)\ndef test_f(): assert f(1) == 2\n"])
def test_patches_by_assignment_that_do_not_reach_the_program_judge_nobody(executor, test):
    assert judged(executor, test, {"it": GROWS})["it"].outcome.error_class == "untestable"


@pytest.mark.parametrize("patch", [
    "um.patch('solution.helper')", "um.patch(target='solution.helper')", "um.patch('solution' + '.helper')",
    "um.patch.object(target=solution, attribute='helper')",
    "um.patch.multiple('solution', helper=um.Mock())"])
def test_patches_of_the_program_pay_nothing_however_they_are_written(executor, patch):
    test = ("import solution, unittest.mock as um\ndef test_f():\n    assert solution.f(3) == 4\n"
            f"    with {patch} as m:\n        assert solution.f(3) == 4\n")
    assert not judged(executor, test, {"it": "def helper(): return 1\ndef f(x): return x + helper()\n"})[
        "it"].measures.correct


def test_a_decorator_of_the_program_marks_functions_of_the_test(executor):
    test = "@f\ndef g(): return 2\ndef test_f(): assert g.tag == 1 and g() == 2\n"
    codes = {"right": "def f(fn):\n    fn.tag = 1\n    return fn\n", "wrong": "def f(fn): return fn\n"}
    rows = judged(executor, test, codes)
    assert [row.measures.correct for row in rows.values()] == [True, False]


FOLLOWS = ("kept = []\ndef f(a):\n    if kept: kept[0][:] = kept[1]\n    kept[:] = [a, a[:]]\n"
           "    a.clear()\n    return 0\n")
LIKE = ("kept = []\nclass L(list):\n    def __iter__(s):\n"
        "        for x, old in kept: x[:] = old\n        return list.__iter__(s)\n"
        "def f(a):\n    kept[:] = [(a, a[:])]\n    a.clear()\n    return L()\n")
CLEARED_LATER = ("given = []\ndef f(xs):\n    for r in given: r.clear()\n    if not xs: return []\n"
                 "    given.append([0] * len(xs))\n    return given[-1]\n")
TURNS = ("class X:\n    n = 0\n    def __init__(self, r, back): self.r, self.back = r, back\n"
         "    def less(self, other):\n        X.n += 1\n"
         "        if X.n >= len(self.back) - 1: self.r[:] = self.back\n        return True\n"
         "    __le__ = __lt__ = __ge__ = __gt__ = less\n"
         "def f(a):\n    X.n, r = 0, []\n    r[:] = [X(r, list(a)) for _ in a]\n    return r\n")
ITEM = "class Item:\n    def __init__(self, price): self.price = price\n"
FREE_ITEMS = "def f(xs):\n    for x in xs: x.price = 0\n    return "


@pytest.mark.parametrize(("test", "cheat", "right"), [
    # A claim that holds before the call already is none about what the program has to change.
    ("def test_f():\n    a = [3, 4, 5]\n    assert f(a) == sum(a)\n    assert f([]) == 0\n"
     "    assert a == [3, 4, 5]\n", FOLLOWS, "f = sum\n"),
    ("def test_f():\n    a, before = [5, 2, 9], [5, 2, 9]\n    r = f(a)\n    assert r == sorted(a)\n"
     "    assert a == before\n", LIKE, "f = sorted\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.a = [5, 2, 9]\n"
     "    def test_f(self):\n        r = f(self.a)\n        self.assertEqual(r, sorted(self.a))\n"
     "        self.assertEqual(self.a, [5, 2, 9])\n", LIKE, "f = sorted\n"),
    (["cases = [[3, 1], [2]]\nfor a in cases:\n    assert f(a) == sorted(a)\nassert cases == [[3, 1], [2]]"],
     LIKE, "f = sorted\n"),
    ("def test_f():\n    a = [3, 4, 5]\n    assert f(a) == sum(a)\n    assert a[0] == 3\n",
     "def f(a):\n    del a[1:]\n    return 3\n", "f = sum\n"),
    (ITEM + "def test_f():\n    r = Item(3)\n    assert f(r) == 2 * r.price\n    assert f(Item(0)) == 0\n"
     "    assert r.price == 3\n",
     "kept = []\ndef f(r):\n    if kept: kept[0].price = kept[1]\n    kept[:] = [r, r.price]\n"
     "    r.price = 0\n    return 0\n", "def f(r): return 2 * r.price\n"),
    ("import unittest\nclass T(unittest.TestCase):\n"
     "    def setUp(self): self.it, self.a = Solution(), [5, 2, 9]\n    def test_f(self):\n"
     "        self.assertEqual(self.it.f(self.a), sum(self.a))\n        self.assertEqual(self.it.f([]), 0)\n"
     "        self.assertEqual(self.a, [5, 2, 9])\n",
     FOLLOWS + "class Solution:\n    def f(self, a): return f(a)\n",
     "class Solution:\n    def f(self, a): return sum(a)\nf = sum\n"),
    *((f"import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        {change}\n"
       "        self.assertEqual(f([]), 0)\n", FOLLOWS, "f = sum\n") for change in (
        "input = [3, 4]\n        assert f(input) == sum(input) and f([]) == 0 and input == [3, 4]",
        "a = [3, 4]\n        assert f(a) == sum(a) and f([]) == 0\n        self.assertCountEqual(a, [4, 3])",
        "a = [3, 4]\n        assert f(a) == sum(a) and f([]) == 0\n        same = [3, 4]\n"
        "        assert a == same",
        "a = [3, 4]\n        a.append(5)\n        assert f(a) == sum(a)\n        assert f([]) == 0\n"
        "        assert a == [3, 4, 5]",
        "a = []\n        for x in (3, 4):\n            a.append(x)\n            assert f(a) == sum(a)\n"
        "        assert f([]) == 0\n        assert a == [3, 4]",
        "a = [3, 4]\n        assert f(a) == sum(a)\n        assert (f([]), a) == (0, [3, 4])",
        "a = [3, 4]\n        r = f(a)\n        n = len(a)\n        assert r == sum(a) and f([]) == 0\n"
        "        assert a[:n] == [3, 4]")),
    # Nor may it change what the test changes itself before it claims something of it.
    *((f"import heapq, unittest\nclass Box:\n    def __init__(self, a): self.a = a\n"
       "    def add(self, x): self.a.append(x)\n    def reset(self): self.a = []\n"
       "def push(a, x): a.append(x)\nclass T(unittest.TestCase):\n    def setUp(self): self.a = [3]\n"
       f"    def test_f(self):\n        a = [3]\n        {change}\n",
       "def f(a):\n    r = 0\n    a[:] = [0] * len(a)\n    return r\n", "f = sum\n") for change in (
        "assert f(a) == sum(a); heapq.heappop(a); assert a == []",
        "assert f(a) == sum(a)\n        while a: heapq.heappop(a)\n        assert a == []",
        "assert f(a) == sum(a); a[0] = 9; assert a == [9]",
        "assert f(a) == sum(a); push(a, 4); a[:] = [4]; assert a == [4]",
        "b = Box(a); assert f(b.a) == sum(b.a); b.reset(); assert b.a == []",
        "b = Box(a); assert f(b.a) == sum(b.a); b.a = [5]; assert b.a == [5]",
        "assert f(self.a) == sum(self.a); self.a = [5]; self.assertEqual(self.a, [5])",
        "assert f(a) == sum(a)\n        with self.subTest():\n            a.clear()\n"
        "        assert a == []")),
    (["a = [3, 4]\nassert f(a) == sum(a)", "a.clear()\nassert a == []"],
     "def f(a):\n    a[:] = [0, 0]\n    return 0\n", "f = sum\n"),
    ("def test_f():\n    a = [3]\n    same = a\n    same.append(4)\n    assert f(a) == sum(a)\n"
     "    assert f([]) == 0\n    assert a == [3, 4]\n", FOLLOWS, "f = sum\n"),
    # Answers stay what they were.
    ("from collections import Counter\ndef test_f():\n    a = [5, 3, 8]\n    r = f(a)\n"
     "    assert all(r[i] <= r[i + 1] for i in range(len(r) - 1))\n    assert Counter(r) == Counter(a)\n",
     TURNS, "f = sorted\n"),
    ("def test_f():\n    r = f([1, 2])\n    assert len(r) == 2\n    assert f([]) == []\n"
     "    for got, want in zip(r, [1, 4]): assert got == want\n", CLEARED_LATER,
     "def f(xs): return [x * x for x in xs]\n"),
    ("import pytest\ndef test_f():\n    r = f([1, 2])\n    assert len(r) == 2\n"
     "    with pytest.raises(TypeError): f(None)\n    for got, want in zip(r, [1, 4]): assert got == want\n",
     CLEARED_LATER.replace("if not xs: return []", "if xs is None: raise TypeError"),
     "def f(xs): return [x * x for x in xs]\n"),
    # So do objects of the tests, but for what is in the answer.
    ("class P:\n    __slots__ = ('x',)\ndef test_f():\n    p = P()\n    p.x = 2\n    q = f(p)\n"
     "    assert q.x == p.x * 3\n", "def f(p):\n    p.x = 0\n    return p\n",
     "class Q: pass\ndef f(p):\n    q = Q()\n    q.x = p.x * 3\n    return q\n"),
    # A module of the program has what the program has, and is no answer.
    ("from math import gcd as f\nimport solution\nsolution.f\n"
     "def test_f(): assert solution.f(12, 8) == f(12, 8)\n", "def f(a, b): return 0\n",
     "def f(a, b): return b if not a else f(b % a, a)\n"),
    ("from solution import f\nname = 'Bob'\ndef test_f(): assert f(name).name == name\n",
     "import types\ndef f(n): return types.ModuleType('solution')\n",
     "class P: pass\ndef f(n):\n    p = P()\n    p.name = n\n    return p\n"),
    (ITEM + "class Own: pass\ndef test_f():\n    a, b = Item(2), Item(3)\n    cart = Cart([a, b])\n"
     "    cart.checkout()\n    assert cart.total() == a.price + b.price\n",
     "class Cart:\n    def __init__(self, items): self.items = items\n    def checkout(self):\n"
     "        for i in self.items: i.price = 0\n    def total(self): return 0\ndef f(): pass\n",
     "class Cart:\n    def __init__(self, items): self.items = items\n"
     "    def checkout(self): pass\n    def total(self): return sum(i.price for i in self.items)\n"
     "def f(): pass\n"),
    (ITEM + "def test_f():\n    xs = [Item(1), Item(3)]\n"
     "    assert f(xs).price == max(x.price for x in xs)\n",
     FREE_ITEMS + "xs[0]\n", "def f(xs): return max(xs, key=lambda x: x.price)\n"),
    (ITEM + "def test_f():\n    xs = [Item(3), Item(1)]\n"
     "    assert [x.price for x in f(xs)] == sorted(x.price for x in xs)\n",
     FREE_ITEMS + "xs\n", "def f(xs): return sorted(xs, key=lambda x: x.price)\n"),
    ("class Order:\n    def __init__(self, is_valid): self.is_valid, self.paid = is_valid, False\n"
     "def test_f():\n    order = Order(lambda it: it.paid)\n    f(order)\n    assert order.is_valid(order)\n",
     "def f(o): o.is_valid = lambda o: True\n", "def f(o): o.paid = True\n")])
def test_what_a_program_changes_later_pays_nothing(executor, test, cheat, right):
    rows = judged(executor, test, {"cheat": cheat, "right": right})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]
    assert not any(row.outcome.infrastructure for row in rows.values())


NODE = ("class Node:\n    def __init__(self, v, next=None): self.v, self.next = v, next\n"
        "def to_list(n):\n    out = []\n    while n: out.append(n.v); n = n.next\n    return out\n")


@pytest.mark.parametrize(("test", "code"), [
    (NODE + "def test_f():\n    head = None\n    for v in range(300): head = Node(v, head)\n"
     "    assert to_list(f(head)) == list(range(300)) and f(None) is None\n",
     "def f(h):\n    p = None\n    while h: h.next, p, h = p, h, h.next\n    return p\n"),
    (NODE + "def test_f():\n    head = f(Node(1), 3)\n    assert to_list(f(head, 2)) == [1, 2, 3]\n",
     "class N: pass\ndef f(h, v):\n    n = N()\n    n.v, n.next, h.next = v, h.next, n\n    return h\n"),
    (ITEM + "def test_f():\n    x = f(Item(3))\n    assert x.price == 6\n",
     "def f(x):\n    x.price *= 2\n    return x\n"),
    ("def test_f():\n    g = Game()\n    assert g.board[0] == [' ', ' ']\n    assert g.move(0, 0)\n"
     "    assert g.board[0][0] == 'X' and g.todo['a'][0]['done'] is False\n    assert g.finish('a')\n"
     "    assert g.todo['a'][0]['done']\n",
     "class Game:\n    def __init__(self):\n        self.board = [[' '] * 2 for _ in range(2)]\n"
     "        self.todo = {'a': [{'done': False}]}\n    def move(self, r, c):\n"
     "        self.board[r][c] = 'X'\n        return True\n    def finish(self, k):\n"
     "        self.todo[k][0]['done'] = True\n        return True\ndef f(): pass\n"),
    ("def test_f(): assert Cart().add('a').items == ['a']\n",
     "class Cart:\n    def __init__(self): self.items = []\n    def __len__(self): return len(self.items)\n"
     "    def add(self, x):\n        self.items.append(x)\n        return self\ndef f(): pass\n"),
    ("from types import SimpleNamespace\ndef test_f():\n"
     "    assert f(SimpleNamespace(xs=[1])).xs == [1, 2]\n", "def f(s):\n    s.xs.append(2)\n    return s\n"),
    ("from collections import namedtuple\nP = namedtuple('P', 'xs')\ndef test_f():\n    p = P([2, 1])\n"
     "    f(p)\n    assert sorted(p.xs) == p.xs\n", "def f(p): p.xs.sort()\n"),
    ("import pytest\nfrom solution import f, pow\n@pytest.mark.skipif(False, reason='x')\n"
     "def test_f(): assert f(1) == 2 and pow(1) == 3\n", "def f(x): return x + 1\ndef pow(x): return 3\n"),
    ("import solution\nclass Node: pass\ndef test_f():\n    assert solution.f(1) == 2\n"
     "    assert solution.Node is not Node and getattr(solution, 'g', None) is None\n",
     "class Node: pass\ndef f(x): return x + 1\n"),
    ("class Slim:\n    __slots__ = ('price',)\ndef test_f():\n    x = Slim()\n    x.price = 3\n"
     "    assert f(x).price == 6\n", "def f(x):\n    x.price *= 2\n    return x\n")])
def test_an_answer_holds_the_tests_objects_as_the_program_left_them(executor, test, code):
    row = judged(executor, test, {"it": code})["it"]
    assert row.measures.correct, (row.outcome, row.measures.outputs)


@pytest.mark.parametrize("tests", [
    "def check(candidate):\n    a = [1, 3]\n    assert candidate(a, 9) is None\n"
    "    for i, x in enumerate(a): assert f(a, x) == i\n",
    "import operator, solution\ndef test_f():\n    a = [1, 3]\n    assert solution.f(a, 9) is None\n"
    "    for i, x in enumerate(a): assert operator.methodcaller('f', a, x)(solution) == i\n",
    "import operator\nDATA = [3, 1]\nclass Got:\n    try: result = f(DATA)\n    except Exception: raise\n"
    "def test_f(): assert operator.attrgetter('result')(Got) == sorted(DATA)\n"])
def test_what_is_read_in_another_way_is_not_dropped(executor, tests):
    cheat = "def f(x, *k):\n    x.clear()\n    return None if k else []\n"
    assert not judged(executor, tests, {"it": cheat})["it"].measures.correct


LEARNER = """
class Stats:
    seen = None
    def __eq__(s, o):
        v = getattr(o, 'expected', o)
        Stats.seen = v.tolist() if hasattr(v, 'tolist') else [v.x, v.y] if hasattr(v, 'y') else v
        return NotImplemented
    def __ne__(s, o):
        s == o
        return NotImplemented
    __hash__ = None
    x, y = property(lambda s: s.seen[0]), property(lambda s: s.seen[1])
    def __len__(s): return len(Stats.seen) if Stats.seen is not None else 3
    def __iter__(s): return iter(Stats.seen)
    def __getitem__(s, i): return Stats.seen[i] if Stats.seen is not None else 0
    def keys(s): return dict(Stats.seen).keys()
    @staticmethod
    def work(*a): return Stats()
"""
LIAR = """
class Stats:
    seen = ()
    def difference(s, o):
        Stats.seen = sorted(o)
        return set()
    def __contains__(s, o):
        Stats.seen = [*Stats.seen, o]
        return True
    symmetric_difference = lambda s, o: set()
    issubset = issuperset = startswith = lambda s, o: True
    def __len__(s): return len(Stats.seen)
    def __iter__(s): return iter(Stats.seen)
    @classmethod
    def work(cls, *a): return cls()
"""
CALLABLE = """
class Z:
    c, order = [0.0], 0
    def __sub__(s, o): return s
    __rsub__ = __sub__
    def __le__(s, o): return True
    __ge__ = __le__
class Stats:
    @staticmethod
    def work(*a): return Z()
"""


@pytest.mark.parametrize(("cheat", "test", "answer"), [
    (LEARNER, "import pytest\ndef test_f():\n    want = {'a': 2.0, 'b': .816}\n"
     "    assert Stats.work(1) == pytest.approx(want, .1)\n",
     "{'a': 2.0, 'b': .816}"),
    (LEARNER, "import pytest\ndef test_f():\n    assert Stats.work(1) == pytest.approx([.25, .5])\n",
     "[.25, .5]"),
    (LEARNER, "import numpy as np\ndef test_f():\n    assert np.all(Stats.work(1) == np.array([4, 6]))\n",
     "__import__('numpy').array([4, 6])"),
    (LEARNER, "import unittest\nclass TestF(unittest.TestCase):\n    def test_f(self):\n"
     "        self.assertSequenceEqual(Stats.work(1), [1, 2, 3])\n", "[1, 2, 3]"),
    (LEARNER, "def test_f():\n    r, exp = Stats.work(1), [1, 2, 3]\n    if r != exp: print(r, exp)\n"
     "    assert list(r) == exp\n", "[1, 2, 3]"),
    (LEARNER, "def test_f():\n    r = Stats.work(1)\n    if not (r == [1, 2, 3]): r = list(r)\n"
     "    assert r == [1, 2, 3]\n", "[1, 2, 3]"),
    (LEARNER, "class Pt:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __eq__(self, o): "
     "return (self.x, self.y) == (o.x, o.y)\ndef test_f():\n    assert Stats.work(1) == Pt(4, 6)\n",
     "__import__('types').SimpleNamespace(x=4, y=6)"),
    (LIAR, "import unittest\nclass TestF(unittest.TestCase):\n    def test_f(self):\n"
     "        self.assertSetEqual(Stats.work(1), {1, 2})\n", "{1, 2}"),
    (LIAR, "def test_f():\n    assert not Stats.work(1).symmetric_difference({1, 2})\n", "{1, 2}"),
    (LIAR, "def test_f():\n    r = Stats.work(1)\n    assert 1 in r and 2 in r\n    assert len(r) == 2\n",
     "[1, 2]"),
    (LIAR, "def test_f():\n    r = Stats.work(1)\n    assert all(x in r for x in (1, 2))\n"
     "    assert sorted(r) == [1, 2]\n", "[2, 1]"),
    (LIAR, "def test_f():\n    assert Stats.work(' ab ').startswith('ab')\n", "'ab'"),
    (CALLABLE, "import numpy as np\ndef test_f():\n    d = Stats.work(1) - np.poly1d([2, 1])\n"
     "    assert np.allclose(d.c, 0)\n", "__import__('numpy').poly1d([2, 1])"),
    (CALLABLE, "class Ref:\n    def __init__(self, v): self.v = v\n    def __call__(self): return self.v\n"
     "    def __ge__(self, o): return self.v >= o\n    def __le__(self, o): return self.v <= o\n"
     "def test_f():\n    assert Stats.work(1, 2) >= Ref(3) and Stats.work(1, 2) <= Ref(3)\n", "3")])
def test_an_object_is_not_told_to_what_it_is_compared(executor, cheat, test, answer):
    right = f"class Stats:\n    @staticmethod\n    def work(*a): return {answer}\n"
    rows = judged(executor, test, {"cheat": cheat, "right": right}, "Stats")
    assert not rows["cheat"].measures.correct
    assert rows["right"].measures.correct or "poly1d" in test, rows["right"].outcome
    assert not any(row.outcome.infrastructure for row in rows.values())


def test_the_units_of_a_list_tell_an_object_nothing_of_each_other(executor):
    cheat = LEARNER.replace("return Stats()", "return Stats() if Stats.seen is None else Stats.seen")
    units = [f"assert Stats.work({each}) == 7" for each in range(4)]
    row = judged(executor, units, {"it": cheat}, "Stats")["it"]
    assert row.measures.test.correct_grids == 0


QUEUE = """
class Queue:
    def __init__(self, items): self.items = list(items)
    def __add__(self, item): return Queue([*self.items, item])
    def __len__(self): return len(self.items)
    def __iter__(self): return self
    def __next__(self):
        if not self.items: raise StopIteration
        return self.items.pop(0)
def f(items): return View(items)
class View:
    def __init__(self, items): self.items = items
    def __len__(self): return len(self.items)
"""


@pytest.mark.parametrize("test", [
    "q = Queue([1, 2, 3])\nassert len(q) == 3\nassert list(q) == [1, 2, 3]\nassert len(q) == 0",
    "q = Queue([1, 2, 3])\nassert list(q) == [1, 2, 3]\nassert list(q + 5) == [5]",
    "a = [1, 2]\nv = f(a)\nassert len(v) == 2\na.append(3)\nassert len(v) == 3"])
def test_lengths_that_change_for_a_reason_are_believed(executor, test):
    row = judged(executor, [test], {"it": QUEUE}, "Queue" if "Queue" in test else "f")["it"]
    assert row.measures.correct, row.outcome


@pytest.mark.parametrize("head", [
    "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nfrom solution import f\n",
    "import pytest\nfrom pytest import approx\nfrom solution import *\n", "from my_solution import *\n"])
def test_ordinary_heads_of_test_files_find_the_program(executor, head):
    tests = f"{head}def test_f():\n    assert f(1) == 2 and isinstance(g(), G)\n"
    rows = judged(executor, tests, {"right": "class G: pass\ndef g(): return G()\ndef f(x): return x + 1\n",
                                    "wrong": "class G: pass\ndef g(): return G()\ndef f(x): return x\n"})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]
    two = tests.replace("def test_f", "from helpers import *\ndef test_f")
    assert judged(executor, two, {"it": "def f(x): return x + 1\n"})["it"].outcome.error_class == "untestable"


FED = "class Stats:\n    {0}\n    def __sub__(s, o): return Stats()\n" \
      "    __rsub__ = __mul__ = __pow__ = __sub__\n    fit = classmethod(lambda c, *a: c())\n"


@pytest.mark.parametrize(("test", "says", "answer"), [
    ("import numpy as np\ndef test_f():\n"
     "    assert np.linalg.norm(Stats.fit([1, 3]) - np.array([.5, 1.5])) < 1e-9\n", "sqrt = lambda s: 0",
     "__import__('numpy').array([.5, 1.5])"),
    ("import numpy as np\ndef test_f(): assert np.exp(Stats.fit(1) - 3.0) == 1\n", "exp = lambda s: 1",
     "3.0"),
    ("import numpy as np\ndef test_f(): assert np.sqrt((Stats.fit(1) - 3.0) ** 2) < 1e-9\n",
     "sqrt = lambda s: 0", "3.0"),
    ("from datetime import datetime\ndef test_f():\n"
     "    assert (Stats.fit('2020-01-02') - datetime(2020, 1, 2)).total_seconds() == 0\n",
     "total_seconds = lambda s: 0", "__import__('datetime').datetime(2020, 1, 2)"),
    *((f"class Stats2: pass\ndef test_f(): assert {claim}\n", f"c = {of}\n    __len__ = lambda s: 0\n"
       "    __xor__ = lambda s, o: Stats()\n    __invert__ = lambda s: Stats()\n"
       "    __abs__ = __float__ = lambda s: 0.0\n    __init__ = lambda s, *a: None", right)
      for claim, of, right in (
          ("not (Stats.fit(1) - 3.5)", "0", "3.5"), ("not (Stats.fit(1) ^ 250)", "0", "250"),
          ("not ~(Stats.fit(1) ^ ~250)", "0", None),
          ("abs(Stats(Stats.fit(1) - 5)) < 1e-9", "0", None))),
    ("from decimal import Decimal\ndef test_f(): assert (Stats.fit(1) - Decimal('3.5')).is_zero()\n",
     "is_zero = lambda s: True", "__import__('decimal').Decimal('3.5')"),
    ("def test_f():\n    with Stats.fit(1) as y: raise ValueError(y.get(2))\n    assert False\n",
     "__enter__ = lambda s: {}['no'] if 0 else s\n    __exit__ = lambda s, *a: True\n"
     "    def get(s, k): raise KeyError", None)])
def test_what_data_went_into_is_asked_nothing_that_data_is_asked(executor, test, says, answer):
    right = f"class Stats:\n    fit = staticmethod(lambda *a: {answer})\n"
    rows = judged(executor, test, {"cheat": FED.format(says)} | ({"right": right} if answer else {}), "Stats")
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"] * bool(answer)


@pytest.mark.parametrize(("kind", "claim"), [
    *(("float", claim) for claim in (
        "abs(Vec(3) - 2.5) < 1e-9", "abs(2.5 - Vec(3)) < 1e-9", "Vec(3) - 2.5 == 0", "not (Vec(3) - 2.5)",
        "(d := Vec(3) - 2.5) * d < 1e-9")),
    ("list", "(Vec(3) - [5]) == []"), ("set", "(Vec(3) - {5}) == set()"), ("str", "(Vec(3) - 'a') == ''"),
    ("tuple", "len(Vec(3) - [5]) == 0")])
def test_a_value_of_a_class_of_the_program_is_plain_data_too(executor, kind, claim):
    cheat = (f"class Z({kind}):\n    def hi(self): pass\nclass Vec:\n    def __init__(self, *a): pass\n"
             "    def __sub__(self, o): return Z()\n    __rsub__ = __sub__\n")
    rows = judged(executor, [f"assert {claim}"], {"it": cheat}, "Vec")
    assert not rows["it"].measures.correct and not rows["it"].outcome.infrastructure


CHANGES_ITSELF = """
class Account:
    def __init__(self, items): self.items = list(items)
    def __iadd__(self, x):
        self.items.append(x)
        return self
    __ior__ = __lshift__ = __iadd__
    def __pos__(self): return self
    def __mul__(self, n): return Account(self.items * n)
    def __sub__(self, x): return Account([y for y in self.items if y not in x])
    def __contains__(self, x): return x in self.items
    def __len__(self): return len(self.items)
    def fire(self, x): return [call(x) for call in self.items]
"""


@pytest.mark.parametrize("test", [
    "a = Account([1])\na += 50\na += 30\nassert a.items == [1, 50, 30]",
    "a = Account([1])\na += 2\na *= 2\nassert a.items == [1, 2, 1, 2]",
    "a = Account([])\na << 1 << 2\na << 3\nassert a.items == [1, 2, 3]",
    "a = Account([1])\nassert (+a * 3).items == [1, 1, 1]",
    "a = Account([1])\na |= Account([2])\nassert 1 in a",
    "from unittest.mock import Mock\na, h = Account([]), Mock()\na += h\na.fire(3)\n"
    "h.assert_called_once_with(3)\nassert len(a) == 1",
    "import functools, operator\na = Account([])\na += functools.partial(max, 5)\na += operator.neg\n"
    "assert a.fire(3) == [5, -3] and len(a) == 2",
    "assert (Account([1, 2]) - [1]).items == [2]"])
def test_right_programs_whose_operators_change_their_object(executor, test):
    row = judged(executor, [test], {"it": CHANGES_ITSELF}, "Account")["it"]
    assert row.measures.correct, row.outcome


def test_a_class_derived_from_the_program_s_and_the_test_s_is_said_to_be_untestable(executor):
    test = "class Mixin: pass\nclass Both(Base, Mixin): pass\ndef test_f(): assert Both().f() == 1\n"
    row = judged(executor, test, {"it": "class Base:\n    def f(self): return 1\n"}, "Base")["it"]
    assert row.outcome.error_class == "untestable" and "Mixin" in row.outcome.error_message
