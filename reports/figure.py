"""A figure: a question, the SQL that answers it, and how its rows are drawn."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from reports.drawing import Chart, Series, heat_map, line_chart, stacked_bars
from warehouse.inspect.render import mean, stretches

Rows = list[dict[str, Any]]
Columns = dict[str, list[float | None]]
Draw = Callable[[Rows], Chart]
MOST_POINTS = 400
MOST_CELLS = 120  # limit for pictures with a bar or a cell per iteration


class Figure(NamedTuple):
    """A picture of a run. `draw` gets the rows of `sql`; without rows `missing` is shown instead."""

    name: str
    title: str
    caption: str
    sql: str
    draw: Draw
    missing: str = "No training iteration is scored yet."


def stats_sql(columns: str, where: str = "purpose = 'train'") -> str:
    """A query of columns of iteration_stats, in the order of the iterations."""
    return f"SELECT iteration, {columns}\nFROM iteration_stats WHERE {where} ORDER BY iteration"


def lines(*, share: bool = False, log: bool = False, levels: Sequence[tuple[float, str]] = (),
          **labels: str) -> Draw:
    """Draw columns of the rows as lines: lines(reward_mean="all completions")."""
    def draw(rows: Rows) -> Chart:
        xs, columns = columns_of(rows, labels)
        chart = line_chart(xs, series(columns, labels, positive=log), share=share, log=log, levels=levels)
        return chart if len(labels) > 1 else chart._replace(legend=[])      # the title names it
    return draw


def bars(*, whole: bool = False, tones: Sequence[int] = (), **labels: str) -> Draw:
    def draw(rows: Rows) -> Chart:
        xs, columns = columns_of(rows, labels, MOST_CELLS)
        return stacked_bars(xs, series(columns, labels, tones=tones), whole=whole)
    return draw


def cells(key: str, value: str, **options: Any) -> Draw:
    """Draw rows of (iteration, key, value) as a heat map of all iterations, averaged if there are many."""
    def draw(rows: Rows) -> Chart:
        known, table = pivot(rows, key, value)
        xs = range(known[0], known[-1] + 1)
        full = {str(name): list(map(dict(zip(known, values, strict=True)).get, xs))
                for name, values in table.items()}
        return heat_map(*thin_out(xs, full, MOST_CELLS), **options)
    return draw


def series(columns: Columns, labels: dict[str, str], *, positive: bool = False,
           tones: Sequence[int] = ()) -> list[Series]:
    """A series per column with any value; each keeps its colour whichever others are present."""
    return [Series(label, [value or None if positive else value for value in columns[name]], tone=tone)
            for (name, label), tone in zip(labels.items(), tones or range(1, len(labels) + 1), strict=True)
            if any(value is not None for value in columns[name])]


def columns_of(rows: Rows, names: Iterable[str], most: int = MOST_POINTS) -> tuple[list[int], Columns]:
    """The iterations of rows and the named columns, thinned out."""
    return thin_out([row["iteration"] for row in rows], {name: [row[name] for row in rows] for name in names},
                    most)


def pivot(rows: Rows, key: str, value: str) -> tuple[list[int], dict[Any, list[Any]]]:
    """Rows of (iteration, key, value) as the iterations and a list per key."""
    xs = sorted({row["iteration"] for row in rows})
    places = {x: i for i, x in enumerate(xs)}
    table: dict[Any, list[Any]] = {}
    for row in rows:
        table.setdefault(row[key], [None] * len(xs))[places[row["iteration"]]] = row[value]
    return xs, table


def thin_out(xs: Sequence[int], columns: Columns, most: int = MOST_POINTS) -> tuple[list[int], Columns]:
    """At most `most` places of columns over xs: means over neighbours, at the first x of each."""
    parts = stretches(len(xs), most)
    return [xs[first] for first, _ in parts], {
        key: [mean(values[first:end]) for first, end in parts] for key, values in columns.items()}
