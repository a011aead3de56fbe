"""The table of arms: each against the policy that all started from, in pairs of tasks, with a correction for
multiple comparisons.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warehouse.experiments.arms_file import PARENT, Arm
from warehouse.experiments.comparison import evaluated, holm, means, measured
from warehouse.experiments.plan import Plan
from warehouse.inspect.render import as_table
from warehouse.inspect.story import dollars
from warehouse.ledger.entries import Branched
from warehouse.sql.database import Connection, connect, rows_of
from warehouse.store.config_file import price_per_hour
from warehouse.store.run_folder import Warehouse, open_warehouse

SAME = 1e-6                 # a reward that is pass@1 has no column of its own
STEPS_SQL = """
SELECT count(*)::INTEGER AS steps, last(extra ORDER BY global_step) AS extra,
       (SELECT kl FROM kl_ladder
        WHERE iteration = {last} AND purpose = '{purpose}' AND policy_version = {at}) AS kl,
       (SELECT max(staleness) FROM mismatch WHERE iteration >= {at} AND iteration < {last}) AS staleness
FROM train_steps WHERE iteration >= {at} AND iteration < {last}"""


def table_of(plan: Plan, arms: Sequence[Arm], failed: Mapping[str, str],
             stopped: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """A row for the parent and for each arm, in the order of the file.

    `error` says why an arm failed, `stopped` why it was stopped; their gains are not measured.
    `gain`, `gain_k` and `gain_reward` are the differences of pass@1, pass@k and reward to the parent, means
    over their common tasks with 95% bootstrap intervals over tasks; `p_value` is of the gain, of the reward's
    if no policy solves anything, corrected by Holm over all arms of the table.
    """
    if PARENT in failed:
        return [_row(plan, arm) | {"error": failed.get(arm.name, "the parent is not evaluated")}
                for arm in (Arm(PARENT, {}), *arms)]
    parent = open_warehouse(plan.folder / PARENT)
    connection = connect(parent)
    base, stopped = evaluated(connection, plan, plan.last), stopped or {}
    rows = [_row(plan, Arm(PARENT, {})) | means(base) | {"seconds": seconds_of(parent, plan)}]
    for arm in arms:
        if arm.name in failed:
            rows.append(_row(plan, arm) | {"error": failed[arm.name]})
            continue
        run = open_warehouse(plan.folder / arm.name)
        own = connect(run)
        found = ({"stopped": stopped[arm.name]} if arm.name in stopped
                 else measured(connection, base, evaluated(own, plan, plan.last)))
        [scorer, *_] = run.state.scorers(plan.last, plan.purpose) or [""]
        rows.append(_row(plan, arm) | found | _steps(own, plan) | {
            "seconds": seconds_of(run, plan),
            "changed": scorer and run.state.change_of_scorer(plan.last, scorer)})
    price = price_per_hour(plan.run.root)
    for row in rows if price is not None else []:
        row["cost"] = row["seconds"] * price / 3600 if "seconds" in row else None
    tested = [row for row in rows if row.get("p_value") is not None]
    solved = any(row.get("pass_1") for row in rows)
    for row in tested:
        p_reward = row.pop("p_reward")
        row["p_value"] = row["p_value"] if solved else p_reward
    for row, corrected in zip(tested, holm([row["p_value"] for row in tested]), strict=True):
        row["p_value"] = corrected
    return rows


def seconds_of(run: Warehouse, plan: Plan) -> float:
    """Seconds between begin and complete entries, over the stages that an arm ran itself."""
    state = run.state
    branched = max((number for number, entry in state.entries.items()
                    if isinstance(entry.what, Branched)), default=-1)
    return sum(state.entries[life.completed].at - state.entries[life.begun].at
               for life in state.lives.values() if life.begun > branched and life.ended is None
               and life.completed is not None and life.iteration <= plan.last)


def arms_text(rows: Sequence[Mapping[str, Any]], plan: Plan) -> str:
    """The table as text, with an explanation of its columns below."""
    k = plan.evaluate
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "arm": lambda row: row["arm"], "settings": lambda row: row["title"],
        "pass@1": _number("pass_1", ".3f"), "gain": _number("gain", "+.3f"),
        "95% interval": _interval("gain")}
    if k > 1:
        columns |= {f"pass@{k}": _number("pass_k", ".3f"), f"gain@{k}": _number("gain_k", "+.3f"),
                    f"95% interval@{k}": _interval("gain_k")}
    if any(abs((row.get("reward") or 0) - (row.get("pass_1") or 0)) > SAME for row in rows):
        columns |= {"reward": _number("reward", ".3f"), "reward gain": _number("gain_reward", "+.3f"),
                    "95% interval of it": _interval("gain_reward")}
    columns |= {"p": _number("p_value", ".4f"), "KL": _number("kl", ".1e")}
    if any(row.get("staleness") for row in rows):
        columns["stale"] = _number("staleness", "d")
    columns |= {"ESS": _number("ess", ".2f"), "steps": _number("steps", "d"),
                "seconds": _number("seconds", ".1f")}
    if any("cost" in row for row in rows):
        columns["cost"] = lambda row: dollars(row["cost"]) if row["cost"] is not None else ""
    lines = [as_table([*columns], [[show(row) for show in columns.values()] for row in rows], full=True)]
    lines += [f"{row['arm']}: {row['error']}" for row in rows if row.get("error")]
    lines += [f"{row['arm']}: stopped at {row['stopped']}" for row in rows if row.get("stopped")]
    lines += [f"The {said}. Restore your file and the options of `score` in config.toml, and evaluate "
              "in another --folder."
              for row in rows if (said := row.get("changed"))][:1]
    tests = sum(row.get("p_value") is not None for row in rows)
    tasks = max((row.get("num_tasks") or 0 for row in rows), default=0)
    if tests:
        of = "" if any(row.get("pass_1") for row in rows) else " is of the reward and"
        lines.append(f"Gains over policy {plan.at} on {tasks} held-out tasks, {k} completions each, with the "
                     f"same seeds; each interval is of one arm. p{of} is corrected by Holm for {tests} arms.")
    return "\n".join(lines)


def _row(plan: Plan, arm: Arm) -> dict[str, Any]:
    title = f"policy {plan.at}" if arm.name == PARENT else arm.title
    return {"arm": arm.name, "title": title, "settings": arm.settings, "run": str(plan.folder / arm.name)}


def _steps(connection: Connection, plan: Plan) -> dict[str, Any]:
    """Steps, ESS of the last, age of the oldest rows, and the KL to the parent on the arm's evaluation."""
    [row] = rows_of(connection, STEPS_SQL.format(at=plan.at, last=plan.last, purpose=plan.purpose))
    extra = json.loads(row.pop("extra") or "{}")
    return {**row, "ess": extra.get("policy_ess")}


def _number(key: str, style: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "" if row.get(key) is None else format(row[key], style)


def _interval(gain: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: ("" if row.get(f"{gain}_low") is None else
                        f"{row[f'{gain}_low']:+.3f} .. {row[f'{gain}_high']:+.3f}")
