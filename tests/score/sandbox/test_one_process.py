"""What plain Python fails, in one process, never passes; and what a program does there gives it nothing."""

from dataclasses import replace

import pytest

from score.isolation.lockdown import Layer
from score.protocol.error_classes import ErrorClass
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.pool import LanePool
from score.tasks.kinds import ENDS
from tests.score.sandbox.test_unearned import LIMITS, executor, judged, passes_in_one_process  # noqa: F401

P = "class P:\n    def __init__(self): self.x = 1\np = P()\n"
NP, DECIMAL = "import numpy as np\n", "import pytest\nfrom decimal import Decimal\n"
# A test, and a program that fails it in plain Python, though a process of its own would not tell.
FIDELITY = [
    (P + "assert f(p) == {'x': 1, 'kind': 'P'}\nassert not hasattr(p, 'kind')",
     "def f(p):\n    d = vars(p)\n    d['kind'] = 'P'\n    return d\n"),
    (P + "assert f(p) == 1 and p.x == 1",
     "def f(p):\n    x = p.x\n    try: del p.x\n    except Exception: pass\n    return x\n"),
    (NP + "a = np.arange(6).reshape(2, 3)\nassert f(a) == [0, 1, 2, 3, 4, 5]\nassert a.shape == (2, 3)",
     "def f(a):\n    a.shape = (-1,)\n    return a.tolist()\n"),
    ("for n in range(70): assert f([n] * 20) == [n] * 20\na = f([1])\nf([2])\nassert a == [1]",
     "def f(xs, out=[]):\n    out[:] = xs\n    return out\n"),
    ("from unittest import mock\nm = mock.Mock()\nf(m, list(range(400)))\nm.assert_called_once_with([1])",
     "def f(m, x):\n    a = [1]\n    m(a)\n    a.append(2)\n"),
    ("for name in ('__iter__', '__len__'): assert hasattr(f, name)", "class f: pass\n"),
    ("assert 1 in f([1, 2]) and 3 not in f([1, 2])",
     "class B:\n    __init__ = lambda s, x: setattr(s, 'x', x)\n    __iter__ = lambda s: iter(s.x)\n"
     "    __contains__ = lambda s, x: True\ndef f(x): return B(x)\n"),
    ("import pytest\nassert f([1, 2]) == pytest.approx([0.5, 1.0])",
     "def f(xs): return (x / 2 for x in xs)\n"),
    ("class A:\n    x = f(int)\na, b = A(), A()\na.x = 1\nb.x = 2\nassert a.x == 1",
     "class f:\n    def __init__(self, kind): pass\n    def __get__(self, o, k): return self.v\n"
     "    def __set__(self, o, v): self.v = v\n"),
    ("assert f(1.0) + f(2.0) == 3.0", "class f(float):\n    def __add__(self, other): return f(0)\n"),
    ("import asyncio\nassert asyncio.run(f(3)) == 4",
     "import asyncio\nclass W:\n    def __await__(self): return asyncio.sleep(0, 4).__await__()\n"
     "def f(x): return W()\n"),
    ("import pytest\nimport numpy as np\nassert f([1.0]) == pytest.approx(np.array([1.0]))",
     "import numpy as np\ndef f(x): return np.array([x])\n"),
    ("import pytest\nassert f(1) == pytest.approx(True)", "def f(x): return 1.0\n"),
    (DECIMAL + "assert f() == pytest.approx(Decimal('12345678901234567.10'), abs=Decimal('.01'))",
     "from decimal import Decimal\ndef f(): return Decimal('12345678901234567.89')\n"),
    (DECIMAL + "assert f([10.05, .05]) == pytest.approx(Decimal('10.10'))", "f = sum\n"),
    (DECIMAL + "assert f() == [pytest.approx(Decimal('10.10'))]", "def f(): return [10.1]\n"),
    (NP + "import pytest\nassert f([1, 2]) != pytest.approx(0)",
     "import numpy as np\ndef f(x): return np.asarray(x)[5:]\n"),
    (NP + "import pytest\nassert f() != pytest.approx(np.array([2.0, 2.0]))", "def f(): return 2.0\n"),
    (NP + "assert not np.allclose(f([1, 2]), 0)", "import numpy as np\ndef f(x): return np.array([])\n"),
    ("import pytest\nwith pytest.raises(ValueError, match='bad$'): f()",
     "def f():\n    error = ValueError('bad')\n    error.add_note('because')\n    raise error\n"),
    ("import pytest\nassert f() == pytest.approx(float('nan'), nan_ok=True)",
     "import numpy as np\ndef f(): return np.datetime64('NaT')\n")]


