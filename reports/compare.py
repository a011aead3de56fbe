"""Runs side by side: different settings, curves in one picture each, tasks paired with the first run's."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from reports.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, rulers, svg_of, text_at
from reports.figure import Figure, Rows, column, lines
from reports.page import figure_block, page, table, tiles
from reports.pairs import Pairing, find_pairings, other_tasks
from reports.scale import Scale, number, scale_ticks
from warehouse.sql.database import Connection, rows_of
from warehouse.sql.many import connect_runs, open_runs, run_names
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

MOST_RUNS = 6  # distinguishable colours
MOST_TASKS = 12  # listed per pair of runs
WIDEST = 60     # characters of a setting
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
PER_TOKEN = ("tokens_mean", "nll_sampled")   # not comparable between tokenizers
OTHER_TOKENIZERS = "The runs have different tokenizers, so numbers per token have no curve here."
STATS_SQL = ("SELECT run, iteration, " + ", ".join(name for name, *_ in CURVES) + """
FROM iteration_stats
LEFT JOIN (SELECT run, iteration, purpose, pass_at_k
           FROM pass_curve JOIN iteration_stats USING (run, iteration, purpose) WHERE k = {k} AND k <= max_k)
    AS reached USING (run, iteration, purpose)
WHERE purpose = 'train' ORDER BY iteration""")
# The largest k that every run has: pass@8 of one run cannot be compared with pass@16 of another.
SMALLEST_K_SQL = """\
SELECT min(k) AS k FROM (SELECT top_k(quantile_disc(n, -0.9)) AS k FROM task_results
                         WHERE n > 0 AND purpose = 'train' GROUP BY run)"""


class Comparison(NamedTuple):
    """Runs side by side: the parts of a page."""

    title: str
    subtitle: str
    body: str
    data: dict[str, Any]


def comparison_facts(paths: Sequence[Path]) -> dict[str, Any]:
    """The same for programs; docs/reading.md lists the keys."""
    runs = open_comparable(paths)
    connection = connect_runs(runs)
    first, *others = names = run_names([run.root for run in runs])
    gains = [{"run": first, "other": other, **row} for other in others
             for row in rows_of(connection, "FROM gains_of_runs($1, $2)", [first, other])]
    return {"runs": names, "settings": rows_of(connection, "FROM settings_diff"), "gains": gains}


def compare_runs(paths: Sequence[Path], output: Path) -> Path:
    """Write the page that compares runs; StageError if one shares no task with the first."""
    made = comparison(open_comparable(paths))
    replace_bytes(output, page(made.title, made.subtitle, made.body, made.data).encode())
    return output


def open_comparable(paths: Sequence[Path]) -> list[Warehouse]:
    """The runs; StageError for more runs than colours, and for a run given twice."""
    if len(paths) > MOST_RUNS:
        raise StageError(f"{len(paths)} runs are too many for one picture. Compare at most {MOST_RUNS}.")
    return open_runs(paths)


def comparison(runs: Sequence[Warehouse]) -> Comparison:
    """Differences in settings and beyond chance, curves together, tasks paired with the first run's."""
    connection = connect_runs(runs)
    first, *others = names = run_names([run.root for run in runs])
    pairings = [pairing for other in others for pairing in find_pairings(connection, first, other)]
    tokens_differ = len({run.facts.get("tokenizer_sha256") for run in runs}) > 1
    curves, charts = _curves(connection, names, [name for name in PER_TOKEN if tokens_differ])
    heads = _quiet(OTHER_TOKENIZERS if tokens_differ else "")
    heads += "".join(_quiet(other_tasks(connection, first, other)) for other in others)
    tasks = ""
    for pairing in pairings:
        figure, rows = _paired_figure(pairing), rows_of(connection, pairing.sql)
        charts[figure.name] = figure.draw(rows)
        title = f"{first} and {pairing.names[1]}: {pairing.title}"
        heads += f"<h3>{escape(title)}</h3>{_quiet(pairing.remark)}{tiles(_headline(pairing))}"
        tasks += (f'<div class="compare">{figure_block(figure, charts[figure.name])}'
                  f"<div>{_largest(pairing, rows)}</div></div>")
    sentences = [pairing.sentence for pairing in pairings]
    if len(sentences) > 1:
        sentences.append(f"Each of these {len(sentences)} is tested alone at 95%: without any difference, "
                         "one of twenty is beyond chance.")
    chance = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    differ = _settings_notice(connection, runs, names)
    body = (f"<h2>What differs</h2>{differ}<h2>Beyond chance</h2>{chance}{heads}"
            f'<h2>Curves</h2><div class="figures">{curves}</div><h2>Tasks</h2>{tasks}')
    data = {"figures": {key: chart.hover for key, chart in charts.items() if chart}}
    return Comparison(f"{', '.join(names[:-1])} and {names[-1]}", " · ".join(str(run.root) for run in runs),
                      body, data)


