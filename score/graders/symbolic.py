"""Whether two mathematical expressions are the same: `math-verify`, which parses LaTeX and asks sympy."""

import logging
import re
from typing import Any

from math_verify import parse, verify
from sympy import Float, Tuple

# What a locked process could not import any more: sympy loads parts of itself when they are first asked for.
REHEARSALS = ((r"\frac{1}{2}", "0.5"), (r"\left(3,\frac{\pi}{2}\right)", r"(3, \pi/2)"), ("x=5", "5"),
              ("p-q", "q"), (r"\text{east}", "west"), ("1,2,3", "{3,2,1}"), (r"2\sqrt{3}", r"\sqrt{12}"),
              ("[1,2)", "[1,2]"), (r"10\%", "0.1"), (r"(x+1)^2", "x^2+2x+1"), (r"5!", r"\binom{6}{2}"),
              (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"3+4i"), (r"x \in [-2,7]", r"-2 \le x \le 7"),
              (r"\sin(30^\circ)", r"\log_2 8"), (r"\infty", r"\cup"), (r"f(x)=x^{1/3}", "y=|x|"),
              (r"\sum_{k=1}^{3} k", r"\int_0^1 x dx"), (r"\prod_{k=1}^{3} k", "6"))
WRITTEN = {r"(?<=\d)(?:\\,|\{,\})(?=\d{3}(?!\d))": "", r"(?<==)( *\d{1,3}),(?=\d{3}\})": r"\1",
           r"(?<=\d) (\d+)/(\d+)": r"\\frac{\1}{\2}", r"\u00b0|\\degree(?![A-Za-z])": r"^\\circ"}
# What an answer leaves to compute: sums and functions (which count twice), products, fractions, powers.
OPERATORS = re.compile(
    r"(?<=\d) (?=\d)|(?<=\})(?=\\frac)|(?<=[\d)}\]])(?=[(\[](?:[^A-Za-z()]|\\[a-z]+)*(?:[)\]]|$))"
    r"|((?:(?<=[^({\[,=^&<> ])|(?<=[\d)]\{))[-+\u2212]|\{[-+\u2212]\}|!|\}\{d[a-z]\}|(?<![\\A-Za-z])[A-Za-z]+"
    r"(?<=[A-Za-z]{2})(?=\()|\\(?!(?:pi|[dtc]?frac|over|sqrt|div|cdot|times|mathbb|[cl]?dots)(?![A-Za-z]))[A-Za-z]+)"
    r"|\\(?:[dtc]?frac|over|sqrt|div)(?![a-z])|\*\*|[/|:^]|(?![\u00b7\u00d7\u2212])[^\x00-\x7f]"
    r"|(?<=[\d)}\]])(?:\\cdot|\\times|[*\u00b7\u00d7]) ?(?=[\d({\[\\])")
# Between the parts of an answer, around them (e: a power of ten), and in front: a name, or what is computed.
PLACES = re.compile(r",(?!\d{3}(?!\d))|[;&<>≤≥]=?|\\\\|\\(?:cup|in|approx|[lg](?:eq?|t|eqslant))(?![a-z])")
AROUND = {r"\\(?:left|right|[bB]igg?[lr]?)(?![a-z])|\\(?=[{}])|\\?[$%]|\^\{?\\circ\}?"
          r"|^[^=,()+-]*\([^()=]*,[^()=]*\) ?=": " ",
          r"\\(?:text|mathrm)\{(?:([\d.,]+)|[^{}]*)\}(?:\^\{?\d\}?)?(?! ?[({])": r" \1 ",
          r"\\(?:begin|end)\{(?:[pbB]?matrix|array)\}(?:\{[lcr|]*\})?": "()",
          r"(?<!\\)\\(?:[,;:!> ]|q?quad(?![a-z]))|[~\s]+": " ", r"(?<![A-Za-z0-9]) +| +(?![A-Za-z0-9])": "",
          r"(?:(?<=\d)(?:\\times|\\cdot|[*\u00b7\u00d7]) ?|(?<![\w.}]))10\^(?:\{-?(\d+)\}|(\d))": r"e\1\2"}