@pytest.mark.parametrize(("test", "code"), FIDELITY)
def test_what_fails_in_plain_python_fails(executor, test, code):     # noqa: F811
    assert not passes_in_one_process(test, code)
    row = judged(executor, [test], {"it": code})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize(("test", "code"), [
    (DECIMAL + "assert f(1) == pytest.approx(Decimal('1.00'), abs=Decimal('.01'))",
     "from decimal import Decimal\ndef f(x): return Decimal(x) + Decimal('.005')\n"),
    (DECIMAL + "assert f([1]) == pytest.approx([Decimal('1')]) and f([2]) != pytest.approx([Decimal('1')])",
     "from decimal import Decimal\ndef f(xs): return [Decimal(x) for x in xs]\n"),
    ("import pytest\nfrom fractions import Fraction\nassert f(3) == pytest.approx(Fraction(1, 3))",
     "def f(x): return 1 / x\n"),
    ("import pytest\nassert f(0) == pytest.approx(1j, abs=.1) and f(1) != pytest.approx(1j)",
     "def f(x): return x + 1.05j\n"),
    ("import pytest\nassert f('inf') == pytest.approx(float('inf')) and f('nan') != pytest.approx(1)",
     "f = float\n"),
    ("import pytest\nwith pytest.raises(ValueError, match='(?s)bad.*because'): f()",
     "def f():\n    error = ValueError('bad')\n    error.add_note('because')\n    raise error\n"),
    ("import pytest\nassert f(1) == pytest.approx({'a': 1}) and f(2) != pytest.approx({'a': 1})",
     "def f(x): return {'a': x}\n")])
def test_what_passes_in_plain_python_passes(executor, test, code):     # noqa: F811
    assert passes_in_one_process(test, code)
    assert judged(executor, [test], {"it": code})["it"].measures.correct


@pytest.mark.parametrize("end", [
    "import os\n        os._exit(0)", "raise SystemExit(0)", "raise MemoryError", "while True: pass",
    "def g(): g()\n        g()"])
def test_a_program_that_ends_its_tests_in_their_process_is_wrong_and_never_null(executor, end):   # noqa: F811
    """Frames of tests are found in their process alone: there the program does what ends them."""
    code = f"""\
import sys
def f(x):
    frame = sys._getframe()
    while frame and frame.f_globals.get('__name__') != 'tests': frame = frame.f_back
    if frame:
        {end}
    return x
"""
    row = judged(executor, ["assert f(3) == 3"], {"it": code, "right": "def f(x): return x\n"})
    assert not row["it"].measures.correct and not row["it"].outcome.infrastructure, row["it"]
    assert row["right"].measures.correct


def test_a_report_forged_in_the_process_of_the_tests_gives_nothing(executor):     # noqa: F811
    """What this process leaves as its frame can pass a test there; the other run decides."""
    code = """\
import sys, os
frame = sys._getframe()
while frame:
    if 'sources' in frame.f_locals.get('order', {}):
        body = b'[1]'
        os.pwrite(3, b'RHR1\\x01' + len(body).to_bytes(4, 'little') + body, 0)
        os._exit(0)
    frame = frame.f_back
def f(x): return 7
"""
    row = judged(executor, ["assert f(3) == 3"], {"it": code})["it"]
    assert not row.measures.correct


