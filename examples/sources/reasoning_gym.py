"""Questions of the library reasoning-gym: drawn once, stored whole, graded by its own graders in a lane.

    warehouse init RUN --model .. --tasks "examples/sources/reasoning_gym.py:tasks?name=lcm&count=500&seed=7"
    score RUN --import-path examples/graders
"""

import contextlib
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.sources.benchmarks import ask
from warehouse.store.errors import StageError
from warehouse.store.json_files import option_value

INSTALL = "pip install 'rollhouse[reasoning-gym]', then pip install --no-deps reasoning-gym==0.1.25"
GENERATORS = runpy.run_path(str(Path(__file__).parents[1] / "graders" / "gym_generators.py"))["GENERATORS"]
GARBAGE, CONSTANTS = ("foo bar", "nan"), ("0", "1", "-1")


def tasks(name: str, count: str, seed: str = "0", **options: str) -> Iterator[dict[str, Any]]:
    """Questions as objects with task_id, kind, messages, payload and solution; `options` of the generator.

    StageError for what is not known or allowed.
    """
    if name not in GENERATORS:
        raise StageError(f"'{name}' is not among the generators of reasoning-gym that are the same every "
                         "time, survive being stored, pay nothing for garbage and evaluate no text: "
                         f"{', '.join(GENERATORS)}.")
    try:
        from reasoning_gym import create_dataset
    except ImportError as error:
        raise StageError(f"Its questions need the library ({error}). Run {INSTALL}.") from None
    values = {key: option_value(text) for key, text in options.items()}
    try:
        dataset = create_dataset(name, size=int(count), seed=int(seed), **values)
    except (AssertionError, TypeError, ValueError) as error:
        raise StageError(f"{name} does not take these options: {error}.") from error
    for number in range(int(count)):
        yield _task_of(name, dataset, number, int(seed))


def _task_of(name: str, dataset: Any, number: int, seed: int) -> dict[str, Any]:
    """One question; the library itself must give its own answer everything, and garbage nothing."""
    entry = json.loads(json.dumps(dataset[number]))
    answer = entry["answer"]
    others = [text for text in (*CONSTANTS, answer[:1]) if not _is_same(text, answer)]
    right, *worth = (_worth(dataset, text, entry) for text in (answer, *GARBAGE, *others))
    if right != 1.0 or max(worth[:len(GARBAGE)]) > 0.05 or max(worth) > 0.95:
        raise StageError(f"Question {number}: the library gives its own answer {right:g} and wrong ones up "
                         f"to {max(worth):g}. Choose another generator or other options.")
    return {"task_id": f"{name}-{seed}-{number:05d}", "kind": "graded",
            "messages": ask(entry["question"], "tag"),
            "payload": {"grader": "gym_grader", "dataset": name, "entry": entry},
            "solution": f"<answer>{entry['answer']}</answer>"}


def _worth(dataset: Any, text: str, entry: dict[str, Any]) -> float:
    """What the library gives an answer; 0 where it raises an error, as in the grader."""
    with contextlib.suppress(Exception):
        return float(dataset.score_answer(answer=text, entry=entry))
    return 0.0


def _is_same(text: str, answer: str) -> bool:
    """True if both are the same text or number."""
    with contextlib.suppress(ValueError):
        return float(text) == float(answer)
    return text == answer
