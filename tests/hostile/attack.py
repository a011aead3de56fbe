"""What an attack is: a program, and the ways in which it may end."""

import textwrap
from dataclasses import dataclass

REACHED = 7  # an attack that reaches its effect answers [[7]]
CONTAINED = "contained"  # it ran to its end and answered something else
MARKER = "hostile-7f3a"  # in the name of everything an attack would leave behind


@dataclass(frozen=True)
class Attack:
    """One hostile program; `bites` marks those that a process with nothing but limits falls to."""

    name: str
    source: str
    endings: tuple[str, ...]
    bites: bool = False


HEAD = "import ctypes, os, sys, signal\nimport numpy as np\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def attempt(name: str, body: str, *, bites: bool = False, endings: tuple[str, ...] = (CONTAINED,)) -> Attack:
    """A body that returns something true when it got where it must not get; errors count as contained."""
    source = (
        f"{HEAD}\ndef attempt():\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n\n"
        "def transform(grid):\n    try:\n        reached = attempt()\n"
        "    except BaseException:\n        reached = False\n"
        f"    return [[{REACHED} if reached else 0]]\n"
    )
    return Attack(name, source, endings, bites)


def program(name: str, source: str, *endings: str, bites: bool = False) -> Attack:
    """A whole program, with the error classes it may end in."""
    return Attack(name, HEAD + textwrap.dedent(source).strip("\n") + "\n", endings, bites)


def verbatim(name: str, source: str, *endings: str) -> Attack:
    """A source that is itself the attack."""
    return Attack(name, source, endings)


def returns(name: str, expression: str, *endings: str, before: str = "") -> Attack:
    """An answer that is itself the attack."""
    body = f"{textwrap.dedent(before).strip()}\n\ndef transform(grid):\n    return {expression}\n"
    return Attack(name, HEAD + body, endings)
