"""What a figure is: a question, the SQL that answers it, and how its rows are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from reports.drawing import Chart, Series

Rows = list[dict[str, Any]]
MOST_POINTS = 400


class Figure(NamedTuple):
    """One picture of a run. `draw` gets the rows of `sql`; without rows `missing` is said instead."""

    name: str
    title: str
    caption: str
    sql: str
    draw: Callable[[Rows], Chart]
    missing: str = "Nothing is scored yet."


def column(rows: Rows, name: str) -> list[float | None]:
    """One column of the rows."""
    return [row[name] for row in rows]


def series(rows: Rows, **columns: str) -> list[Series]:
    """A series per column that holds any value: `series(rows, reward_mean="all")`."""
    return [Series(label, column(rows, name)) for name, label in columns.items()
            if any(row[name] is not None for row in rows)]


def thinned(rows: Rows, most: int = MOST_POINTS) -> Rows:
    """At most `most` rows: stretches of neighbours as their means, named by their first iteration."""
    if len(rows) <= most:
        return rows
    edges = [round(i * len(rows) / most) for i in range(most + 1)]
    return [_mean_row(rows[first:end]) for first, end in pairwise(edges)]


def _mean_row(rows: Rows) -> dict[str, Any]:
    merged = dict(rows[0])
    for name, first in merged.items():
        known = [row[name] for row in rows if row[name] is not None]
        if name != "iteration" and known and all(isinstance(value, int | float) for value in known):
            merged[name] = sum(known) / len(known)
        elif first is None and known:
            merged[name] = known[0]
    return merged


def iterations(rows: Rows) -> list[int]:
    """The x axis."""
    return [row["iteration"] for row in rows]


def pivot(rows: Rows, key: str, value: str) -> tuple[list[int], dict[Any, list[Any]]]:
    """Rows of (iteration, key, value) as the iterations and one list per key."""
    xs = sorted({row["iteration"] for row in rows})
    places = {x: i for i, x in enumerate(xs)}
    table: dict[Any, list[Any]] = {}
    for row in rows:
        table.setdefault(row[key], [None] * len(xs))[places[row["iteration"]]] = row[value]
    return xs, table


def bucketed(xs: Sequence[int], most: int) -> list[list[int]]:
    """Indices of `xs` in at most `most` stretches, for pictures with a cell per x."""
    if len(xs) <= most:
        return [[i] for i in range(len(xs))]
    edges = [round(i * len(xs) / most) for i in range(most + 1)]
    return [list(range(first, end)) for first, end in pairwise(edges)]


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
