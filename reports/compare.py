"""Runs side by side: their curves in one picture each, the tasks of each in pairs with those of the first."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from reports.differences import chance_notice, settings_notice
from reports.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, rulers, svg_of, text_at
from reports.figure import Figure, Rows, column, lines
from reports.page import figure_block, page, table, tiles
from reports.pairs import Pairing, other_tasks, paired_tasks, sign_test, unpaired
from reports.scale import Scale, number, scale_ticks
from warehouse.inspect.results import paired_verdict
from warehouse.sql.database import Connection, connect, rows_of
from warehouse.sql.many import connect_runs, open_runs, run_names
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError, counted
from warehouse.store.run_folder import Warehouse, open_warehouse

MOST_RUNS = 6  # colours that can be told apart
MOST_NAMED = 5  # tasks
MOST_TASKS = 12  # listed of each pair of runs
CURVES = (
    ("pass_at_1", "pass@1", True, False),
    ("pass_at_k", "pass@{k}", True, False),
    ("reward_mean", "Mean reward", False, False),
    ("truncated_share", "Truncated", True, False),
    ("tokens_mean", "Completion tokens", False, False),
    ("nll_sampled", "Sampled NLL, nats", False, False),
    ("zero_variance_share", "Groups of equal rewards", True, False),
    ("mismatch_kl_fresh", "Mismatch of engine and trainer, k3", False, True),
    ("mismatch_kl", "KL of the sampling policies, k3", False, True),
)
PER_TOKEN = ("tokens_mean", "nll_sampled")   # of other tokenizers no two can be held against each other
OTHER_TOKENIZERS = "The runs have other tokenizers: what is counted per token has no curve here."
STATS_SQL = ("SELECT iteration, " + ", ".join(name for name, *_ in CURVES) + """
FROM iteration_stats
LEFT JOIN (SELECT iteration, purpose, pass_at_k
           FROM pass_curve JOIN iteration_stats USING (iteration, purpose) WHERE k = {k} AND k <= max_k)
    AS reached USING (iteration, purpose)
WHERE purpose = 'train' ORDER BY iteration""")
class Comparison(NamedTuple):
    """Runs side by side: the pieces of a page."""

    title: str
    subtitle: str
    body: str
    data: dict[str, Any]


def comparison_facts(paths: Sequence[Path]) -> dict[str, Any]:
    """The same for programs; docs/reading.md has the keys."""
    runs = open_runs(paths)
    check_comparable(runs)
    connection = connect_runs(runs)
    first, *others = names = run_names([run.root for run in runs])
    gains = [{"run": first, "other": other, **row} for other in others
             for row in rows_of(connection, "FROM gains_of_runs($1, $2)", [first, other])]
    return {"runs": names, "settings": rows_of(connection, "FROM settings_diff"), "gains": gains}


def compare_runs(paths: Sequence[Path], output: Path) -> Path:
    """Write the page that compares runs; StageError if one shares no task with the first."""
    runs = [open_warehouse(path) for path in paths]
    check_comparable(runs)
    made = comparison(runs, [connect(run) for run in runs])
    replace_bytes(output, page(made.title, made.subtitle, made.body, made.data).encode())
    return output


def check_comparable(runs: Sequence[Warehouse]) -> None:
    """StageError for more runs than colours, and for one that is there twice."""
    if len(runs) > MOST_RUNS:
        raise StageError(f"{len(runs)} runs are too many for one picture. Compare at most {MOST_RUNS}.")
    if len({run.root for run in runs}) < len(runs):
        raise StageError("A run cannot be compared with itself: name two different runs.")


def comparison(runs: Sequence[Warehouse], connections: Sequence[Connection]) -> Comparison:
    """What differs in settings and beyond chance, curves together, tasks in pairs with those of the first."""
    names = run_names([run.root for run in runs])
    pairs = [_pairs(runs, connections, names, place) for place in range(1, len(runs))]
    tokens_differ = len({run.facts.get("tokenizer_sha256") for run in runs}) > 1
    curves, charts = _curves(connections, names, [name for name in PER_TOKEN if tokens_differ])
    heads, tasks = _quiet(OTHER_TOKENIZERS if tokens_differ else ""), ""
    for (pairings, remark), other, name in zip(pairs, connections[1:], names[1:], strict=True):
        heads += _quiet(remark) + _quiet(unpaired(connections[0], other, [names[0], name]))
        for pairing in pairings:
            figure = _paired_figure(pairing, [names[0], name])
            charts[figure.name] = figure.draw(pairing.pairs)
            heads += _head(other, pairing, [names[0], name])
            tasks += (f'<div class="compare">{figure_block(figure, charts[figure.name])}'
                      f"<div>{_largest(pairing, [names[0], name])}</div></div>")
    differ = settings_notice(runs, connections, names)
    looks = [(name, pairing) for name, (pairings, _) in zip(names[1:], pairs, strict=True)
             for pairing in pairings]
    chance = chance_notice(connections[0], names[0], looks)
    body = (f'<h2>What differs</h2>{differ}<h2>Beyond chance</h2>{chance}{heads}<h2>Curves</h2>'
            f'<div class="figures">{curves}</div><h2>Tasks</h2>{tasks}')
    data = {"figures": {key: chart.hover for key, chart in charts.items() if chart}}
    return Comparison(f"{', '.join(names[:-1])} and {names[-1]}", " · ".join(str(run.root) for run in runs),
                      body, data)


def _pairs(runs: Sequence[Warehouse], connections: Sequence[Connection], names: Sequence[str],
           place: int) -> tuple[list[Pairing], str]:
    """A run's tasks in pairs with those of the first, and which are not as they are others."""
    alike = runs[0].state.tasks_sha256 == runs[place].state.tasks_sha256
    others = sorted(set[str]() if alike else other_tasks(connections[0], connections[place]))
    shown = ", ".join(others[:MOST_NAMED]) + (" .." if len(others) > MOST_NAMED else "")
    remark = (f"{counted(len(others), 'task')} with the same name in {names[0]} and {names[place]} but other "
              f"contents, not paired: {shown}." if others else "")
    return paired_tasks(connections[0], connections[place], others), remark


def _curves(connections: Sequence[Connection], names: Sequence[str],
            left_out: Sequence[str]) -> tuple[str, dict[str, Chart | None]]:
    """The curves of all runs, each on one axis, and their charts by name."""
    # The largest k that every run has: pass@8 of one beside pass@16 of another would say nothing.
    k = min((row["k"] for connection in connections
             for row in rows_of(connection, "SELECT k_of('train') AS k") if row["k"]), default=1)
    sql = STATS_SQL.format(k=k)
    stats = [rows_of(connection, sql) for connection in connections]
    labels: Any = {str(i): name for i, name in enumerate(names)}
    blocks, charts = "", dict[str, Chart | None]()
    for name, title, share, log in CURVES:
        if name in left_out:
            continue
        figure = Figure(name.replace("_", "-"), title.format(k=k), "", sql,
                        lines(share=share, log=log, **labels), "No run has it.")
        rows = overlay(stats, name)
        charts[figure.name] = figure.draw(rows) if rows else None
        blocks += figure_block(figure, charts[figure.name])
    return blocks, charts


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
    bounds, _ = paired_verdict(connection, differences)
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
