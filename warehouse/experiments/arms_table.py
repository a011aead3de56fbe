"""The table of arms: each against the policy that all started from, in pairs of tasks, with a correction for
looking at many.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warehouse.experiments.arms import Plan
from warehouse.experiments.arms_file import PARENT, Arm
from warehouse.inspect.render import as_table
from warehouse.inspect.results import paired_interval
from warehouse.inspect.story import dollars
from warehouse.ledger.entries import Branched
from warehouse.sql.database import Connection, connect, rows_of
from warehouse.store.config_file import price_per_hour
from warehouse.store.run_folder import Warehouse, open_warehouse

FLIPS = 10_000
TASKS_SQL = """
SELECT task_id, c / n AS pass_1, CASE WHEN n >= {k} THEN pass_at_k(n, c, {k}) END AS pass_k
FROM task_results WHERE n > 0 AND iteration = {iteration} AND purpose = '{purpose}'"""
STEPS_SQL = """
SELECT count(*)::INTEGER AS steps, last(extra ORDER BY global_step) AS extra,
       (SELECT kl FROM kl_ladder
        WHERE iteration = {last} AND purpose = '{purpose}' AND policy_version = {at}) AS kl
FROM train_steps WHERE iteration >= {at} AND iteration < {last}"""


def table_of(plan: Plan, arms: Sequence[Arm], failed: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for the parent and for each arm, in the order of the file; of a failed one `error` says why.

    `gain` and `gain_k` are the differences of pass@1 and pass@k to the parent's, means over the tasks that
    both have, with 95% bootstrap intervals over tasks; `p_value` is Holm's, over all arms of the table.
    """
    if PARENT in failed:
        return [_row(plan, arm) | {"error": failed.get(arm.name, "the parent is not evaluated")}
                for arm in (Arm(PARENT, {}), *arms)]
    parent = open_warehouse(plan.folder / PARENT)
    connection = connect(parent)
    base = _tasks(connection, plan)
    rows = [_row(plan, Arm(PARENT, {})) | _means(base) | {"seconds": seconds_of(parent, plan)}]
    for arm in arms:
        if arm.name in failed:
            rows.append(_row(plan, arm) | {"error": failed[arm.name]})
            continue
        run = open_warehouse(plan.folder / arm.name)
        own = connect(run)
        rows.append(_row(plan, arm) | measured(connection, base, _tasks(own, plan)) | _steps(own, plan)
                    | {"seconds": seconds_of(run, plan)})
    price = price_per_hour(plan.run.root)
    for row in rows if price is not None else []:
        row["cost"] = row["seconds"] * price / 3600 if "seconds" in row else None
    tested = [row for row in rows if row.get("p_value") is not None]
    for row, corrected in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_value"] = corrected
    return rows


