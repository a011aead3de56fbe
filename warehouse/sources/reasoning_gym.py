"""Questions of the library reasoning-gym: drawn once, stored whole, graded by its own graders in a lane."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from warehouse.sources.wording import ask
from warehouse.store.errors import StageError
from warehouse.tasks.graders import GRADERS, check_generator
from warehouse.tasks.task_files import Task, generic_task

_, INSTALL = GRADERS["reasoning-gym"]
GARBAGE = "foo bar"


def read_reasoning_gym(rest: str) -> Iterator[Task]:
    """The tasks of NAME:COUNT[:SEED][?option=value&..]; StageError for what is not known or allowed."""
    place, _, query = rest.partition("?")
    parsed = re.fullmatch(r"([a-z0-9_]+):(\d{1,7})(?::(\d{1,18}))?", place)
    if parsed is None:
        raise StageError(f"reasoning-gym:{rest} is not reasoning-gym:NAME:COUNT[:SEED][?option=value&..], "
                         "for example reasoning-gym:zebra_puzzles:500:7.")
    name, count, seed = parsed[1], int(parsed[2]), int(parsed[3] or 0)
    check_generator(name, f"reasoning-gym:{rest}")
    dataset = _dataset(name, count, seed, dict(parse_qsl(query, keep_blank_values=True)), rest)
    for number in range(count):
        yield _task_of(name, dataset, number, seed, f"reasoning-gym:{rest}, question {number}")


def _dataset(name: str, count: int, seed: int, texts: dict[str, str], rest: str) -> Any:
    try:
        from reasoning_gym import create_dataset
    except ImportError as error:
        raise StageError(f"The source reasoning-gym needs its library ({error}). Run {INSTALL}.") from None
    try:
        options = {key: option_value(text) for key, text in texts.items()}
        return create_dataset(name, size=count, seed=seed, **options)
    except (AssertionError, TypeError, ValueError) as error:
        raise StageError(f"reasoning-gym:{rest} has options that the generator does not take: {error}."
                         ) from error


def _task_of(name: str, dataset: Any, number: int, seed: int, where: str) -> Task:
    """One question; the library itself must give its own answer everything, and garbage nothing."""
    entry = json.loads(json.dumps(dataset[number]))
    right, wrong = (float(dataset.score_answer(answer=text, entry=entry))
                    for text in (entry["answer"], GARBAGE))
    if right != 1.0 or wrong > 0.05:
        raise StageError(f"{where}: the library gives its own answer {right:g} and garbage {wrong:g}. Choose "
                         "another generator or other options.")
    return generic_task({
        "task_id": f"{name}-{seed}-{number:05d}", "kind": "reasoning-gym",
        "messages": ask(entry["question"], "tag"), "payload": {"dataset": name, "entry": entry},
        "solution": f"<answer>{entry['answer']}</answer>"}, where)


def option_value(text: str) -> Any:
    """A number, a list or a truth value as JSON has it; anything else is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
