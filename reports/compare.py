"""Runs side by side: their curves in one picture each, the tasks of each in pairs with those of the first."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from reports.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, rulers, svg_of, text_at
from reports.figure import Figure, Rows, column, lines
from reports.grids import GridSheet
from reports.page import figure_block, page, table, tiles
from reports.scale import Scale, number, scale_ticks
from warehouse.inspect.results import paired_interval
from warehouse.sql.database import Connection, connect, rows_of
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

MOST_RUNS = 6  # colours that can be told apart
MOST_TASKS = 12  # listed of each pair of runs
CURVES = (
    ("pass_at_1", "pass@1", True, False),
    ("pass_at_k", "pass@{k}", True, False),
    ("reward_mean", "Mean reward", False, False),
    ("truncated_share", "Truncated", True, False),
    ("tokens_mean", "Completion tokens", False, False),
    ("nll_sampled", "Sampled NLL, nats", False, False),
    ("zero_variance_share", "Groups without spread", True, False),
    ("mismatch_kl_fresh", "Mismatch of engine and trainer, k3", False, True),
    ("mismatch_kl", "KL of the sampling policies, k3", False, True),
)
STATS_SQL = ("SELECT iteration, " + ", ".join(name for name, *_ in CURVES) + """
FROM iteration_stats
LEFT JOIN (SELECT iteration, purpose, pass_at_k
           FROM pass_curve JOIN iteration_stats USING (iteration, purpose) WHERE k = {k} AND k <= max_k)
    AS reached USING (iteration, purpose)
WHERE purpose = 'train' ORDER BY iteration""")
VISITS_SQL = """\
SELECT iteration, purpose, list(task_id) AS tasks
FROM task_results WHERE n > 0 AND turn_of(purpose) = 1 GROUP BY iteration, purpose"""
TASKS_SQL = """\
SELECT task_id, c, n FROM task_results
WHERE n > 0 AND iteration = {iteration} AND purpose = '{purpose}'"""


class Pairing(NamedTuple):
    """What two runs did on the same tasks at the same iteration, for the same purpose."""

    iteration: int
    purpose: str
    pairs: list[dict[str, Any]]
    latest: int  # the latest training iteration that either run has scored; -1 without any

    @property
    def title(self) -> str:
        """Which rows are paired."""
        kind = "Training" if self.purpose == "train" else f"Evaluation '{self.purpose}'"
        return f"{kind} at iteration {self.iteration}"

    @property
    def remark(self) -> str:
        """What a reader must know before believing the numbers; empty where there is nothing."""
        if self.iteration >= self.latest:
            return ""
        if self.purpose == "train":
            return f"The latest iteration that both runs have scored; one goes on to {self.latest}."
        return (f"Older than the latest training iteration, {self.latest}: it says nothing of what was "
                "learnt since.")

    @property
    def sql(self) -> str:
        """The query that gives each run's side."""
        return TASKS_SQL.format(iteration=self.iteration, purpose=self.purpose.replace("'", "''"))


class Comparison(NamedTuple):
    """Runs side by side: the pieces of a page."""

    title: str
    subtitle: str
    body: str
    data: dict[str, Any]


def compare_runs(paths: Sequence[Path], output: Path) -> Path:
    """Write the page that compares runs; StageError if one shares no task with the first."""
    runs = [open_warehouse(path) for path in paths]
    check_comparable(runs)
    made = comparison(runs, [connect(run) for run in runs])
    replace_bytes(output, page(made.title, made.subtitle, made.body, made.data, GridSheet()).encode())
    return output


def check_comparable(runs: Sequence[Warehouse]) -> None:
    """StageError for more runs than colours, and for one that is there twice."""
    if len(runs) > MOST_RUNS:
        raise StageError(f"{len(runs)} runs cannot be told apart in a picture. Compare {MOST_RUNS} at most.")
    if len({run.root for run in runs}) < len(runs):
        raise StageError("A run cannot be compared with itself: name another run beside it.")


