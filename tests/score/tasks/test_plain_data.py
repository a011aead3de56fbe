"""What crosses as the result of a call: plain data as it is, and no object by what it says of itself."""

from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from score.protocol.plain_data import NotPlain, tag, untag

Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


class Word(StrEnum):
    YES = "yes"


@pytest.mark.parametrize(("value", "read"), [
    (True, True), (None, None), (2**80, 2**80), (0.5, 0.5), ("a", "a"), ([1, [2]], [1, [2]]), ((1,), (1,)),
    ({"a": 1, 2: 3}, {"a": 1, "2": 3}), (deque([1]), [1]), (Counter("aab"), {"a": 2, "b": 1}),
    (OrderedDict(a=1), {"a": 1}), (Point(1, 2), (1, 2)), (Colour.RED, 1), (Word.YES, "yes"),
    (np.array([[1, 2]]), [[1, 2]]), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True),
    (np.str_("a"), "a"), (Decimal("1.5"), 1.5), (Decimal("2"), 2), (Fraction(1, 4), 0.25)])
def test_plain_data_is_read_as_it_is(value: Any, read: Any) -> None:
    assert untag(tag(value)) == read and type(untag(tag(value))) is type(read)


def made(base: type, *given: Any, **says: Any) -> Any:
    """An object of a class that the program defines, which says this of itself."""
    return type("L", (base,), {"__module__": "program", **says})(*given)


@pytest.mark.parametrize(("value", "read"), [
    (made(list, __iter__=lambda self: iter([1, 2]), __len__=lambda self: 2), []),
    (made(tuple, __iter__=lambda self: iter([1, 2])), ()),
    (made(dict, items=lambda self: [("a", 1)]), {}),
    (made(int, 0, __int__=lambda self: 3, __index__=lambda self: 3), 0),
    (made(float, 0.0, __float__=lambda self: 3.0), 0.0), (made(str, "q", __str__=lambda self: "ab"), "q")])
def test_of_a_subclass_what_its_base_holds_is_read(value: Any, read: Any) -> None:
    assert untag(tag(value)) == read


@pytest.mark.parametrize("value", [
    made(object, as_integer_ratio=lambda self: (3, 1)), made(object, tolist=lambda self: [1]),
    made(object, __module__="numpy", tolist=lambda self: [1]),
    made(object, __class__=list, __iter__=lambda self: iter([1])),
    made(object, __class__=dict, items=lambda self: [("a", 1)]), len, object()])
def test_an_object_of_the_program_is_no_data_whatever_it_says(value: Any) -> None:
    with pytest.raises(NotPlain):
        tag(value)
