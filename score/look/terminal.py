"""Text and grids for a terminal; what models wrote is elided, so that it cannot move the cursor."""

from __future__ import annotations

from collections.abc import Sequence

# The colours of ARC as xterm numbers, 0 to 9.
XTERM = (16, 33, 196, 40, 226, 245, 201, 208, 51, 88)
DARK = {0, 1, 2, 9}
Grid = Sequence[Sequence[int]]


def elided(text: str) -> str:
    """Text without control characters, except line ends and tabs."""
    return "".join(character if character in "\n\t" or character.isprintable()
                   else f"\\x{ord(character):02x}" for character in text)


def grid_lines(grid: Grid | None, colors: bool) -> list[str]:
    """One line per row of a grid, in colour or in digits."""
    if grid is None:
        return ["(none)"]
    if not colors:
        return [" ".join(str(cell) for cell in row) for row in grid]
    return ["".join(colored(cell) for cell in row) for row in grid]


def colored(cell: int) -> str:
    """One cell on its colour, with its digit."""
    return f"\x1b[48;5;{XTERM[cell]};38;5;{15 if cell in DARK else 16}m{cell} \x1b[0m"


def beside(columns: Sequence[tuple[str, Grid | None]], colors: bool) -> list[str]:
    """Grids with titles, next to each other."""
    blocks = [[title, *grid_lines(grid, colors)] for title, grid in columns]
    widths = [max(len(title), 6, 2 * len(grid[0]) if grid else 0) for title, grid in columns]
    lines = []
    for index in range(max(len(block) for block in blocks)):
        cells = []
        for block, width in zip(blocks, widths, strict=True):
            cell = block[index] if index < len(block) else ""
            cells.append(cell + " " * (width - visible_length(cell)))
        lines.append("   ".join(cells).rstrip())
    return lines


def visible_length(text: str) -> int:
    """Characters that a terminal shows, colour codes left out."""
    length, inside = 0, False
    for character in text:
        if character == "\x1b":
            inside = True
        elif not inside:
            length += 1
        elif character == "m":
            inside = False
    return length
