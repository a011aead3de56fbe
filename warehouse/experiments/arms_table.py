"""The table of arms: each against the policy that all started from, in pairs of tasks, with a correction for
multiple comparisons.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import Any

from warehouse.experiments.arms_file import PARENT, Arm
from warehouse.experiments.comparison import evaluated, holm, means, measured, scorers_of
from warehouse.experiments.plan import Plan
from warehouse.inspect.render import as_table
from warehouse.inspect.story import dollars
from warehouse.ledger.entries import Branched
from warehouse.sql.database import Connection, connect, rows_of
from warehouse.store.config_file import price_per_hour, read_config
from warehouse.store.errors import counted
from warehouse.store.run_folder import Warehouse, open_warehouse

Cell = Callable[[Mapping[str, Any]], str]
WIDEST = 120
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)     # 97.5%, 1 to 10 degrees
SAME = 1e-6                 # a reward that is pass@1 has no column of its own
STEPS_SQL = """
SELECT count(*)::INTEGER AS steps, last(extra ORDER BY global_step) AS extra,
       avg(clip_fraction) AS clipped,
       max(learning_rate) < (SELECT max(0.1 * (settings ->> '$.learning_rate')::DOUBLE) FROM stages
                             WHERE stage = 'train' AND iteration >= {at} AND iteration < {last}) AS late,
       (SELECT kl FROM kl_ladder
        WHERE iteration = {last} AND purpose = '{purpose}' AND policy_version = {at}) AS kl,
       (SELECT max(staleness) FROM mismatch WHERE iteration >= {at} AND iteration < {last}) AS staleness
FROM train_steps WHERE iteration >= {at} AND iteration < {last}"""


def table_of(plan: Plan, arms: Sequence[Arm], failed: Mapping[str, str],
             stopped: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """A row for the parent and for each arm, in the order of the file.

    `error` says why an arm failed, `stopped` why it was stopped; their gains are not measured.
    `gain`, `gain_k` and `gain_reward` are the differences of pass@1, pass@k and reward to the parent, means
    over their common tasks with 95% bootstrap intervals over tasks; `p_value`, `p_k` and `p_reward` are
    theirs, each corrected by Holm over all arms of the table.
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
        tasks = {} if arm.name in stopped else evaluated(own, plan, plan.last)
        found = {"stopped": stopped[arm.name]} if arm.name in stopped else measured(connection, base, tasks)
        [scorer, *_] = run.state.scorers(plan.last, plan.purpose) or [""]
        asked = read_config(run.root / "config.toml").get("train", {}).get("scorer")    # then it must differ
        rows.append(_row(plan, arm) | found | _steps(own, plan) | {
            "seconds": seconds_of(run, plan), "sha256": run.policy(run.state.newest)["sha256"],
            "changed": scorer and not asked and run.state.change_of_scorer(plan.last, scorer)[0],
            "other_scorers": scorers_of(tasks) if tasks and scorers_of(tasks) != scorers_of(base) else None})
    price = price_per_hour(plan.run.root)
    for row in rows if price is not None else []:
        row["cost"] = row["seconds"] * price / 3600 if "seconds" in row else None
    for p_of in ("p_value", "p_k", "p_reward"):
        tested = [row for row in rows if row.get(p_of) is not None]
        for row, corrected in zip(tested, holm([row[p_of] for row in tested]), strict=True):
            row[p_of] = corrected
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
    groups: list[dict[str, Cell]] = [
        {"arm": lambda row: row["arm"]}, {"settings": lambda row: row["title"]},
        _compared("pass@1", "pass_1", "gain", "", "gain") | {"p": _number("p_value", ".4f")}]
    if k > 1:
        groups.append(_compared(f"pass@{k}", "pass_k", f"gain@{k}", f"@{k}", "gain_k")
                      | {f"p@{k}": _number("p_k", ".4f")})
    if any(abs((row.get("reward") or 0) - (row.get("pass_1") or 0)) > SAME for row in rows):
        groups.append(_compared("reward", "reward", "reward gain", " of reward gain", "gain_reward")
                      | {"p of reward gain": _number("p_reward", ".4f")})
    steps: dict[str, Cell] = {"KL": _number("kl", ".1e")}
    for key, head, style in (("staleness", "stale", "d"), ("clipped", "clip", ".3f")):
        if any(row.get(key) for row in rows):
            steps[head] = _number(key, style)
    steps |= {"ESS": _number("ess", ".2f"), "steps": _number("steps", "d"),
              "seconds": _number("seconds", ".1f")}
    if any("cost" in row for row in rows):
        steps["cost"] = lambda row: dollars(row["cost"]) if row["cost"] is not None else ""
    lines = _tables([*groups, steps], rows)
    lines += _over_seeds(rows)
    lines += [f"{row['arm']}: {row['error']}" for row in rows if row.get("error")]
    lines += [f"{row['arm']}: stopped at {row['stopped']}" for row in rows if row.get("stopped")]
    lines += [f"In evaluations {said}: you changed the reward, its file or an option of `score`."
              for row in rows if (said := row.get("changed"))][:1]
    lines += [f"{row['arm']}: its reward is of {', '.join(row['other_scorers'])}, which is not the parent's "
              "scorer, so it has no reward gain." for row in rows if row.get("other_scorers")]
    same: dict[str, list[str]] = {}
    for row in rows:
        if row.get("sha256"):
            same.setdefault(row["sha256"], []).append(row["arm"])
    lines += [f"{' and '.join(arms)} wrote the same policy: no gradient depends on what differs between them."
              for arms in same.values() if len(arms) > 1]
    if late := [row["arm"] for row in rows if row.get("late")]:
        lines.append(f"{', '.join(late)} learned at less than a tenth of the learning-rate: the run's "
                     "schedule is near its end, or in its warmup. Take another --at, or set schedule = "
                     "\"constant\", total-steps = \"\" and warmup-steps = 0.")
    tests = sum(row.get("p_value") is not None for row in rows)
    tasks = max((row.get("num_tasks") or 0 for row in rows), default=0)
    if tests:
        lines.append(f"Gains over policy {plan.at} on {tasks} held-out tasks, {k} completions each, with the "
                     "same seeds; each interval is of one arm. Every p is corrected by Holm for "
                     f"{counted(tests, 'arm')}.")
        if 2 ** (1 - tasks) * tests > 0.05:         # when each task is better, or each is worse
            lines.append(f"On {counted(tasks, 'task')} no difference can reach p 0.05.")
    return "\n".join(lines)


