"""Build the report of a run: run each figure's SQL, draw it, write one file."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from reports.drawing import Chart, with_events
from reports.figure import Figure, Rows
from reports.figures_health import HEALTH
from reports.figures_learning import LEARNING
from reports.figures_training import TRAINING
from reports.page import alarm_notice, figure_block, page, table, tiles
from reports.scale import duration, number
from warehouse.inspect.advice import advise, judged_lines
from warehouse.inspect.alarms import last_rollback, raised_alarms
from warehouse.inspect.story import cost_lines, story_lines
from warehouse.inspect.summary import REACH, turning_points
from warehouse.sql.database import Connection, compute_once, connect, rows_of
from warehouse.sql.rollup import keep_rolled_up
from warehouse.store.commit import replace_bytes
from warehouse.store.errors import StageError
from warehouse.store.run_folder import open_warehouse

SECTIONS: tuple[tuple[str, tuple[Figure, ...]], ...] = (
    ("What it learns", LEARNING), ("How it writes", HEALTH), ("How it trains", TRAINING))
FIGURES = {figure.name: figure for _, group in SECTIONS for figure in group}
MOST_NUMBERS = 300
STATS_SQL = """\
SELECT iteration, purpose, policy_version, num_tasks, num_completions, pass_at_1, max_k, pass_at_max_k,
       reward_mean, truncated_share, tokens_mean, zero_variance_share, mismatch_kl_fresh,
       iteration IN (FROM given_up) AS given_up
FROM iteration_stats ORDER BY purpose <> 'train', iteration, purpose"""
HELDOUT_SQL = """\
SELECT task_id, purpose, arg_min(c / n, iteration) AS first_rate, arg_max(c / n, iteration) AS last_rate,
       arg_min(policy_version, iteration) AS first_policy, arg_max(policy_version, iteration) AS last_policy,
       last_rate - first_rate AS gain, count(*) FILTER (gain > 0) OVER () AS better,
       count(*) FILTER (gain < 0) OVER () AS worse
FROM task_results
WHERE purpose <> 'train' AND turn_of(purpose) = 1 AND n > 0 AND iteration NOT IN (FROM given_up)
GROUP BY task_id, purpose HAVING count(*) > 1 AND gain <> 0
QUALIFY row_number() OVER (ORDER BY gain DESC, task_id) <= 10
        OR row_number() OVER (ORDER BY gain, task_id) <= 10
ORDER BY abs(gain) DESC, task_id, purpose"""
# Where signals fired for the first time (again after a rollback), one event per iteration, where the run went
# back, and where another scorer gave the rewards.
EVENTS_SQL = """\
SELECT iteration, 'fired' AS kind, 'fired at iteration ' || iteration || ': '
       || string_agg(signal || CASE purpose WHEN 'train' THEN '' ELSE ' of ' || purpose END, ', '
                     ORDER BY purpose <> 'train', purpose, signal) AS title
FROM (SELECT min(iteration) AS iteration, signal, purpose FROM fired_signals
      GROUP BY signal, purpose, (SELECT count(*) FROM policies
                                 WHERE rolled_back_to IS NOT NULL AND policy_version <= iteration))
GROUP BY iteration
UNION ALL
SELECT policy_version, 'back', 'policy ' || policy_version || ' is policy ' || rolled_back_to || ' again'
FROM policies WHERE rolled_back_to IS NOT NULL
UNION ALL
SELECT iteration, 'scorer', 'rewards are those of ' || scorer || ', before of ' || former
FROM (SELECT iteration, scorer, lag(scorer) OVER (ORDER BY iteration) AS former
      FROM iteration_stats WHERE purpose = 'train') WHERE scorer <> former
