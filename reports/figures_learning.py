"""Figures of what the policy learns: pass@k, reward, tasks solved."""

from reports.drawing import Chart, Series, line_chart
from reports.figure import Figure, Rows, bars, cells, lines, pivot, stats_sql, thin_out

PASS_SQL = """\
SELECT iteration, purpose, k, pass_at_k, low, high FROM pass_bands()
WHERE k = {of} ORDER BY iteration, purpose"""
TASK_SQL = """\
WITH worst AS (
    SELECT task_id, best_rate - last_rate AS lost, best_rate FROM task_history WHERE visits > 1
    ORDER BY lost DESC, best_rate DESC, task_id LIMIT 60)
SELECT iteration, task_id, c / n AS rate, lost, best_rate
FROM task_results JOIN worst USING (task_id)
WHERE purpose = 'train' AND n > 0
ORDER BY lost DESC, best_rate DESC, task_id, iteration"""
PARTS_SQL = "SELECT iteration, part, mean FROM part_means WHERE purpose = 'train' ORDER BY ALL"
GROUP_KINDS = {"all right": "zero_variance AND all_correct", "mixed rewards": "NOT zero_variance",
               "all wrong": "zero_variance AND none_correct",
               "equal otherwise": "zero_variance AND NOT all_correct AND NOT none_correct"}
GROUPS_SQL = ("SELECT iteration, "
              + ",\n       ".join(f'avg(({held})::INTEGER) AS "{kind}"' for kind, held in GROUP_KINDS.items())
              + "\nFROM groups WHERE purpose = 'train' AND n > 0 GROUP BY iteration ORDER BY iteration")
FORGET_SQL = """\
WITH visits AS (
    SELECT iteration, task_id, c > 0 AS solved,
           coalesce(max(c) OVER (PARTITION BY task_id ORDER BY iteration
                                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) > 0 AS before
    FROM task_results WHERE purpose = 'train' AND n > 0)
SELECT iteration, count(*) FILTER (solved) AS solved, count(*) FILTER (before AND NOT solved) AS forgotten
FROM visits GROUP BY iteration ORDER BY iteration"""


def draw_passes(rows: Rows) -> Chart:
    """A measure of training as a line, and of every evaluation as rings, with bootstrap intervals."""
    xs = sorted({row["iteration"] for row in rows})
    places, series = xs, []
    for purpose in sorted({row["purpose"] for row in rows}, key=lambda name: (name != "train", name)):
        at = {row["iteration"]: row for row in rows if row["purpose"] == purpose}
        places, values = thin_out(xs, {name: [at[x][name] if x in at else None for x in xs]
                                       for name in ("pass_at_k", "low", "high")})
        name = f"pass@{next(iter(at.values()))['k']}, {'training' if purpose == 'train' else purpose}"
        center, low, high = values.values()
        series.append(Series(name, center, low, high, dots=purpose != "train"))
    return line_chart(places, series, share=True)


def draw_parts(rows: Rows) -> Chart:
    xs, table = pivot(rows, "part", "mean")
    places, values = thin_out(xs, table)
    return line_chart(places, [Series(name, found) for name, found in values.items()])


LEARNING = (
    Figure("passes", "pass@1: right at the first try",
           "Mean over the tasks of the iteration, with 95% bootstrap intervals over tasks. A ring is an "
           "evaluation, at the version of its policy.", PASS_SQL.format(of="1"), draw_passes),
    Figure("reach", "pass@k: within reach",
           "Unbiased estimate; k is the largest that 90% of the groups have completions for. If pass@1 rises "
           "while pass@k falls, the policy sharpens and does not learn.",
           PASS_SQL.format(of="k_of(purpose)"), draw_passes),
    Figure("reward", "Reward",
           "When a run collapses, this curve moves last. Truncated completions are also shown apart.",
           stats_sql("reward_mean, reward_finished, reward_truncated"),
           lines(reward_mean="all completions", reward_finished="finished", reward_truncated="truncated")),
    Figure("parts", "Parts of the reward", "Means over the completions; they add up to the reward.",
           PARTS_SQL, draw_parts, "No reward has parts."),
    Figure("groups", "Groups with and without a gradient", "Only groups of different rewards have one.",
           GROUPS_SQL, bars(whole=True, tones=(3, 1, 2, 4), **{kind: kind for kind in GROUP_KINDS})),
    Figure("forgetting", "Tasks solved and forgotten", "Of the tasks that the iteration sampled.",
           FORGET_SQL, lines(solved="solved now", forgotten="solved before, not now")),
    Figure("tasks", "Solve rate by task and iteration",
           "Up to 60 tasks, largest loss since their best iteration first. Grey: sampled, never right.",
           TASK_SQL,
           cells("task_id", "rate", empty="not sampled"), "No task was sampled in two iterations."),
)
