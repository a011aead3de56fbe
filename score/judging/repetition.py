"""Repetition in token ids, for many completions at once: the first signs of collapse."""

import numpy as np

MAX_PERIOD = 64
MIN_REPEATS = 3
LARGEST = 2**63


def ngram_shares(tokens: np.ndarray, lengths: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Per completion, distinct n-grams over n-grams and the share of the most frequent one, each [B].

    Where there is no n-gram they are 1 and 0. `tokens` are the ids of all completions one after the other,
    `lengths` [B] how many belong to each.
    """
    num_rows = len(lengths)
    num_grams = np.maximum(lengths - size + 1, 0)
    rows = np.repeat(np.arange(num_rows), num_grams)
    if len(rows) == 0:
        return np.ones(num_rows), np.zeros(num_rows)
    starts = np.repeat(offsets_of(lengths), num_grams) + within(num_grams)
    places = ranks(tokens)
    num_places = int(places.max()) + 1
    grams, num_grams_at_most = places[starts], num_places
    for step in range(1, size):
        if num_grams_at_most * num_places * num_rows >= LARGEST:     # sorting is slow, so rarely
            grams = ranks(grams)
            num_grams_at_most = int(grams.max()) + 1
        grams = grams * num_places + places[starts + step]
        num_grams_at_most *= num_places
    keys, counts = np.unique(rows * num_grams_at_most + grams, return_counts=True)
    owners = keys // num_grams_at_most
    distinct = np.bincount(owners, minlength=num_rows)
    top = np.zeros(num_rows, np.int64)
    np.maximum.at(top, owners, counts)
    counted = np.maximum(num_grams, 1)
    return np.where(num_grams > 0, distinct / counted, 1.0), top / counted


def loop_tokens(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tokens in the repeating tail, [B]: the longest end of period <= 64 with 3 periods or more; else 0."""
    ends = offsets_of(lengths) + lengths
    longest = np.zeros(len(lengths), np.int64)
    position = np.arange(len(tokens))
    row_start = np.repeat(offsets_of(lengths), lengths)
    last_differing = np.empty(len(tokens) + 1, np.int64)
    for period in range(1, min(MAX_PERIOD, int(lengths.max(initial=0)) // MIN_REPEATS) + 1):
        # A position differs when the token one period earlier is another or belongs to another completion.
        differs = position - period < row_start
        differs[period:] |= tokens[period:] != tokens[:-period]
        last_differing[0] = -1
        np.maximum.accumulate(np.where(differs, position, -1), out=last_differing[1:])
        equal_tail = ends - 1 - last_differing[ends]
        tail = np.where(lengths > 0, equal_tail + period, 0)
        longest = np.maximum(longest, np.where(tail >= MIN_REPEATS * period, tail, 0))
    return longest


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where each completion begins, [B]."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(lengths) else lengths


def within(counts: np.ndarray) -> np.ndarray:
    """0, 1, .. up to each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(offsets_of(counts), counts)


def ranks(values: np.ndarray) -> np.ndarray:
    """Each value as its place among the distinct values, so that products of two stay below 2**63."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
