"""How a grid of colours 0-9 becomes text in a prompt.

An encoder is named by a base and modifiers joined with '+', for example `names`, `digits+shape+rows+block`:
    digits   one digit per cell, no separator        spaced   digits separated by spaces
    names    colour names separated by spaces
    +shape   a line with the shape before the grid   +rows    each row starts with its number, from 1
    +block   the grid stands in a code block
"""

from collections.abc import Callable

from warehouse.store.errors import StageError

Grid = list[list[int]]
Encoder = Callable[[Grid], str]

COLOR_NAMES = ("Black", "Blue", "Red", "Green", "Yellow", "Gray", "Pink", "Orange", "Purple", "Brown")
CELLS: dict[str, Callable[[list[int]], str]] = {
    "digits": lambda row: "".join(map(str, row)),
    "spaced": lambda row: " ".join(map(str, row)),
    "names": lambda row: " ".join(COLOR_NAMES[cell] for cell in row),
}
MODIFIERS = ("shape", "rows", "block")


def grid_encoder(name: str) -> Encoder:
    """The encoder of a name such as 'names+shape'; StageError for an unknown part."""
    base, *modifiers = name.split("+")
    unknown = [part for part in modifiers if part not in MODIFIERS]
    if base not in CELLS or unknown:
        raise StageError(f"Unknown grid encoder '{name}'. Use one of {', '.join(CELLS)}, followed by any of "
                         f"{', '.join('+' + part for part in MODIFIERS)}.")

    def encode(grid: Grid) -> str:
        rows = [CELLS[base](row) for row in grid]
        if "rows" in modifiers:
            rows = [f"{number} {row}" for number, row in enumerate(rows, start=1)]
        if "block" in modifiers:
            rows = ["```grid", *rows, "```"]
        if "shape" in modifiers:
            rows = [f"shape: {len(grid)}x{len(grid[0])}", *rows]
        return "\n".join(rows)

    return encode


def describe_cells(name: str) -> str:
    """A sentence that says how the cells of an encoder are to be read."""
    base = name.split("+")[0]
    if base == "names":
        numbered = ", ".join(f"{number} {color}" for number, color in enumerate(COLOR_NAMES))
        return f"Each cell is the name of a colour, whose number is: {numbered}."
    separated = "with spaces between them" if base == "spaced" else "without anything between them"
    return f"Each row is a line of colour numbers, {separated}."
