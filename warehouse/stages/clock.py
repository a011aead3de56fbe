"""Seconds per phase of a stage, for its manifest and summary, and between lines of progress."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Lines:
    """What a progress bar writes, as lines on stderr."""

    def write(self, text: str) -> None:
        for line in text.split("\r"):
            if line.strip():
                sys.stderr.write(f"{line.rstrip()}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def bar_options() -> dict[str, Any]:
    """Options of a progress bar: a terminal overwrites it, a log gets a line every half a minute."""
    return {} if sys.stderr.isatty() else {"mininterval": 30, "file": _Lines()}


class Clock:
    """Adds up the time spent in named phases; the first lap counts from `started`, a `time.perf_counter`."""

    def __init__(self, started: float | None = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._started = self._last = time.perf_counter() if started is None else started

    def elapsed(self) -> float:
        """Seconds since the start, also between phases."""
        return time.perf_counter() - self._started

    def total(self) -> float:
        """Seconds of all phases so far."""
        return sum(self.seconds.values())

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started
