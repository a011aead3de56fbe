"""Unit tests in the shapes that people write them in (shapes.txt), each with a right program."""

from pathlib import Path
from typing import NamedTuple


class Shape(NamedTuple):
    """A right program and a test that it passes in one process, and whether it does in two."""

    name: str
    entry_point: str
    program: str
    tests: str | list[str]
    right: bool
    in_place: bool


def read_shapes() -> list[Shape]:
    """Shapes as `=== name | entry point | statement or source | verdict`, program, `---`, test."""
    shapes = []
    for block in (Path(__file__).parent / "shapes.txt").read_text().split("=== ")[1:]:
        head, _, body = block.partition("\n")
        name, entry_point, form, verdict = head.split(" | ")
        program, _, test = body.partition("\n---\n")
        tests: str | list[str] = test if form == "source" else [test]
        shapes.append(Shape(name, entry_point, program + "\n", tests, verdict != "wrong",
                            verdict == "in place"))
    return shapes


SHAPES = read_shapes()
