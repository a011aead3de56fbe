"""Answers made to break or to hold up the scorer itself: each is only wrong, and soon."""

import json
import time

import pytest

from score.protocol.frames import BadFrame, decode_json
from score.sandbox.program import Outcome
from score.tasks.answer import AnswerKind, given_answer
from score.tasks.function import FunctionKind
from score.tasks.measures import Answer, Measures
from warehouse.tasks.answers import first_code_block

LONG = 100_000
IN_TIME = 20.0      # CPU seconds; a hundred times what is needed, and less than LONG ** 2 steps take
HUGE = hex(10**400)


def call_measures(value: str, expected: object) -> Measures:
    """What a value, as a program left it, is worth where another one was expected."""
    kind = FunctionKind()
    task = kind.load({"entry_point": "f", "calls": [{"args": [1], "expected": expected}]})
    results = decode_json(f'[["value", {value}]]'.encode())
    return kind.measure(task, Answer("", "x"), [Outcome(result=results)])


def answer_is_right(text: str, expected: str) -> bool:
    """True if a text is the right number."""
    kind = AnswerKind()
    task = kind.load({"answer": expected, "match": "numeric"})
    outcome = kind.programs(task, Answer(text, None))
    assert isinstance(outcome, Outcome)
    return kind.measure(task, Answer(text, None), [outcome]).correct


@pytest.mark.parametrize("value", [
    f'{{"$": "int", "v": "{HUGE}"}}',
    f'{{"$": "complex", "v": [{{"$": "int", "v": "{HUGE}"}}, 0]}}',
    f'{{"$": "float", "v": {int(HUGE, 16)}}}',
    '{"$": "range", "v": [0, 1000000000000000, 1]}',
])
@pytest.mark.parametrize("expected", [1, 1.5, [1]])
def test_values_without_bounds_are_not_what_was_expected(value, expected):
    assert not call_measures(value, expected).correct


def test_a_huge_integer_can_be_right():
    assert call_measures(f'{{"$": "int", "v": "{HUGE}"}}', 10**400).correct
    assert not call_measures("1", 10**400).correct


@pytest.mark.parametrize("depth", [300, 900, 985, 5000])
def test_nested_results_are_no_answer(depth):
    with pytest.raises(BadFrame):
        decode_json(b'[["value",' + b"[" * depth + b"]" * depth + b",[]]]")


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_constants_that_json_lacks_are_no_answer(constant):
    with pytest.raises(BadFrame):
        decode_json(b'[["value",' + constant + b"]]")


@pytest.mark.parametrize("match", ["exact", "numeric"])
def test_marks_upon_one_letter_are_judged_in_time(match):
    kind = AnswerKind()
    task = kind.load({"answer": "7", "match": match})
    start = time.process_time()
    for text in ("a" + "\u0301\u0323" * LONG, "\\boxed{7" + " m" * LONG + "}"):
        kind.measure(task, Answer(text, None), [Outcome(result=given_answer(task, text))])
    assert time.process_time() - start < IN_TIME / 10


def test_the_deepest_plain_data_is_an_answer():
    from score.protocol.plain_data import MAX_DEPTH, tag
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = {0: value}
    assert decode_json(json.dumps([["value", tag(value), []]]).encode())


@pytest.mark.parametrize("text", [
    "1e400", "12e-400", "1e100000000", "1e-100000000", "1E+0099999999", "1/1e400",
    "1e" + "\u0669" * 8, "1" * LONG, "0." + "1" * LONG, "1/" + "9" * LONG, "1e" + "9" * LONG])
def test_numbers_without_bounds_are_wrong(text):
    started = time.process_time()
    assert not answer_is_right(text, "12")
    assert time.process_time() - started < IN_TIME


@pytest.mark.parametrize("text", ["12e0", "1.2E+01", "0.0012e4", "1e-400 12", "120e-0001"])
def test_numbers_with_exponents_are_numbers(text):
    assert answer_is_right(text, "12")


@pytest.mark.parametrize("text", [
    "Answer: x" + "*" * LONG + "x", "Answer" + " " * LONG + "x", " " * LONG + "Answer", "*" * LONG,
    "Answer:" * (LONG // 7), "\\boxed{" * (LONG // 7), "1 / " * (LONG // 4), "1," * LONG, "1" + " " * LONG,
    "\\frac{" * (LONG // 6), "\\frac" + " " * LONG, "1" * LONG + "\\frac", "9^" * (LONG // 2),
    "9^9 " * (LONG // 4), "not " * (LONG // 4), "not" + " " * LONG, "A or " * (LONG // 5),
    "A" + " " * LONG + "B", "\u2074" * LONG, "\\boxed{{" * (LONG // 8), "1 x " * (LONG // 4), "\"" * LONG,
    "a^" * (LONG // 2), "n't " * (LONG // 4), "\n" * 3 * LONG, "\r\n" * 2 * LONG, "\n \n" * LONG,
    "Answer:\n**\n" * (LONG // 3) + "x" * 50 * LONG,
    "Answer\n" * (LONG // 7), "# Answer\n" * (LONG // 9), "\u00bd" * LONG,
    "<think>" * (LONG // 7), "</" * (LONG // 2), "\n<think:a" * (LONG // 9), "`" * LONG])
@pytest.mark.parametrize("match", ["exact", "numeric"])
@pytest.mark.parametrize("label", ["Answer", None])
def test_an_answer_is_found_in_time_that_grows_with_the_text(text, match, label):
    task = AnswerKind().load({"answer": "12", "match": match, "label": label})
    started = time.process_time()
    given_answer(task, text)
    assert time.process_time() - started < IN_TIME


@pytest.mark.parametrize("text", ["```python" + " " * LONG, "```python\n" * (LONG // 10),
                                  "```python" + "\t" * LONG + "``", "\n" * 3 * LONG, "`" * LONG, "~" * LONG,
                                  "> " * LONG, "1." * LONG, "\n- " * LONG, "```python a." * (LONG // 12),
                                  "> - ```python\n" + "\n" * 3 * LONG])
def test_a_block_is_found_in_time_that_grows_with_the_text(text):
    started = time.process_time()
    first_code_block(text)
    assert time.process_time() - started < IN_TIME


@pytest.mark.parametrize("line", ["**Answer:** 12 **", "Answer: 12\r", " `Answer` = 12 ` \r", "answer 12"])
def test_marks_around_an_answer_are_no_part_of_it(line):
    task = AnswerKind().load({"answer": "12", "label": "Answer"})
    assert given_answer(task, f"first\n{line}\nlast") == "12"