def _tables(groups: Sequence[dict[str, Cell]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in few tables no wider than WIDEST, each with the first group, the arms' names."""
    tables = [groups[0]]
    for group in groups[1:]:
        if len(tables[-1]) > 1 and max(map(len, _text(tables[-1] | group, rows).splitlines())) > WIDEST:
            tables.append(groups[0])
        tables[-1] = tables[-1] | group
    return "\n\n".join(_text(columns, rows) for columns in tables).splitlines()


def _text(columns: Mapping[str, Cell], rows: Sequence[Mapping[str, Any]]) -> str:
    return as_table([*columns], [[show(row) for show in columns.values()] for row in rows], full=True)


def _over_seeds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of the settings that several arms have, which differ in their seed alone.

    Intervals are Student's over seeds, for these held-out tasks; of a difference Welch's, with the fewer
    degrees of freedom of the two, which is conservative.
    """
    alike: dict[str, list[float]] = {}
    for row in rows[1:]:
        if row.get("gain") is not None:
            settings = {key: value for key, value in row["settings"].items() if key != "seed"}
            alike.setdefault(Arm("", settings).title, []).append(row["gain"])
    several = {title: gains for title, gains in alike.items() if len(gains) > 1}
    first = next(iter(several.values()), [])
    lines = [[title, str(len(gains)), f"{fmean(gains):+.3f}", _student(fmean(gains), gains),
              *([f"{fmean(gains) - fmean(first):+.3f}", _student(fmean(gains) - fmean(first), gains, first)]
                if gains is not first else ["", ""])] for title, gains in several.items()]
    heads = ["settings", "seeds", "gain", "95% over seeds", "difference", "95% over seeds"]
    num_shown = len(heads) if len(lines) > 1 else 4
    table = as_table(heads[:num_shown], [line[:num_shown] for line in lines], full=True).splitlines()
    said = "Intervals are over seeds, for these tasks and completions."
    if len(lines) > 1:
        apart = [title for title, gains in several.items() if gains is not first
                 and abs(fmean(gains) - fmean(first)) > _margin(gains, first)]
        said += (" Difference: gain minus that of the first settings; beyond chance: "
                 f"{'; '.join(apart) or 'none. More seeds narrow the intervals'}.")
    return ["", *table, said, ""] if lines else []


def _student(middle: float, *samples: Sequence[float]) -> str:
    """The 95% interval around the mean of a sample, or the difference of two; '' if nothing varies."""
    margin = _margin(*samples)
    return f"{middle - margin:+.3f} .. {middle + margin:+.3f}" if margin else ""


def _margin(*samples: Sequence[float]) -> float:
    quantile = STUDENT[min(len(STUDENT), *(len(sample) - 1 for sample in samples)) - 1]
    return quantile * sqrt(sum(variance(sample) / len(sample) for sample in samples))


def _row(plan: Plan, arm: Arm) -> dict[str, Any]:
    title = f"policy {plan.at}" if arm.name == PARENT else arm.title
    return {"arm": arm.name, "title": title, "settings": arm.settings, "run": str(plan.folder / arm.name)}


def _steps(connection: Connection, plan: Plan) -> dict[str, Any]:
    """Steps, ESS of the last, age of the oldest rows, and the KL to the parent on the arm's evaluation."""
    [row] = rows_of(connection, STEPS_SQL.format(at=plan.at, last=plan.last, purpose=plan.purpose))
    extra = json.loads(row.pop("extra") or "{}")
    return {**row, "ess": extra.get("policy_ess")}


def _compared(mean: str, key: str, title: str, of: str, gain: str) -> dict[str, Cell]:
    """The columns of a mean, of its gain and of the gain's interval."""
    return {mean: _number(key, ".3f"), title: _number(gain, "+.3f"), f"95% interval{of}": _interval(gain)}


def _number(key: str, style: str) -> Cell:
    return lambda row: "" if row.get(key) is None else format(row[key], style)


def _interval(gain: str) -> Cell:
    return lambda row: ("" if row.get(f"{gain}_low") is None else
                        f"{row[f'{gain}_low']:+.3f} .. {row[f'{gain}_high']:+.3f}")
