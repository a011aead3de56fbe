"""ARC grids as SVG: one path per colour; each distinct grid is defined once and referenced."""

from collections.abc import Sequence
from itertools import groupby

from warehouse.inspect.show import is_grid

Grid = Sequence[Sequence[int]]
# The usual colours of ARC viewers, 0 to 9.
COLORS = ("#000000", "#0074d9", "#ff4136", "#2ecc40", "#ffdc00", "#aaaaaa", "#f012be", "#ff851b", "#7fdbff",
          "#870c25")


class GridSheet:
    """Grids drawn so far, each with an id; `symbols()` defines them, `draw` refers to them."""

    def __init__(self) -> None:
        self._ids: dict[tuple[tuple[int, ...], ...], str] = {}

    def draw(self, grid: object, wrong: Grid | None = None, *, longest: int = 112) -> str:
        """The grid as an <svg>, cells that differ from `wrong` marked; a note if it is not a grid."""
        if not is_grid(grid):
            return '<span class="nogrid">no grid</span>'
        cells = tuple(tuple(row) for row in grid)  # type: ignore[attr-defined]
        name = self._ids.setdefault(cells, f"g{len(self._ids)}")
        height, width = len(cells), len(cells[0])
        size = max(3, min(16, longest // max(height, width)))       # pixels per cell
        marks = difference_marks(cells, wrong) if wrong is not None and is_grid(wrong) else ""
        return (f'<svg class="arc" viewBox="0 0 {width} {height}" width="{width * size}" '
                f'height="{height * size}"><use href="#{name}"/>{marks}</svg>')

    def symbols(self) -> str:
        return "".join(f'<symbol id="{name}" viewBox="0 0 {len(cells[0])} {len(cells)}">{cell_paths(cells)}'
                       '</symbol>' for cells, name in self._ids.items())


def cell_paths(cells: Grid) -> str:
    """One path per colour, made of horizontal runs, and hairlines between cells."""
    runs: dict[int, list[str]] = {}
    for y, row in enumerate(cells):
        x = 0
        for color, run in groupby(row):
            wide = len([*run])
            runs.setdefault(color, []).append(f"M{x} {y}h{wide}v1h-{wide}z")
            x += wide
    height, width = len(cells), len(cells[0])
    lines = "".join(f"M0 {y}H{width}" for y in range(1, height)) + "".join(
        f"M{x} 0V{height}" for x in range(1, width))
    paths = "".join(f'<path fill="{COLORS[color]}" d="{"".join(runs[color])}"/>' for color in sorted(runs))
    return f'{paths}<path stroke="#777" stroke-width=".05" d="{lines}"/>'


def difference_marks(cells: Grid, expected: Grid) -> str:
    """A cross on every different cell, if the shapes agree."""
    if len(cells) != len(expected) or len(cells[0]) != len(expected[0]):
        return ""
    marks = "".join(f"M{x + .3:g} {y + .3:g}l.4 .4m0 -.4l-.4 .4" for y, row in enumerate(cells)
                    for x, cell in enumerate(row) if cell != expected[y][x])
    return (f'<path stroke="#000" stroke-width=".2" d="{marks}"/>'
            f'<path stroke="#fff" stroke-width=".09" d="{marks}"/>') if marks else ""
