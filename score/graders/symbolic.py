"""Whether two mathematical expressions are the same: `math-verify`, which parses LaTeX and asks sympy."""

import logging
import re
from typing import Any

from math_verify import parse, verify

# What a locked process could not import any more: sympy loads parts of itself when they are first asked for.
REHEARSALS = ((r"\frac{1}{2}", "0.5"), (r"\left(3,\frac{\pi}{2}\right)", r"(3, \pi/2)"), ("x=5", "5"),
              ("p-q", "q"), (r"\text{east}", "west"), ("1,2,3", "{3,2,1}"), (r"2\sqrt{3}", r"\sqrt{12}"),
              ("[1,2)", "[1,2]"), (r"10\%", "0.1"), (r"(x+1)^2", "x^2+2x+1"),
              (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"3+4i"),
              (r"x \in [-2,7]", r"-2 \le x \le 7"), (r"\sin(30^\circ)", r"\log_2 8"),
              (r"5!", r"\binom{6}{2}"),
              (r"\infty", r"\cup"), (r"f(x)=x^{1/3}", "y=|x|"), (r"\sum_{k=1}^{3} k", r"\int_0^1 x dx"),
              (r"\prod_{k=1}^{3} k", "6"))
# What is left to compute in an answer: sums and functions (which count twice), then products, fractions and
# powers but those of ten. No signs, units, degrees or factors of letters.
OPERATORS = re.compile(
    r"((?:(?<=[^({\[,=^&<>])|(?<=[\d)]\{))[-+\u2212]|\{[-+\u2212]\}|!|\}\{d[a-z]\}"
    r"|[\\{](?:pm|sum|prod|i*int|lim|log|ln|lg|exp|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?"
    r"|[dt]?binom|gcd|lcm|min|max|det|lceil|lfloor)(?![A-Za-z]))"
    r"|\\(?:frac|over|sqrt|div)(?![a-z])|[/|\u00f7]|(?<!(?<!\d)10)\^(?!\{?\\circ)"
    r"|(?<=[\d)}])(?:\\cdot|\\times|[*\u00d7\u00b7])(?!10\^)(?=[\d({\\])")
PLACES = re.compile(r",(?!\d{3}(?!\d))|&|\\\\")       # between the parts of an answer


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Share 1 or 0, and the answer as it was parsed; the payload's answers are LaTeX."""
    given, answers = read(text), payload["answer"]
    wanted = (read(rf"\boxed{{{each}}}") for each in (answers if isinstance(answers, list) else [answers]))
    right = any(is_as_short(each, given) and same(each, given) for each in wanted)
    return {"share": float(right), "shown": str(given[-1] if given else "")[:1000]}


def read(text: str) -> list:
    """Parse a text into [expression, source]. The lane enforces the time limit."""
    return parse(re.sub(r"(?<=\d)\\,(?=\d{3}(?!\d))", "", text), parsing_timeout=None)


def is_as_short(wanted: list, given: list) -> bool:
    """True unless an answer leaves more to compute than the reference, as the question's own formula does.

    One operator more is another form, such as a fraction for a decimal number; a whole number has none.
    """
    ours, theirs = (re.sub(r"\\[,;:! ]|\s", "", each[-1]) if each else "" for each in (given, wanted))
    if "=" not in theirs:
        ours = re.sub("[^,;=]*=", "", ours)
    more = 0 if re.fullmatch(r"-?[\d,]+", theirs) else 1 + len(PLACES.findall(theirs))
    # A double sign stands for two formulas.
    left, meant = ((1 + ("\\pm" in text)) * sum(1 + bool(each[1]) for each in OPERATORS.finditer(text))
                   for text in (ours, theirs))
    return left <= meant + more


def same(wanted: list, given: list) -> bool:
    """True for equal expressions; a text that is no expression is compared as it is written."""
    return bool(wanted and given) and bool(verify(wanted, given, timeout_seconds=None))


logging.disable(logging.CRITICAL)
for first, second in REHEARSALS:
    same(*(read(rf"\boxed{{{each}}}") for each in (second, first)))
