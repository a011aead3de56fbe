"""What pytest does around tests: fixtures of every scope, also around unittest's classes, rows and skips."""

import pytest

from score.judging.completions import Item
from score.judging.judge import measure, run_programs
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from tests.score.sandbox.test_unearned import executor, judged  # noqa: F401

P, U, BOTH = "import pytest\n", "import unittest\n", "import pytest, unittest\n"
CASE = "class T(unittest.TestCase):\n    {}def test_a(self): self.assertEqual(f(2), 4)\n"
ALWAYS_4, DOUBLE, SQUARE = (f"def f(x): return {value}\n" for value in ("4", "2 * x", "x * x"))
ACCOUNT = "class f:\n    def __init__(self): self.held = []\n    def add(self, n):\n        {}\n" \
          "    def last(self): return self.held[-1]\n"
# pytest fails the first program, and passes the second.
AROUND = [
    (BOTH + "@pytest.fixture(autouse=True)\ndef clean():\n    yield\n    assert f(0) == 0\n"
     + CASE.format(""),
     ALWAYS_4, DOUBLE),
    (BOTH + "@pytest.fixture(scope='session', autouse=True)\ndef clean():\n    yield\n    assert f(0) == 0\n"
     + CASE.format(""), ALWAYS_4, DOUBLE),
    (BOTH + CASE.format("@pytest.fixture(autouse=True)\n    def clean(self):\n        yield\n"
                        "        assert f(0) == 0\n    "), ALWAYS_4, DOUBLE),
    (U + CASE.format("def teardown_method(self, method): assert f(0) == 0\n    "), ALWAYS_4, DOUBLE),
    (BOTH + "@pytest.fixture(autouse=True)\ndef first(): f(0)\n" + CASE.format(""),
     "bad = []\ndef f(x):\n    if not x: bad.append(x)\n    return 2 * x + len(bad)\n", DOUBLE),
    (BOTH + "class T(unittest.TestCase):\n    @pytest.fixture(autouse=True)\n"
     "    def caught(self, capsys): self.capsys = capsys\n    def test_a(self):\n        f('x')\n"
     "        self.assertEqual(self.capsys.readouterr().out, 'x\\n')\n", "def f(x): pass\n",
     "import sys\ndef f(x): sys.stdout.write(x + '\\n')\n"),
    (P + "@pytest.fixture(scope='module')\ndef account(): return f()\n@pytest.fixture(params=[1, 2])\n"
     "def n(request): return request.param\ndef test_a(account, n):\n    account.add(n)\n"
     "    assert account.last() == n\n", ACCOUNT.format("self.held = self.held or [n]"),
     ACCOUNT.format("self.held.append(n)")),
    (P + "class TestF:\n    @pytest.fixture(scope='class')\n    def account(self): return f()\n"
     "    @pytest.fixture\n    def n(self, request): return request.param\n"
     "    @pytest.mark.parametrize('n', [1, 2], indirect=True)\n    def test_a(self, account, n):\n"
     "        account.add(n)\n        assert account.last() == n\n",
     ACCOUNT.format("self.held = self.held or [n]"), ACCOUNT.format("self.held.append(n)"))]


@pytest.mark.parametrize(("tests", "wrong", "right"), AROUND)
def test_fixtures_live_as_long_as_in_pytest_also_around_unittest(executor, tests, wrong, right):    # noqa: F811
    rows = judged(executor, tests, {"wrong": wrong, "right": right})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"]
    assert not rows["wrong"].outcome.infrastructure


@pytest.mark.parametrize("tests", [
    P + "@pytest.fixture(scope='module', params=['a', 'b'])\ndef k(request): return request.param\n"
    "def test_1(k): assert f(k) == k * 2\ndef test_2(k): assert f(k) == k + k\n",
    P + "@pytest.mark.parametrize('k', ['a', 'b'], scope='class')\nclass TestF:\n"
    "    def test_1(self, k): assert f(k) == k * 2\n",
    P + "@pytest.fixture\ndef a(): return 1\n@pytest.fixture(scope='module')\ndef b(a): return a\n"
    "def test_1(b): assert f(b) == 2\n"])
def test_tests_that_pytest_would_sort_or_refuse_are_untestable_for_all(executor, tests):      # noqa: F811
    assert judged(executor, tests, {"it": DOUBLE})["it"].outcome.infrastructure


WARNS = "import warnings\ndef f(x):\n    {}\n    if x < 0: raise ValueError('negative')\n    return x\n"
BOTH_KINDS = "warnings.warn('a', DeprecationWarning); warnings.warn('b', UserWarning)"
# Tests of what is warned of; a program that pytest fails, and one that it passes.
WARNED = [
    (P + "def test_f():\n    with pytest.raises(ValueError), pytest.warns(UserWarning): f(-1)\n",
     "pass", "warnings.warn('x')"),
    (P + "def test_f():\n    with pytest.raises(ValueError):\n"
     "        with pytest.warns(UserWarning, match='soon'): f(-1)\n",
     "warnings.warn('late')", "warnings.warn('soon')"),
    ("import warnings\ndef test_f():\n    with warnings.catch_warnings(record=True) as w:\n        f(1)\n"
     "        f(1)\n    assert len(w) == 2\n",
     "warnings.warn('x')", "warnings.warn('x', DeprecationWarning)"),
    (P + "import warnings\ndef test_f():\n    with warnings.catch_warnings():\n"
     "        warnings.simplefilter('error')\n        with pytest.warns(DeprecationWarning): f(1)\n",
     BOTH_KINDS, "warnings.warn('a', DeprecationWarning)"),
    (P + "def test_f():\n    with pytest.warns(UserWarning):\n"
     "        with pytest.warns(DeprecationWarning): f(1)\n",
     "warnings.warn('a', DeprecationWarning)", BOTH_KINDS)]


