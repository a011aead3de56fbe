"""Histograms over completions, right and wrong apart; each bar links to its completions."""

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import zip_longest
from typing import Any, NamedTuple

from reports.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, rulers, svg_of, text_at
from reports.scale import number, ticks, value_scale
from reports.viewer.session import Asking

BINS = 20
MOST_KINDS = 12          # distinct values with a bar each

VALUES_SQL = """\
SELECT value, count(*) AS num, count(*) FILTER (correct) AS num_right
FROM (SELECT {value} AS value, correct FROM chosen)
WHERE value IS NOT NULL GROUP BY value ORDER BY value LIMIT {most}"""
RANGE_SQL = """\
SELECT min(value) AS low, max(value) AS high, bool_and(value = floor(value)) AS whole
FROM (SELECT {value}::DOUBLE AS value FROM chosen)"""
BINS_SQL = """\
SELECT greatest(len(list_filter({edges}, lambda edge: {value} >= edge)) - 1, 0) AS bin, count(*) AS num,
       count(*) FILTER (correct) AS num_right
FROM chosen WHERE {value} IS NOT NULL GROUP BY bin"""


class Bar(NamedTuple):
    """A bar: its name, its number of completions, how many are right, and their SQL condition."""

    name: str
    num: int
    num_right: int
    where: str


def bars_of(ask: Asking, value: str) -> list[Bar]:
    """Bars of a column of the chosen completions: one per value if there are few, else round bins."""
    kinds = ask.rows(VALUES_SQL.format(value=value, most=MOST_KINDS + 1))
    if len(kinds) <= MOST_KINDS:
        return [Bar(number(row["value"]), row["num"], row["num_right"], f"{value} = {row['value']!r}")
                for row in kinds]
    [span] = ask.rows(RANGE_SQL.format(value=value))
    low, high = span["low"], span["high"]
    edges: Sequence[float] = ticks(low, high, BINS)[:-1]
    if span["whole"]:
        edges = range(int(low), int(high) + 1, math.ceil((high - low + 1) / BINS))
    held = {row["bin"]: row for row in ask.rows(BINS_SQL.format(value=value, edges=[*edges]))}
    none, bars = {"num": 0, "num_right": 0}, []
    for place, (edge, upper) in enumerate(zip_longest(edges, edges[1:])):
        row = held.get(place, none)
        where = [f"{value} >= {edge!r}"] if place else []
        where += [f"{value} < {upper!r}"] if upper is not None else []
        bars.append(Bar(f"{number(edge)} to {number(high if upper is None else upper)}", row["num"],
                        row["num_right"], " AND ".join(where)))
    return bars


def histogram(bars: Sequence[Bar], link: Callable[[str], str]) -> str:
    """Bars side by side, right completions at the bottom; `link` gives the address for a condition."""
    up = value_scale([float(bar.num) for bar in bars], HEIGHT - BOTTOM, TOP)
    wide = (WIDTH - LEFT - RIGHT) / len(bars)
    marks = rulers(up)
    for place, bar in enumerate(bars):
        x = LEFT + place * wide
        said = f"{bar.name}: {bar.num:,} completions, {bar.num_right:,} right"
        parts = [f'<rect class="ground" x="{x:.1f}" y="{TOP}" width="{wide:.1f}" '
                 f'height="{HEIGHT - BOTTOM - TOP}"/>']
        below = 0
        for tone, num in ((3, bar.num_right), (2, bar.num - bar.num_right)):
            top, bottom = up(below + num), up(below)
            parts.append(f'<rect class="bar t{tone}" x="{x + wide * .08:.1f}" y="{top}" '
                         f'width="{wide * .84:.1f}" height="{max(bottom - top, 0):.1f}"/>')
            below += num
        marks.append(f'<a href="{escape(link(bar.where))}" aria-label="{escape(said)}">'
                     f"<title>{escape(said)}</title>{''.join(parts)}</a>")
        if len(bars) <= MOST_KINDS or place % round(len(bars) / 6) == 0:
            marks.append(text_at(x + wide / 2, HEIGHT - 8, bar.name.partition(" to ")[0]))
    return svg_of(marks, HEIGHT).replace('role="img"', 'role="group"', 1)


def error_bars(ask: Asking) -> list[dict[str, Any]]:
    """The frequency of each kind of failure among the chosen completions, with one message."""
    return ask.rows("""\
SELECT coalesce(error_class, 'ran to its end') AS kind, error_class, error_name, count(*) AS num,
       count(*) / sum(count(*)) OVER () AS share, min(error_message) AS example
FROM chosen GROUP BY ALL ORDER BY num DESC, kind, error_name LIMIT 30""")
