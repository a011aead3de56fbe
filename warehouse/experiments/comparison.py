"""Arms compared in pairs of held-out tasks: gains, p-values, and which arms are clearly worse."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warehouse.experiments.plan import Plan
from warehouse.inspect.render import mean
from warehouse.sql.database import Connection, rows_of

FLIPS = 10_000
BEHIND = 0.05
TASKS_SQL = """
SELECT task_id, c / n AS pass_1, pass_at_k(n, c, {k}) AS pass_k, reward_mean AS reward, scorer
FROM task_results WHERE n > 0 AND iteration = {iteration} AND purpose = '{purpose}'"""
Tasks = Mapping[str, Mapping[str, Any]]     # pass_1, pass_k, mean reward and scorer of each held-out task


def evaluated(connection: Connection, plan: Plan, policy: int) -> Tasks:
    """pass_1, pass_k and mean reward of the tasks of a policy's evaluation."""
    query = TASKS_SQL.format(k=plan.evaluate, iteration=policy, purpose=plan.purpose)
    return {row["task_id"]: row for row in rows_of(connection, query)}


def means(tasks: Tasks) -> dict[str, float | None]:
    """pass@1, pass@k and reward, averaged over the tasks that have them."""
    return {name: mean([row.get(name) for row in tasks.values()]) for name in ("pass_1", "pass_k", "reward")}


def gains_of(own: Tasks, base: Tasks, share: str) -> list[float]:
    """The differences to `base` over the common tasks."""
    return [own[task][share] - base[task][share] for task in sorted(own.keys() & base.keys())
            if own[task].get(share) is not None and base[task].get(share) is not None]


def scorers_of(tasks: Tasks) -> list[str]:
    """Those whose rewards count in an evaluation."""
    return sorted({row["scorer"] for row in tasks.values()})


def measured(connection: Connection, base: Tasks, own: Tasks) -> dict[str, Any]:
    """pass@1, pass@k and reward of an arm, and their paired differences to the parent.

    Rewards of different scorers have no difference.
    """
    found: dict[str, Any] = dict(means(own))
    for share, gain, p_of in (("pass_1", "gain", "p_value"), ("pass_k", "gain_k", "p_k"),
                              ("reward", "gain_reward", "p_reward")):
        gains = gains_of(own, base, share) if share != "reward" or scorers_of(own) == scorers_of(base) else []
        bounds = paired_interval(connection, gains)
        found |= {gain: mean(gains), f"{gain}_low": bounds[0] if bounds else None,
                  f"{gain}_high": bounds[1] if bounds else None,
                  p_of: flip_test(gains) if gains else None}
    return found | {"num_tasks": len(gains_of(own, base, "pass_1"))}


def paired_interval(connection: Connection, gains: list[float]) -> tuple[float, float] | None:
    """95% bootstrap interval of the mean gain over tasks; None for one task, which cannot generalise."""
    [row] = rows_of(connection, "SELECT paired_interval($1::DOUBLE[]) AS bounds", [gains])
    return tuple(row["bounds"]) if row["bounds"] else None


def flip_test(gains: Sequence[float], flips: int = FLIPS, seed: int = 0) -> float:
    """Two-sided p-value of a paired randomisation test of the mean gain.

    The null hypothesis swaps the two policies per task at random; the least p-value is 1 / (flips + 1).
    """
    changed = np.array([gain for gain in gains if gain])
    if not len(changed):
        return 1.0
    signs = np.random.default_rng(seed).integers(0, 2, (flips, len(changed))) * 2 - 1
    as_large = np.abs(signs @ changed) >= abs(changed.sum()) - 1e-9
    return float((1 + as_large.sum()) / (flips + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values (1979): below 0.05, at most 5% of tables have a false positive."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, number in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[number]))
        corrected[number] = largest
    return corrected


def behind(connection: Connection, tasks: Mapping[str, Tasks]) -> dict[str, str]:
    """The arms that are clearly worse than the best arm, each with the reason.

    The best arm is chosen from the data, so the p-value is corrected for all pairs of arms (Bonferroni).
    """
    pairs = len(tasks) * (len(tasks) - 1) // 2
    best = max(tasks, key=lambda name: means(tasks[name])["pass_1"] or 0.0, default="")
    found = dict[str, str]()
    for name in tasks:
        gains = gains_of(tasks[name], tasks[best], "pass_1")
        bounds, p_value = paired_interval(connection, gains), pairs * flip_test(gains, max(FLIPS, 40 * pairs))
        if bounds and bounds[1] < 0 and p_value < BEHIND:
            found[name] = (f"its pass@1 is {sum(gains) / len(gains):+.3f} to that of {best}, 95% interval "
                           f"{bounds[0]:+.3f} .. {bounds[1]:+.3f}, p {p_value:.4f} for {pairs} pairs of arms")
    return found