def comparison(runs: Sequence[Warehouse], connections: Sequence[Connection]) -> Comparison:
    """Curves of all runs together, tasks in pairs with those of the first."""
    names = _names(runs)
    # The largest k that every run has: pass@8 of one beside pass@16 of another would say nothing.
    k = min((row["k"] for connection in connections
             for row in rows_of(connection, "SELECT k_of('train') AS k") if row["k"]), default=1)
    sql = STATS_SQL.format(k=k)
    stats = [rows_of(connection, sql) for connection in connections]
    charts: dict[str, Chart | None] = {}
    labels: Any = {str(i): name for i, name in enumerate(names)}
    curves, heads, tasks = "", "", ""
    for name, title, share, log in CURVES:
        figure = Figure(name.replace("_", "-"), title.format(k=k), "", sql,
                        lines(share=share, log=log, **labels), "No run has it.")
        rows = overlay(stats, name)
        charts[figure.name] = figure.draw(rows) if rows else None
        curves += figure_block(figure, charts[figure.name])
    for other, name in zip(connections[1:], names[1:], strict=True):
        heads += _quiet(unpaired(connections[0], other, [names[0], name]))
        for pairing in paired_tasks(connections[0], other):
            figure = _paired_figure(pairing, [names[0], name])
            charts[figure.name] = figure.draw(pairing.pairs)
            heads += _head(other, pairing, [names[0], name])
            tasks += (f'<div class="compare">{figure_block(figure, charts[figure.name])}'
                      f"<div>{_largest(pairing, [names[0], name])}</div></div>")
    body = f'{heads}<h2>Curves</h2><div class="figures">{curves}</div><h2>Tasks</h2>{tasks}'
    data = {"figures": {key: chart.hover for key, chart in charts.items() if chart}}
    return Comparison(f"{', '.join(names[:-1])} and {names[-1]}", " · ".join(str(run.root) for run in runs),
                      body, data)


def paired_tasks(a: Connection, b: Connection) -> list[Pairing]:
    """The latest training and the latest evaluations that both runs have on common tasks, the newer first.

    Only rows of one iteration and one purpose are paired: those of other policies or of another evaluation
    would differ for that alone. StageError if there are none.
    """
    left, right = _visits(a), _visits(b)
    common = [visit for visit in left.keys() & right.keys() if left[visit] & right[visit]]
    train = [visit for visit in common if visit[1] == "train"]
    held = [visit for visit in common if visit[1] != "train"]
    if not common:
        raise StageError("Two of the runs have no scored task in common at the same iteration, so there is "
                         "nothing to compare in pairs. Evaluate both at the same iteration on the same "
                         "split: rollout RUN --eval --split NAME --label NAME --iteration I, then score "
                         "RUN")
    latest = max((iteration for iteration, purpose in left.keys() | right.keys() if purpose == "train"),
                 default=-1)
    chosen = [max(train)] if train else []
    chosen += [visit for visit in held if visit[0] == max(held)[0]]
    chosen.sort(key=lambda visit: (-visit[0], visit[1] == "train", visit[1]))
    return [_pairing(a, b, iteration, purpose, latest) for iteration, purpose in chosen]


def unpaired(a: Connection, b: Connection, names: list[str]) -> str:
    """Which evaluations, the latest, have no pair as they are named otherwise; empty where there are none."""
    left, right = _visits(a), _visits(b)
    apart = [(visit[0], visit[1], other[1]) for visit in left.keys() - right.keys()
             for other in right.keys() - left.keys()
             if visit[0] == other[0] and "train" not in (visit[1], other[1]) and left[visit] & right[other]]
    if not apart:
        return ""
    latest = max(apart)[0]
    sides = (sorted({f"'{each[side]}'" for each in apart if each[0] == latest}) for side in (1, 2))
    mine, theirs = (f"{', '.join(own)} of {name}" for own, name in zip(sides, names, strict=True))
    return (f"At iteration {latest} {mine} and {theirs} have tasks in common, and are not paired because "
            "their names differ. Evaluate one of the runs by the name that the other has: rollout RUN --eval "
            f"--split NAME --label NAME --iteration {latest}, then score RUN.")


def _visits(run: Connection) -> dict[tuple[int, str], set[str]]:
    """The tasks of each iteration and purpose."""
    return {(row["iteration"], row["purpose"]): set(row["tasks"]) for row in rows_of(run, VISITS_SQL)}


def _pairing(a: Connection, b: Connection, iteration: int, purpose: str, latest: int) -> Pairing:
    query = Pairing(iteration, purpose, [], latest).sql
    left, right = ({row["task_id"]: row["c"] / row["n"] for row in rows_of(run, query)} for run in (a, b))
    pairs = [{"task": task, "a": left[task], "b": right[task]} for task in sorted(left.keys() & right.keys())]
    return Pairing(iteration, purpose, pairs, latest)


def sign_test(differences: list[float]) -> float:
    """Two-sided p-value that gains and losses are equally likely; ties left out."""
    gains, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n, least = gains + losses, min(gains, losses)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(least + 1)) / 2**n) if n else 1.0