ORDER BY ALL"""
EVENTS_KEY = ('<p class="quiet">On every picture: <b class="fired">▼</b> a signal fired for the first time '
              '(after going back: again), <b class="back">▼</b> the run went back to an earlier policy, '
              '<b class="scorer">▼</b> another scorer gave the rewards.</p>')


def build_report(run: Path, output: Path | None = None) -> Path:
    """Write the report of `run`, by default RUN/report.html; return its path."""
    from tqdm import tqdm
    warehouse = open_warehouse(run)
    path = output or warehouse.root / "report.html"
    if output is None and not os.access(warehouse.root, os.W_OK):
        raise StageError(f"{path} cannot be written: it is read-only. Name another file with --output.")
    connection = compute_once(connect(warehouse, inventory=keep_rolled_up(warehouse)))
    events = rows_of(connection, EVENTS_SQL)
    charts = {name: draw_figure(connection, FIGURES[name], events)
              for name in tqdm(FIGURES, desc="figures", unit="figure", leave=False, disable=None)}
    stats = rows_of(connection, STATS_SQL)
    since = last_rollback(warehouse)
    alarms = raised_alarms(connection, since=since)
    story = "".join(f"<p>{escape(line)}</p>" for line in story_lines(connection, alarms))
    spent = "".join(f"<p>{escape(line)}</p>" for line in cost_lines(warehouse, connection))
    places = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>'
                     for name in (*(title for title, _ in SECTIONS), "Numbers"))
    body = [f'<div class="story">{story}</div><nav>{places}</nav>', tiles(headline(connection, stats)), spent]
    if stats:
        advice = advise(warehouse, connection, alarms).lines
        body.append(alarm_notice(alarms, advice, judged_lines(connection, since),
                                 turning_points(warehouse.state)))
    body += [EVENTS_KEY] if events else []
    for title, group in SECTIONS:
        blocks = "".join(figure_block(figure, charts[figure.name]) for figure in group)
        body.append(f'<h2 id="{_anchor(title)}">{escape(title)}</h2><div class="figures">{blocks}</div>')
    if gains := rows_of(connection, HELDOUT_SQL):
        cells = [[row["task_id"], row["purpose"], f"{row['first_rate']:.2f}", f"{row['last_rate']:.2f}",
                  f"{row['gain']:+.2f}"] for row in gains]
        said, heads = heldout_words(gains)
        body.append(f"<h2>Held-out tasks with the largest gains and losses</h2><p>{said}</p>"
                    + table(["task", "evaluation", *heads, "gain"], cells))
    body.append(f'<h2 id="numbers">Numbers</h2>{stats_table(stats)}')
    data = {"figures": {name: chart.hover for name, chart in charts.items() if chart}}
    subtitle = f"base {warehouse.base_name} · run {warehouse.run_id[:8]} · {warehouse.root}"
    text = page(warehouse.root.name, subtitle, "\n".join(body), data)
    replace_bytes(path, text.encode())      # atomically, so that a reader never sees half of it
    return path


def heldout_words(gains: Rows) -> tuple[str, list[str]]:
    """How many of the tasks are listed; heads for their rates: the policies where all tasks have the same."""
    parts = [f"{listed} of {gains[0][name]} that got {name}" for name, sign in (("better", 1), ("worse", -1))
             if (listed := sum(sign * row["gain"] > 0 for row in gains))]
    ends = {end: {row[f"{end}_policy"] for row in gains} for end in ("first", "last")}
    heads = [f"policy {min(known)}" if len(known) == 1 and None not in known else end
             for end, known in ends.items()]
    return f"{', '.join(parts)}.", heads


def draw_figure(connection: Connection, figure: Figure, events: Rows) -> Chart | None:
    """The figure's chart with the run's events; None if its query has no rows."""
    rows = rows_of(connection, figure.sql)
    return with_events(figure.draw(rows), events) if rows else None


def headline(connection: Connection, stats: list[dict[str, Any]]) -> list[tuple[str, str]]:
    train = [row for row in stats if row["purpose"] == "train"]
    kept = [row for row in train if not row.get("given_up")]
    seconds, completions, tokens = connection.execute(
        "SELECT sum(seconds), sum(num_completions) FILTER (stage = 'rollout'), "
        "sum(num_tokens) FILTER (stage = 'rollout') FROM costs").fetchone() or (None, None, None)
    facts = [("iterations", str(len(train))),
             ("completions", number(completions or 0)),
             ("tokens sampled", number(tokens or 0)), ("in all stages", duration(seconds or 0))]
    evaluations = [row for row in stats if row["purpose"] != "train" and not row.get("given_up")]
    for purpose in sorted({row["purpose"] for row in evaluations}):
        held = [row for row in evaluations if row["purpose"] == purpose]
        facts.append((f"pass@1, {purpose}, {_policies(held)}", change(held, "pass_at_1")))
    if train:
        facts.append(("training pass@1", change(kept, "pass_at_1")))
        if reached := rows_of(connection, REACH):
            facts.append((f"training pass@{reached[0]['k']}", change(reached, "pass_at_k")))
    return facts


def _policies(stats: Sequence[dict[str, Any]]) -> str:
    first, last = (stats[place]["policy_version"] for place in (0, -1))
    if None in (first, last):
        return "another model"
    return f"policy {first}" if len(stats) == 1 else f"policy {first} to policy {last}"


def change(stats: Sequence[dict[str, Any]], name: str) -> str:
    """A share in the first row and in the last, if there are two, formatted as in a summary line."""
    shares = [row[name] for row in (stats[:1] if len(stats) == 1 else (stats[0], stats[-1]))]
    return " → ".join("-" if share is None else f"{share:.2f}" for share in shares)


def stats_table(stats: Sequence[dict[str, Any]]) -> str:
    """Every iteration and evaluation as a table."""
    names = {"iteration": "iteration", "purpose": "purpose", "policy_version": "policy", "num_tasks": "tasks",
             "num_completions": "completions", "pass_at_1": "pass@1", "pass_at_max_k": "pass@k", "max_k": "k",
             "reward_mean": "reward", "truncated_share": "truncated", "tokens_mean": "tokens",
             "zero_variance_share": "zero variance", "mismatch_kl_fresh": "mismatch"}
    digits = {"pass_at_1": 3, "pass_at_max_k": 3, "reward_mean": 3, "truncated_share": 3, "tokens_mean": 1,
              "zero_variance_share": 3}
    rows = [[f"{row[key]:.{digits[key]}f}" if key in digits and row[key] is not None else
             f"{row[key]}, given up" if key == "policy_version" and row.get("given_up") else
             str(row[key]) if isinstance(row[key], int | str) else number(row[key]) for key in names]
            for row in stats]
    shown = table(list(names.values()), rows[-MOST_NUMBERS:])
    return shown if len(rows) <= MOST_NUMBERS else (
        f'<p class="quiet">The last {MOST_NUMBERS} of {len(rows):,} rows.</p>{shown}')


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
