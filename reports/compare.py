"""Runs side by side: different settings, gains over the first run in pairs of tasks, curves together."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from reports.drawing import Chart
from reports.figure import Figure, Rows, lines
from reports.page import figure_block, page, table
from reports.scale import number
from warehouse.inspect.render import UNSET
from warehouse.sql.database import Connection, rows_of
from warehouse.sql.many import connect_runs, open_runs, run_names
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError, counted
from warehouse.store.run_folder import Warehouse

MOST_RUNS = 6  # distinguishable colours
MOST_NAMED = 5  # tasks
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
CAPTIONS = {"mismatch_kl_fresh": "KL(mu, pi_old) of rows that the trained policy sampled.",
            "mismatch_kl": "KL(mu, pi_old) of all trained rows, also of those that earlier policies sampled."}
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
# For training the latest common iteration, for evaluations all of the latest. Only rows of one iteration and
# purpose are paired: rows of other policies or evaluations would differ for that reason alone.
PAIRED_SQL = """\
SELECT DISTINCT iteration, purpose FROM compare_runs($1, $2)
WHERE turn_of(purpose) = 1 AND concat(iteration, ' ', purpose) NOT IN (SELECT unnest($3::VARCHAR[]))
QUALIFY iteration = max(iteration) OVER (PARTITION BY purpose = 'train')
ORDER BY iteration DESC, purpose = 'train', purpose"""
GAIN_SQL = "FROM gains_of_runs($1, $2) WHERE iteration = $3 AND purpose = $4"
OTHERS_SQL = """\
SELECT task_id FROM (FROM tasks WHERE run = $1) AS a JOIN (FROM tasks WHERE run = $2) AS b USING (task_id)
WHERE a.payload <> b.payload ORDER BY task_id"""
VERDICTS = {True: "beyond chance", False: "within chance", None: "too little to tell"}


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
    replace_bytes(output, page(*comparison(open_comparable(paths))).encode())
    return output


def open_comparable(paths: Sequence[Path]) -> list[Warehouse]:
    """The runs; StageError for more runs than colours, and for a run given twice."""
    if len(paths) > MOST_RUNS:
        raise StageError(f"{len(paths)} runs are too many for one picture. Compare at most {MOST_RUNS}.")
    return open_runs(paths)


def comparison(runs: Sequence[Warehouse]) -> tuple[str, str, str, dict[str, Any]]:
    """Differences in settings, gains over the first run in pairs of tasks, and curves together.

    As title, subtitle, body and data of a page.
    """
    connection = connect_runs(runs)
    first, *others = names = run_names([run.root for run in runs])
    gains = [row for other, run in zip(others, runs[1:], strict=True)
             for row in paired_gains(connection, first, other, shared_scores(runs[0], run))]
    tokens_differ = len({run.facts.get("tokenizer_sha256") for run in runs}) > 1
    curves, charts = _curves(connection, names, [name for name in PER_TOKEN if tokens_differ])
    remarks = [other_tasks(connection, first, other) for other in others]
    if same := [other for other in others if other not in {row["run"] for row in gains}]:
        remarks.append(f"{', '.join(same)}: no rows but those of {first}.")
    if len(gains) > 1:
        remarks.append(f"Each of these {len(gains)} is tested alone at 95%: without any difference, one of "
                       "twenty is beyond chance.")
    if tokens_differ:
        remarks.append(OTHER_TOKENIZERS)
    quiet = "".join(f'<p class="quiet">{escape(remark)}</p>' for remark in remarks if remark)
    body = (f"<h2>What differs</h2>{_settings_notice(connection, runs, names)}<h2>Beyond chance</h2>"
            f"{gains_table(first, gains) if gains else ''}{quiet}<h2>Curves</h2>"
            f'<div class="figures">{curves}</div>')
    data = {"figures": {key: chart.hover for key, chart in charts.items() if chart}}
    return f"{', '.join(names[:-1])} and {names[-1]}", " · ".join(str(run.root) for run in runs), body, data


def shared_scores(first: Warehouse, other: Warehouse) -> list[str]:
    """Iterations and purposes, as '3 train', that branches scored before they parted."""
    scored, others = ({f"{life.iteration} {life.purpose}": run.state.entries[life.begun]
                       for life in run.state.of_stage("score")} for run in (first, other))
    return [place for place, entry in scored.items() if others.get(place) == entry]


def paired_gains(connection: Connection, first: str, other: str,
                 shared: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows of gains_of_runs for the latest training and evaluations that both runs have, newest first.

    What both share is left out: a row that is compared with itself shows no difference.
    """
    gains = [{"run": other, **row} for pair in rows_of(connection, PAIRED_SQL, [first, other, [*shared]])
             for row in rows_of(connection, GAIN_SQL, [first, other, *pair.values()])]
    if not gains and not shared:
        raise StageError("Two of the runs have no scored task in common at the same iteration, so there is "
                         "nothing to compare in pairs. Evaluate both at the same iteration on the same "
                         "split: rollout RUN --eval --split NAME --label NAME --iteration I, then score RUN")
    return gains


def gains_table(first: str, gains: Sequence[dict[str, Any]]) -> str:
    """A row per pair: whose rows of which iteration, the gain over common tasks, and whether it is chance."""
    rows = [[row["run"], "training" if row["purpose"] == "train" else row["purpose"], str(row["iteration"]),
             str(row["num_tasks"]), number(row["rate_a"]), number(row["rate_b"]), f"{row['gain']:+.3f}",
             "" if row["low"] is None else f"{row['low']:+.3f} .. {row['high']:+.3f}",
             f"{row['better']}, {row['worse']}", VERDICTS[row["beyond_chance"]]] for row in gains]
    return table(["run", "rows", "iteration", "common tasks", f"pass@1 of {first}", "its own", "difference",
                  "95% interval over tasks", "tasks better, worse", "difference is"], rows)


def other_tasks(connection: Connection, first: str, other: str) -> str:
    """Tasks with the same id but other content than in the first run."""
    others = [row["task_id"] for row in rows_of(connection, OTHERS_SQL, [first, other])]
    shown = ", ".join(others[:MOST_NAMED]) + (" .." if len(others) > MOST_NAMED else "")
    return (f"{counted(len(others), 'task')} with the same name in {first} and {other} but other contents, "
            f"not paired: {shown}." if others else "")


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
        figure = Figure(name.replace("_", "-"), title.format(k=k), CAPTIONS.get(name, ""), sql,
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
    shown = [UNSET if row["value"] is None else _short(row["value"]) for row in rows]
    if len(rows) == 1:
        return shown[0]
    spans = [f"{row['first_iteration']}" if row["first_iteration"] == row["last_iteration"] else
             f"{row['first_iteration']}..{row['last_iteration']}" for row in rows]
    return ", ".join(f"{value} ({span})" for value, span in zip(shown, spans, strict=True))


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[:WIDEST - 2]}.."
