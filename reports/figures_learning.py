"""Figures of what the policy learns: pass@k, reward, tasks solved."""

from __future__ import annotations

from reports.drawing import Chart, Series, heat_map, line_chart
from reports.figure import (
    MOST_POINTS,
    Figure,
    Rows,
    bucketed,
    column,
    iterations,
    mean,
    pivot,
    series,
    thinned,
)

PASS_SQL = """\
SELECT iteration, purpose, k, pass_at_k, low, high
FROM pass_bands()
ORDER BY iteration, k"""

REWARD_SQL = """\
SELECT iteration, reward_mean, reward_finished, reward_truncated
FROM iteration_stats WHERE purpose = 'train' ORDER BY iteration"""

SPREAD_SQL = """\
SELECT iteration, reward_std_within, reward_std_across
FROM iteration_stats WHERE purpose = 'train' ORDER BY iteration"""

TASK_SQL = """\
WITH worst AS (
    SELECT task_id, best_rate - last_rate AS lost, best_rate FROM task_history
    ORDER BY lost DESC, best_rate DESC, task_id LIMIT 60)
SELECT iteration, task_id, c / n AS rate, lost, best_rate
FROM task_results JOIN worst USING (task_id)
WHERE purpose = 'train' AND n > 0
ORDER BY lost DESC, best_rate DESC, task_id, iteration"""


def draw_passes(rows: Rows) -> Chart:
    """pass@1, @4, @16 and the largest k, each with its bootstrap interval; evaluations as rings."""
    train = [row for row in rows if row["purpose"] == "train"]
    xs = sorted({row["iteration"] for row in rows})
    sizes = sorted({row["k"] for row in train})
    shown = sorted({1, *(k for k in (4, 16) if k in sizes), *sizes[-1:]} & set(sizes or [1]))
    stretches = bucketed(xs, MOST_POINTS)
    lines = []
    for tone, k in enumerate(shown, start=1):
        found = {row["iteration"]: row for row in train if row["k"] == k}
        center, low, high = (_means(stretches, [found[x][name] if x in found else None for x in xs])
                             for name in ("pass_at_k", "low", "high"))
        lines.append(Series(f"pass@{k}", center, low, high, tone=tone))
    held = {row["iteration"]: row["pass_at_k"] for row in rows if row["purpose"] != "train" and row["k"] == 1}
    if held:
        lines.append(Series("pass@1, evaluation", _means(stretches, [held.get(x) for x in xs]), dots=True,
                            tone=1))
    return line_chart([xs[stretch[0]] for stretch in stretches], lines, share=True)


def _means(stretches: list[list[int]], values: list[float | None]) -> list[float | None]:
    return [mean([values[i] for i in stretch]) for stretch in stretches]


def draw_reward(rows: Rows) -> Chart:
    """Mean reward: all, finished, truncated."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, reward_mean="all completions",
                                               reward_finished="finished", reward_truncated="truncated"))


def draw_spread(rows: Rows) -> Chart:
    """Spread of the reward inside groups and between them."""
    rows = thinned(rows)
    return line_chart(iterations(rows), series(rows, reward_std_within="within a group: what is learned from",
                                               reward_std_across="between tasks: gives no gradient"))


def draw_tasks(rows: Rows) -> Chart:
    """Solve rate of every task at every iteration, those that lost most first."""
    xs, table = pivot(rows, "task_id", "rate")
    stretches = bucketed(xs, 120)
    cells = [[mean([rates[i] for i in stretch]) for stretch in stretches] for rates in table.values()]
    return heat_map([xs[stretch[0]] for stretch in stretches], [str(task) for task in table], cells,
                    low=0, high=1, row_height=11)


def draw_forgetting(rows: Rows) -> Chart:
    """How many tasks are solved now, and how many were and are not."""
    return line_chart(iterations(rows), [Series("solved at this visit", column(rows, "solved")),
                                         Series("solved before, not at their last visit",
                                                column(rows, "forgotten"))])


FORGET_SQL = """\
WITH visits AS (
    SELECT iteration, task_id, c > 0 AS solved,
           coalesce(max(c) OVER (PARTITION BY task_id ORDER BY iteration
                                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) > 0 AS before
    FROM task_results WHERE purpose = 'train' AND n > 0)
SELECT iteration, count(*) FILTER (solved) AS solved, count(*) FILTER (before AND NOT solved) AS forgotten
FROM visits GROUP BY iteration ORDER BY iteration"""

LEARNING = (
    Figure(
        "passes",
        "pass@k",
        "Unbiased, averaged over the tasks of the iteration; bands are 95% bootstrap intervals over tasks. "
        "pass@1 rising while pass@k falls is sharpening, not learning.",
        PASS_SQL,
        draw_passes,
    ),
    Figure(
        "reward",
        "Reward",
        "The last curve to move when a run collapses. Truncated completions apart.",
        REWARD_SQL,
        draw_reward,
    ),
    Figure(
        "spread",
        "Spread of the reward",
        "Only the spread within a group gives advantages.",
        SPREAD_SQL,
        draw_spread,
    ),
    Figure(
        "forgetting",
        "Tasks solved and forgotten",
        "Of the tasks visited in the iteration.",
        FORGET_SQL,
        draw_forgetting,
    ),
    Figure(
        "tasks",
        "Solve rate by task and iteration",
        "The 60 tasks that lost most since their best visit.",
        TASK_SQL,
        draw_tasks,
    ),
)
