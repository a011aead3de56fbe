"""Golden answers: judged first, in the same lanes; one wrong verdict stops the stage."""

import math
import sys
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from score.judging.completions import Item
from score.judging.judge import measure, registered_terms, run_programs
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.tasks.kinds import load_task
from score.tasks.measures import Answer, Measures, SplitScore
from warehouse.store.errors import StageError

GRID = np.arange(12, dtype=np.uint8).reshape(3, 4) % 10
PAIR = {"input": GRID.tolist(), "output": np.rot90(GRID, 2).tolist()}
GRIDS = {"train": [PAIR, PAIR], "test": [PAIR]}
AUGMENTATION = (True, 1, (0, 2, 3, 4, 5, 6, 7, 8, 9, 1))
PERFECT_GRIDS = """import numpy as np
import random

def transform(grid: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    np.linalg.norm(rng.random((3, 3))), np.fft.fft(np.ones(4)), random.random()
    return np.rot90(grid, 2)
"""
PERFECT_FUNCTION = "import math\n\ndef add(a, b=0):\n    return math.fsum([a, b])\n"
EQUAL_TO_ALL = "class Same:\n    __eq__ = lambda self, other: True\n\ndef add(a, b=0):\n    return Same()\n"
PERFECT_SCRIPT = "import sys\nprint(sum(map(int, sys.stdin.read().split())))\n"
CALLS = {"entry_point": "add", "calls": [{"args": [1], "kwargs": {"b": 2}, "expected": 3.0}]}
TESTS = {"entry_point": "add", "tests": "def check(candidate):\n    assert candidate(1, b=2) == 3\n"}
WRONG = Measures(valid_code=True, valid_outputs=True, test=SplitScore(1, 0.0, 0.0))
CASES = {"cases": [{"input": "1 2\n3", "output": "6\n"}, {"input": "", "output": "0"}]}


class Golden(NamedTuple):
    """An answer to a task of our own, and whether it is right; one without a program deserves the floor."""

    name: str
    kind: str
    payload: dict[str, Any]
    code: str | None
    perfect: bool
    augmentation: tuple[Any, ...] = ()


GOLDEN = (
    Golden("perfect", "grid", GRIDS, PERFECT_GRIDS, True), Golden("empty", "grid", GRIDS, None, False),
    Golden("perfect, augmented", "grid", GRIDS, PERFECT_GRIDS, True, AUGMENTATION),
    Golden("perfect", "function", TESTS, PERFECT_FUNCTION, True),
    Golden("empty", "function", TESTS, None, False),
    Golden("perfect, by calls", "function", CALLS, PERFECT_FUNCTION, True),
    Golden("equal to everything", "function", TESTS, EQUAL_TO_ALL, False),
    Golden("perfect", "stdio", CASES, PERFECT_SCRIPT, True), Golden("empty", "stdio", CASES, None, False))


def check_golden(executor: Executor, scorer: Scorer, kinds: Container[str]) -> int:
    """Number of golden answers judged as they deserve; StageError for the first that is not."""
    golden = [each for each in GOLDEN if each.kind in kinds]
    items = [Item(load_task("golden", each.kind, each.payload), Answer("", each.code, *each.augmentation))
             for each in golden]
    judgements = measure(items, run_programs(executor, items))
    rewards = registered_terms(items, judgements, scorer)
    for each, judgement, terms in zip(golden, judgements, rewards, strict=True):
        reward = None if terms is None else float(sum(terms.values()))
        bounds = scorer.bounds(each.kind)
        deserved = bounds and (bounds[each.perfect] if each.perfect or each.code is None else
                               sum(scorer.terms(each.kind, WRONG).values()))
        if reward is None or judgement.measures.correct != each.perfect or not (
                deserved is None or math.isclose(reward, deserved)):
            instead = "" if deserved is None else f" instead of {deserved:g}"
            reason = f" ({judgement.outcome.said})" if judgement.outcome.error_class else ""
            raise StageError(f"The golden answer '{each.name}' got reward {reward}{instead}{reason}: rewards "
                             f"would be wrong. Make the environment of {sys.executable} again.")
    return len(golden)