NAMED = re.compile(r"^(?:(?![a-z]{2}=|\\[dt]?frac\{(?!d)|\\sqrt)(?:m?\\[a-z]+ )?[A-Za-z(\[|\\][\w\\{}'|\]]*"
                   r"(?:\([^()=]*\))?\)?|(?:[^A-Za-z=]|\\(?:[dtc]?frac|sqrt|cdot|times|div|pi|log|ln|[dt]?binom|sin"
                   r"|cos|tan)(?![a-z]))*)=(?:.*=)?(?!\W*[A-Za-z]?\W*$)|=[A-Za-z]$")
BESIDE = re.compile(r"\\end\{\w+\}(?![ .,)\]}]*$|[ )]*\\right|\\text)")
# Between values that have names (`x=1, y=2`), each of them, and the base of digits.
BETWEEN = re.compile(r",(?!\d{3}(?!\d))|;|\\text\{ *and *\}")
VALUE = re.compile(r"[ $]*([A-Za-z]) *=([^=<>]+)")
BASE = re.compile(r"\d_\{?(\d+)")
LITERAL = re.compile(r"(?:\\pm|[-+\u2212])?(?:\d[\d,]*\.?\d*|\.\d+|(?=e))(?:e\d+|_\{?\d+)?")


def grade(text: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Share 1 or 0, and the answer as it was parsed; the payload's answers are LaTeX."""
    given, answers = read(text), payload["answer"]
    wanted = (read(rf"\boxed{{{each}}}") for each in (answers if isinstance(answers, list) else [answers]))
    right = any(each and given and is_as_short(each, given) and same(each, given) for each in wanted)
    return {"share": float(right), "shown": str(given[-1] if given else "")[:1000]}


def read(text: str) -> list:
    """Parse a text into [expression, source]. The lane enforces the time limit."""
    for written, plain in WRITTEN.items():
        text = re.sub(written, plain, text)
    box = re.fullmatch(r"\\boxed\{(.*)\}", text)
    named = [VALUE.fullmatch(part) for part in BETWEEN.split(box[1])] if box else []
    values = {each[1]: each[2] for each in named if each}
    if 1 < len(values) == len(named):                # in the order of their names
        text = rf"\boxed{{({','.join(value for _name, value in sorted(values.items()))})}}"
    return parse(text, parsing_timeout=None)


def is_as_short(wanted: list, given: list) -> bool:
    """True if an answer writes out whole numbers, and elsewhere has at most one operator more."""
    ours, theirs = parts_of(given[-1]), parts_of(wanted[-1])
    left = [part for part in ours if not LITERAL.fullmatch(part)]
    meant = [part for part in theirs if not re.fullmatch(r"[-+\u2212]?\d[\d,]*", part)]
    if len(meant) < len(theirs) and (len(left) > len(meant) or len(left) == len(ours)):
        return False
    more, most = (sum(1 + bool(sign[1]) for sign in OPERATORS.finditer(",".join(of))) for of in (left, meant))
    beside = [len(BESIDE.findall(each[-1])) for each in (given, wanted)]
    bases = [BASE.findall(each[-1]) for each in (given, wanted)]
    return more <= most + max(1, len(meant)) and beside[0] <= beside[1] and not (
        all(bases) and bases[0] != bases[1])


def parts_of(text: str) -> list[str]:
    r"""What stands between commas and relations, without names, brackets and units; \pm makes two."""
    for around, plain in AROUND.items():
        text = re.sub(around, plain, text)
    bare = (NAMED.sub("", part.strip(" ")).strip("()[]{} *") for part in PLACES.split(text))
    return [part for part in bare if not re.fullmatch(r"[A-Za-z]?|[-+]?\\infty", part)
            for _ in range(1 + ("\\pm" in part))]


def same(wanted: list, given: list) -> bool:
    """True for equal expressions; a text that is not an expression is compared as it is written."""
    first, second = wanted[0], given[0]             # the library rounds to six places
    return bool(verify(wanted, given, timeout_seconds=None)) and not (
        all(getattr(each, "is_real", False) for each in (first, second)) and Tuple(first, second).has(Float)
        and abs(first - second) > 1.0001e-6 * max(abs(first), abs(second)))


logging.disable(logging.CRITICAL)
for first, second in REHEARSALS:
    same(*(read(rf"\boxed{{{each}}}") for each in (second, first)))
