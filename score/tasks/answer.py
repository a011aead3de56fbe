"""Answer tasks: the text itself is judged, nothing is run."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program
from score.tasks.measures import Answer, Measures
from score.tasks.units import field, unit_measures
from score.wire.error_classes import ErrorClass
from warehouse.store.errors import StageError

MATCHES = ("exact", "numeric", "choice")
NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?")
MAX_DIGITS = 1000
BLANK = " \t*_`"             # around a label and its answer, which may be in bold, or code
BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True)
class AnswerTask:
    """The accepted answers, how they are compared, and the label of the line that holds the answer."""

    task_id: str
    accepted: list[str]
    match: str
    label: str | None
    choices: list[str]
    tolerance: float


class AnswerKind:
    """{answer: text or [texts], match: 'exact', 'numeric' or 'choice', label, choices, tolerance}."""

    def load(self, task_id: str, payload: dict[str, Any]) -> AnswerTask:
        answer = field(task_id, payload, "answer", (str, int, float, list))
        accepted = [str(one) for one in (answer if isinstance(answer, list) else [answer])]
        match = field(task_id, payload, "match", str, "exact")
        if match not in MATCHES or not accepted:
            raise StageError(f"Task {task_id}: payload field 'match' is '{match}', answers: {len(accepted)}. "
                             f"Use one of {', '.join(MATCHES)} and give at least one answer.")
        choices = field(task_id, payload, "choices", list, ["A", "B", "C", "D", "E"])
        label = field(task_id, payload, "label", (str, type(None)), None)
        tolerance = field(task_id, payload, "tolerance", (int, float), 1e-6)
        return AnswerTask(task_id, accepted, match, label, [str(choice) for choice in choices], tolerance)

    def programs(self, task: AnswerTask, answer: Answer) -> list[Program] | Outcome:
        given = given_answer(task, answer.text)
        if given is None:
            return Outcome(error_class=ErrorClass.PARSING, error_message="no answer of the form asked for")
        return Outcome(result=given)

    def measure(self, task: AnswerTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        given = outcomes[0].result
        right = given is not None and any(is_same(given, accepted, task) for accepted in task.accepted)
        digest = hashlib.sha256(str(given).encode("utf-8", "backslashreplace")).hexdigest()[:32]
        return unit_measures(answer, outcomes[0], [right], 1, outputs=[given], fingerprint=digest)


def given_answer(task: AnswerTask, text: str) -> str | None:
    """The answer inside a completion: on the last line with the label, or the last that fits, or None."""
    if task.label is not None:
        blank = rf"[{BLANK}]*"
        line = rf"^{blank}{re.escape(task.label)}{blank}[:=]?{blank}(.*)$"
        found = re.findall(line, text, re.MULTILINE | re.IGNORECASE)
        labeled = [end for end in (rest.removesuffix("\r").rstrip(BLANK) for rest in found) if end]
        if not labeled:
            return None
        text = labeled[-1]
    boxed = BOXED.findall(text)
    text = boxed[-1] if boxed else text
    if task.match == "numeric":
        numbers = NUMBER.findall(text)
        return numbers[-1] if numbers else None
    if task.match == "choice":
        names = "|".join(re.escape(choice) for choice in sorted(task.choices, key=len, reverse=True))
        found = re.findall(rf"(?<![A-Za-z0-9])({names})(?![A-Za-z0-9])", text)
        return found[-1] if found else None
    return " ".join(text.split()) or None


def is_same(given: str, accepted: str, task: AnswerTask) -> bool:
    """True if the two answers agree in the way the task asks for."""
    if task.match == "numeric":
        ours, theirs = number_of(given), number_of(accepted)
        return ours is not None and theirs is not None and (
            ours == theirs or is_close(ours, theirs, task.tolerance))
    return given.strip().rstrip(".").casefold() == " ".join(accepted.split()).rstrip(".").casefold()


def is_close(ours: Fraction, theirs: Fraction, tolerance: float) -> bool:
    """True if the two are near each other; numbers that no float can hold are near nothing."""
    try:
        return math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=0.0)
    except OverflowError:
        return False


def number_of(text: str) -> Fraction | None:
    """A number as written, with thousands commas or as a fraction; None if it is none, or out of bounds."""
    try:
        above, _, below = text.replace(",", "").replace(" ", "").partition("/")
        return bounded(above) / bounded(below or "1")
    except (ValueError, ZeroDivisionError):
        return None


def bounded(text: str) -> Fraction:
    """A number; ValueError where writing it out would take many digits, which would take long."""
    exponent = text.lower().partition("e")[2]
    if len(text) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise ValueError("a number of many digits")
    return Fraction(text)
