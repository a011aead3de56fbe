"""Advantages for `train --advantages` of conversations: a turn is credited with what its next turns earn.

    train RUN --advantages examples/advantages/credit.py:best

Only some completions are answered, by default the most promising wrong ones: with `best`, a completion that
was answered has more chances than its siblings.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

DISCOUNT = 0.4      # for every turn that a reward comes later; what did best for Kevin, arXiv 2507.11948
Rows = list[dict[str, Any]]


def best(rows: Rows) -> list[float]:
    """Credit is the largest of a turn's own reward and the discounted credits of the turns that answer it."""
    return _advantages(rows, lambda own, later: max([own, *(DISCOUNT * credit for credit in later)]))


def last(rows: Rows) -> list[float]:
    """Credit is the discounted mean credit of the turns that answer it; its own reward where none does."""
    return _advantages(rows, lambda own, later: DISCOUNT * sum(later) / len(later) if later else own)


def credits(rows: Rows, rule: Callable[[float, list[float]], float]) -> list[float]:
    """The credit of each row, by its reward and the credits of the rows whose prompts answer it."""
    later = defaultdict[Any, list[float]](list)
    credit = {}
    for place in sorted(range(len(rows)), key=lambda place: -rows[place]["turn"]):
        row = rows[place]
        key = row["iteration"], row["purpose"], row["task_id"], row["sample_index"]
        credit[place] = rule(row["reward"], later[key])
        later[row["parent"]].append(credit[place])
    return [credit[place] for place in range(len(rows))]


def _advantages(rows: Rows, rule: Callable[[float, list[float]], float]) -> list[float]:
    """Each credit minus the mean of its group."""
    credit, groups = credits(rows, rule), defaultdict[str, list[float]](list)
    for row, value in zip(rows, credit, strict=True):
        groups[row["group_id"]].append(value)
    return [value - sum(groups[row["group_id"]]) / len(groups[row["group_id"]])
            for row, value in zip(rows, credit, strict=True)]
