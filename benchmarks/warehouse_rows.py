"""Rows of the warehouse benchmark: made up, but as large and as hard to compress as those of a real run."""

import re
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from warehouse.store.names import UNTRUNCATED
from warehouse.store.schema import arrow_schema

TASKS, GROUP = 320, 32
ROWS = TASKS * GROUP
SCORER = "bench-1"
PROMPT_TOKENS = 4000


class Corpus(NamedTuple):
    """Source text as tokens: the id of each, and where it ends in the text."""

    text: str
    token_ids: np.ndarray
    ends: np.ndarray


@cache
def corpus() -> Corpus:
    """Python's own library, a token per word or sign, numbered by frequency as byte-pair vocabularies are."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    text = "\n".join(path.read_text(errors="ignore") for path in files)
    pattern = re.compile(r" ?\w+|\s+|[^\w\s]")
    counts = Counter(match.group() for match in pattern.finditer(text))
    rank = {token: number for number, (token, _) in enumerate(counts.most_common())}
    token_ids = np.fromiter((rank[match.group()] for match in pattern.finditer(text)), np.int32)
    ends = np.fromiter((match.end() for match in pattern.finditer(text)), np.int64)
    return Corpus(text, token_ids, ends)


def samples(iteration: int) -> pa.Table:
    """One iteration of scored rows: tasks of different ease, lengths, a few truncated and looping."""
    random = np.random.default_rng(iteration)
    ease = np.repeat(np.random.default_rng(0).beta(0.6, 1.4, TASKS), GROUP)
    tokens = _lengths(random)
    truncated = tokens == 1024
    right = (random.random(ROWS) < ease) & ~truncated
    names = np.random.default_rng(0).integers(0, 1 << 60, 64)
    fingerprints = pa.array([f"{number:016x}" for number in names])
    outputs = random.integers(0, 64, ROWS)
    _, firsts = np.unique(outputs + 64 * np.repeat(np.arange(TASKS), GROUP), return_index=True)
    return _keyed("samples", iteration, {
        "scorer": _repeated(SCORER), "split": _repeated("train"), "sandbox_tier": _repeated("B"),
        "policy_version": np.full(ROWS, iteration), "num_prompt_tokens": np.full(ROWS, PROMPT_TOKENS),
        "finish_reason": pa.array(["stop", "length"]).take(pa.array(truncated.astype(int))),
        "truncated": truncated, "num_completion_tokens": tokens,
        "reward": np.where(right, 10.0, 1 + 3 * random.random(ROWS)), "correct": right,
        "valid_code": ~truncated, "valid_outputs": ~truncated & (random.random(ROWS) > 0.1),
        "train_pixel_score": random.random(ROWS), "train_correct_grids": right.astype(float),
        "train_is_correct": right, "test_pixel_score": random.random(ROWS),
        "test_correct_grids": right.astype(float), "test_is_correct": right,
        "fingerprint": fingerprints.take(pa.array(outputs)),
        "first_output": np.isin(np.arange(ROWS), firsts),
        "cpu_seconds": random.random(ROWS), "wall_seconds": random.random(ROWS),
        "logprob_sum": -0.3 * tokens, "nll_sampled": random.normal(0.3, 0.02, ROWS),
        "unique_token_ratio": random.normal(0.4, 0.05, ROWS),
        "ngram3_unique_ratio": random.normal(0.8, 0.05, ROWS),
        "ngram4_unique_ratio": random.normal(0.9, 0.05, ROWS),
        "ngram4_top_share": random.random(ROWS) / 50,
        "loop_tokens": (random.random(ROWS) < 0.01) * 100})


def completions(iteration: int) -> pa.Table:
    """One iteration of completions of about 400 tokens: pieces of real code, logprobs as engines give them.

    Engines take the logarithm of a float32 sum of exponentials, 1 and a little for a token that is nearly
    certain. That leaves fewer values than float32 has, and the small ones keep all their digits.
    """
    random, source = np.random.default_rng(10_000 + iteration), corpus()
    lengths = _lengths(random)
    starts = random.integers(1, len(source.token_ids) - lengths.max(), ROWS)
    token_ids = [source.token_ids[start : start + size] for start, size in zip(starts, lengths, strict=True)]
    text = [source.text[source.ends[start - 1] : source.ends[start + size - 1]]
            for start, size in zip(starts, lengths, strict=True)]
    surprise = random.lognormal(-4.5, 2.6, lengths.sum()).clip(0, 20)
    surprise[random.random(len(surprise)) < 0.06] = 0  # a token in twenty is certain
    return _keyed("completions", iteration, {
        "completion": pa.array(text), "completion_ids": _lists(token_ids),
        "behaviour_logprobs": pa.ListArray.from_arrays(_offsets(lengths),
                                                       -np.log(np.exp(surprise).astype(np.float32))),
        "num_completion_tokens": lengths, "num_prompt_tokens": np.full(ROWS, PROMPT_TOKENS),
        "seed": random.integers(0, 1 << 60, ROWS), "policy_version": np.full(ROWS, iteration),
        "temperature": np.ones(ROWS), "max_tokens": np.full(ROWS, 1024), "dtype": _repeated("bfloat16"),
        "logprobs_mode": _repeated("processed_logprobs"),
        **{name: np.full(ROWS, value) for name, value in UNTRUNCATED.items()}})


def tasks() -> pa.Table:
    """The tasks, of which nobody asks what they are."""
    return _table("tasks", TASKS, {
        "task_id": _group_keys(0, 1)["task_id"], "position": np.arange(TASKS),
        "heldout": np.zeros(TASKS, bool),
        **{name: pa.array([text] * TASKS) for name, text in
           (("source", "made up"), ("split", "train"), ("kind", "grid"), ("payload", "{}"))}})


def prompts(iteration: int) -> pa.Table:
    """The prompts of one iteration, one row per group."""
    random, source = np.random.default_rng(20_000 + iteration), corpus()
    starts = random.integers(1, len(source.token_ids) - PROMPT_TOKENS, TASKS)
    token_ids = [source.token_ids[start : start + PROMPT_TOKENS] for start in starts]
    text = [source.text[source.ends[start - 1] : source.ends[start + PROMPT_TOKENS - 1]] for start in starts]
    return _table("prompts", TASKS, {
        **_group_keys(iteration, 1), "group_size": np.full(TASKS, GROUP), "prompt": pa.array(text),
        "prompt_ids": _lists(token_ids), "num_prompt_tokens": np.full(TASKS, PROMPT_TOKENS)})


def _lengths(random: np.random.Generator) -> np.ndarray:
    return np.minimum(random.lognormal(5.9, 0.5, ROWS), 1024).astype(np.int32)


def _keyed(table: str, iteration: int, columns: dict[str, object]) -> pa.Table:
    keys = {**_group_keys(iteration, GROUP), "sample_index": np.tile(np.arange(GROUP), TASKS)}
    return _table(table, ROWS, {**keys, **columns})


def _group_keys(iteration: int, rows_per_group: int) -> dict[str, object]:
    number = pa.array(np.repeat(np.arange(TASKS), rows_per_group))
    return {"iteration": np.full(len(number), iteration), "purpose": pa.array(["train"] * len(number)),
            "task_id": pa.array([f"task-{task:04d}" for task in range(TASKS)]).take(number),
            "group_id": pa.array([f"{iteration}/{task}" for task in range(TASKS)]).take(number)}


def _table(table: str, num_rows: int, columns: dict[str, object]) -> pa.Table:
    """A table of the schema: the columns given, everything else null."""
    return pa.table([pa.array(columns.get(field.name, [None] * num_rows)).cast(field.type)
                     for field in arrow_schema(table)], schema=arrow_schema(table))


def _repeated(name: str) -> pa.Array:
    return pa.array([name] * ROWS)


def _lists(rows: list[np.ndarray]) -> pa.ListArray:
    return pa.ListArray.from_arrays(_offsets([len(row) for row in rows]), pa.array(np.concatenate(rows)))


def _offsets(lengths: np.ndarray | list[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
