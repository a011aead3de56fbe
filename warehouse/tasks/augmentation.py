"""Augmentation of coloured grids: a dihedral transform and a permutation of colours, and the inverse."""

from collections.abc import Sequence

import numpy as np

NUM_COLORS = 10


def augment(grid: np.ndarray, flip: bool | None, rotations: int | None,
            color_map: Sequence[int] | None) -> np.ndarray:
    """Flip left to right, turn `rotations` quarters counter-clockwise, recolour; None leaves a step out."""
    augmented = np.asarray(grid)
    if flip:
        augmented = np.fliplr(augmented)
    if rotations:
        augmented = np.rot90(augmented, rotations)
    if color_map is not None:
        augmented = permutation(color_map)[augmented]
    return np.ascontiguousarray(augmented)


def undo(grid: np.ndarray, flip: bool | None, rotations: int | None,
         color_map: Sequence[int] | None) -> np.ndarray:
    """The grid that `augment` with the same values turns into this grid."""
    original = np.asarray(grid)
    if color_map is not None:
        original = np.argsort(permutation(color_map)).astype(np.uint8)[original]
    if rotations:
        original = np.rot90(original, -rotations)
    if flip:
        original = np.fliplr(original)
    return np.ascontiguousarray(original)


def permutation(color_map: Sequence[int]) -> np.ndarray:
    """The colour map as an array [10]; ValueError unless it is a permutation of 0..9."""
    colors = np.asarray(color_map)
    if colors.shape != (NUM_COLORS,) or not np.array_equal(np.sort(colors), np.arange(NUM_COLORS)):
        raise ValueError(f"color_map must hold each of 0..9 once, not {list(color_map)}")
    return colors.astype(np.uint8)