def test_what_may_read_its_tests_runs_after_all_that_decides(executor, monkeypatch):     # noqa: F811
    """Else it says, by when it ends, what it read to the programs that start then."""
    order, run = [], executor.pool.run

    def noted(programs):
        for program in programs:
            order.append(program.reads_tests)
            yield program
    monkeypatch.setattr(executor.pool, "run", lambda programs: run(noted(programs)))
    sorts = "def f(x):  # again\n    x.sort()\n    return x\n"
    tests = "import numpy as np\ndef test_a(): assert f([2, 1]) == [1, 2]\n" \
            "def test_b():\n    a = [2, 1]\n    assert f(a) == [1, 2]\n" \
            "def test_c(): assert eval('list({})'.format(f([1]))) == [1]\n"
    assert judged(executor, tests, {"it": sorts})["it"].measures.correct
    assert order == sorted(order) and order.count(True) == 2 and order.count(False) == 5


# Tests that natively run in one process, one after the other; what a program keeps from one to the next.
KEEPING = [
    ("def test_flat(): assert f([1, [2]]) == [1, 2]\ndef test_deep(): assert f([[[3]], 4]) == [3, 4]\n",
     "def f(xs, out=[]):\n    for x in xs:\n        if isinstance(x, list): f(x, out)\n"
     "        else: out.append(x)\n    return out\n",
     "def f(xs):\n    return [y for x in xs for y in (f(x) if isinstance(x, list) else [x])]\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_one(self): self.assertEqual(f('abc'), 3)\n"
     "    def test_two(self): self.assertEqual(f('ab'), 2)\n",
     "seen = []\ndef f(s):\n    seen.extend(s)\n    return len(seen)\n", "def f(s): return len(s)\n"),
    ("def test_a(): assert next(f()) == 0\ndef test_b(): assert next(f()) == 0\n",
     "import itertools\ng = itertools.count()\ndef f(): return g\n",
     "import itertools\ndef f(): return itertools.count()\n"),
    ("def test_a():\n    s = f()\n    s.add(1)\n    assert s.items == [1]\n"
     "def test_b(): assert f().items == []\n",
     "class f:\n    items = []\n    def add(self, x): self.items.append(x)\n",
     "class f:\n    def __init__(self): self.items = []\n    def add(self, x): self.items.append(x)\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): cls.p = f()\n"
     "    def test_a(self): self.assertEqual(self.p.parse('1 2'), [1, 2])\n"
     "    def test_b(self): self.assertEqual(self.p.parse('3'), [3])\n",
     "class f:\n    def __init__(self): self.out = []\n    def parse(self, s):\n"
     "        self.out += map(int, s.split())\n        return list(self.out)\n",
     "class f:\n    def parse(self, s): return [int(x) for x in s.split()]\n"),
    ("import pytest\n@pytest.fixture(scope='module')\ndef data(): return [3, 1, 2]\n"
     "def test_a(data): assert f(data) == 1\ndef test_b(data): assert data == [3, 1, 2]\n",
     "def f(x):\n    x.sort()\n    return x[0]\n", "def f(x): return min(x)\n"),
    ("class TestEmpty:\n    def test_e(self): assert f([]) == 0\ndef test_v(): assert f([1, 2]) == 3\n",
     "alive = [True]\ndef f(x):\n    alive[0] &= bool(x)\n    return sum(x) if alive[0] else 0\n",
     "def f(x): return sum(x)\n"),
    ("import unittest\nclass T(unittest.TestCase):\n    def test_values(self): self.assertEqual(f([1]), 1)\n"
     "    def test_empty(self): self.assertEqual(f([]), 0)\n",
     "alive = [True]\ndef f(x):\n    alive[0] &= bool(x)\n    return sum(x) if alive[0] else 0\n",
     "def f(x): return sum(x)\n")]


