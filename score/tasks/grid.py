"""Grid tasks: `transform` is run on every train and test input, as augmented as its prompt was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from score.sandbox.outcomes import Outcome
from score.sandbox.program import Program
from score.tasks.grid_metrics import split_score
from score.tasks.measures import NO_CODE, Answer, Measures
from score.wire.frames import JobKind, encode_grids
from warehouse.tasks.augmentation import augment, undo


@dataclass(frozen=True)
class GridTask:
    """Inputs and expected outputs; both are uint8 grids, train pairs first."""

    num_train: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


class GridKind:
    """ARC and everything of its form: {train: [{input, output}], test: [{input, output}]}."""

    def load(self, payload: dict[str, Any]) -> GridTask:
        pairs = [*payload["train"], *payload["test"]]
        inputs, outputs = ([np.array(pair[name], dtype=np.uint8) for pair in pairs]
                           for name in ("input", "output"))
        return GridTask(len(payload["train"]), inputs, outputs)

    def programs(self, task: GridTask, answer: Answer) -> list[Program] | Outcome:
        if answer.code is None:
            return NO_CODE
        shown = [augment(grid, answer.flip, answer.rotations, answer.color_map) for grid in task.inputs]
        return [Program(JobKind.GRID, answer.code, encode_grids(shown))]

    def measure(self, task: GridTask, answer: Answer, outcomes: list[Outcome]) -> Measures:
        [outcome] = outcomes
        valid = outcome.error_class is None and len(outcome.result) == len(task.inputs)
        train, test = task.outputs[:task.num_train], task.outputs[task.num_train:]
        if not valid:
            return Measures(valid_code=answer.code is not None, valid_outputs=False,
                            train=split_score(None, train), test=split_score(None, test))
        grids = [undo(grid, answer.flip, answer.rotations, answer.color_map) for grid in outcome.result]
        given = {"train": grids[:task.num_train], "test": grids[task.num_train:]}
        listed = {split: [grid.tolist() for grid in part] for split, part in given.items()}
        return Measures(valid_code=True, valid_outputs=True, train=split_score(given["train"], train),
                        test=split_score(given["test"], test), fingerprint=fingerprint(grids),
                        outputs=json.dumps(listed, separators=(",", ":")))


def fingerprint(grids: list[np.ndarray]) -> str:
    """Hash of shapes and cells; equal for programs that do the same to every input."""
    return hashlib.sha256(encode_grids(grids)).hexdigest()[:32]
