"""Random input grids for synthetic tasks: dense, sparse, rectangles, one blob, or two masks side by side."""

from random import Random
from typing import NamedTuple

import numpy as np

Grid = np.ndarray       # [height, width] of colours 0..9
ANY_KINDS, ANY_WEIGHTS = ("dense", "sparse", "rectangles", "blob"), (4, 3, 2, 1)


class InputStyle(NamedTuple):
    """What the inputs of one task have in common."""

    kind: str                       # dense, sparse, rectangles, blob, columns or rows
    colors: tuple[int, ...]         # two to four colours of 1..9
    low: int                        # smallest side
    high: int                       # largest side
    shape: tuple[int, int] | None   # the same for every input, or None: drawn per input
    separator: int | None           # colour of the line between two masks, or None: no line


def draw_colors(rng: Random) -> tuple[int, ...]:
    """Two to four distinct colours of 1..9."""
    return tuple(rng.sample(range(1, 10), rng.randint(2, 4)))


def draw_style(rng: Random, inputs: str, colors: tuple[int, ...]) -> InputStyle:
    """The style of a task's inputs: 60 % have sides of 2 to 5, the rest of 2 to 10."""
    kind = rng.choices(ANY_KINDS, ANY_WEIGHTS)[0] if inputs == "any" else inputs
    low, high = (2, 5) if rng.random() < 0.6 else (3, 10)
    if kind == "blob":
        low, high = max(low, 4), max(high, 8)
    shape = (rng.randint(low, high), rng.randint(low, high))
    if rng.random() < 0.3:
        shape = (shape[0], shape[0])
    separator = rng.choice(colors) if rng.random() < 0.6 else None
    return InputStyle(kind, colors, low, high, shape if rng.random() < 0.6 else None, separator)


def draw_grid(rng: Random, style: InputStyle) -> Grid:
    height, width = style.shape or (rng.randint(style.low, style.high), rng.randint(style.low, style.high))
    if style.kind == "dense":
        palette = style.colors if rng.random() < 0.3 else (0, *style.colors)
        return np.array(rng.choices(palette, k=height * width)).reshape(height, width)
    if style.kind == "sparse":
        zeros = rng.randint(2, 4) * len(style.colors)
        return np.array(rng.choices((0,) * zeros + style.colors, k=height * width)).reshape(height, width)
    if style.kind == "rectangles":
        return rectangles(rng, style.colors, height, width)
    if style.kind == "blob":
        return blob(rng, style.colors, height, width)
    return two_masks(rng, style, min(height, 6), min(width, 6))


def rectangles(rng: Random, colors: tuple[int, ...], height: int, width: int) -> Grid:
    """One to three filled rectangles on 0; later ones cover earlier ones."""
    grid = np.zeros((height, width), int)
    for _ in range(rng.randint(1, 3)):
        top, left = rng.randrange(height), rng.randrange(width)
        grid[top:top + rng.randint(1, 4), left:left + rng.randint(1, 4)] = rng.choice(colors)
    return grid


def blob(rng: Random, colors: tuple[int, ...], height: int, width: int) -> Grid:
    """A small dense patch somewhere on 0."""
    grid = np.zeros((height, width), int)
    patch_height, patch_width = rng.randint(2, max(2, height - 1)), rng.randint(2, max(2, width - 1))
    patch_height, patch_width = min(patch_height, 4), min(patch_width, 4)
    top, left = rng.randint(0, height - patch_height), rng.randint(0, width - patch_width)
    cells = rng.choices((0, *colors, *colors), k=patch_height * patch_width)
    grid[top:top + patch_height, left:left + patch_width] = np.array(cells).reshape(patch_height, patch_width)
    return grid


def two_masks(rng: Random, style: InputStyle, height: int, width: int) -> Grid:
    """Two masks of one colour each, side by side or one above the other, with or without a line between."""
    first, second = (np.array(rng.choices((0, color), k=height * width)).reshape(height, width)
                     for color in style.colors[:2])
    axis = 1 if style.kind == "columns" else 0
    if style.separator is None:
        return np.concatenate([first, second], axis)
    line = np.full((height, 1) if axis else (1, width), style.separator)
    return np.concatenate([first, line, second], axis)
