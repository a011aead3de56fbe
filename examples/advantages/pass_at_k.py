"""Advantages for `train --advantages` that reward being within reach, not only being likely.

    train RUN --advantages examples/advantages/pass_at_k.py:pass_at_8
"""

from collections import Counter
from math import comb
from typing import Any

Rows = list[dict[str, Any]]


def pass_at_4(rows: Rows) -> list[float]:
    """What a completion adds to pass@4 of its group: with it less without it; arXiv 2505.15201."""
    return _pass_at(4, rows)


def pass_at_8(rows: Rows) -> list[float]:
    """The same for pass@8."""
    return _pass_at(8, rows)


def rare(rows: Rows) -> list[float]:
    """Reward less the group's mean; of a right completion, times the share that is wrong."""
    size, right = _counts(rows)
    return [(1 - right[name] / size[name]) ** 2 if row["correct"] else -right[name] / size[name]
            for row in rows for name in [row["group_id"]]]


def _counts(rows: Rows) -> tuple[Counter[str], Counter[str]]:
    return (Counter(row["group_id"] for row in rows),
            Counter(row["group_id"] for row in rows if row["correct"]))


def _pass_at(k: int, rows: Rows) -> list[float]:
    """Groups must hold more than k completions; one that is smaller, for want of rewards, says nothing."""
    size, right = _counts(rows)
    if (most := max(size.values())) <= k:
        raise ValueError(f"pass@{k} needs groups of more than {k} completions; the largest has {most}")
    values = []
    for row in rows:
        n, wrong = size[row["group_id"]], size[row["group_id"]] - right[row["group_id"]]
        if n <= k:
            values.append(0.0)
        elif row["correct"]:
            values.append(comb(wrong, k) / comb(n - 1, k))
        else:
            values.append(comb(wrong - 1, k) / comb(n - 1, k) - comb(wrong - 1, k - 1) / comb(n - 1, k - 1))
    return values
