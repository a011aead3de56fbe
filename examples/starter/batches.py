"""Synthetic tasks as training batches: prompt, answer, and how much each token counts in the loss."""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor, from_numpy

from examples.starter.tokenizer import IM_END
from rollout.prompts.formats import choose_pairs, render_pairs
from warehouse.tasks.synthetic import SyntheticTask, synthetic_task

ANSWER_WEIGHT = 1.0
OUTPUT_WEIGHTS = (0.15, 0.3)    # output grids of the first pair, and of later ones
POOL_SIZE = 600                 # tasks sorted by length together, so that rows of a batch differ little


class Answer(Protocol):
    """What a task is answered with in training."""

    def __call__(self, task: SyntheticTask, rng: Random) -> str: ...


class Example(NamedTuple):
    """One task as tokens; weights[t] is how much predicting ids[t] counts."""

    ids: np.ndarray         # [T] int64
    weights: np.ndarray     # [T] float32


def labelled_answer(task: SyntheticTask, rng: Random | None = None) -> str:
    """The task's own program in a closed code block."""
    return f"```python\n{task.program}\n```"


def prompt_text(tokenizer: Any, payload: dict) -> str:
    """The compact prompt of a task inside the tokenizer's chat template."""
    pairs = [payload["train"][index] for index in choose_pairs(payload["train"])]
    message = {"role": "user", "content": render_pairs(pairs)}
    return tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)


def encode_examples(tokenizer: Any, tasks: list[SyntheticTask],
                    answers: list[str]) -> list[Example]:
    """Prompt, answer and end token of each task, with the loss weight of every token."""
    prompts = [prompt_text(tokenizer, task.payload) for task in tasks]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer([answer + IM_END for answer in answers], add_special_tokens=False)["input_ids"]
    markers = tokenizer.convert_tokens_to_ids(["In\n", "Out\n", IM_END])
    examples = []
    for prompt, answer in zip(prompt_ids, answer_ids, strict=True):
        weights = np.concatenate(
            [output_weights(np.array(prompt), *markers), np.full(len(answer), ANSWER_WEIGHT)])
        examples.append(Example(np.array(prompt + answer), weights.astype(np.float32)))
    return examples


def output_weights(prompt_ids: np.ndarray, in_id: int, out_id: int, end_id: int) -> np.ndarray:
    """Weight of each prompt token: above 0 on the cells and line ends of output grids only."""
    is_out = prompt_ids == out_id
    is_marker = is_out | (prompt_ids == in_id) | (prompt_ids == end_id)
    last_marker = np.maximum.accumulate(np.where(is_marker, np.arange(len(prompt_ids)), 0))
    inside_output = is_out[last_marker] & ~is_marker
    return inside_output * np.where(np.cumsum(is_out) > 1, OUTPUT_WEIGHTS[1], OUTPUT_WEIGHTS[0])


def training_batches(tokenizer: Any, *, seed: int, tokens_per_step: int,
                     answer: Answer = labelled_answer) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (ids [B, T], weights [B, T]) of at most `tokens_per_step` tokens, padding included."""
    for pool in count():
        rng = Random(f"pool {pool} of seed {seed}")
        tasks = [synthetic_task(pool * POOL_SIZE + index, seed) for index in range(POOL_SIZE)]
        examples = encode_examples(tokenizer, tasks, [answer(task, rng) for task in tasks])
        batches = split_by_tokens(sorted(examples, key=lambda example: len(example.ids)), tokens_per_step)
        rng.shuffle(batches)
        for batch in batches:
            yield padded(batch, tokenizer.pad_token_id)


def split_by_tokens(examples: list[Example], tokens_per_step: int) -> list[list[Example]]:
    """Consecutive examples, at most `tokens_per_step` tokens once padded to the longest, the last."""
    batches: list[list[Example]] = [[]]
    for example in examples:
        if batches[-1] and (len(batches[-1]) + 1) * len(example.ids) > tokens_per_step:
            batches.append([])
        batches[-1].append(example)
    return batches


def padded(batch: list[Example], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows padded on the right: causal attention never looks there, so no mask is needed."""
    longest = max(len(example.ids) for example in batch)
    ids = np.full((len(batch), longest), pad_id)
    weights = np.zeros((len(batch), longest), np.float32)
    for row, example in enumerate(batch):
        ids[row, :len(example.ids)] = example.ids
        weights[row, :len(example.ids)] = example.weights
    return from_numpy(ids), from_numpy(weights)
