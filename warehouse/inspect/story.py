"""A verdict on a run in words: learned, sharpened, collapsed since when, or nothing judged yet."""

import json
from itertools import groupby
from math import hypot
from statistics import fmean
from typing import Any, NamedTuple

from warehouse.inspect.alarms import MISMATCH_SIGNALS, STEP_SIGNALS, Alarm
from warehouse.inspect.render import short_share
from warehouse.sql.database import Connection, rows_of
from warehouse.store.config_file import price_per_hour
from warehouse.store.errors import counted
from warehouse.store.run_folder import Warehouse

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "prompt_format", "format_options")
# Of two iterations that end early, the first has the quickest completions and the second the rest: neither
# is a baseline.
QUERY = f"""
SELECT adjusted.*, policy_version, reward_plain, correct_share, sampling
FROM adjusted
JOIN (SELECT iteration, purpose, policy_version, reward_mean AS reward_plain, correct_share
      FROM iteration_stats)
     USING (iteration, purpose)
LEFT JOIN (SELECT iteration, purpose, json_extract_string(settings, {[f"$.{name}" for name in SAMPLING]})
                  AS sampling FROM stages WHERE stage = 'rollout') USING (iteration, purpose)
WHERE iteration NOT IN (FROM given_up)
QUALIFY NOT (is_cut_short(iteration, purpose) OR is_cut_short(iteration - 1, purpose))
        OR iteration = max(iteration) OVER (PARTITION BY purpose)
ORDER BY purpose = 'train', purpose, iteration"""
# Visits to the same tasks are paired. $4 is k, or 0 for the reward.
PAIRS = """
WITH visits AS (SELECT iteration, task_id,
                       CASE $4 WHEN 0 THEN reward_mean ELSE pass_at_k(n, c, $4) END AS value,
                       CASE WHEN $4 = 1 THEN share_noise(n, c) END AS noise
                FROM task_results WHERE purpose = $1 AND iteration IN ($2, $3) AND n >= $4)
SELECT count(*) AS num,
       CASE WHEN $4 = 1 OR count(*) >= 6 THEN       -- as beyond_chance, where completions have no known error
       gain_error(list(now.value - former.value), list(now.noise + former.noise)) END AS error
FROM (FROM visits WHERE iteration = $2) AS former
FULL JOIN (FROM visits WHERE iteration = $3) AS now USING (task_id)
HAVING count(now.value - former.value) = count(*)"""
JUDGED_SQL = """
SELECT iteration, scorer, value AS replaced
FROM (FROM scorers WHERE chosen AND purpose = $1 AND iteration IN ($2, $3)) AS counting
LEFT JOIN (SELECT iteration, value FROM settings WHERE stage = 'score' AND key = 'replaced' AND purpose = $1)
    USING (iteration) ORDER BY iteration"""
SECONDS = """
SELECT stage, sum(seconds) AS seconds FROM stages WHERE seconds IS NOT NULL
GROUP BY stage ORDER BY list_position(['rollout', 'score', 'train'], stage)"""

UNSOLVED = {1: "the reward rose", -1: "the reward fell"}      # by direction, where no task is solved
NAMES = {"solving": "pass@1", "reward": "reward"}
MOST_AVERAGED = 10  # iterations that are averaged at each end of a training whose tasks differ
SAME = 0.005        # largest difference between a paired gain and one of plain means that is not shown


class Change(NamedTuple):
    """A measure's plain mean at the first and last visit; its gain at equal task difficulty, +- 95%."""

    first: float
    last: float
    gain: float
    margin: float | None        # None: unknown
    span: int = 1               # visits that each end is the mean of
    few: bool = False           # fewer than six tasks, of which nothing is said beyond these

    @property
    def direction(self) -> int:
        """1 up, -1 down, 0 if chance explains it or may explain it."""
        return 0 if self.unknown or abs(self.gain) <= (self.margin or 0) else 1 if self.gain > 0 else -1

    @property
    def unknown(self) -> bool:
        return self.few or self.margin is None

    def __str__(self) -> str:
        places = 4 if self.margin and self.margin < 0.0005 else 3
        margin = (", too few tasks for an interval" if self.margin is None else
                  f" ± {self.margin:.{places}f} at 95% over tasks")
        digits = 2 if abs(self.last - self.first) >= 0.01 else 3
        plain = " → ".join(short_share(value, digits) for value in (self.first, self.last))
        if abs(self.last - self.first - self.gain) < SAME:
            return f"{plain} ({self.gain:+.{places}f}{margin})"
        return (f"{self.gain:+.{places}f}{margin}, at equal difficulty of tasks "
                f"(plain means of different tasks: {plain})")


def story_lines(connection: Connection, alarms: list[Alarm]) -> list[str]:
    """A sentence about every evaluation, then one about training, which comes first if an alarm fires.

    Gains are at equal task difficulty.
    """
    lines = list[str]()
    for purpose, rows in _by_purpose(connection).items():
        firing = [alarm for alarm in alarms if alarm.fired and alarm.purpose == purpose]
        if purpose == "train":
            lines.insert(0 if firing else len(lines), _training(connection, rows, firing))
        else:
            lines.append(_evaluation(connection, purpose, rows, firing))
    if not lines and rows_of(connection, "SELECT 1 FROM iteration_stats LIMIT 1"):
        return ["Nothing is judged yet: no reward could be measured."]
    return lines or ["Nothing is judged yet: nothing is scored."]


