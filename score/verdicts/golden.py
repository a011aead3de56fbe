"""Golden answers: judged first, in the very lanes that will be used; one that fails stops the stage."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.tasks.code_block import first_code_block
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from score.verdicts.completions import Item
from score.verdicts.judge import measure, registered_terms, run_programs
from warehouse.store.errors import StageError

GRID = np.arange(12, dtype=np.uint8).reshape(3, 4) % 10
PAIR = {"input": GRID.tolist(), "output": np.rot90(GRID, 2).tolist()}
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
CASES = {"cases": [{"input": "1 2\n3", "output": "6\n"}, {"input": "", "output": "0"}]}


def golden_items(kinds: Iterable[str]) -> list[tuple[str, Item, bool]]:
    """Name, item, and whether it deserves the full reward (or else the floor), for the kinds given."""
    tasks: dict[str, tuple[dict[str, Any], str]] = {
        "grid": ({"train": [PAIR, PAIR], "test": [PAIR]}, PERFECT_GRIDS),
        "function": (TESTS, PERFECT_FUNCTION), "stdio": (CASES, PERFECT_SCRIPT)}
    items = []
    for kind in kinds:
        if kind in tasks:
            payload, code = tasks[kind]
            items += [("perfect", golden_item(kind, payload, fenced(code)), True),
                      ("empty", golden_item(kind, payload, ""), False)]
    if "grid" in kinds:
        text = fenced(PERFECT_GRIDS)
        items.append(("perfect, augmented", golden_item("grid", tasks["grid"][0], text, *AUGMENTATION), True))
    if "function" in kinds:
        items += [("perfect, by calls", golden_item("function", CALLS, fenced(PERFECT_FUNCTION)), True),
                  ("equal to everything", golden_item("function", TESTS, fenced(EQUAL_TO_ALL)), False)]
    return items


def golden_item(kind_name: str, payload: dict[str, Any], text: str, flip: bool | None = None,
                rotations: int | None = None, color_map: tuple[int, ...] | None = None) -> Item:
    """An answer to a task of our own."""
    answer = Answer(text, first_code_block(text), flip, rotations, color_map)
    return Item(load_task("golden", kind_name, payload), answer)


def fenced(code: str) -> str:
    """A program as a model writes it."""
    return f"```python\n{code}```"


def check_golden(executor: Executor, scorer: Scorer, kinds: Iterable[str]) -> int:
    """Number of golden answers judged as they deserve; StageError with the reason when one is not."""
    golden = golden_items(kinds)
    items = [item for _name, item, _perfect in golden]
    judgements = measure(items, run_programs(executor, items))
    rewarded = zip(golden, judgements, registered_terms(items, judgements, scorer), strict=True)
    for (name, item, perfect), judgement, terms in rewarded:
        reward = None if terms is None else float(sum(terms.values()))
        bounds = scorer.bounds(item.task.kind_name)
        deserved = bounds and bounds[perfect]
        if reward is None or judgement.measures.correct != perfect or not (
                deserved is None or math.isclose(reward, deserved)):
            outcome = judgement.outcome
            reason = " ".join(filter(None, (outcome.error_class, outcome.error_name, outcome.error_message)))
            raise StageError(f"The golden answer '{name}' got reward {reward}"
                             f"{'' if deserved is None else f' instead of {deserved:g}'}"
                             f"{f' ({reason})' if reason else ''}: rewards would be wrong, so nothing was "
                             "scored. Run `score doctor` to see what is missing.")
    return len(golden)
