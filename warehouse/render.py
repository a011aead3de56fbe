"""Query results as text: aligned tables, Markdown, CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

FORMATS = ("table", "csv", "json", "parquet", "markdown")
LONGEST_CELL = 60


def as_table(names: Sequence[str], rows: Sequence[Sequence[Any]], *, full: bool = False,
             width: int | None = None) -> str:
    """An aligned table; lists elided and long cells cut unless `full`; numbers to the right."""
    cells = [[_cell(value, full) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(names)]
    right = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(names))
    ]
    lines = [[name.rjust(size) if turned else name.ljust(size)
              for name, size, turned in zip(names, widths, right, strict=True)]]
    lines.append(["-" * size for size in widths])
    lines += [[cell.rjust(size) if turned else cell.ljust(size)
               for cell, size, turned in zip(row, widths, right, strict=True)] for row in cells]
    joined = ["  ".join(line).rstrip() for line in lines]
    if width and not full:
        joined = [line if len(line) <= width else line[:width - 1] + "…" for line in joined]
    return "\n".join(joined)


def as_markdown(names: Sequence[str], rows: Sequence[Sequence[Any]], *, full: bool = False) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(value, full).replace("|", "\\|") for value in row) + " |")
    return "\n".join(lines)


def as_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a header; lists as JSON, everything in full."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([json.dumps(value) if isinstance(value, list | dict) else value for value in row])
    return stream.getvalue().rstrip("\n")


def as_json(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """One JSON object per line, everything in full."""
    return "\n".join(json.dumps(dict(zip(names, row, strict=True)), default=_plain) for row in rows)


def printable(text: str) -> str:
    """Text of a model made safe for a terminal: control characters, escape sequences too, are spelled out."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


def short_number(value: float) -> str:
    """A number in few characters: .31, 14.1, 1.2e-06, 5,120."""
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:.4g}"


def _cell(value: Any, full: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value) if full else short_number(value)
    if isinstance(value, list) and not full:
        short = len(value) <= 6 and all(isinstance(one, int | float) for one in value)
        return "[" + ", ".join(_cell(one, full) for one in value) + "]" if short else f"[{len(value)} values]"
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    text = printable(str(value)).replace("\n", "\\n")
    return text if full or len(text) <= LONGEST_CELL else text[:LONGEST_CELL - 1] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value)