@pytest.mark.parametrize(("tests", "wrong", "right"), KEEPING)
def test_what_a_program_keeps_from_one_test_to_the_next_counts(executor, tests, wrong, right):     # noqa: F811
    rows = judged(executor, tests, {"wrong": wrong, "right": right})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]
    units = rows["wrong"].outcome.error_class is None and rows["wrong"].measures.test.correct_grids
    assert units == 0.5                  # the first of them passes


@pytest.mark.parametrize(("tests", "code"), [
    ("import unittest\nclass T(unittest.TestCase):\n"
     "    @classmethod\n    def setUpClass(cls): register('a')\n"
     "    def test_a(self): assert known() == ['a']\n    def test_b(self): assert known() == ['a']\n"
     "    @classmethod\n    def tearDownClass(cls): assert len(known()) == 1\n",
     "names = []\ndef known(): return names\ndef register(name):\n"
     "    if name in names: raise KeyError(name)\n    names.append(name)\nf = register\n"),
    ("import pytest\nmade = []\n"
     "@pytest.fixture(scope='module')\ndef m():\n    made.append('m')\n    return f(1)\n"
     "@pytest.fixture\ndef a():\n    made.append('a')\n    return f(2)\n"
     "def test_a(a, m): assert (a, m) == (2, 1) and made == ['m', 'a']\n", "def f(x): return x\n"),
    ("import warnings\ndef test_a():\n    with warnings.catch_warnings(record=True) as w:\n        f(1)\n"
     "    assert len(w) == 1\n", "import warnings\ndef f(x): warnings.warn('old')\n")])
def test_what_surrounds_tests_is_set_up_once_and_as_in_pytest(executor, tests, code):     # noqa: F811
    assert judged(executor, tests, {"it": code})["it"].measures.correct


@pytest.mark.parametrize("tests", [
    ["import warnings\nwith warnings.catch_warnings(record=True) as w:\n    f(1)\nassert not w"],
    "import warnings\ndef test_f():\n"
    "    with warnings.catch_warnings(record=True) as w: f(1)\n    assert not w\n",
    "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): f(1)\n    @classmethod\n"
    "    def tearDownClass(cls): assert not f.seen\n"])
def test_a_warning_and_what_is_left_at_the_end_count(executor, tests):     # noqa: F811
    code = "import warnings\nclass f:\n    seen = []\n    def __init__(self, x):\n" \
           "        self.seen.append(x)\n        warnings.warn('x')\n"
    assert not judged(executor, tests, {"it": code})["it"].measures.correct


def test_a_warning_that_the_program_turns_off_does_not_count(executor):     # noqa: F811
    tests = "import warnings\ndef test_f():\n" \
            "    with warnings.catch_warnings(record=True) as w: f(1)\n    assert not w\n"
    code = "import warnings\nwarnings.simplefilter('ignore')\ndef f(x): warnings.warn('x')\n"
    assert judged(executor, tests, {"it": code})["it"].measures.correct


def test_tests_that_failed_or_never_end_do_not_run_with_the_others(executor):     # noqa: F811
    tests = "".join(f"def test_{n}(): assert f({n}) == {n}\n" for n in range(4))
    code = "def f(n):\n    while n == 2: pass\n    return n if n != 1 else 7\n"
    assert judged(executor, tests, {"it": code})["it"].measures.test.correct_grids == 0.5


REBINDS = "class S:\n    def __init__(self): self.g = {}\n    def g(self): return 1\ndef f(): return S()\n"
POINT = "from collections import namedtuple\nf = namedtuple('f', 'x y')\n"


