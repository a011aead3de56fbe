"""Repetition metrics against plain Python, and on texts whose answer is known."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from score.judging.samples import loop_tokens, ngram_shares

COMPLETIONS = st.lists(st.lists(st.integers(0, 4), max_size=30), min_size=1, max_size=8)


def flat(completions: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([token for row in completions for token in row], dtype=np.int32)
    return tokens, np.array([len(row) for row in completions])


def grams(row: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(row[i:i + size]) for i in range(len(row) - size + 1)]


def loop_by_definition(row: list[int]) -> int:
    best = 0
    for length in range(1, len(row) + 1):
        tail = row[len(row) - length:]
        for period in range(1, min(64, length // 3) + 1):
            if all(tail[i] == tail[i - period] for i in range(period, length)):
                best = max(best, length)
    return best


@given(COMPLETIONS, st.sampled_from([1, 3, 4]))
def test_ngram_ratios_agree_with_tuple_sets(completions, size):
    tokens, lengths = flat(completions)
    found = [grams(row, size) for row in completions]
    ratios = [len(set(row)) / len(row) if row else 1.0 for row in found]
    shares = [max(Counter(row).values()) / len(row) if row else 0.0 for row in found]
    assert [found.tolist() for found in ngram_shares(tokens, lengths, size)] == [ratios, shares]


@given(COMPLETIONS)
def test_loop_tokens_agree_with_the_definition(completions):
    tokens, lengths = flat(completions)
    assert loop_tokens(tokens, lengths).tolist() == [loop_by_definition(row) for row in completions]


def test_a_loop_counts_from_its_third_repeat_and_only_up_to_period_64():
    sentence = list(range(100, 164))
    rows = [[1, 2] + sentence * 3, [1, 2] + sentence * 2, list(range(65)) * 4, [7] * 5, []]
    assert loop_tokens(*flat(rows)).tolist() == [192, 0, 0, 5, 0]


def test_large_token_ids_do_not_overflow():
    rng = np.random.default_rng(0)
    row = rng.integers(0, 250_000, 100_000).tolist()     # 82,329 ids, whose 4-grams outnumber 2**63
    ratio, _top = ngram_shares(*flat([row, row[:100]]), 4)
    assert ratio.tolist() == [1.0, 1.0]
