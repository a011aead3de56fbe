"""Charts as SVG text: lines with bands, stacked bars, heat maps; colours come from classes only."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from reports.scale import Scale, number, scale_ticks, value_scale, whole_ticks

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 10, 26
LONGEST_LABEL = 32


class Series(NamedTuple):
    """A line or layer: a value or None for every x; `low` and `high` make a band."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dots: bool = False  # separate measurements, not joined by a line
    tone: int | None = None  # colour slot; the position among the series otherwise


class Chart(NamedTuple):
    """A drawn chart: its SVG, its legend, and the content of the hover readout."""

    svg: str
    legend: list[tuple[int, str]]
    hover: dict[str, Any]
    hollow: frozenset[int] = frozenset()  # entries of the legend that are separate dots


def line_chart(xs: Sequence[int], series: Sequence[Series], *, share: bool = False, log: bool = False,
               levels: Sequence[tuple[float, str]] = ()) -> Chart:
    """Lines over iterations, with bands where given and dashed horizontal `levels`."""
    across = _across(xs)
    known = [value for line in series for part in (line.values, line.low, line.high)
             for value in part or [] if value is not None]
    up = value_scale([*known, *(level for level, _ in levels)], HEIGHT - BOTTOM, TOP, share=share, log=log)
    marks = rulers(up) + _iteration_labels(xs, across, LEFT, HEIGHT)
    for level, label in levels:
        y = up(level)
        marks += [f'<path class="level" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>',
                  text_at(WIDTH - RIGHT, y - 4 if y > TOP + 8 else y + 12, label, kind="note", anchor="end")]
    for index, line in enumerate(series):
        tone = _tone(line, index)
        marks += [f'<path class="band t{tone}" d="{path}"/>' for path in _bands(xs, line, across, up)]
        if not line.dots:
            marks += [f'<path class="line t{tone}" d="{path}"/>'
                      for path in _paths(xs, line.values, across, up)]
        radius, kind = (4, "ring") if line.dots else (2.2, "dot")
        around = zip(xs, [None, *line.values], line.values, [*line.values[1:], None], strict=False)
        marks += [f'<circle class="{kind} t{tone}" cx="{across(x)}" cy="{up(value)}" r="{radius}"/>'
                  for x, before, value, after in around if value is not None
                  and (line.dots or len(xs) <= 40 or before is after is None)]      # no line leads to it
    return _chart(marks, xs, series, across)


def stacked_bars(xs: Sequence[int], layers: Sequence[Series], *, whole: bool = False,
                 share: bool = False) -> Chart:
    """Layers on top of each other for every x; shares of 1 if `whole`."""
    across = _across(xs, inset=True)
    totals = [sum(layer.values[i] or 0 for layer in layers) for i in range(len(xs))]
    up = value_scale([1.0] if whole else totals, HEIGHT - BOTTOM, TOP, share=share or whole)
    wide = max(1.0, min(28.0, (WIDTH - LEFT - RIGHT) / len(xs) * 0.8))
    marks = rulers(up) + _iteration_labels(xs, across, LEFT, HEIGHT)
    below = [0.0] * len(xs)
    for index, layer in enumerate(layers):
        for i, x in enumerate(xs):
            value = layer.values[i] or 0
            top, bottom = up(below[i] + value), up(below[i])
            # A pixel of surface between layers keeps them apart without colour.
            if bottom - top > 0.4:
                tall = max(bottom - top - (1 if below[i] else 0), 0.4)
                marks.append(f'<rect class="bar t{_tone(layer, index)}" x="{across(x) - wide / 2:.1f}" '
                             f'y="{top}" width="{wide:.1f}" height="{tall:.1f}"/>')
            below[i] += value
    return _chart(marks, xs, layers, across)


def heat_map(xs: Sequence[int], rows: dict[str, list[float | None]], *, row_height: float = 11,
             kind: str = "heat", empty: str = "") -> Chart:
    """A cell per label and x, darker for higher values between 0 and 1; gaps stay empty."""
    names = {label: label if len(label) <= LONGEST_LABEL else label[:LONGEST_LABEL - 1] + "…"
             for label in rows}
    left = 18 + 5.8 * max([9, *map(len, names.values())])
    above = TOP + (18 if empty else 0)
    tall = above + row_height * len(rows) + BOTTOM
    wide = (WIDTH - left - RIGHT) / len(xs)
    columns = {x: round(left + (i + 0.5) * wide, 1) for i, x in enumerate(xs)}
    size = "tick" if row_height > 12 else "tick small"
    marks = _heat_scale(empty) if empty else []
    for index, (label, values) in enumerate(rows.items()):
        y = above + index * row_height
        marks.append(text_at(left - 6, y + row_height - 2, names[label], kind=size, anchor="end"))
        for x, value in zip(xs, values, strict=True):
            if value is not None:
                step = round(value * 10)
                marks.append(f'<rect class="{kind} h{step}" x="{columns[x] - wide / 2:.1f}" y="{y:.1f}" '
                             f'width="{max(wide - 0.6, 0.5):.1f}" height="{row_height - 1:.1f}"/>')
    # A column may stand for several iterations: a number is placed below the one that contains it.
    marks += _iteration_labels(xs, lambda x: columns[max(first for first in xs if first <= x)], left, tall)
    hover = {"x": list(xs), "px": list(columns.values()), "rows": list(rows), "top": above, "row": row_height,
             "cells": [[None if value is None else number(value) for value in values]
                       for values in rows.values()]}
    return Chart(svg_of(marks, tall), [], hover)


def with_events(chart: Chart, events: Sequence[dict[str, Any]]) -> Chart:
    """The chart with a line at every event (iteration, title, kind: a CSS class) within its iterations."""
    places = dict(zip(chart.hover["x"], chart.hover["px"], strict=True))
    height = float(chart.svg.split('viewBox="0 0 ')[1].split('"')[0].split()[1])
    top = chart.hover.get("top", TOP) - 9        # below the scale of a heat map
    marks = []
    for event in events:
        before = [x for x in places if x <= event["iteration"]]
        if before and event["iteration"] <= max(places):
            x = places[max(before)]
            path = f"M{x - 4} {top}H{x + 4}L{x} {top + 6}V{height - BOTTOM}V{top + 6}Z"
            marks.append(f"<path class='event {event['kind']}' d='{path}'>"
                         f"<title>{escape(event['title'])}</title></path>")
    cursor = '<path class="cursor"'
    return chart._replace(svg=chart.svg.replace(cursor, "".join(marks) + cursor))


def _heat_scale(empty: str) -> list[str]:
    """The scale: an empty cell, the palest and the darkest."""
    start, marks = WIDTH - RIGHT - 150.0, []
    marks.append(f'<rect class="gap" x="{start - 12:.1f}" y="5" width="10" height="9"/>')
    marks.append(text_at(start - 18, 13, empty, anchor="end"))
    marks.append(text_at(start + 36, 13, "0", anchor="end"))
    for step in range(11):
        x = start + 40 + 7 * step
        marks.append(f'<rect class="heat h{step}" x="{x:.1f}" y="5" width="7" height="9"/>')
    return [*marks, text_at(start + 121, 13, "1", anchor="start")]


def _across(xs: Sequence[int], *, inset: bool = False) -> Scale:
    low, high = min(xs), max(xs)
    margin = (WIDTH - LEFT - RIGHT) / len(xs) / 2 if inset else 8
    spread = 1 if low == high else 0
    return Scale(low - spread, high + spread, LEFT + margin, WIDTH - RIGHT - margin)


def rulers(up: Scale) -> list[str]:
    return [f'<path class="grid" d="M{LEFT} {up(value)}H{WIDTH - RIGHT}"/>'
            + text_at(LEFT - 6, up(value) + 3.5, number(value), anchor="end") for value in scale_ticks(up)]


def _iteration_labels(xs: Sequence[int], across: Any, left: float, height: float) -> list[str]:
    """The iteration numbers below a chart, and their axis label."""
    labels = [text_at(across(x), height - 8, str(x)) for x in whole_ticks(xs)]
    return [text_at(left - 10, height - 8, "iteration", kind="tick small", anchor="end"), *labels]


def text_at(x: float, y: float, text: str, *, kind: str = "tick", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _paths(xs: Sequence[int], values: Sequence[float | None], across: Scale, up: Scale) -> list[str]:
    """Paths through the values; a gap where a value is missing."""
    runs = groupby(zip(xs, values, strict=True), key=lambda point: point[1] is None)
    return ["M" + "L".join(f"{across(x)} {up(value)}" for x, value in run if value is not None)
            for is_gap, run in runs if not is_gap]


def _bands(xs: Sequence[int], line: Series, across: Scale, up: Scale) -> list[str]:
    """The band of a line as a closed path; bars at separate measurements."""
    edges = [(across(x), up(low), up(high))
             for x, low, high in zip(xs, line.low or (), line.high or (), strict=False)
             if low is not None and high is not None]
    if line.dots:
        return [f"M{x - 2} {low}H{x + 2}V{high}H{x - 2}Z" for x, low, high in edges]
    upper = "L".join(f"{x} {high}" for x, _, high in edges)
    lower = "L".join(f"{x} {low}" for x, low, _ in reversed(edges))
    return [f"M{upper}L{lower}Z"] if len(edges) > 1 else []


def _tone(line: Series, index: int) -> int:
    return index + 1 if line.tone is None else line.tone


def _chart(marks: Sequence[str], xs: Sequence[int], series: Sequence[Series], across: Scale) -> Chart:
    legend = [(_tone(line, index), line.name) for index, line in enumerate(series)]
    hover = {"x": list(xs), "px": [across(x) for x in xs],
             "series": [{"name": name, "tone": tone, "values": [number(value) for value in line.values]}
                        for (tone, name), line in zip(legend, series, strict=True)]}
    return Chart(svg_of(marks, HEIGHT), legend, hover,
                 frozenset(index for index, line in enumerate(series) if line.dots))


def svg_of(marks: Sequence[str], height: float) -> str:
    return (f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" '
            f'xmlns="http://www.w3.org/2000/svg">{"".join(marks)}<path class="cursor" d=""/></svg>')
