"""Answer tasks: the text itself is judged, nothing is run."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from score.protocol.error_classes import ErrorClass
from score.sandbox.program import Outcome, Program
from score.tasks.measures import Answer, Measures, digest, texts_of, unit_measures
from warehouse.tasks.answers import behind_thoughts

MAX_DIGITS = 1000
TOLERANCE = 1e-6            # relative, of numbers that are not whole
BLANK = " \t*_`"             # around a label and its answer, which may be in bold, or code
QUOTES = "*\"'`\u201c\u201d\u2018\u2019\u00ab\u00bb "
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+)\}")
TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*+)\}")

# A number, with the power of ten, the power or the fraction after it; 0x42 holds none.
NUMBER = re.compile(r"(?<![A-Za-z0-9^])(?<![A-Za-z0-9]_)"
                    r"([-+]?(?!0[xXbBoO][0-9a-fA-F])(?:\d[\d,]*+\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?)"
                    r"(?:\s*+/\s*+(\d++)|\s*+[*x]\s*+10\^\{?([-+]?\d++)\}?|\^\{?([-+]?\d++)\}?)?")
LATEX_FRACTION = re.compile(r"(?<!\d)(\d*+)\\[cdt]?frac\s*+(?:\{\s*+(-?\d++)\s*+\}|(\d))"
                            r"\s*+(?:\{\s*+(\d++)\s*+\}|(\d))")
SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++")
DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
SIGNS = {"\u2212": "-", "\u2013": "-", "\u00d7": "*", "\u00b7": "*", "\\times": "*", "\\cdot": "*",
         "{,}": ",", "\\,": "", "\\!": "", "USD": "$", "EUR": "$"}
UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\^\{?[-+]?\d++\}?")


@dataclass(frozen=True)
class AnswerTask:
    """The accepted answers, how they are compared, and the label of the line that holds the answer."""

    accepted: list[str]
    match: str
    label: str | None
    tolerance: float | None


class AnswerKind:
    """{answer: text or [texts], match: 'exact' or 'numeric', label, tolerance}."""

    def load(self, payload: dict[str, Any]) -> AnswerTask:
        return AnswerTask(texts_of(payload["answer"]), payload.get("match", "exact"), payload.get("label"),
                          payload.get("tolerance"))

    def programs(self, task: AnswerTask, answer: Answer) -> list[Program] | Outcome:
        given = given_answer(task, answer.text)
        if given is None:
            return Outcome(error_class=ErrorClass.PARSING, error_message="no answer of the form asked for")
        return Outcome(result=given)

    def measure(self, task: AnswerTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        given = outcomes[0].result
        right = given is not None and any(is_same(given, accepted, task) for accepted in task.accepted)
        return unit_measures(answer, outcomes[0], [right], 1, outputs=[given], fingerprint=digest(str(given)))


def given_answer(task: AnswerTask, text: str) -> str | None:
    """The answer inside a completion: on the last line with the label, or the last that fits, or None."""
    text = behind_thoughts(text)
    if task.label is not None:
        blank = rf"[{BLANK}]*"
        line = rf"^{blank}{re.escape(task.label)}{blank}[:=]?{blank}(.*)$"
        ends = re.findall(line, text, re.MULTILINE | re.IGNORECASE)
        labeled = [end for end in (rest.removesuffix("\r").rstrip(BLANK) for rest in ends) if end]
        if not labeled:
            return None
        text = labeled[-1]
    boxed = BOXED.findall(text)
    text = TEXT.sub(r"\1", boxed[-1] if boxed else text)
    if task.match == "numeric":
        return last_number(text)
    return " ".join(text.split()) or None


def last_number(text: str) -> str | None:
    """The last number of a text, LaTeX and Unicode written plainly; powers of units are none."""
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    text = SUPERSCRIPT.sub(lambda power: "^" + power[0].translate(DIGITS), text)
    numbers = list(NUMBER.finditer(UNIT_POWER.sub("", LATEX_FRACTION.sub(plain_fraction, text))))
    return numbers[-1][0].strip() if numbers else None


def plain_fraction(latex: re.Match[str]) -> str:
    """A fraction of LaTeX as `3/4`; what stands before it is whole, as in 1 1/2."""
    whole, above, below = latex[1], latex[2] or latex[3], latex[4] or latex[5]
    if not whole or max(len(whole), len(above), len(below)) > MAX_DIGITS:
        return f"{whole} {above}/{below}" if whole else f"{above}/{below}"
    return f"{int(whole) * int(below) + int(above)}/{below}"


def is_same(given: str, accepted: str, task: AnswerTask) -> bool:
    """True if the two answers agree in the way the task asks for."""
    if task.match == "numeric":
        ours, theirs = number_of(given), number_of(last_number(accepted) or "")
        return ours is not None and theirs is not None and (
            ours == theirs or is_close(ours, theirs, task.tolerance))
    return bare_text(given) == bare_text(accepted)


def bare_text(text: str) -> str:
    """A text without quotes around it and a full stop at its end, in lower case."""
    words = " ".join(text.split())
    return (words.strip(QUOTES).rstrip(".").strip(QUOTES) or words).casefold()


def is_close(ours: Fraction, theirs: Fraction, tolerance: float | None) -> bool:
    """True if the two are near each other; whole numbers only if the task says how near is near enough.

    Numbers that no float can hold are near nothing.
    """
    if tolerance is None:
        tolerance = 0 if ours.denominator == theirs.denominator == 1 else TOLERANCE
    try:
        return math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=0.0)
    except OverflowError:
        return False


def number_of(text: str) -> Fraction | None:
    """A number as `last_number` gives it; None if it is none, or out of bounds."""
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        value = bounded(match[1].replace(",", ""))
        if match[3]:
            return value * bounded(f"1e{match[3]}")
        if match[4]:
            power = int(bounded(match[4]))
            return value ** power if len(match[1]) * abs(power) <= MAX_DIGITS else None
        return value / bounded(match[2] or "1")
    except (ValueError, ZeroDivisionError):
        return None


def bounded(text: str) -> Fraction:
    """A number; ValueError where writing it out would take many digits, which would take long."""
    exponent = text.lower().partition("e")[2]
    if len(text) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise ValueError("a number of many digits")
    return Fraction(text)