def measured(connection: Connection, base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """pass@1 and pass@k of an arm, and their differences to the parent's in pairs of tasks."""
    found: dict[str, Any] = dict(_means(own))
    for share, gain in (("pass_1", "gain"), ("pass_k", "gain_k")):
        gains = [own[task][share] - base[task][share] for task in sorted(own.keys() & base.keys())
                 if own[task][share] is not None and base[task][share] is not None]
        bounds = paired_interval(connection, gains)
        found |= {gain: sum(gains) / len(gains) if gains else None,
                  f"{gain}_low": bounds[0] if bounds else None, f"{gain}_high": bounds[1] if bounds else None}
        if gain == "gain":
            found |= {"p_value": flip_test(gains), "num_tasks": len(gains)}
    return found


def flip_test(gains: Sequence[float], flips: int = FLIPS, seed: int = 0) -> float:
    """Two-sided p-value that which of the two policies a task's shares belong to is chance.

    The mean gain against those of random signs (a paired randomisation test); the least is 1 / (flips + 1).
    """
    changed = np.array([gain for gain in gains if gain])
    if not len(changed):
        return 1.0
    signs = np.random.default_rng(seed).integers(0, 2, (flips, len(changed))) * 2 - 1
    as_large = np.abs(signs @ changed) >= abs(changed.sum()) - 1e-9
    return float((1 + as_large.sum()) / (flips + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values (1979): calling all below 0.05 real is at all wrong in 5% of tables."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, number in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[number]))
        corrected[number] = largest
    return corrected


def seconds_of(run: Warehouse, plan: Plan) -> float:
    """Seconds from the begin entries to the complete ones of what an arm ran itself."""
    state = run.state
    branched = max((number for number, entry in state.entries.items()
                    if isinstance(entry.what, Branched)), default=-1)
    return sum(state.entries[life.completed].at - state.entries[life.begun].at
               for life in state.lives.values()
               if life.begun > branched and life.ended is None and life.completed is not None
               and life.iteration <= plan.last)


def arms_text(rows: Sequence[Mapping[str, Any]], plan: Plan) -> str:
    """The table as text, and below it what its columns are."""
    k = plan.evaluate
    names = ["arm", "settings", "pass@1", "gain", "95% interval", *(
        [f"pass@{k}", f"gain@{k}", f"95% interval@{k}"] if k > 1 else []), "p", "KL", "ESS", "steps",
        "seconds", *(["cost"] if any("cost" in row for row in rows) else [])]
    shown = [[row["arm"], row["title"], _share(row.get("pass_1")), _gain(row.get("gain")),
              _interval(row, "gain"),
              *([_share(row.get("pass_k")), _gain(row.get("gain_k")), _interval(row, "gain_k")]
                if k > 1 else []),
              _digits(row.get("p_value"), ".4f"), _digits(row.get("kl"), ".1e"),
              _digits(row.get("ess"), ".2f"), _digits(row.get("steps"), "d"),
              _digits(row.get("seconds"), ".1f"),
              *([dollars(row["cost"]) if row["cost"] is not None else ""] if "cost" in row else [])]
             for row in rows]
    lines = [as_table(names, shown, full=True)]
    lines += [f"{row['arm']}: {row['error']}" for row in rows if row.get("error")]
    tests = sum(row.get("p_value") is not None for row in rows)
    tasks = max((row.get("num_tasks") or 0 for row in rows), default=0)
    lines.append(f"Gains over policy {plan.at} on {tasks} held-out tasks, {k} completions each, with the "
                 f"same seeds; intervals are of one arm alone. p is corrected by Holm for {tests} arms.")
    return "\n".join(lines)


def _row(plan: Plan, arm: Arm) -> dict[str, Any]:
    title = f"policy {plan.at}" if arm.name == PARENT else arm.title
    return {"arm": arm.name, "title": title, "settings": arm.settings, "run": str(plan.folder / arm.name)}


def _tasks(connection: Connection, plan: Plan) -> dict[str, Any]:
    query = TASKS_SQL.format(k=plan.evaluate, iteration=plan.last, purpose=f"eval-{plan.label}")
    return {row["task_id"]: row for row in rows_of(connection, query)}


def _means(tasks: Mapping[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in ("pass_1", "pass_k"):
        shares = [row[name] for row in tasks.values() if row[name] is not None]
        found[name] = sum(shares) / len(shares) if shares else None
    return found


def _steps(connection: Connection, plan: Plan) -> dict[str, Any]:
    """Steps, ESS of the last one, and the KL from the arm's policy to the parent's on its evaluation."""
    purpose = f"eval-{plan.label}"
    [row] = rows_of(connection, STEPS_SQL.format(at=plan.at, last=plan.last, purpose=purpose))
    extra = json.loads(row["extra"] or "{}")
    return {"steps": row["steps"], "kl": row["kl"], "ess": extra.get("policy_ess")}


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _gain(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _digits(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)


def _interval(row: Mapping[str, Any], gain: str) -> str:
    low, high = row.get(f"{gain}_low"), row.get(f"{gain}_high")
    return "" if low is None or high is None else f"{low:+.3f} .. {high:+.3f}"
