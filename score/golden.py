"""Golden answers: judged first, in the very lanes that will be used; one that fails stops the stage."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from score.completions import Item
from score.execution import Executor
from score.grid_tasks import GridKind
from score.judging import execute, measure
from score.measures import Answer
from score.parsing import first_code_block
from score.scorer import Scorer
from warehouse.errors import StageError

GRID = np.arange(12, dtype=np.uint8).reshape(3, 4) % 10
AUGMENTATION = (True, 1, (0, 2, 3, 4, 5, 6, 7, 8, 9, 1))
FENCED = "```python\n{}\n```"
PERFECT_GRIDS = """import numpy as np
import random

def transform(grid: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    np.linalg.norm(rng.random((3, 3))), np.fft.fft(np.ones(4)), random.random()
    return np.rot90(grid, 2)
"""


def golden_items(kinds: Iterable[str]) -> list[tuple[str, Item, bool]]:
    """Name, item, and whether it deserves the full reward (or else the floor), for the kinds given."""
    items = []
    if "grid" in kinds:
        pair = {"input": GRID.tolist(), "output": np.rot90(GRID, 2).tolist()}
        kind = GridKind()
        task = kind.load("golden", {"train": [pair, pair], "test": [pair]})
        for name, text, augmentation, perfect in (
                ("perfect", FENCED.format(PERFECT_GRIDS), (None, None, None), True),
                ("perfect, augmented", FENCED.format(PERFECT_GRIDS), AUGMENTATION, True),
                ("empty", "", (None, None, None), False)):
            answer = Answer(text, first_code_block(text), *augmentation)
            items.append((name, Item(kind, task, "golden", "golden", answer), perfect))
    return items


def check_golden(executor: Executor, scorer: Scorer, kinds: Iterable[str]) -> int:
    """Number of golden answers judged as they deserve; StageError with the reason when one is not."""
    golden = golden_items(kinds)
    items = [item for _name, item, _perfect in golden]
    outcomes = execute(executor, items, lambda _outcome: None)
    for (name, _item, perfect), row in zip(golden, measure(items, outcomes, scorer), strict=True):
        deserved = scorer.full if perfect else scorer.floor
        if row.reward is None or not math.isclose(row.reward, deserved):
            outcome = row.outcome
            reason = " ".join(filter(None, (outcome.error_class, outcome.error_name, outcome.error_message)))
            raise StageError(f"The golden answer '{name}' got reward {row.reward} instead of {deserved:g}"
                             f"{f' ({reason})' if reason else ''}: rewards would be wrong, so nothing was "
                             "scored. Run `score doctor` to see what is missing.")
    return len(golden)
