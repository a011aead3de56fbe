"""How close output grids are to the expected grids: the ARC metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NUM_COLORS = 10


@dataclass(frozen=True, slots=True)
class SplitScore:
    """Scores over the pairs of one split (train or test) of a task; all 0 when no valid output exists."""

    num_pairs: int
    pixel_score: float
    correct_grids: float

    @property
    def is_correct(self) -> bool:
        """Every grid is right; False for a split without pairs."""
        return self.num_pairs > 0 and self.correct_grids == 1.0


def split_score(outputs: list[np.ndarray] | None, expected: list[np.ndarray]) -> SplitScore:
    """Mean pixel score and share of exact grids; `outputs` is None when the program gave no valid grid."""
    if outputs is None or not expected:
        return SplitScore(len(expected), 0.0, 0.0)
    pixels = [pixel_score(output, target) for output, target in zip(outputs, expected, strict=True)]
    exact = pixels.count(1.0)           # grids of different shapes coincide in less than the larger of them
    return SplitScore(len(pixels), sum(pixels) / len(pixels), exact / len(pixels))


def pixel_score(output: np.ndarray, target: np.ndarray) -> float:
    """Share of equal cells; for other shapes the best overlap over the larger bounding shape."""
    if output.shape == target.shape:
        return np.count_nonzero(output == target) / output.size
    rows = max(output.shape[0], target.shape[0])
    columns = max(output.shape[1], target.shape[1])
    return best_overlap(output, target) / (rows * columns)


def best_overlap(first: np.ndarray, second: np.ndarray) -> int:
    """Most cells that can coincide when one grid is moved over the other.

    Counts of coinciding cells for every translation at once: the sum over colours of the cross-correlation
    of the two indicator grids, by FFT; they are whole numbers below 901, so rounding makes them exact.
    """
    shape = (first.shape[0] + second.shape[0] - 1, first.shape[1] + second.shape[1] - 1)
    colors = np.intersect1d(first, second)
    if len(colors) == 0:
        return 0
    indicators_first = (first == colors[:, None, None]).astype(np.float64)
    indicators_second = (second[::-1, ::-1] == colors[:, None, None]).astype(np.float64)
    spectrum = np.sum(np.fft.rfft2(indicators_first, shape) * np.fft.rfft2(indicators_second, shape), axis=0)
    return int(np.rint(np.fft.irfft2(spectrum, shape)).max())