def _curves(connection: Connection, names: Sequence[str],
            left_out: Sequence[str]) -> tuple[str, dict[str, Chart | None]]:
    """The curves of all runs, each on one axis, and their charts by name."""
    k = rows_of(connection, SMALLEST_K_SQL)[0]["k"] or 1
    sql = STATS_SQL.format(k=k)
    stats = rows_of(connection, sql)
    labels: Any = {str(i): name for i, name in enumerate(names)}
    blocks, charts = "", dict[str, Chart | None]()
    for name, title, share, log in CURVES:
        if name in left_out:
            continue
        figure = Figure(name.replace("_", "-"), title.format(k=k), "", sql,
                        lines(share=share, log=log, **labels), "No run has it.")
        rows = overlay([[row for row in stats if row["run"] == run] for run in names], name)
        charts[figure.name] = figure.draw(rows) if rows else None
        blocks += figure_block(figure, charts[figure.name])
    return blocks, charts


def overlay(stats: list[Rows], name: str) -> Rows:
    """A column of several runs as rows of {iteration, "0", "1", ..}; empty if no run has it."""
    curves = [{row["iteration"]: row[name] for row in rows} for rows in stats]
    if all(value is None for curve in curves for value in curve.values()):
        return []
    return [{"iteration": x, **{str(i): curve.get(x) for i, curve in enumerate(curves)}}
            for x in sorted(set().union(*curves))]


def _settings_notice(connection: Connection, runs: Sequence[Warehouse], names: Sequence[str]) -> str:
    """A table of the differences, a column per run: base model, tokenizer, tasks, settings."""
    facts = {"base model": [run.base_name for run in runs],
             "tokenizer": [str(run.facts.get("tokenizer_sha256"))[:12] for run in runs],
             "tasks": [str(run.state.tasks_sha256)[:12] for run in runs]}
    rows = [["run", "", name, *values] for name, values in facts.items() if len(set(values)) > 1]
    rows += _setting_rows(rows_of(connection, "FROM settings_diff"), names)
    if not rows:
        return '<p class="quiet">No setting of a complete stage differs.</p>'
    return table(["stage", "of", "setting", *names], rows)


def _setting_rows(different: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """A row per setting: stage, purposes, name, and the value in each run."""
    cells: dict[tuple[str, str, str | None], dict[str, list[dict[str, Any]]]] = {}
    for row in different:
        place = row["stage"], row["key"], row["purpose"]
        cells.setdefault(place, {}).setdefault(row["run"], []).append(row)
    alike: dict[tuple[str, ...], list[str]] = {}
    for (stage, key, purpose), values in cells.items():
        shown = (stage, key, *(_values(values.get(name, [])) for name in names))
        alike.setdefault(shown, []).extend([purpose] if purpose else [])
    return [[row[0], ", ".join(purposes), *row[1:]] for row, purposes in alike.items()]


def _values(rows: Sequence[dict[str, Any]]) -> str:
    """The values of a run, each with its iterations if there are several."""
    if not rows:
        return ""
    shown = ["none" if row["value"] is None else _short(row["value"]) for row in rows]
    if len(rows) == 1:
        return shown[0]
    spans = [f"{row['first_iteration']}" if row["first_iteration"] == row["last_iteration"] else
             f"{row['first_iteration']}..{row['last_iteration']}" for row in rows]
    return ", ".join(f"{value} ({span})" for value, span in zip(shown, spans, strict=True))


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[:WIDEST - 2]}.."


def _quiet(remark: str) -> str:
    return f'<p class="quiet">{escape(remark)}</p>' if remark else ""


def _paired_figure(pairing: Pairing) -> Figure:
    """A dot per task."""
    other = pairing.names[1]
    caption = f"Share of right completions; above the line {other} is better. {pairing.remark}".strip()
    name = f"paired-{pairing.row['purpose']}-{other.replace('/', '-')}"
    return Figure(name, f"Tasks in pairs with {other}: {pairing.title}", caption, pairing.sql,
                  lambda rows: scatter(column(rows, "rate_a"), column(rows, "rate_b"),
                                       column(rows, "task_id"), pairing.names))


def scatter(xs: Sequence[float], ys: Sequence[float], labels: Sequence[str], names: Sequence[str]) -> Chart:
    """A dot per label at two shares, with the line of equality; dots at the same place grow."""
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


def _headline(pairing: Pairing) -> list[tuple[str, str]]:
    row, (first, other) = pairing.row, pairing.names
    return [("tasks in common", str(row["num_tasks"])), (f"pass@1, {first}", number(row["rate_a"])),
            (f"pass@1, {other}", number(row["rate_b"])), ("difference", f"{row['gain']:+.3f}"),
            ("its 95% interval over tasks", pairing.interval or "none for one task"),
            ("tasks better, worse", f"{row['better']}, {row['worse']}")]


def _largest(pairing: Pairing, tasks: Rows) -> str:
    ordered = sorted(tasks, key=lambda row: (-abs(row["gain"]), row["task_id"]))[:MOST_TASKS]
    rows = [[row["task_id"], number(row["rate_a"]), number(row["rate_b"]), f"{row['gain']:+.2f}"]
            for row in ordered]
    heading = f"<h3>{escape(f'Largest differences, {pairing.names[1]}: {pairing.title}')}</h3>"
    return heading + table(["task", *pairing.names, "difference"], rows)
