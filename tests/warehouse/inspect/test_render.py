"""Values of every kind in every format: what is not a number, dates in lists, equal names, short lists."""

import csv
import datetime
import decimal
import io
import json
import math
from typing import Any

from warehouse.inspect.render import as_csv, as_json, as_markdown, as_table, short_number


def strict(line: str) -> Any:
    """JSON as its standard has it: a bare NaN is an error."""
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_what_is_no_number_is_named_and_null_in_json() -> None:
    row = [math.nan, math.inf, -math.inf]
    assert [short_number(value) for value in row] == ["nan", "inf", "-inf"]
    assert as_table(["a", "b", "c"], [row]).splitlines()[2].split() == ["nan", "inf", "-inf"]
    assert as_markdown(["a", "b", "c"], [row]).endswith("| nan | inf | -inf |")
    assert strict(as_json(["a", "b", "c"], [row])) == {"a": None, "b": None, "c": None}
    assert strict(as_json(["a"], [[[1.5, math.nan, {"x": math.inf}]]])) == {"a": [1.5, None, {"x": None}]}


def test_numbers_have_few_characters() -> None:
    shown = {0.0: "0", 0.31: "0.31", -14.123: "-14.12", 1.23e-6: "1.2e-06", 5120: "5,120", 999.94: "999.9",
             -999.96: "-1,000", 1234.6: "1,235", 12345.6: "12,346", -123456.0: "-123,456",
             123456.7: "123,457", 1.5e300: "1.5e+300"}
    assert {value: short_number(value) for value in shown} == shown
    assert short_number(-0.0) == "0"


def test_decimals_are_numbers_in_json() -> None:
    row = [decimal.Decimal("0.25"), decimal.Decimal(12345678901234567890)]
    assert strict(as_json(["part", "sum"], [row])) == {"part": 0.25, "sum": 12345678901234567890}


def test_lists_and_maps_of_dates_are_written() -> None:
    day = datetime.date(2026, 1, 5)
    text = as_csv(["days", "pair", "by_day"], [[[day], (1, 2), {day: 3}]])
    cells = [json.loads(cell) for cell in list(csv.reader(io.StringIO(text)))[1]]
    assert cells == [["2026-01-05"], [1, 2], {"2026-01-05": 3}]
    assert strict(as_json(["days", "by_day"], [[[day], {day: 3}]])) == {
        "days": ["2026-01-05"], "by_day": {"2026-01-05": 3}}


def test_columns_of_equal_names_are_all_kept_in_json() -> None:
    assert strict(as_json(["a", "a", "a"], [[1, 2, 3]])) == {"a": 1, "a_1": 2, "a_2": 3}
    assert strict(as_json(["a", "a", "a_1"], [[1, 2, 3]])) == {"a": 1, "a_2": 2, "a_1": 3}


def test_short_lists_of_names_are_shown() -> None:
    def cell(value: Any) -> str:
        return as_table(["x"], [[value]]).splitlines()[2]

    assert cell(["truncated", "loops", "nll"]) == "[truncated, loops, nll]"
    assert cell(["n"] * 9) == "[9 values]" and cell(["long" * 20]) == "[1 values]"
    assert cell([1, 0.5]) == "[1, 0.5]" and cell(list(range(7))) == "[7 values]" and cell([]) == "[]"


def test_a_head_of_several_words_is_no_wider_than_what_it_heads() -> None:
    assert as_table(["task", "train pass rate"], [["a", 0.25]]).splitlines() == [
        "      train", "       pass", "task   rate", "----  -----", "a      0.25"]
    assert as_table(["valid code"], []).splitlines() == ["valid code", "----------"]