@pytest.mark.parametrize(("test", "code"), [
    ("s = f()\nassert s.g() == 1 and s.g() == 1",
     "from functools import lru_cache\n" + REBINDS.format("lru_cache(None)(self.g)")),
    ("assert f().g() == 2", REBINDS.format("lambda: 2")),
    ("import pytest\np = f(1, 2)\nwith pytest.raises(AttributeError): p.x = 5\nassert p == (1, 2)", POINT),
    ("import pytest\np = f(1, 2)\nwith pytest.raises(AttributeError): del p.x", POINT),
    ("n = f(3)\nn.x = 5\nassert n.x == 5 and n == 3", "class f(int): pass\n"),
    ("import solution\nassert getattr(solution, 'f')(1) == 1", "def f(x): return x\n"),
    ("import importlib\nassert importlib.import_module('solution').f(1) == 1", "def f(x): return x\n"),
    ("from my_solution import f as g\nassert g(1) == 1 and f(2) == 2", "def f(x): return x\n"),
    ("from prime_utils import f\ndef check(candidate): assert candidate(2) == 2\ncheck(f)",
     "def f(x): return x\n"),
    ("from prime_utils import f as g\nassert g(2) == 2", "def f(x): return x\n"),
    ("i = f('a', 3)\nassert i.count == 3 and i._replace(count=4).count == 4",
     "from collections import namedtuple\nf = namedtuple('f', 'name count')\n"),
    ("s = f()\nassert s.title == 'Open' and s == 'open'",
     "import enum\nclass S(str, enum.Enum):\n    OPEN = 'open'\n"
     "    title = property(lambda self: self.value.capitalize())\ndef f(): return S.OPEN\n"),
    ("import errno, pytest\nwith pytest.raises(FileNotFoundError, match='a.txt') as e: f('a.txt')\n"
     "assert e.value.filename == 'a.txt' and e.value.args == (errno.ENOENT, 'gone')",
     "import errno\ndef f(path): raise FileNotFoundError(errno.ENOENT, 'gone', path)\n"),
    ("import pytest\nwith pytest.raises(OSError) as e: f()\nassert e.value.args == (1, 2, 3)",
     "def f():\n    error = OSError('a')\n    error.args = (1, 2, 3)\n    raise error\n"),
    ("import pytest\nwith pytest.raises(ImportError) as e: f()\nassert e.value.name == 'm'",
     "def f(): raise ImportError('no', name='m')\n"),
    ("import copy\np = f(3)\np.x = 1\nq = copy.copy(p)\nq.x = 2\nassert p.x == 1 and q.x == 2 and q == 3",
     "class f(int): pass\n"),
    ("n = f()\nn.get()\nn.get()\nassert n.seen == ['get', 'get', 'seen']",
     "class f:\n    def __init__(self): self.seen = []\n    def get(self): pass\n"
     "    def __getattribute__(self, name):\n        own = object.__getattribute__(self, '__dict__')\n"
     "        if name[0] != '_': own.get('seen', []).append(name)\n"
     "        return object.__getattribute__(self, name)\n")])
def test_what_passes_in_plain_python_passes(executor, test, code):     # noqa: F811
    assert judged(executor, [test], {"it": code})["it"].measures.correct


def test_a_module_beside_the_bare_name_is_a_reference_and_none_of_the_program_s(executor):     # noqa: F811
    for test in ("import reference_solution\nassert f(3) == reference_solution.f(3)",
                 "from reference import f as g\nassert f(3) == g(3)",
                 "try: from brute import f as g\nexcept ImportError: g = lambda x: 1\nassert f(3) == g(3)",
                 "import reference\ndef check(candidate): assert candidate(3) == reference.f(3)\ncheck(f)",
                 "import reference\ndef same(f, x): return f(x) == reference.f(x)\nassert same(f, 3)",
                 "try: import main_fast as fast\nexcept ImportError: fast = None\n"
                 "assert f(16) == (fast.root(16) if fast else 4)"):
        row = judged(executor, [test], {"it": "def f(x): return 0\ndef root(x): return 0\n"})["it"]
        assert not row.measures.correct


