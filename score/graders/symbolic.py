"""Whether two mathematical expressions are the same: `math-verify`, which parses LaTeX and asks sympy."""

import logging
import re
from typing import Any

from math_verify import parse, verify
from sympy import Expr, Float

# What a locked process could not import any more: sympy loads parts of itself when they are first asked for.
REHEARSALS = ((r"\frac{1}{2}", "0.5"), (r"\left(3,\frac{\pi}{2}\right)", r"(3, \pi/2)"), ("x=5", "5"),
              ("p-q", "q"), (r"\text{east}", "west"), ("1,2,3", "{3,2,1}"), (r"2\sqrt{3}", r"\sqrt{12}"),
              ("[1,2)", "[1,2]"), (r"10\%", "0.1"), (r"(x+1)^2", "x^2+2x+1"),
              (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"3+4i"),
              (r"x \in [-2,7]", r"-2 \le x \le 7"), (r"\sin(30^\circ)", r"\log_2 8"),
              (r"5!", r"\binom{6}{2}"),
              (r"\infty", r"\cup"), (r"f(x)=x^{1/3}", "y=|x|"), (r"\sum_{k=1}^{3} k", r"\int_0^1 x dx"),
              (r"\prod_{k=1}^{3} k", "6"))
WRITTEN = ((r"(?<=\d)(?:\\,|\{,\})(?=\d{3}(?!\d))", ""), (r"(?<==)( *\d{1,3}),(?=\d{3}\})", r"\1"),
           (r"(?<=\d) (\d+)/(\d+)", r"\\frac{\1}{\2}"), (r"\u00b0|\\degree(?![A-Za-z])", r"^\\circ"))
NEAR = 1.0001e-6        # relative, as 0.333333 is near a third
LETTERS = (r"(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|phi"
           r"|chi|psi|omega|Delta|Omega)")
# What is left to compute in an answer: sums and functions (which count twice), then products, numbers side by
# side, fractions and powers but those of ten. No signs, units, degrees or factors of letters.
OPERATORS = re.compile(
    r"(?<=\d) (?=\d)|(?<=\})(?=\\frac)|(?<=[\d)}\]])(?=[(\[](?:[^A-Za-z()]|\\[a-z]+)*(?:[)\]]|$))"
    r"|((?:(?<=[^({\[,=^&<> ])|(?<=[\d)]\{))[-+\u2212]|\{[-+\u2212]\}|!|\}\{d[a-z]\}"
    rf"|\\(?!(?:{LETTERS}|[dtc]?frac|over|sqrt|div|cdot|times|circ|infty|mathbb|[cl]?dots)(?![A-Za-z]))[A-Za-z]+"
    r"|(?<![\\A-Za-z])[A-Za-z]{2,}(?=\())"
    r"|\\(?:[dtc]?frac|over|sqrt|div)(?![a-z])|\*\*|[/|:\u00f7]|(?<!(?<!\d)10)\^(?!\{?\\circ)"
    r"|(?<=[\d)}\]])(?:\\cdot|\\times|[*\u00d7\u00b7]) ?(?!10\^)(?=[\d({\[\\])"
    r"|(?![\u00b7\u00d7\u00f7\u2212\u221e])[^\x00-\x7f]")
PLACES = re.compile(r",(?!\d{3}(?!\d))|[;&<>\u2264\u2265\u2248\u2208\u222a]=?|\\\\"
                    r"|\\(?:cup|in|approx|[lg](?:eq?|t|eqslant))(?![A-Za-z])")
SPACES = re.compile(r"(?<!\\)\\(?:[,;:!> ]|q?quad(?![a-z]))|[~\s]+")
# What is around a part of an answer: signs of size, units, and a name or finished sums in front.
AROUND = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-z])|\\(?=[{}])|(?:\\text|\\mathrm)\{(?:([\d.,]+)|[^{}]*)\}"
                    r"(?:\^\{?\d\}?)?(?! ?[({])|\\?[$%]|\^\{?\\circ\}?")
