"""Figures of what the policy learns: pass@k, reward, tasks solved."""

from __future__ import annotations

from reports.drawing import Chart, Series, line_chart
from reports.figure import (
    MOST_POINTS,
    Figure,
    Rows,
    bars,
    draw_cells,
    iterations,
    lines,
    mean,
    stats_sql,
    stretches,
)

PASS_SQL = """\
SELECT iteration, purpose, k, pass_at_k, low, high
FROM pass_bands()
ORDER BY iteration, k"""
TASK_SQL = """\
WITH worst AS (
    SELECT task_id, best_rate - last_rate AS lost, best_rate FROM task_history
    ORDER BY lost DESC, best_rate DESC, task_id LIMIT 60)
SELECT iteration, task_id, c / n AS rate, lost, best_rate
FROM task_results JOIN worst USING (task_id)
WHERE purpose = 'train' AND n > 0
ORDER BY lost DESC, best_rate DESC, task_id, iteration"""
FORGET_SQL = """\
WITH visits AS (
    SELECT iteration, task_id, c > 0 AS solved,
           coalesce(max(c) OVER (PARTITION BY task_id ORDER BY iteration
                                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) > 0 AS before
    FROM task_results WHERE purpose = 'train' AND n > 0)
SELECT iteration, count(*) FILTER (solved) AS solved, count(*) FILTER (before AND NOT solved) AS forgotten
FROM visits GROUP BY iteration ORDER BY iteration"""


def draw_passes(rows: Rows) -> Chart:
    """pass@1, @4, @16 and the largest k, each with its bootstrap interval; evaluations as rings."""
    xs = sorted(set(iterations(rows)))
    shares = stretches(len(xs), MOST_POINTS)
    sizes = sorted({row["k"] for row in rows})
    series = []
    for purpose in sorted({row["purpose"] for row in rows}, key=lambda name: (name != "train", name)):
        for tone, k in enumerate([k for k in sizes if k in (1, 4, 16) or k == sizes[-1]], start=1):
            at = {row["iteration"]: row for row in rows if (row["purpose"], row["k"]) == (purpose, k)}
            center, low, high = ([mean([at[x][name] if x in at else None for x in xs[first:end]])
                                  for first, end in shares] for name in ("pass_at_k", "low", "high"))
            label = f"pass@{k}" if purpose == "train" else f"pass@{k}, {purpose}"
            if at and (purpose == "train" or k in (1, sizes[-1])):
                series.append(Series(label, center, low, high, dots=purpose != "train", tone=tone))
    return line_chart([xs[first] for first, _ in shares], series, share=True)


def draw_tasks(rows: Rows) -> Chart:
    """Solve rate of every task at every iteration, those that lost most first."""
    return draw_cells(rows, "task_id", "rate", low=0, high=1)


LEARNING = (
    Figure("passes", "pass@k",
           "Unbiased, averaged over the tasks of the iteration, with 95% bootstrap intervals over tasks. "
           "pass@1 rising while pass@k falls is sharpening, not learning.", PASS_SQL, draw_passes),
    Figure("reward", "Reward",
           "The last curve to move when a run collapses. Truncated completions apart.",
           stats_sql("reward_mean, reward_finished, reward_truncated"),
           lines(reward_mean="all completions", reward_finished="finished", reward_truncated="truncated")),
    Figure("spread", "Spread of the reward", "Only the spread within a group gives advantages.",
           stats_sql("reward_std_within, reward_std_across"),
           lines(reward_std_within="within a group: what is learned from",
                 reward_std_across="between tasks: gives no gradient")),
    Figure("groups", "Groups: all right, mixed, all wrong", "Only mixed groups are sure to give a gradient.",
           stats_sql("all_correct_share, 1 - none_correct_share - all_correct_share AS mixed,\n"
                     "       none_correct_share"),
           bars(whole=True, tones=(3, 1, 2), all_correct_share="all right", mixed="mixed: gives signal",
                none_correct_share="all wrong")),
    Figure("forgetting", "Tasks solved and forgotten", "Of the tasks visited in the iteration.", FORGET_SQL,
           lines(solved="solved at this visit", forgotten="solved before, not at their last visit")),
    Figure("tasks", "Solve rate by task and iteration",
           "The 60 tasks that lost most since their best visit: darker is higher, pale is never right, empty "
           "is not sampled.", TASK_SQL, draw_tasks),
)