@pytest.mark.parametrize(("tests", "wrong", "right"), WARNED)
def test_warnings_are_asked_for_as_in_pytest(executor, tests, wrong, right):    # noqa: F811
    rows = judged(executor, tests, {"wrong": WARNS.format(wrong), "right": WARNS.format(right)})
    assert [name for name, row in rows.items() if row.measures.correct] == ["right"], rows


# A later row or part is skipped where the program said that it cannot do this.
LED = [
    (P + "@pytest.fixture(scope='module')\ndef can(): return f()\n"
     "@pytest.mark.parametrize('name', ['add', 'mul'])\ndef test_op(can, name):\n"
     "    if name not in can: pytest.skip('not supported')\n    assert can[name](2, 3) == 5\n",
     "def f(): return {'add': lambda a, b: 5}\n"),
    (P + "failed = []\n@pytest.mark.parametrize('step', ['a', 'b'])\ndef test_step(step):\n"
     "    if failed: pytest.skip('before')\n    try:\n        assert f(step) == step.upper()\n"
     "    except NotImplementedError:\n        failed.append(step)\n",
     "def f(step): raise NotImplementedError\n"),
    (U + "class T(unittest.TestCase):\n    def test_all(self):\n        got = {n: f(n) for n in (1, 2)}\n"
     "        for n, each in got.items():\n            with self.subTest(n=n):\n"
     "                if each is None: self.skipTest('not supported')\n"
     "                self.assertEqual(each, n)\n", "def f(n): return None\n"),
    (P + "import inspect\nclass TestF:\n"
     "    @pytest.mark.skipif(not inspect.isclass(f), reason='x')\n"
     "    def test_f(self): assert f(1).x == 2\n",
     "def f(x): pass\n")]


@pytest.mark.parametrize(("tests", "code"), LED)
def test_what_the_program_answered_skips_nothing_later(executor, tests, code):     # noqa: F811
    row = judged(executor, tests, {"it": code})["it"]
    assert not row.measures.correct and not row.outcome.infrastructure


@pytest.mark.parametrize(("tests", "code"), [
    (P + "@pytest.mark.parametrize('x, want', [(1, 1), pytest.param(2, 5, marks=pytest.mark.skip),\n"
     "    pytest.param(2, 5, marks=[pytest.mark.skip(reason='known')])])\n"
     "def test_a(x, want): assert f(x) == want\n", SQUARE),
    ("class Checker:\n    def __init__(self, it): self.it = it\n"
     "    def test_one(self, x, want): assert self.it(x) == want\n"
     "def test_all(): Checker(f).test_one(2, 4)\n",
     SQUARE),
    (P + "@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.skip)])\n"
     "def n(request): return request.param\ndef test_a(n): assert f(n) == 1\n", SQUARE),
    ("class TestF:\n    def test_a(self):\n        class P:\n            def __init__(self): self.x = 3\n"
     "        assert f(P().x) == 9\n", SQUARE),
    ("class Base(object):\n    def __init__(self, it): self.it = it\n"
     "    def test_one(self, x): assert self.it(x) == 0\ndef test_all(): assert f(2) == 4\n", SQUARE),
    ("class TestBase:\n    __test__ = False\n    x = None\n    def test_a(self): assert f(self.x) == 4\n"
     "class TestTwo(TestBase):\n    __test__ = True\n    x = 2\n", SQUARE),
    ("def test_a(capsys):\n    f('x')\n    assert capsys.readouterr().out == 'x\\n'\n",
     "import sys\ndef f(x): sys.stdout.buffer.write(x.encode() + b'\\n')\n"),
    ("import os\ndef test_a(monkeypatch):\n    monkeypatch.setenv('P', 'b')\n"
     "    monkeypatch.setenv('P', 'a', prepend=':')\n    assert f('P') == 'a:b'\n",
     "import os\ndef f(name): return os.environ[name]\n"),
    (P + "def test_a():\n    assert f(3) == pytest.approx(1.0)\n",
     "import numpy as np\ndef f(n): return np.ones(n)\n")])
def test_right_programs_pass_what_pytest_leaves_out_or_provides(executor, tests, code):     # noqa: F811
    assert judged(executor, tests, {"it": code})["it"].measures.correct


@pytest.mark.parametrize(("check", "output"), [
    ("import pytest\n    if output == 'x': pytest.mark.xfail", "x"), ("if output == 'x': open(output)", "x"),
    ("assert eval(output, {'big': 'a' * 2 ** 25})", "len(big)")])
def test_an_output_chooses_no_null_in_its_checker(executor, check, output):     # noqa: F811
    task = load_task("t", "stdio", {"cases": [{"input": "", "output": "8"}], "checker":
                                    f"def check(input, output, expected):\n    {check}\n    return False\n"})
    items = [Item(task, Answer("", f"print({output!r}, end='')\n"))]
    [row] = measure(items, run_programs(executor, items))
    assert not row.measures.correct and not row.outcome.infrastructure


def test_a_program_cannot_fill_the_memory_of_its_tests_to_make_them_untestable(executor):     # noqa: F811
    rows = judged(executor, "raise MemoryError\ndef test_f(): assert f(1) == 1\n", {
        "may": "import sys\nsys.stdin.read()\ndef f(x): return x\n", "may not": "def f(x): return x\n"})
    assert {name: row.outcome.infrastructure for name, row in rows.items()} == {"may": False, "may not": True}