def test_tests_in_turn_have_the_time_of_all():
    tests = "".join(f"def test_{n}(): assert f({n}) == {n}\n" for n in range(4))
    code = "import time\ndef f(n):\n    end = time.process_time() + 0.3\n" \
           "    while time.process_time() < end: pass\n    return n\n"
    patient = replace(LIMITS, wall_seconds=60.0)       # of a machine that does other things, too
    with LanePool(LaneConfig(Layer.SECCOMP, preload=ENDS), patient, 1) as pool:
        assert judged(Executor(pool), tests, {"it": code})["it"].measures.correct


VIEW = "import sys, unittest\n{}def f(a):\n    if 'tests' in sys.modules: raise {}\n    return a[:]\n"
COPIED = [NP + "a = np.array([1, 2])\nr = f(a)\nr[0] = 9\nassert a[0] == 1 and r.tolist() == [9, 2]"]


@pytest.mark.parametrize(("tests", "code"), [
    (COPIED, VIEW.format("class SkipTest(Exception): pass\n", "SkipTest")),
    (COPIED, VIEW.format("", "unittest.SkipTest")), (COPIED, VIEW.format("", "unittest.SkipTest('x')")),
    ("import unittest\nimport numpy as np\nclass T(unittest.TestCase):\n    def test_f(self):\n"
     "        with self.subTest('x'):\n            a = np.array([1, 2])\n            r = f(a)\n"
     "            r[0] = 9\n            self.assertEqual(a.tolist(), [1, 2])\n",
     VIEW.format("", "unittest.SkipTest"))])
def test_a_program_that_skips_the_run_in_one_process_is_wrong(executor, tests, code):     # noqa: F811
    row = judged(executor, tests, {"it": code})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize("code", [
    "import unittest\ndef f(x): return x\n", "def f(x): return x\n"])
def test_a_test_that_is_skipped_passes_in_both(executor, code):     # noqa: F811
    tests = "import unittest\nclass T(unittest.TestCase):\n    def test_f(self): assert f(1) == 1\n" \
            "    def test_g(self): self.skipTest('elsewhere')\n"
    assert judged(executor, tests, {"it": code})["it"].measures.correct


@pytest.mark.parametrize("code", [
    "import pytest\ndef f(x): return x + 1\n@pytest.fixture(autouse=True)\ndef quiet(tmp_path): pass\n",
    "def f(x): return x + 1\ndef setup_module(): raise RuntimeError\n",
    "import sys\nread = sys.stdin.buffer.readline\nsys.stdout.reconfigure(encoding='utf-8')\n"
    "sys.stdout.buffer.write(b'x')\ndef f(x): return x + 1\n"])
def test_what_the_program_has_for_its_own_tests_changes_no_others(executor, code):     # noqa: F811
    tests = "from solution import f\ndef test_f(): assert f(1) == 2        # as if executed\n"
    assert judged(executor, tests, {"it": code})["it"].measures.correct


def test_data_of_the_program_is_its_own_whatever_modules_it_loads(executor):     # noqa: F811
    code = "import asyncio\nprogram, select = [], {}\ndef f(x):\n    program.append(x)\n    select[x] = 1\n"
    row = judged(executor, ["f(1)\nassert program == [1] and select == {1: 1}"], {"it": code})["it"]
    assert row.measures.correct


def test_a_row_says_where_it_failed(executor):     # noqa: F811
    test, code = FIDELITY[0]
    outcome = judged(executor, [test], {"it": code})["it"].outcome
    assert outcome.error_class in (None, ErrorClass.RUNTIME)
    assert "in one process with its tests, line 5" in str(outcome)


def test_a_test_that_the_kind_of_the_program_skips_is_wrong_and_not_null(executor):     # noqa: F811
    tests = "import inspect, pytest\n@pytest.mark.skipif(not inspect.isclass(f), reason='x')\n" \
            "def test_f(): assert f(1).x == 2\n"
    row = judged(executor, tests, {"it": "def f(x): pass\n"})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure
