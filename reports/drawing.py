"""Charts as SVG text: lines with bands, stacked bars, heat maps, timelines; coloured by classes alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from reports.scale import NO_VALUE, Scale, number, scale_ticks, value_scale, whole_ticks

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 10, 26


class Series(NamedTuple):
    """One line or layer: a value for every x, None where there is none; `low` and `high` make a band."""

    name: str
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dots: bool = False  # separate measurements, not joined by a line
    tone: int | None = None  # colour slot; the position among the series otherwise


class Chart(NamedTuple):
    """A drawn chart: its SVG, its legend, and what the hover readout shows."""

    svg: str
    legend: list[tuple[int, str]]
    hover: dict[str, Any]
    hollow: frozenset[int] = frozenset()  # entries of the legend that are separate dots


def line_chart(xs: Sequence[int], series: Sequence[Series], *, share: bool = False, log: bool = False,
               levels: Sequence[tuple[float, str]] = ()) -> Chart:
    """Lines over iterations, with bands where given and dashed horizontal `levels`."""
    across = _across(xs)
    known = [value for one in series for part in (one.values, one.low, one.high)
             for value in part or [] if value is not None]
    up = value_scale([*known, *(level for level, _ in levels)], HEIGHT - BOTTOM, TOP, share=share, log=log)
    marks = [_frame(across, up, xs)]
    for level, label in levels:
        y = up(level)
        marks.append(
            f'<path class="level" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
            f'<text class="note" x="{WIDTH - RIGHT}" y="{y - 4}" text-anchor="end">{escape(label)}</text>'
        )
    for index, one in enumerate(series):
        tone = _tone(one, index)
        if one.low and one.high:
            marks += [f'<path class="band t{tone}" d="{path}"/>' for path in _bands(xs, one, across, up)]
        if not one.dots:
            marks += [
                f'<path class="line t{tone}" d="{path}"/>' for path in _lines(xs, one.values, across, up)
            ]
        if one.dots or len(xs) <= 40:
            radius, kind = (4, "ring") if one.dots else (2.2, "dot")
            marks += [f'<circle class="{kind} t{tone}" cx="{across(x)}" cy="{up(value)}" r="{radius}"/>'
                      for x, value in zip(xs, one.values, strict=True) if value is not None]
    return _chart(marks, xs, series, across)


def stacked_bars(xs: Sequence[int], layers: Sequence[Series], *, share: bool = True) -> Chart:
    """Layers on top of each other for every x; parts of 1 where `share`."""
    across = _across(xs, inset=True)
    totals = [sum(layer.values[i] or 0 for layer in layers) for i in range(len(xs))]
    up = (Scale(0, 1, HEIGHT - BOTTOM, TOP) if share
          else value_scale(totals, HEIGHT - BOTTOM, TOP))
    wide = max(1.0, min(28.0, (WIDTH - LEFT - RIGHT) / max(len(xs), 1) * 0.8))
    marks = [_frame(across, up, xs)]
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


def heat_map(xs: Sequence[int], labels: Sequence[str], rows: Sequence[Sequence[float | None]], *,
             low: float, high: float, row_height: float = 9) -> Chart:
    """One cell per label and x, darker for higher values between `low` and `high`; gaps stay empty."""
    left = 96
    tall = TOP + row_height * len(labels) + BOTTOM
    wide = (WIDTH - left - RIGHT) / max(len(xs), 1)
    marks = []
    for index, (label, row) in enumerate(zip(labels, rows, strict=True)):
        y = TOP + index * row_height
        if row_height >= 9:
            short = label if len(label) <= 14 else label[:13] + "…"
            size = "tick" if row_height > 12 else "tick small"
            marks.append(f'<text class="{size}" x="{left - 6}" y="{y + row_height - 2:.1f}" '
                         f'text-anchor="end">{escape(short)}</text>')
        for i, value in enumerate(row):
            if value is None:
                continue
            strength = (value - low) / (high - low) if high > low else 0.0
            step = round(min(max(strength, 0.0), 1.0) * 10)
            marks.append(f'<rect class="heat h{step}" x="{left + i * wide:.1f}" y="{y:.1f}" '
                         f'width="{max(wide - 0.6, 0.5):.1f}" height="{row_height - 1:.1f}"/>')
    across = Scale(xs[0] if xs else 0, xs[-1] if len(xs) > 1 else (xs[0] if xs else 0) + 1,
                   left + wide / 2, WIDTH - RIGHT - wide / 2 if len(xs) > 1 else WIDTH - RIGHT)
    columns = {x: left + (i + 0.5) * wide for i, x in enumerate(xs)}
    for x in whole_ticks(xs):
        if x in columns:
            marks.append(f'<text class="tick" x="{columns[x]:.1f}" y="{tall - 8:.1f}" '
                         f'text-anchor="middle">{x}</text>')
    hover = {"x": list(xs), "px": [round(columns[x], 1) for x in xs], "rows": list(labels), "top": TOP,
             "row": row_height, "cells": [[None if v is None else number(v) for v in row] for row in rows]}
    del across
    return Chart(_svg(marks, tall), [], hover)


def timeline(xs: Sequence[int], rows: Sequence[tuple[str, Sequence[int]]]) -> Chart:
    """For every name the iterations at which it was raised."""
    left, row_height = 150, 18
    tall = TOP + row_height * max(len(rows), 1) + BOTTOM
    low, high = (min(xs), max(xs)) if xs else (0, 1)
    across = Scale(low, high if high > low else low + 1, left + 8, WIDTH - RIGHT - 8)
    marks = []
    for index, (name, raised) in enumerate(rows):
        y = TOP + index * row_height + row_height / 2
        marks.append(
            f'<path class="grid" d="M{left} {y}H{WIDTH - RIGHT}"/>'
            f'<text class="tick" x="{left - 8}" y="{y + 3.5}" text-anchor="end">{escape(name)}</text>'
        )
        marks += [f'<rect class="alarm" x="{across(x) - 3:.1f}" y="{y - 5}" width="6" height="10" rx="1.5"/>'
                  for x in raised]
    marks += [f'<text class="tick" x="{across(x)}" y="{tall - 8}" text-anchor="middle">{x}</text>'
              for x in whole_ticks(xs)]
    hover = {
        "x": list(xs),
        "px": [across(x) for x in xs],
        "series": [
            {"name": name, "tone": 0, "values": ["raised" if x in raised else NO_VALUE for x in xs]}
            for name, raised in rows
        ],
    }
    return Chart(_svg(marks, tall), [], hover)


def scatter(xs: Sequence[float], ys: Sequence[float], labels: Sequence[str], names: Sequence[str]) -> Chart:
    """A dot per label at two shares, with the line of equality; dots on one place grow."""
    across, up = Scale(0, 1, LEFT + 8, WIDTH - RIGHT - 8), Scale(0, 1, HEIGHT - BOTTOM, TOP)
    marks = [f'<path class="grid" d="M{across(0)} {up(0)}L{across(1)} {up(1)}"/>']
    for value in (0, 0.25, 0.5, 0.75, 1):
        marks.append(
            f'<path class="grid" d="M{LEFT} {up(value)}H{WIDTH - RIGHT}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{up(value) + 3.5}" text-anchor="end">{value:g}</text>'
            f'<text class="tick" x="{across(value)}" y="{HEIGHT - 8}" text-anchor="middle">{value:g}</text>'
        )
    places: dict[tuple[float, float], list[str]] = {}
    for x, y, label in zip(xs, ys, labels, strict=True):
        places.setdefault((x, y), []).append(label)
    for (x, y), found in places.items():
        radius = min(3 + 1.5 * (len(found) - 1) ** 0.5, 14)
        shown = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
        marks.append(f'<circle class="spot t1" cx="{across(x)}" cy="{up(y)}" r="{radius:.1f}">'
                     f"<title>{escape(shown)}: {x:.2f}, {y:.2f}</title></circle>")
    marks.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM - 6}" text-anchor="end">'
                 f"{escape(names[0])} across, {escape(names[1])} up</text>")
    return Chart(_svg(marks, HEIGHT), [], {"x": [], "px": []})


def _across(xs: Sequence[int], *, inset: bool = False) -> Scale:
    low, high = (min(xs), max(xs)) if xs else (0, 1)
    margin = (WIDTH - LEFT - RIGHT) / max(len(xs), 1) / 2 if inset else 8
    if low == high:
        return Scale(low - 1, high + 1, LEFT + margin, WIDTH - RIGHT - margin)
    return Scale(low, high, LEFT + margin, WIDTH - RIGHT - margin)


def _frame(across: Scale, up: Scale, xs: Sequence[int]) -> str:
    """Grid lines and the numbers along both axes."""
    marks = []
    for value in scale_ticks(up):
        y = up(value)
        marks.append(
            f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{number(value)}</text>'
        )
    marks += [f'<text class="tick" x="{across(x)}" y="{HEIGHT - 8}" text-anchor="middle">{x}</text>'
              for x in whole_ticks(xs)]
    return "".join(marks)


def _lines(xs: Sequence[int], values: Sequence[float | None], across: Scale, up: Scale) -> list[str]:
    """Paths through the values; a gap where one is missing."""
    paths, run = [], []
    for x, value in [*zip(xs, values, strict=True), (0, None)]:
        if value is not None:
            run.append(f"{across(x)} {up(value)}")
        elif run:
            paths.append("M" + "L".join(run))
            run = []
    return paths


def _bands(xs: Sequence[int], one: Series, across: Scale, up: Scale) -> list[str]:
    assert one.low is not None and one.high is not None
    edges = [(across(x), up(low), up(high)) for x, low, high in zip(xs, one.low, one.high, strict=True)
             if low is not None and high is not None]
    if len(edges) < 2:
        return []
    upper = "L".join(f"{x} {high}" for x, _, high in edges)
    lower = "L".join(f"{x} {low}" for x, low, _ in reversed(edges))
    return [f"M{upper}L{lower}Z"]


def _tone(one: Series, index: int) -> int:
    return index + 1 if one.tone is None else one.tone


def _chart(marks: Sequence[str], xs: Sequence[int], series: Sequence[Series], across: Scale) -> Chart:
    hover = {
        "x": list(xs),
        "px": [across(x) for x in xs],
        "series": [
            {"name": one.name, "tone": _tone(one, index), "values": [number(v) for v in one.values]}
            for index, one in enumerate(series)
        ],
    }
    legend = [(_tone(one, index), one.name) for index, one in enumerate(series)]
    hollow = frozenset(index for index, one in enumerate(series) if one.dots)
    return Chart(_svg(marks, HEIGHT), legend, hover, hollow)


def _svg(marks: Sequence[str], height: float) -> str:
    return (f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" '
            f'xmlns="http://www.w3.org/2000/svg">{"".join(marks)}<path class="cursor" d=""/></svg>')
