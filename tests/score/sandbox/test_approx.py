"""The stand-in for pytest's `approx` against pytest's own, over all pairs of values."""

import math
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from score.jobs import pytest_stub

NUMBERS = [0, 1, -1, 1.0, 1 + 5e-7, 1 + 5e-6, 0.0, -0.0, 1e-13, 1e308, math.inf, -math.inf, math.nan, 10**30,
           True, False, 1j, 1 + 1e-9j, Decimal("1"), Decimal("1.0000005"), Decimal("1.1"), Decimal("nan"),
           Fraction(1, 3), 1 / 3, np.float64(1), np.int64(1), np.bool_(True), np.float32(0.1), 0.1]
OTHERS = ["1", "", None, b"1", [], [1], [1.0, 2], (1, 2.0000001), {"a": 1}, {"a": 1.0000001}, {"b": 1}, {},
          np.array([1.0, 2.0]), np.array(1.0), np.array([]), np.array([[1.0, 2.0]]), {1, 2}, [None], ["a"],
          [Decimal("1")], (x for x in ()), object, np.datetime64("NaT"), 2**70]
OPTIONS: list[dict[str, Any]] = [{}, {"abs": 0.01}, {"rel": 0.01}, {"abs": 0, "rel": 0}, {"nan_ok": True},
                                 {"abs": Decimal("0.01")}, {"rel": 1e-9, "abs": 1e-3}]


def said(approx: Any, value: Any, expected: Any, options: dict[str, Any]) -> Any:
    """Whether they are near; None where neither `==` nor `!=` would pass, "?" if the test is to blame."""
    try:
        return bool(value == approx(expected, **options))
    except Exception as error:
        return "?" if "when relative tolerance" in str(error) else None


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_near_is_near_in_pytest_and_what_is_not_is_not(options: dict[str, Any]) -> None:
    """Where the stand-in fails instead, nothing passes; it does so seldom."""
    pairs = [*product([*NUMBERS, *OTHERS], [*NUMBERS, *OTHERS])]
    ours = [said(pytest_stub.approx, *pair, options) for pair in pairs]
    theirs = [said(pytest.approx, *pair, options) for pair in pairs]
    assert [(pair, a, b) for pair, a, b in zip(pairs, ours, theirs, strict=True)
            if a is not None and a is not b and b != "?"] == []
    refused = [b in (True, False) for a, b in zip(ours, theirs, strict=True) if a is None]
    assert sum(refused) < len(pairs) / 10
    assert sum(map(bool, ours)) > 100
