"""Grid tasks: `transform` is run on every train and test input, as augmented as its prompt was."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from score.protocol.frames import JobKind, encode_grids
from score.sandbox.program import Outcome, Program
from score.tasks.measures import NO_CODE, Answer, Measures, SplitScore
from warehouse.tasks.augmentation import augment, undo


@dataclass(frozen=True)
class GridTask:
    """Inputs and expected outputs; both are uint8 grids, train pairs first; hidden tests have no outputs."""

    num_train: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


class GridKind:
    """ARC and everything of its form: {train: [{input, output}], test: [{input, output}]}."""

    def load(self, payload: dict[str, Any]) -> GridTask:
        pairs = [*payload["train"], *payload["test"]]
        inputs, outputs = ([np.array(pair[name], dtype=np.uint8) for pair in pairs if pair.get(name)]
                           for name in ("input", "output"))
        return GridTask(len(payload["train"]), inputs, outputs)

    def programs(self, task: GridTask, answer: Answer) -> list[Program] | Outcome:
        if answer.code is None:
            return NO_CODE
        shown = [augment(grid, answer.flip, answer.rotations, answer.color_map) for grid in task.inputs]
        return [Program(JobKind.GRID, answer.code, encode_grids(shown))]

    def measure(self, task: GridTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        [outcome] = outcomes
        hidden = len(task.outputs) < len(task.inputs)
        train, test = task.outputs[:task.num_train], task.outputs[task.num_train:]
        if outcome.error_class is not None:
            return Measures(valid_code=answer.code is not None, valid_outputs=False, hidden=hidden,
                            train=split_score(None, train), test=split_score(None, test))
        grids = [undo(grid, answer.flip, answer.rotations, answer.color_map) for grid in outcome.result]
        given = {"train": grids[:task.num_train], "test": grids[task.num_train:]}
        listed = {split: [grid.tolist() for grid in part] for split, part in given.items()}
        return Measures(valid_code=True, valid_outputs=True, hidden=hidden,
                        train=split_score(given["train"], train),
                        test=split_score(given["test"], test), fingerprint=fingerprint(grids),
                        outputs=json.dumps(listed, separators=(",", ":")))


def fingerprint(grids: list[np.ndarray]) -> str:
    """Hash of shapes and cells; equal for programs that do the same to every input."""
    return hashlib.sha256(encode_grids(grids)).hexdigest()[:32]


def split_score(outputs: list[np.ndarray] | None, expected: list[np.ndarray]) -> SplitScore:
    """Mean pixel score and share of exact grids; `outputs` is None when the program gave no valid grid."""
    if outputs is None or not expected:
        return SplitScore(len(expected), 0.0, 0.0)
    pixels = [pixel_score(output, target) for output, target in zip(outputs, expected, strict=True)]
    exact = pixels.count(1.0)           # grids of different shapes never score 1
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