def overlay(stats: list[Rows], name: str) -> Rows:
    """A column of several runs as rows of {iteration, "0", "1", ..}; none where no run has it."""
    curves = [{row["iteration"]: row[name] for row in rows} for rows in stats]
    if all(value is None for curve in curves for value in curve.values()):
        return []
    return [{"iteration": x, **{str(i): curve.get(x) for i, curve in enumerate(curves)}}
            for x in sorted(set().union(*curves))]


def _quiet(remark: str) -> str:
    return f'<p class="quiet">{escape(remark)}</p>' if remark else ""


def _head(connection: Connection, pairing: Pairing, names: list[str]) -> str:
    """What is paired, a warning where it is old, and the numbers."""
    title = f"{names[0]} and {names[1]}: {pairing.title}"
    shown = tiles(_headline(connection, pairing.pairs, names))
    return f"<h3>{escape(title)}</h3>{_quiet(pairing.remark)}{shown}"


def _paired_figure(pairing: Pairing, names: list[str]) -> Figure:
    """A spot per task."""
    caption = f"Share of right completions; above the line {names[1]} is better. {pairing.remark}".strip()
    name = f"paired-{pairing.purpose}-{names[1].replace('/', '-')}"
    return Figure(name, f"Tasks in pairs with {names[1]}: {pairing.title}", caption, pairing.sql,
                  lambda rows: scatter(column(rows, "a"), column(rows, "b"), column(rows, "task"), names))


def scatter(xs: Sequence[float], ys: Sequence[float], labels: Sequence[str], names: Sequence[str]) -> Chart:
    """A dot per label at two shares, with the line of equality; dots on the same place grow."""
    across, up = Scale(0, 1, LEFT + 8, WIDTH - RIGHT - 8), Scale(0, 1, HEIGHT - BOTTOM, TOP)
    marks = [*rulers(up), f'<path class="grid" d="M{across(0)} {up(0)}L{across(1)} {up(1)}"/>']
    marks += [text_at(across(value), HEIGHT - 8, f"{value:g}") for value in scale_ticks(up)]
    places: dict[tuple[float, float], list[str]] = {}
    for x, y, label in zip(xs, ys, labels, strict=True):
        places.setdefault((x, y), []).append(label)
    for (x, y), there in places.items():
        radius = min(3 + 1.5 * (len(there) - 1) ** 0.5, 14)
        shown = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
        marks.append(f'<circle class="spot t1" cx="{across(x)}" cy="{up(y)}" r="{radius:.1f}">'
                     f"<title>{escape(shown)}: {x:.2f}, {y:.2f}</title></circle>")
    marks.append(text_at(WIDTH - RIGHT, HEIGHT - BOTTOM - 6, f"{names[0]} across, {names[1]} up", kind="note",
                         anchor="end"))
    return Chart(svg_of(marks, HEIGHT), [], {"x": [], "px": []})


def _headline(connection: Connection, pairs: list[dict[str, Any]], names: list[str]) -> list[tuple[str, str]]:
    differences = [row["b"] - row["a"] for row in pairs]
    bounds = paired_interval(connection, differences)
    interval = f"{bounds[0]:+.2f} .. {bounds[1]:+.2f}" if bounds else "none of one task"
    mean_a, mean_b = (sum(row[key] for row in pairs) / len(pairs) for key in ("a", "b"))
    return [("tasks in common", str(len(pairs))), (f"pass@1, {names[0]}", number(mean_a)),
            (f"pass@1, {names[1]}", number(mean_b)),
            ("difference", f"{sum(differences) / len(differences):+.3f}"),
            ("its 95% interval over tasks", interval),
            ("tasks better, worse", f"{sum(d > 0 for d in differences)}, {sum(d < 0 for d in differences)}"),
            ("sign test, p", number(sign_test(differences)))]


def _largest(pairing: Pairing, names: list[str]) -> str:
    ordered = sorted(pairing.pairs, key=lambda row: (-abs(row["b"] - row["a"]), row["task"]))[:MOST_TASKS]
    rows = [[row["task"], number(row["a"]), number(row["b"]), f"{row['b'] - row['a']:+.2f}"]
            for row in ordered]
    heading = f"<h3>{escape(f'Largest differences, {names[1]}: {pairing.title}')}</h3>"
    return heading + table(["task", *names, "difference"], rows)


def _names(runs: Sequence[Warehouse]) -> list[str]:
    names = [run.root.name for run in runs]
    alone = len(set(names)) == len(names)
    return names if alone else [f"{run.root.parent.name}/{run.root.name}" for run in runs]
