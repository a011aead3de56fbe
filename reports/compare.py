"""Two runs side by side: their curves in one picture each, their tasks in pairs."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.build import write_page
from reports.drawing import Chart, Series, line_chart, scatter
from reports.figure import Figure
from reports.grids import GridSheet
from reports.page import figure_block, page, table, tiles
from reports.scale import number
from warehouse.database import connect, rows_of
from warehouse.errors import StageError
from warehouse.store import Warehouse, open_warehouse

if TYPE_CHECKING:
    import duckdb

CURVES = (
    ("pass_at_1", "pass@1", True, False),
    ("pass_at_max_k", "pass@k, the largest k that every task has", True, False),
    ("reward_mean", "Mean reward", False, False),
    ("truncated_share", "Truncated", True, False),
    ("tokens_mean", "Completion tokens", False, False),
    ("nll_sampled", "Sampled NLL, nats", False, False),
    ("zero_variance_share", "Groups without spread", True, False),
    ("mismatch_kl", "Mismatch of engine and trainer, k3", False, True),
)
STATS_SQL = ("SELECT iteration, " + ", ".join(name for name, *_ in CURVES)
             + "\nFROM iteration_stats WHERE purpose = 'train' ORDER BY iteration")
# The last time each task was sampled, evaluations first: what the run can do now.
TASKS_SQL = """\
SELECT task_id, arg_max(c, iteration) AS c, arg_max(n, iteration) AS n
FROM task_results WHERE n > 0 AND purpose {purpose} GROUP BY task_id"""


def compare_runs(run_a: Path, run_b: Path, output: Path) -> Path:
    """Write the page that compares two runs; StageError if they share no task."""
    runs = [open_warehouse(run_a), open_warehouse(run_b)]
    connections = [connect(run) for run in runs]
    names = _names(runs)
    pairs, kind = paired_tasks(*connections)
    stats = [rows_of(connection, STATS_SQL) for connection in connections]
    charts: dict[str, Chart] = {}
    blocks = []
    for column, title, share, log in CURVES:
        chart = overlaid(stats, names, column, share=share, log=log)
        figure = Figure(column.replace("_", "-"), title, "", STATS_SQL, lambda rows: line_chart([], []),
                        "Neither run has it.")
        blocks.append(figure_block(figure, chart))
        if chart:
            charts[figure.name] = chart
    points = scatter([row["a"] for row in pairs], [row["b"] for row in pairs], [row["task"] for row in pairs],
                     names)
    charts["paired"] = points
    caption = f"Share of right completions at the last visit ({kind}); above the line {names[1]} is better."
    paired = figure_block(Figure("paired", "Tasks in pairs", caption, TASKS_SQL, lambda rows: points), points)
    body = (tiles(_headline(pairs, names)) + '<h2>Curves</h2><div class="figures">' + "".join(blocks)
            + f'</div><h2>Tasks</h2><div class="figures">{paired}<div>{_largest(pairs, names)}</div></div>')
    data = {"figures": {name: chart.hover for name, chart in charts.items()}}
    write_page(output, page(f"{names[0]} and {names[1]}", f"{runs[0].root} · {runs[1].root}", body, data,
                            GridSheet()))
    return output


def paired_tasks(
    a: duckdb.DuckDBPyConnection, b: duckdb.DuckDBPyConnection
) -> tuple[list[dict[str, Any]], str]:
    """Tasks both runs sampled with the share right in each; evaluations where both have them."""
    for purpose, kind in (("<> 'train'", "evaluations"), ("= 'train'", "training")):
        query = TASKS_SQL.format(purpose=purpose)
        left = {row["task_id"]: row["c"] / row["n"] for row in rows_of(a, query)}
        right = {row["task_id"]: row["c"] / row["n"] for row in rows_of(b, query)}
        both = sorted(left.keys() & right.keys())
        if both:
            return [{"task": task, "a": left[task], "b": right[task]} for task in both], kind
    raise StageError("The two runs have no scored task in common, so there is nothing to compare in pairs. "
                     "Evaluate both on the same split: rollout RUN --eval --split NAME")


def paired_interval(differences: list[float], *, resamples: int = 4000) -> tuple[float, float]:
    """95% bootstrap interval of the mean difference over tasks."""
    draws = np.random.default_rng(0).choice(differences, size=(resamples, len(differences)))
    low, high = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def sign_test(differences: list[float]) -> float:
    """Two-sided p-value that gains and losses are equally likely; ties left out."""
    gains, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n, least = gains + losses, min(gains, losses)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(least + 1)) / 2**n) if n else 1.0


def overlaid(stats: list[list[dict[str, Any]]], names: list[str], column: str, *, share: bool,
             log: bool) -> Chart | None:
    """One column of both runs over iterations."""
    xs = sorted({row["iteration"] for rows in stats for row in rows})
    lines = []
    for name, rows in zip(names, stats, strict=True):
        found = {row["iteration"]: row[column] for row in rows}
        values = [(found.get(x) or None) if log else found.get(x) for x in xs]
        lines.append(Series(name, values))
    if all(value is None for line in lines for value in line.values):
        return None
    return line_chart(xs, lines, share=share, log=log)


def _headline(pairs: list[dict[str, Any]], names: list[str]) -> list[tuple[str, str]]:
    differences = [row["b"] - row["a"] for row in pairs]
    low, high = paired_interval(differences)
    mean_a, mean_b = (sum(row[key] for row in pairs) / len(pairs) for key in ("a", "b"))
    return [("tasks in common", str(len(pairs))), (f"pass@1, {names[0]}", number(mean_a)),
            (f"pass@1, {names[1]}", number(mean_b)),
            ("difference", f"{sum(differences) / len(differences):+.3f}"),
            ("its 95% interval over tasks", f"{low:+.2f} to {high:+.2f}"),
            ("tasks better, worse", f"{sum(d > 0 for d in differences)}, {sum(d < 0 for d in differences)}"),
            ("sign test, p", number(sign_test(differences)))]


def _largest(pairs: list[dict[str, Any]], names: list[str], most: int = 12) -> str:
    ordered = sorted(pairs, key=lambda row: (-abs(row["b"] - row["a"]), row["task"]))[:most]
    rows = [
        [row["task"], number(row["a"]), number(row["b"]), f"{row['b'] - row['a']:+.2f}"] for row in ordered
    ]
    return f"<h3>{escape('Largest differences')}</h3>" + table(
        ["task", names[0], names[1], "difference"], rows
    )


def _names(runs: list[Warehouse]) -> list[str]:
    names = [run.root.name for run in runs]
    return names if names[0] != names[1] else [f"{run.root.parent.name}/{run.root.name}" for run in runs]
