"""Query results as text: aligned tables, Markdown, CSV, JSON lines and Parquet."""

import csv
import datetime
import decimal
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any

from warehouse.store.errors import printable

LONGEST_CELL = 60
UNSET = "default"  # an option without a value; none is a value of some
MOST_NAMES, MOST_NUMBERS = 8, 6  # longest lists that are shown whole


def as_table(names: Sequence[str], rows: Sequence[Sequence[Any]], *, full: bool = False,
             width: int | None = None) -> str:
    """An aligned table with NULL by name; lists elided, long cells cut unless `full`; numbers right-aligned.

    A head of several words is wrapped to the width of its cells.
    """
    columns = [[row[i] for row in rows] for i in range(len(names))]
    cells = [["NULL" if value is None else _cell(value, full) for value in column] for column in columns]
    heads = [wrap(name, max(map(len, below), default=len(name)) or 1, break_long_words=False,
                  break_on_hyphens=False) or [name] for name, below in zip(names, cells, strict=True)]
    height = max(map(len, heads), default=1)
    padded = []
    for head, below, column in zip(heads, cells, columns, strict=True):
        size = max(map(len, [*head, *below]))
        right = all(value is None or isinstance(value, int | float | decimal.Decimal) for value in column)
        padded.append([cell.rjust(size) if right else cell.ljust(size)
                       for cell in (*[""] * (height - len(head)), *head, "-" * size, *below)])
    lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    if width and not full:
        lines = [line if len(line) <= width else line[:width - 1] + "…" for line in lines]
    return "\n".join(lines)


def as_markdown(names: Sequence[str], rows: Sequence[Sequence[Any]], *, full: bool = False, **_: Any) -> str:
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(value, full).replace("|", "\\|") for value in row) + " |")
    return "\n".join(lines)


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]], **_: Any) -> str:
    """CSV with a header; lists as JSON, nothing shortened."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([json.dumps(plain(value)) if isinstance(value, list | tuple | dict) else value
                         for value in row])
    return stream.getvalue().rstrip("\n")


def as_json(names: Sequence[str], rows: Iterable[Sequence[Any]], **_: Any) -> str:
    """One JSON object per line, nothing shortened; NaN and infinity become null."""
    keys = _distinct(names)
    return "\n".join(json.dumps(plain(dict(zip(keys, row, strict=True))), allow_nan=False) for row in rows)


WRITERS: dict[str, Callable[..., str]] = {"table": as_table, "markdown": as_markdown, "csv": as_csv,
                                          "json": as_json, "jsonl": as_json}


def short_number(value: float) -> str:
    """A number in few characters: 0.31, 14.1, 1.2e-06, 5,120, nan."""
    if isinstance(value, int) or 999.95 <= abs(value) < 1e15:
        return f"{round(value):,}"
    if math.isfinite(value) and value != 0 and not 1e-3 <= abs(value) < 1000:
        return f"{value:.1e}"
    return f"{value + 0.0:.4g}"       # of -0.0, too


def short_share(value: float | None, digits: int = 2) -> str:
    """A share without its leading zero: .31."""
    return "" if value is None else f"{value:.{digits}f}".removeprefix("0")


def stretches(count: int, most: int) -> list[tuple[int, int]]:
    """`count` places split into at most `most` runs of neighbours, each as (first, end)."""
    number = min(count, most)
    return list(pairwise(round(i * count / number) for i in range(number + 1))) if count else []


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: Any, full: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value) if full else short_number(value)
    if isinstance(value, list | tuple) and not full:
        return _short_list(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    text = printable(str(value), kept="")
    return text if full or len(text) <= LONGEST_CELL else text[:LONGEST_CELL - 1] + "…"


def _short_list(values: Sequence[Any]) -> str:
    """A few numbers, or a few names that fit a cell, unchanged; else their number."""
    numbers = len(values) <= MOST_NUMBERS and all(isinstance(value, int | float) for value in values)
    names = len(values) <= MOST_NAMES and all(isinstance(value, str) for value in values)
    text = "[" + ", ".join(_cell(value, False) for value in values) + "]" if numbers or names else ""
    return text if numbers or (names and len(text) <= LONGEST_CELL) else f"[{len(values)} values]"


def _distinct(names: Sequence[str]) -> list[str]:
    """Unique names: a, a becomes a, a_1, as DuckDB writes them to Parquet."""
    keys: list[str] = []
    for name in names:
        number, key = 0, name
        while key in keys or (number and key in names):
            number += 1
            key = f"{name}_{number}"
        keys.append(key)
    return keys


def plain(value: Any) -> Any:
    """A value of a query as JSON has it: NaN and infinity as null, decimals as numbers, dates as text."""
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(plain(name)): plain(item)
                for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)
