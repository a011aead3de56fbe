"""Axes: round ticks, positions and short numbers."""

import math
from collections.abc import Sequence
from typing import NamedTuple

NO_VALUE = "\u2013"
ROUNDING = 1e-15         # a mean of rewards that cancel out


class Scale(NamedTuple):
    """Maps values from [low, high] to pixels [start, end], by their logarithm if `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(max(value, self.low)), math.log10(low), math.log10(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def value_scale(values: Sequence[float], start: float, end: float, *, share: bool = False,
                log: bool = False) -> Scale:
    """A scale that holds all values: from 0 for shares and for amounts, in decades for logarithms."""
    known = [value for value in values if math.isfinite(value)]
    if log:
        positive = [value for value in known if value > 0] or [1.0]
        low = 10.0 ** math.floor(math.log10(min(positive)))
        high = 10.0 ** math.ceil(math.log10(max(positive)))
        return Scale(low, high if high > low else low * 10, start, end, log=True)
    low, high = min([0.0, *known]), max([0.0, *known])
    if share and low >= 0:
        # Shares keep 0 .. 1 unless all are small, so that pictures of a run are comparable.
        return Scale(0.0, 1.0 if high > 0.5 else ticks(0, max(high, 0.05) * 1.1)[-1], start, end)
    steps = ticks(low, high if high > low else low + 1)
    return Scale(min(low, steps[0]), max(high, steps[-1]), start, end)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    span = max(high - low, 1e-12)
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (factor * step) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def scale_ticks(scale: Scale) -> list[float]:
    """Ticks that lie on the scale; decades for logarithms, at most six of them."""
    if scale.log:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        step = max(1, math.ceil((last - first) / 5))
        return [10.0 ** power for power in range(first, last + 1, step)]
    return [tick for tick in ticks(scale.low, scale.high) if scale.low - 1e-9 <= tick <= scale.high + 1e-9]


def whole_ticks(values: Sequence[int]) -> list[int]:
    """At most nine whole-number ticks between the first and last of `values`."""
    low, high = min(values), max(values)
    return [int(tick) for tick in ticks(low, max(high, low + 1), 8)
            if low <= tick <= high and tick == int(tick)]


def duration(seconds: float) -> str:
    """Seconds in readable form: 48 s, 12 min, 3.4 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(value: float | None) -> str:
    """A number in readable form: 0.31, 14.2, 1.2e-06, 12k, 3.4M."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    size = abs(value)
    if size < ROUNDING:
        return "0"
    if size < 1e-3:
        return f"{value:.1e}"
    # From where three digits round to the unit: 999,960 is 1M, not 1e+03k.
    for least, unit, letter in ((9.995e8, 1e9, "G"), (9.995e5, 1e6, "M"), (9999.5, 1e3, "k")):
        if size >= least:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}" if size < 999.5 else f"{value:.0f}"
