"""Forms of tests of a function `f` that adds two numbers, which no program passes that does not add."""

RIGHT = "def f(a, b):\n    return a + b\n"
RAISES = "import pytest\nwith pytest.raises(TypeError):\n    f(1, 'a')"
FORMS: dict[str, str | list[str]] = {
    "statement": ["assert f(1, 2) == 3"],
    "statements": ["assert f(1, 2) == 3\nassert f(2, 5) == 7", "assert f(4, 5) == 9"],
    "check": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 2) == 7\n",
    "cases": "def check(candidate):\n    for a, b, want in [(1, 2, 3), (4, 5, 9)]:\n"
             "        assert candidate(a, b) == want\n",
    "variable": ["expected = want = 3\nassert f(1, 2) == expected"],
    "computed": ["want = sum([1, 2])\nassert f(1, 2) == want"],
    "all": ["assert all(f(n, 5) == n + 5 for n in sorted([1, 2]))"],
    "branch": ["import sys\nif sys.version_info > (3, 0):\n    assert f(1, 2) == 3"],
    "near": ["import math\nassert math.isclose(f(1, 2), 3.0)"],
    "module without an import": ["assert math.isclose(f(1, 2), 3.0)"],
    "distance": ["assert abs(f(2, 2.5) - 4.5) < 1e-6"], "rounded": ["assert round(f(1, 2.004), 2) == 3.0"],
    "difference": ["assert f(1, 2) - 3 == 0"], "quotient": ["assert f(1, 2) / 3 == 1"],
    "between": ["assert 2.9 < f(1, 2) < 3.1"], "list": ["assert [f(1, 2), f(3, 3)] == [3, 6]"],
    "in the answer": ["assert 3 in [f(1, 2)]"], "a member": ["assert f(1, 2) in {3, 17}"],
    "approx": ["import pytest\nassert f(1, 2) == pytest.approx(3)",
               "import pytest\nassert pytest.approx(3) == f(1, 2)"],
    "numpy": ["import numpy as np\nassert np.array_equal(f(1, 2), 3)"],
    "truth of a comparison": ["import unittest\nunittest.TestCase().assertTrue(f(1, 2) == 3)"],
    "if and raise": ["if f(1, 2) != 3:\n    raise ValueError"],
    "if not": ["if not f(1, 2) == 3:\n    assert False"],
    "helper": ["def same(a, b):\n    assert a == b, f'{a} is not {b}'\nsame(f(1, 2), 3)"],
    "while": ["n = 0\nwhile n < 2:\n    assert f(n, 5) == n + 5\n    n += 1"],
    "else": ["try:\n    got = f(1, 2)\nexcept ValueError:\n    assert False\nelse:\n    assert got == 3"],
    "type and value": ["got = f(1, 2)\nassert isinstance(got, int) and got == 3"],
    "text": ["assert str(f(1, 2)) == '3'"], "formatted": ["assert f'{f(1, 2):d}' == '3'"],
    "repeated": ["assert f(1, 2) == 3\n" * 3], "said": ["print('3')\nassert f(1, 2) == 3, 'it is 3'"],
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_is_3(self):\n"
                "        '''It is 3.'''\n        self.assertEqual(f(1, 2), 3, msg='3')\n",
    "almost equal": "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
                    "        self.assertAlmostEqual(f(1, 2), 3)\n",
    "greater": "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
               "        self.assertGreater(f(1, 2), 2.9)\n        self.assertLess(f(1, 2), 3.1)\n",
    "in unittest": "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
                   "        self.assertIn(f(1, 2), [3])\n"
                   "        if f(2, 2) != 4:\n            self.fail('4')\n",
    "test function": "def test_f_is_3():\n    assert f(1, 2) == 3\n",
    "exception and value": [RAISES + "\nassert f(1, 2) == 3"],
    "subTest": "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
               "        for a, b, want in [(1, 2, 3), (4, 5, 9)]:\n            with self.subTest(a=a):\n"
               "                self.assertEqual(f(a, b), want)\n",
    "parametrize": "import pytest\n@pytest.mark.parametrize('a, b, want', [(1, 2, 3), (4, 5, 9)])\n"
                   "def test_f(a, b, want):\n    assert f(a, b) == want\n",
    "parametrized method": "import pytest\nclass TestF:\n"
                           "    @pytest.mark.parametrize('a, want', [(1, 3), (4, 6)])\n"
                           "    def test_f(self, a, want):\n        assert f(a, 2) == want\n",
    "printed": ["import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
                "    print(f(1, 2))\nassert out.getvalue().strip() == '3'"],
    "same answers": ["got = '\\n'.join(str(f(a, b)) for a, b in [(1, 2), (4, 5)])\nassert got == '3\\n9'"],
    "json": ["import json\nassert json.dumps({'x': f(1, 2)}) == '{\"x\": 3}'"],
    "numpy testing": ["import numpy as np\nnp.testing.assert_equal(f(1, 2), 3)",
                      "import numpy as np\nnp.testing.assert_array_equal([f(1, 2), f(4, 5)], [3, 9])"],
    "match": ["match [f(1, 2), f(4, 5)]:\n    case [3, 9]:\n        pass\n"
              "    case _:\n        raise ValueError"],
    "items and their number": ["got, want = f([1], [2]), [1, 2]\nassert len(got) == len(want)\n"
                               "for x, y in zip(got, want):\n    assert x == y"],
    "mapped": ["for got, want in zip(map(f, [1, 4], [2, 5]), [3, 9]):\n    assert got == want"],
    "text of a case": ["for a, b, want in [(1, 2, 3)]:\n    assert eval(f'f({a}, {b}) == {want}')"],
    "lookup": ["assert {3: 'yes'}[f(1, 2)] == 'yes'"], "count": ["assert [3].count(f(1, 2)) == 1"],
    "set": ["assert {f(1, 2), f(4, 5)} == {3, 9}"],
    "key": ["assert sorted([9, 1, 5], key=lambda x: f(x, -5) ** 2) == [5, 9, 1] and f(1, 2) == 3"],
    "max": ["assert max(f(n, n) for n in range(4)) == 6"], "min": ["assert min(f(1, 2), 3.5) == 3"],
    "sum": ["assert sum(f(n, 1) for n in range(3)) == 6"],
    "accumulated": ["from itertools import accumulate\nassert list(accumulate([1, 2, 3], f)) == [1, 3, 6]"],
    "reference": ["import random\nrandom.seed(3)\nfor _ in range(5):\n"
                  "    a, b = random.random(), random.random()\n    assert f(a, b) == a + b"],
    "lists": ["assert sorted(f([2], [1])) == [1, 2] and f(['a'], ['b']) == ['a', 'b']"],
    "arrays": ["import numpy as np\nassert (f(np.array([1, 2]), np.array([3, 4])) == [4, 6]).all()"],
    "method that is awaited": "class TestF:\n    async def test_f(self):\n        assert f(1, 2) == 3\n",
    "end of a fixture": "import pytest\n@pytest.fixture\ndef got():\n    sums = []\n    yield sums\n"
                        "    assert sums == [3]\ndef test_f(got):\n    got.append(f(1, 2))\n",
    "set up once": "import unittest\nclass Base(unittest.TestCase):\n    @classmethod\n"
                   "    def setUpClass(cls): cls.want = 3\nclass T(Base):\n    def test_f(self):\n"
                   "        self.assertEqual(f(1, 2), self.want)\n",
    "rows of a class": "import pytest\n@pytest.mark.parametrize('a, want', [(1, 3), (4, 6)])\n"
                       "class TestF:\n    def test_f(self, a, want):\n        assert f(a, 2) == want\n",
}
