"""Whether two mathematical expressions are the same: `math-verify`, which parses LaTeX and asks sympy."""

import logging
from typing import Any

from math_verify import parse, verify

# What a locked process could not import any more: sympy loads parts of itself when they are first asked for.
REHEARSALS = ((r"\frac{1}{2}", "0.5"), (r"\left(3,\frac{\pi}{2}\right)", r"(3, \pi/2)"), ("x=5", "5"),
              ("p-q", "q"), (r"\text{east}", "west"), ("1,2,3", "{3,2,1}"), (r"2\sqrt{3}", r"\sqrt{12}"),
              ("[1,2)", "[1,2]"), (r"10\%", "0.1"), (r"(x+1)^2", "x^2+2x+1"),
              (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"3+4i"),
              (r"x \in [-2,7]", r"-2 \le x \le 7"), (r"\sin(30^\circ)", r"\log_2 8"),
              (r"5!", r"\binom{6}{2}"),
              (r"\infty", r"\cup"), (r"f(x)=x^{1/3}", "y=|x|"), (r"\sum_{k=1}^{3} k", r"\int_0^1 x dx"))


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Share 1 or 0, and the answer as it was parsed; the payload's answers are LaTeX."""
    given, answers = read(text), payload["answer"]
    right = any(same(read(rf"\boxed{{{answer}}}"), given)
                for answer in (answers if isinstance(answers, list) else [answers]))
    return {"share": float(right), "shown": str(given[-1] if given else "")[:1000]}


def read(text: str) -> list:
    """Parse a text into [expression, source]. The lane enforces the time limit."""
    return parse(text, parsing_timeout=None)


def same(wanted: list, given: list) -> bool:
    """True for equal expressions; a text that is no expression is compared as it is written."""
    return bool(wanted and given) and bool(verify(wanted, given, timeout_seconds=None))


logging.disable(logging.CRITICAL)
for first, second in REHEARSALS:
    grade(rf"\boxed{{{first}}}", {"answer": second})
