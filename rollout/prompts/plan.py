"""The plan of a rollout: which tasks, with which augmentation, as which prompts; all drawn from seeds."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollout.options import RolloutOptions
from rollout.prompts.formats import OWN_MESSAGES, Format, Messages, own_messages
from warehouse.store.errors import StageError, counted
from warehouse.store.names import group_id_of, prompt_id_of
from warehouse.tasks.augmentation import augment

Encode = Callable[[Messages, str], tuple[str, list[int]]]  # (messages, prefill) -> (prompt, prompt_ids)
CHAT_TEMPLATE = "chat_template"  # key of the chat template's options in the stored format options
KEEP_BACKGROUND = 0.9  # share of colour permutations that leave 0 alone, as in published ARC runs


@dataclass(frozen=True)
class PlanSettings:
    """What determines the prompts of one rollout."""

    options: RolloutOptions
    iteration: int
    purpose: str
    max_prompt_tokens: int
    format: Format
    format_options: dict[str, str]
    visits: Mapping[str, int] = field(default_factory=dict)  # earlier training iterations of each task
    chat_options: dict[str, Any] = field(default_factory=dict)  # values for the model's chat template
    num_taken: int = 0  # continued completions; each replaces a new one


@dataclass
class Plan:
    """Rows of the prompts table, and the number of tasks left out because their prompt is too long.

    `begun` holds what earlier iterations sampled of its completions, by (task_id, sample_index); `facts` go
    into the manifest.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    too_long: int = 0
    begun: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def seed_of(*keys: int | str) -> int:
    """A 62-bit seed that depends only on the keys."""
    digest = hashlib.sha256(json.dumps(keys).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def prompt_seed(seed: int, iteration: int, purpose: str, task_id: str, index: int) -> int:
    """Seed of a prompt's random choices; equal in all evaluations of a task, so that gains are paired."""
    return seed_of(seed, 0 if purpose.startswith("eval") else iteration, purpose, task_id, index)


def make_plan(tasks: list[dict[str, Any]], settings: PlanSettings, encode: Encode) -> Plan:
    """Prompts of the first `num_tasks` tasks with a prompt that fits, as drawn; StageError if none."""
    plan, options = Plan(), settings.options
    size = options.prompts_per_task * options.group_size
    wanted = (min(options.num_tasks or len(tasks), len(tasks)) * size - settings.num_taken) // size
    if wanted <= 0:
        return plan
    for task in _in_order(tasks, settings, wanted):
        rows = [_prompt_row(task, index, settings, encode) for index in range(options.prompts_per_task)]
        if any(row["num_prompt_tokens"] > settings.max_prompt_tokens for row in rows):
            plan.too_long += 1
            continue
        plan.rows += rows
        if len(plan.rows) == wanted * options.prompts_per_task:
            break
    if not plan.rows:
        raise StageError(f"None of {counted(len(tasks), 'task')} has a prompt of at most "
                         f"{settings.max_prompt_tokens} tokens. Raise --max-prompt-tokens, or use a shorter "
                         "prompt format.")
    return plan


def _in_order(tasks: list[dict[str, Any]], settings: PlanSettings, wanted: int) -> list[dict[str, Any]]:
    """Training visits the least visited tasks first, ties drawn at random: none twice before all once.

    Evaluations, and training on all tasks, use the order of import.
    """
    if settings.purpose != "train" or wanted == len(tasks):
        return tasks
    return sorted(tasks, key=lambda task: (settings.visits.get(task["task_id"], 0), seed_of(
        settings.options.seed, "order", settings.iteration, task["task_id"])))


def _prompt_row(task: dict[str, Any], index: int, settings: PlanSettings, encode: Encode) -> dict[str, Any]:
    keys = settings.iteration, settings.purpose, task["task_id"], index
    seed = prompt_seed(settings.options.seed, *keys)
    if task["messages"]:
        messages, prefill = own_messages(task["messages"])
        drawn: dict[str, Any] = {"prompt_format": OWN_MESSAGES, "format_options": "{}"}
    else:
        messages, prefill, drawn = _grid_messages(task, seed, settings)
    of_api_model = bool(settings.options.model)
    if of_api_model and prefill:
        raise StageError(f"The prompt of task {task['task_id']} begins the answer itself ('{prefill[:20]}'). "
                         "A model behind an API cannot continue that. Leave the prefill out.")
    if settings.chat_options:
        drawn["format_options"] = json.dumps(
            {**json.loads(drawn["format_options"]), CHAT_TEMPLATE: settings.chat_options}, sort_keys=True)
    prompt, prompt_ids = encode(messages, prefill)
    return {
        "iteration": settings.iteration, "purpose": settings.purpose, "task_id": task["task_id"],
        "group_index": index, "group_size": settings.options.group_size, "split": task["split"],
        "group_id": group_id_of(*keys), "prompt_id": prompt_id_of(prompt_ids), "prompt": prompt,
        "prompt_ids": prompt_ids, "num_prompt_tokens": len(prompt_ids), "prefill": prefill, "seed": seed,
        "turn": 1, **drawn,
        "messages": json.dumps(messages) if of_api_model else None,
    }


def _grid_messages(task: dict[str, Any], seed: int,
                   settings: PlanSettings) -> tuple[Messages, str, dict[str, Any]]:
    """Messages and prefill of a grid task, and the columns that record what was drawn and shown."""
    payload = json.loads(task["payload"])
    draw = random.Random(seed)
    change = draw_augmentation(draw, settings.options.augmentation)
    order = list(range(len(payload["train"])))
    if settings.options.shuffle_pairs:
        draw.shuffle(order)
    shown_test = draw.randrange(len(payload["test"]))

    def shown(grid: list[list[int]]) -> list[list[int]]:
        return augment(np.array(grid), **change).tolist()

    pairs = [{side: shown(payload["train"][position][side]) for side in ("input", "output")}
             for position in order]
    chosen = settings.format.choose(pairs)
    messages = settings.format.render(
        [pairs[position] for position in chosen], shown(payload["test"][shown_test]["input"]),
        settings.format_options)
    columns = {"prompt_format": settings.format.name,
               "format_options": json.dumps(settings.format_options, sort_keys=True),
               **change, "pair_order": [order[position] for position in chosen],
               "shown_test": shown_test if settings.format.shows_test else None}
    return messages, settings.format_options.get("prefill", ""), columns


def draw_augmentation(draw: random.Random, kind: str) -> dict[str, Any]:
    """Columns `flip`, `rotations`, `color_map` of one augmentation; the identity for kind 'none'."""
    flip, rotations, color_map = False, 0, list(range(10))
    if kind in ("dihedral", "all"):
        flip, rotations = draw.random() < 0.5, draw.randrange(4)
    if kind in ("colors", "all"):
        first = 1 if draw.random() < KEEP_BACKGROUND else 0
        color_map[first:] = draw.sample(range(first, 10), 10 - first)
    return {"flip": flip, "rotations": rotations, "color_map": color_map}
