"""How a grid of colours 0-9 becomes text in a prompt: a line per row, of digits or of names of colours."""

from collections.abc import Callable

from warehouse.store.errors import StageError

Grid = list[list[int]]

COLOR_NAMES = ("Black", "Blue", "Red", "Green", "Yellow", "Gray", "Pink", "Orange", "Purple", "Brown")
CELLS: dict[str, Callable[[list[int]], str]] = {
    "digits": lambda row: "".join(map(str, row)),
    "names": lambda row: " ".join(COLOR_NAMES[cell] for cell in row),
}


def grid_encoder(name: str) -> Callable[[Grid], str]:
    """The encoder with this name; StageError for an unknown one."""
    if name not in CELLS:
        raise StageError(f"Unknown grid encoder '{name}'. Use one of {', '.join(CELLS)}, or a function of "
                         "your own: --prompt-format FILE.py:NAME.")
    return lambda grid: "\n".join(map(CELLS[name], grid))


def describe_cells(name: str) -> str:
    """A sentence that explains the cells of an encoder to the model."""
    if name == "names":
        numbered = ", ".join(f"{number} {color}" for number, color in enumerate(COLOR_NAMES))
        return f"Each cell is the name of a colour, whose number is: {numbered}."
    return "Each row is a line of colour numbers, without anything between them."
