"""Repetition in token ids, for many completions at once: the first signs of collapse."""

import numpy as np
import pyarrow as pa

MAX_PERIOD = 64
MIN_REPEATS = 3


def ngram_shares(tokens: np.ndarray, lengths: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Per completion, distinct n-grams over n-grams and the share of the most frequent one, each [B].

    Where there is no n-gram they are 1 and 0. `tokens` are the ids of all completions one after the other,
    `lengths` [B] how many belong to each.
    """
    rows, ends = np.repeat(np.arange(len(lengths)), lengths), np.repeat(np.cumsum(lengths), lengths)
    starts = np.flatnonzero(np.arange(len(tokens)) + size <= ends)
    grams = pa.table({"row": rows[starts], **{str(step): tokens[starts + step] for step in range(size)}})
    counts = grams.group_by(grams.column_names).aggregate([([], "count_all")])
    found = counts.group_by("row").aggregate([("count_all", name) for name in ("count", "sum", "max")])
    places, num_distinct, num_grams, most = (column.to_numpy() for column in found.columns)
    distinct, top = np.ones(len(lengths)), np.zeros(len(lengths))
    distinct[places], top[places] = num_distinct / num_grams, most / num_grams
    return distinct, top


def loop_tokens(tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tokens in the repeating tail, [B]: the longest end of period <= 64 with 3 periods or more; else 0."""
    ends = np.cumsum(lengths)
    longest = np.zeros(len(lengths), np.int64)
    position = np.arange(len(tokens))
    row_start = np.repeat(ends - lengths, lengths)
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