def cost_lines(warehouse: Warehouse, connection: Connection) -> list[str]:
    """The cost of complete stages in dollars, and of a point of pass@1; empty without a price in config.toml.

    The gain is measured on evaluations, or on training tasks if no evaluation has two visits.
    """
    price = price_per_hour(warehouse.root)
    spent = rows_of(connection, SECONDS) if price is not None else []
    if price is None or not spent:
        return []
    each = {row["stage"]: row["seconds"] * price / 3600 for row in spent}
    parts = ", ".join(f"{stage} {dollars(amount)}" for stage, amount in each.items())
    gained = {purpose: _change(connection, rows, "solving")
              for purpose, rows in _by_purpose(connection).items()
              if rows[0]["iteration"] < rows[-1]["iteration"]
              and None not in (rows[0]["policy_version"], rows[-1]["policy_version"])}
    judged = {purpose: change for purpose, change in gained.items() if purpose != "train"} or gained
    total = sum(each.values())
    return [f"Cost at {dollars(price)} an hour: {dollars(total)} ({parts}).",
            *(_point_line(total, purpose, change) for purpose, change in judged.items())]


def dollars(amount: float) -> str:
    """An amount of money: in cents, or with two significant digits if it is small."""
    return f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"


def _by_purpose(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """The adjusted results of each iteration, training last; of evaluations those sampled as the last was."""
    found = dict[str, list[dict[str, Any]]]()
    for purpose, each in groupby(rows_of(connection, QUERY), key=lambda row: row["purpose"]):
        *_, last = rows = list(each)
        others = [row["sampling"] for row in rows if row["sampling"] != last["sampling"]]
        before_and_now = [each or [None] * len(SAMPLING) for each in (*others[-1:], last["sampling"])]
        pairs = zip(SAMPLING, *before_and_now, strict=True) if others else ()
        last["others"] = ", ".join(f"{name} {before} instead of {now}" for name, before, now in pairs
                                   if before != now)
        found[purpose] = [row for row in rows if purpose == "train" or row["sampling"] == last["sampling"]]
    return found


def _point_line(total: float, purpose: str, change: Change) -> str:
    """The cost of a hundredth of pass@1, if it rose beyond chance."""
    tasks = "the training tasks" if purpose == "train" else f"'{purpose}'"
    if change.direction <= 0:
        return f"No gain beyond chance on {tasks} for it: pass@1 {change}."
    return f"{dollars(total / (100 * change.gain))} per point of pass@1 gained on {tasks}: {change}."


def _measure(rows: list[dict[str, Any]]) -> str:
    """What a run is judged by: pass@1, or the reward if nothing was solved and something was paid."""
    rewards = [row["reward"] for row in rows]
    return ("reward" if not any(row["solving_plain"] for row in rows) and any(rewards) and None not in rewards
            else "solving")


def _is_unsolved(rows: list[dict[str, Any]]) -> bool:
    """Whether no task is ever solved, as far as known, and the reward is what a run is judged by."""
    return _measure(rows) == "reward" and any(row["correct_share"] is not None for row in rows)


def _training(connection: Connection, rows: list[dict[str, Any]], firing: list[Alarm]) -> str:
    first, last = rows[0]["iteration"], rows[-1]["iteration"]
    measure = _measure(rows)
    name, change = NAMES[measure], _change(connection, rows, measure)
    if firing:
        names = ", ".join(dict.fromkeys(alarm.signal for alarm in firing))
        since = min(alarm.first_iteration for alarm in firing)
        if falls := {alarm.signal: alarm.first_iteration for alarm in firing
                     if alarm.signal in ("solving_falls", "reward_falls")}:
            return f"{_fall(rows, falls)} Signals since iteration {since}, first to last: {names}."
        what = ("Training went wrong" if all(alarm.signal in (*MISMATCH_SIGNALS, *STEP_SIGNALS)
                                             for alarm in firing) else "Coming apart")
        compared = f" {name} over iterations {first} to {last}: {change}." if last > first else ""
        return f"{what} since iteration {since}: {names}.{compared}"
    if first == last:
        return (f"Iteration {first}: {name} {short_share(change.last)} on its training tasks; "
                "nothing to compare it with.")
    nothing = "Too little to tell" if change.unknown else "No change beyond chance"
    said = {1: "Learned the training tasks", 0: f"{nothing} on the training tasks",
            -1: "Lost on the training tasks"}[change.direction]
    if _is_unsolved(rows):
        said = f"No task is solved; {UNSOLVED.get(change.direction, nothing.lower())}"
    means = f", means of the first and last {change.span}" if change.span > 1 else ""
    return (f"{said}: {name} {change} over iterations {first} to {last}{means}."
            f"{_corrected(connection, 'train', first, last)}")


def _corrected(connection: Connection, purpose: str, first: int, last: int) -> str:
    """That tasks were corrected between two visits, which are judged by different tests."""
    judged = rows_of(connection, JUDGED_SQL, [purpose, first, last])
    former, now = (json.loads(row["replaced"] or "{}") for row in (judged[0], judged[-1]))
    if not (num := sum(former.get(name) != now.get(name) for name in former.keys() | now.keys())):
        return ""
    return (f" {counted(num, 'task')} had other tests at iteration {first}: to judge all alike, run `score`, "
            f"then set scorer = \"{judged[-1]['scorer']}\" under [warehouse] in config.toml.")


def _fall(rows: list[dict[str, Any]], falls: dict[str, int]) -> str:
    """How far pass@1, or the reward, fell from its best, and whether it recovered."""
    since, measure = min(falls.values()), _measure(rows)
    values = {row["iteration"]: max(0.0, row[measure]) if measure == "solving" else row[measure]
              for row in rows}                  # at equal difficulty of tasks
    best, last = max(values.values()), max(values)
    lowest = min((iteration for iteration in values if iteration >= since), key=values.__getitem__)
    said = "The reward fell"
    if measure == "solving" and values[last] < best / 2:
        said = "Collapsed"
    elif measure == "solving" and "solving_falls" in falls:
        said = "Fell"
    alike = all(short_share(values[row["iteration"]]) == short_share(row[f"{measure}_plain"]) for row in rows)
    on_the_way = "" if lowest == last else f"{short_share(values[lowest])} at iteration {lowest}, "
    return (f"{said} at iteration {since}: {NAMES[measure]} {short_share(best)} at best, {on_the_way}"
            f"{short_share(values[last])} at iteration {last}"
            f"{'' if alike else ', at equal difficulty of tasks'}.")


def _evaluation(connection: Connection, purpose: str, rows: list[dict[str, Any]], firing: list[Alarm]) -> str:
    measure = _measure(rows)
    changes = {NAMES[measure]: _change(connection, rows, measure)}
    if measure == "solving" and None not in (rows[0]["reach_error"], rows[-1]["reach_error"]):
        changes[f"pass@{rows[0]['k']}"] = _change(connection, rows, "reach")
    before, now = rows[0]["policy_version"], rows[-1]["policy_version"]
    apart = f" (others were sampled with {rows[-1]['others']})" if rows[-1]["others"] else ""
    again = ("; to compare it, set that under [eval], discard this evaluation and sample it again"
             if apart and now is not None else "")
    if rows[0]["iteration"] == rows[-1]["iteration"] or None in (before, now):
        asked = "another model" if now is None else f"policy {now}"
        has = ", ".join(f"{name} {short_share(change.last)}" for name, change in changes.items())
        return f"On '{purpose}' {asked} has {has}; nothing to compare it with{apart}{again}."
    directions = [change.direction for change in changes.values()]
    if directions[0] < 0:
        said = "it got worse"
    elif min(directions) < 0:
        said = "it sharpened, the same answers more often, fewer tasks within reach"
    else:
        unknown = any(change.unknown for change in changes.values())
        said = ("it learned" if max(directions) > 0 else "too little to tell" if unknown else
                "no change beyond chance")
    if _is_unsolved(rows):
        said = f"no task is solved, {UNSOLVED.get(directions[0], said)}"
    fired = f" Fired: {', '.join(alarm.signal for alarm in firing)}." if firing else ""
    moved = ", ".join(f"{name} {change}" for name, change in changes.items())
    corrected = _corrected(connection, purpose, rows[0]["iteration"], rows[-1]["iteration"])
    return f"On '{purpose}', policy {before} to {now}: {said}; {moved}{apart}.{fired}{corrected}"


def _change(connection: Connection, rows: list[dict[str, Any]], measure: str) -> Change:
    """The change from the first visit to the last, or between means of several where tasks differ."""
    k = {"solving": 1, "reach": rows[0]["k"], "reward": 0}
    visits = [rows[0]["purpose"], rows[0]["iteration"], rows[-1]["iteration"], k[measure]]
    pairs = rows_of(connection, PAIRS, visits)
    errors = [row["error"] for row in pairs]
    span = 1 if errors or rows[0]["purpose"] != "train" else max(1, min(MOST_AVERAGED, len(rows) // 4))
    first, last = _mean_of(rows[:span], measure), _mean_of(rows[-span:], measure)
    if not errors and None not in (first[f"{measure}_error"], last[f"{measure}_error"]):
        errors = [(first[f"{measure}_error"] ** 2 + last[f"{measure}_error"] ** 2) ** 0.5]
    margin = 1.96 * errors[0] if errors and errors[0] is not None else None
    plain = f"{measure}_plain"
    return Change(first[plain], last[plain], last[measure] - first[measure], margin, span,
                  any(row["num"] < 6 for row in pairs))


def _mean_of(rows: list[dict[str, Any]], measure: str) -> dict[str, Any]:
    """The mean of visits to different tasks, and its standard error; None where one is unknown."""
    names = (measure, f"{measure}_plain", f"{measure}_error")
    return {name: None if None in values else hypot(*values) / len(values) if name == names[2]
            else fmean(values) for name in names for values in [[row[name] for row in rows]]}