NAMED = re.compile(r"^(?:(?![a-z]{2}=|\\[dt]?frac\{(?!d)|\\sqrt)[A-Za-z(\[|\\][\w\\{}'|\] ]*(?:\([^()=]*\))?\)?"
                   r"|(?:[^A-Za-z=]|\\[A-Za-z]+)*)=(?:.*=)?(?!\W*[A-Za-z]?\W*$)|=[A-Za-z]$")
UNNAMED = re.compile(r"[A-Za-z]?|[-+]?\\infty")
MATRIX = re.compile(r"\\(?:(begin)|end)\{(?:[pbB]?matrix|array)\}(?:\{[lcr|]*\})?")
BESIDE = re.compile(r"\\end\{\w+\}(?![ .,)\]}]*$|[ )]*\\right|\\text)")
WHOLE = re.compile(r"[-+\u2212]?\d[\d,]*")
TEN = r"10\^\{?-?\d+"            # brackets at the end are taken off
LITERAL = re.compile(rf"(?:\\pm|[-+\u2212])?(?:{TEN}|(?:\d{{1,3}}(?:,\d{{3}})+|\d+)(?:\.\d*)?(?:_\{{?\d+"
                     rf"| ?(?:\\times|\\cdot|[*\u00d7\u00b7]) ?{TEN})?|\.\d+)")


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Share 1 or 0, and the answer as it was parsed; the payload's answers are LaTeX."""
    given, answers = read(text), payload["answer"]
    wanted = (read(rf"\boxed{{{each}}}") for each in (answers if isinstance(answers, list) else [answers]))
    right = any(is_as_short(each, given) and same(each, given) for each in wanted)
    return {"share": float(right), "shown": str(given[-1] if given else "")[:1000]}


def read(text: str) -> list:
    """Parse a text into [expression, source]. The lane enforces the time limit."""
    for written, plain in WRITTEN:
        text = re.sub(written, plain, text)
    return parse(text, parsing_timeout=None)


def is_as_short(wanted: list, given: list) -> bool:
    """True unless an answer leaves more to compute than the reference, as the question's own formula does.

    Where that is a whole number, the answer is a number written out. Elsewhere one operator more is another form.
    """
    if not (wanted and given) or (BESIDE.search(given[-1]) and not BESIDE.search(wanted[-1])):
        return False
    ours, theirs = parts_of(given[-1]), parts_of(wanted[-1])
    others = [part for part in theirs if not WHOLE.fullmatch(part)]
    left = [part for part in ours if not LITERAL.fullmatch(part)]
    if len(others) < len(theirs) and (len(left) > len(others) or len(left) == len(ours)):
        return False
    return sum(map(work_in, left)) <= sum(map(work_in, others)) + max(1, len(others))


def parts_of(text: str) -> list[str]:
    """What stands between commas and relations, without names, brackets and units; a part with a double sign counts twice."""
    text = re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", SPACES.sub(" ", AROUND.sub(r"\1", text)))
    text = MATRIX.sub(lambda mark: "(" if mark[1] else ")", text)
    bare = (NAMED.sub("", part.strip(" ")).strip("()[]{} *") for part in PLACES.split(text))
    return [part for part in bare if not UNNAMED.fullmatch(part) for _ in range(1 + ("\\pm" in part))]


def work_in(text: str) -> int:
    """How much is left to compute."""
    return sum(1 + bool(each[1]) for each in OPERATORS.finditer(text))


def same(wanted: list, given: list) -> bool:
    """True for equal expressions; a text that is no expression is compared as it is written."""
    if not (wanted and given) or not verify(wanted, given, timeout_seconds=None):
        return False
    first, second = wanted[0], given[0]             # the library rounds to six places
    if not all(isinstance(each, Expr) and each.is_real for each in (first, second)):
        return True
    return not (first - second).has(Float) or bool(abs(first - second) <= NEAR * max(abs(first), abs(second)))


logging.disable(logging.CRITICAL)
for first, second in REHEARSALS:
    same(*(read(rf"\boxed{{{each}}}") for each in (second, first)))
