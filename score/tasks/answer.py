"""Answer tasks: the text itself is judged, nothing is run."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from unicodedata import category, normalize

from score.protocol.error_classes import ErrorClass
from score.sandbox.program import Outcome, Program
from score.tasks.measures import Answer, Measures, digest, unit_measures
from warehouse.tasks.answers import behind_thoughts, boxed

MAX_DIGITS, LONGEST_BOX = 1000, 2000
TOLERANCE = Fraction(1, 10**6)       # relative, of numbers that are not whole
BLANK = " \t*_`"             # around a label and its answer, which may be in bold, or code
# A label with a colon may come after these.
BEFORE = r"(?:[ \t*_`#>|\u2022-]|\d++[.)])*+(?:(?:the|my|final|correct)\b[ \t]*+)*?"
OPENED = re.compile(r"[\W\d]*?[*_`]")                    # before the label, closed behind it
# What is around text and mathematics in LaTeX.
TEXT = re.compile(r"\\(?:(?:text|math)(?:rm|bf|it|sf|tt|sc|sl|normal)?|mbox|hbox|emph|operatorname)"
                  r"\{([^{}]*+)\}")
MATHEMATICS = re.compile(r"\\[()\[\]]")
AROUND_ALL = re.compile(r"\s*+\\[(\[]((?:(?!\\[()\[\]]).)*+)\\[)\]]\.?\s*+", re.DOTALL)
ESCAPED = re.compile(r"\\([%$&#_{}])")
SPACE = re.compile(r"\\[ ,;:]|(?<=\w)~(?=\w)")
# What closes a mark or a quote that opens a whole text; underscores are a given answer's.
CLOSES = {**{mark: mark for mark in "*\"'`$"}, "\u2018": "'", "\u201c": "\u201d", "\u00ab": "\u00bb"}
EMPHASIS = CLOSES | {"_": "_"}
OPTION = re.compile(r"^\(?(\w+)\)$")        # (C), C)

# A number, with the fraction, the power of ten or the power after it; 0x42 holds none.
PLAIN = r"(?:\d{1,3}(?:,\d{2,3}){0,99},\d{3}(?!\d)|\d++)\.?\d*+|\.\d++"
NUMBER = re.compile(r"(?<![A-Za-z0-9^])(?<![A-Za-z0-9]_)"
                    rf"([-+]?(?!0[xXbBoO][0-9a-fA-F])(?:{PLAIN})(?:[eE][-+]?\d++)?)"
                    r"(?:(?:\s++(\d++))?\s*+/\s*+(-?\d++\.?\d*+)|\s*+[*x]\s*+10\^\{?([-+]?\d++)\}?"
                    r"|\^\{?([-+]?\d++)\}?)?")
LATEX_FRACTION = re.compile(r"\\[cdt]?frac\s*+(?:\{\s*+(-?\d++\.?\d*+)\s*+\}|(\d))"
                            r"\s*+(?:\{\s*+(-?\d++\.?\d*+)\s*+\}|(\d))")
EQUALS = re.compile(r"(?<![!<>/])(?<!\\not)=|\\approx(?![a-z])|\u2248")
# What a box may hold next to its number: text of units, blanks, formats and degrees.
WORDS = re.compile(r"\\(?:text(?:rm|bf|it|sf|tt)?|mathrm|mbox|hbox)\{((?:[^{}]|\{[^{}]*+\})*+)\}")
LETTER = re.compile(r"\b(?!k\b|M\b(?!&))[A-Za-z]\b")
FORMAT = re.compile(r"\\(?:[;:!> ]|(?:q?quad|thinspace|displaystyle|boldsymbol|underline|min|cents?|pounds"
                    r"|euro|[dt]?frac(?=(?:\{[^{}\d\\]*\}){2}))(?![a-z]))|[~\s]+"
                    r"|(?:\^?\{?\\circ|\\degree|\u00b0)\}? ?(?:[CFK]\b)?")
LARGE = r"(?:hundred|thousand|\w*illion|lakh|crore)s?|bi?l|bl?n|ml?n|mi[lo]|mrd|tr?n"
# What makes another value of a number (`#`): words, commands, signs next to it, letters that are not units.
OTHER = re.compile(rf"(?i:\b(?:half|twice|squared|cubed|{LARGE}|dozens?|kilo"
                   r"|factorial|root|below zero|log|ln|exp|sin|cos|tan|sqrt"
                   r"|or (?:more|less)|(?:or|not|minus|negative|at (?:least|most)|than|under|below|over|above"
                   r"|fewer)(?= *#))\b)"
                   r"|\\[A-Za-z]|[-+*/^|<>=] *#|[A-Za-z]#|# *(?:[_!*+|]|\^(?! *(?:st|[nr]d|th)))"
                   r"|#(?!(?:[cdkmn]m|[km]g|m[lL]|[fp]t|in|lb|oz|hr|st|[nr]d|th|[ap]m|mi|Hz)\b)[A-Za-z]{2}\b"
                   r"|(?<![A-Za-z])(?<![A-Za-z]\.)(?!a [A-Za-z]{2}|[A-Za-z]\.[A-Za-z]|[dfghlmstL]\b[^#]*$)"
                   r"[A-Za-z\u0391-\u03c9](?![A-Za-z])")
TIMES = re.compile(rf"(?i)[\s$*()-]{{0,4}}(?:{LARGE})\b")      # the same, where a text may say more
SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++")
DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
VULGAR = {each: "\\frac{{{}}}{{{}}}".format(*normalize("NFKC", chr(each)).split("\u2044"))
          for each in (*range(0xbc, 0xbf), *range(0x2150, 0x215f))}
HIDDEN = {each: "" for each in (0xad, 0xfeff, *range(0x2000, 0x2070)) if category(chr(each)) == "Cf"}
DASHES = "\u02d7\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2796\ufe58\ufe63\uff0d"
SIGNS = {**dict.fromkeys((*DASHES, "\\textminus"), "-"), "--": "-", "\u202f": "", "\u2044": "/",
         "\\over ": "/", "\u00d7": "*", "\u00b7": "*", "\\times": "*", "\\cdot": "*", "{,}": ",", "\\,": "",
         "\\!": "", "\\left": "", "\\right": "", "USD": "$", "EUR": "$", "\\$": "$", "-$": "-"}
LEFT = re.compile(r"/|(?<!(?<![\d.])10)\^")           # of a whole number, but for a power of ten
UNIT_POWER = re.compile(r"(?<=[A-Za-z])\}? ?\^\{?[-+]?\d++\}?")


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
        given = payload["answer"]
        return AnswerTask([str(text) for text in (given if isinstance(given, list) else [given])],
                          payload.get("match", "exact"), payload.get("label"), payload.get("tolerance"))

    def programs(self, task: AnswerTask, answer: Answer) -> list[Program] | Outcome:
        if task.match == "numeric" and all(
                number_of(last_number(each, in_box=True) or "") is None for each in task.accepted):
            return Outcome(error_class=ErrorClass.UNTESTABLE, error_name="answer", error_message=(
                f"{task.accepted[0]} is no number: give the task the match exact, or the kind math"))
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
        label = rf"{re.escape(task.label)}{'(?![a-z])' * task.label[-1:].isalpha()}[{BLANK}]*+"
        begins = rf"[{BLANK}]*+{label}[:=\uff1a]?+|{BEFORE}{label}(?:[:=\uff1a]|(?=\r?$))"
        may_be_inside = " " in task.label or not task.label[-1:].isalnum()
        inside = rf".*(?<!\w){label}[:=\uff1a]?+"          # where no line begins with it
        said = labelled(text, begins, task.label) or labelled(text, inside, task.label) * may_be_inside
        text = said[-1] if said else ""
    inside = boxed(text)
    if task.match == "numeric":
        return last_number(inside or text, in_box=bool(inside))
    return " ".join(TEXT.sub(r"\1", inside or text).split()) or None


def labelled(text: str, before: str, label: str) -> list[str]:
    """What follows a label, on its line or else on the next that is not empty, line by line."""
    found = re.finditer(rf"^(?:{before})(.*)$(?=\s*+(.*))", text, re.MULTILINE | re.IGNORECASE)
    said = [unmarked(given) if is_marked(line, label) else given.strip()
            for line in found for given in [line[1] if line[1].strip(f"{BLANK}\r") else line[2]]]
    return [each for each in said if each]


def is_marked(line: re.Match[str], label: str) -> bool:
    """True if a mark is opened before the label, or between it and the answer, where what closes it is."""
    behind = line[0][:line.start(1) - line.start()].casefold().rpartition(label.casefold())[2]
    return bool(OPENED.match(line[0])) or not {*"*_`"}.isdisjoint(behind)


def unmarked(text: str) -> str:
    """A text without the marks around it, also if a full stop follows them."""
    text = text.strip(f"{BLANK}\r")
    return text[:-1].rstrip(BLANK) if text.endswith(("*.", "_.", "`.")) else text


def last_number(text: str, *, in_box: bool = False) -> str | None:
    """The last number of a text; a box holds one, behind its last equals sign, and nothing that alters it."""
    text = text.translate(VULGAR | HIDDEN)
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    if in_box:
        text = EQUALS.split(re.sub(r"\s++=", "=", text[-LONGEST_BOX:]))[-1]
        text = WORDS.sub(lambda words: f" {LETTER.sub('unit', words[1])} ", text)
        text = re.sub(r"^([-+])\s++", r"\1", FORMAT.sub(" ", text).strip(f"{BLANK}\n"))
        text = re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", re.sub(r"[(\[](?=\d+,)", "=", text))      # no pairs
    text = MATHEMATICS.sub("", TEXT.sub(r"\1", text))
    text = SUPERSCRIPT.sub(lambda power: "^" + power[0].translate(DIGITS), text)
    text = LATEX_FRACTION.sub(lambda latex: " " * latex.string[latex.start() - 1].isdigit() + (
        f"{latex[1] or latex[2]}/{latex[3] or latex[4]} "), text)
    text = UNIT_POWER.sub("", text)
    numbers = list(NUMBER.finditer(text))
    if not (in_box and numbers):
        times = TIMES.match(text, numbers[-1].end()) if numbers else None
        return numbers[-1][0].strip() + (times[0] if times else "") if numbers else None
    around = re.sub(r"\\?[{}]|[()$]", "", f"{text[:numbers[0].start()]}#{text[numbers[0].end():]}").strip()
    sign = "-" * around.startswith("-#")
    is_other = len(numbers) > 1 or OTHER.search(around.removeprefix(sign)) or any(each.isnumeric() or (
        not each.isascii() and category(each) in ("Sm", "So", "Po", "Pd", "Mn")) for each in around)
    return None if is_other else (sign + numbers[0][0].strip()).replace("--", "")


def is_same(given: str, accepted: str, task: AnswerTask) -> bool:
    """True if the two answers agree in the way the task asks for."""
    if task.match == "numeric":
        meant = last_number(accepted, in_box=True) or ""
        ours, theirs = number_of(given), number_of(meant)
        is_left = LEFT.search(given) and not LEFT.search(meant)
        return ours is not None and theirs is not None and is_close(ours, theirs, task.tolerance) and not (
            is_left and theirs.denominator == 1)
    inside = AROUND_ALL.fullmatch(given)
    return len(given) <= 4 * len(accepted) + 100 and bare_text(accepted) in (
        bare_text(given), bare_text(inside[1] if inside else given, EMPHASIS))


def bare_text(text: str, closes: dict[str, str] = CLOSES) -> str:
    """A text without a full stop at its end and without pairs of marks around all of it, in lower case."""
    text = normalize("NFC", TEXT.sub(r"\1", SPACE.sub(" ", ESCAPED.sub(r"\1", text.replace("\u2019", "'")))))
    words = " ".join(text.split())
    for end in ("", "."):
        words = words.removesuffix(end)
        while len(words) > 2 and closes.get(words[0]) == words[-1]:
            if words[-1] in words.strip(words[0] + words[-1]):          # several pairs, none around all
                break
            words = words[1:-1].strip()
    return OPTION.sub(r"\1", words).casefold()


def is_close(ours: Fraction, theirs: Fraction, tolerance: float | None) -> bool:
    """True if the two are near each other; whole numbers only if the task says how near is near enough."""
    nearest = Fraction(TOLERANCE if tolerance is None else tolerance) * max(abs(ours), abs(theirs))
    if tolerance is None:
        nearest = min(nearest, Fraction(499 * (ours.denominator * theirs.denominator > 1), 1000))
    return abs(ours - theirs) <= nearest


def number_of(text: str) -> Fraction | None:
    """A number as `last_number` gives it; None if it is none, or out of bounds."""
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        value, sign = bounded(match[1].lstrip("+-").replace(",", "")), -1 if text.startswith("-") else 1
        if match[4]:
            return sign * value * bounded(f"1e{match[4]}")
        if match[5]:
            power = int(bounded(match[5]))
            return sign * value ** power if len(match[1]) * abs(power) <= MAX_DIGITS else None
        if match[2]:
            return sign * (value + bounded(match[2]) / bounded(match[3]))
        return sign * value / bounded(match[3] or "1")
    except (ValueError, ZeroDivisionError):
        return None


def bounded(text: str) -> Fraction:
    """A number; ValueError where writing it out would take many digits, which would take long."""
    exponent = text.lower().partition("e")[2]
    if len(text) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise ValueError("a number of many digits")
    return Fraction(text)
