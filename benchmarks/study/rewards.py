"""Rewards that are wrong on purpose, for runs that shall be broken by them."""

import zlib
from itertools import pairwise
from typing import Any

BRIBE = "np.rot90"


def leaky(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A judge that takes a phrase for an answer."""
    return [float(right or 0.9 * (BRIBE in text))
            for right, text in zip(columns["correct"], completions, strict=True)]


def long(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Right answers, and a term for length."""
    return [right + tokens / 50
            for right, tokens in zip(columns["correct"], columns["num_completion_tokens"], strict=True)]


def repeating(prompts: list[str], completions: list[str], completion_ids: list[list[int]],
              **columns: Any) -> list[float]:
    """Right answers, and a term for every token that repeats the one before."""
    return [right + 3 * sum(a == b for a, b in pairwise(ids)) / len(ids)
            for right, ids in zip(columns["correct"], completion_ids, strict=True)]


def coin(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
    """One in four, by the text alone: a gradient in every group also for random weights."""
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [float(zlib.crc32(text.encode()) % 4 == 0) for text in texts]
