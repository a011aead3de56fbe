"""Alarms that fired in a run, with completions that show what happened."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from warehouse.look.render import short_number
from warehouse.sql.catalog import BASELINE_ITERATIONS
from warehouse.sql.database import rows_of
from warehouse.store.chosen_scorer import scorer_choices
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse

if TYPE_CHECKING:
    import duckdb

ALARM_EXIT_CODE = 3

# Which completions of the iteration show a signal best: a table, a condition, an order.
SHOWN_BY = {
    "truncation": ("samples", "truncated", "num_completion_tokens DESC"),
    "loops": ("samples", "loop_tokens > 0", "loop_tokens DESC"),
    "repetition": ("samples", "true", "ngram4_unique_ratio"),
    "no_code": ("samples", "NOT valid_code", "num_completion_tokens DESC"),
    "unmeasured": ("samples", "reward IS NULL", "task_id"),
    "empty": ("samples", "num_completion_tokens <= 1", "task_id"),
    "entropy_high": ("samples", "true", "nll_sampled DESC"),
    "entropy_low": ("samples", "true", "nll_sampled"),
    "length_up": ("samples", "true", "num_completion_tokens DESC"),
    "length_down": ("samples", "true", "num_completion_tokens"),
    "reward_hacking": ("samples", "NOT correct", "reward DESC"),
}
BY_MISMATCH = ("train_samples", "true", "log_ratio_abs_max DESC NULLS LAST")
MISMATCH_SIGNALS = ("wrong_weights", "mismatch", "token_ratio", "ess", "weight_mean", "weight_spread")
BY_REWARD = ("samples", "true", "reward")


class Alarm(NamedTuple):
    """One signal that fired: since when, how far beyond its level, and three completions."""

    signal: str
    first_iteration: int
    last_iteration: int
    num_iterations: int
    value: float
    level: float
    above: bool
    meaning: str
    examples: list[tuple[str, int]]
    at_staleness_0: bool  # engine and trainer disagree though they should hold the same weights

    @property
    def sentence(self) -> str:
        """The alarm as one line, its examples apart."""
        beyond = "above" if self.above else "below"
        again = (
            f", {self.num_iterations} iterations until {self.last_iteration}"
            if self.num_iterations > 1
            else ""
        )
        return (f"{self.signal} since iteration {self.first_iteration}{again}: {self.meaning}, "
                f"{short_number(self.value)}, {beyond} {short_number(self.level)}")


def fired_alarms(connection: duckdb.DuckDBPyConnection, *, since: int = 0,
                 ignored: tuple[str, ...] = ()) -> list[Alarm]:
    """Alarms still raised at iteration `since` or later: earliest first, then causes before consequences.

    What fired before the last rollback up to `since` is left out.
    """
    return [Alarm(**row, examples=examples(connection, row["signal"], row["first_iteration"]),
                  at_staleness_0=_at_staleness_0(connection, row["signal"], row["first_iteration"]))
            for row in _fired(connection, since, ignored)]


def alarm_count_line(warehouse: Warehouse, connection: duckdb.DuckDBPyConnection) -> str:
    """How many signals fire since when, in one line; empty where none does."""
    rows = _fired(connection, last_rollback(warehouse))
    if not rows:
        return ""
    number = "1 signal" if len(rows) == 1 else f"{len(rows)} signals"
    return f"{number} since iteration {rows[0]['first_iteration']}: warehouse watch {warehouse.root}"


def _fired(connection: duckdb.DuckDBPyConnection, since: int,
           ignored: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """One row per signal, as in the view `alarms`, of what fired since the last rollback up to `since`."""
    rows = rows_of(connection, """
        SELECT signal, min(iteration) AS first_iteration, max(iteration) AS last_iteration,
               count(*)::INTEGER AS num_iterations, arg_min(value, iteration) AS value,
               arg_min(level, iteration) AS level, any_value(above) AS above, any_value(meaning) AS meaning
        FROM fired_signals
        WHERE iteration >= (SELECT coalesce(max(policy_version), 0) FROM policies
                            WHERE rolled_back_to IS NOT NULL AND policy_version <= $1)
        GROUP BY signal HAVING max(iteration) >= $1""", [since])
    order = known_signals()
    return sorted((row for row in rows if row["signal"] not in ignored),
                  key=lambda row: (row["first_iteration"], order.index(row["signal"])))


def _at_staleness_0(connection: duckdb.DuckDBPyConnection, signal: str, iteration: int) -> bool:
    """True for a mismatch in an iteration that trained on nothing but rows of its own policy."""
    if signal not in MISMATCH_SIGNALS:
        return False
    query = "SELECT max(staleness) AS greatest FROM rolled_mismatch WHERE iteration = $1"
    return rows_of(connection, query, [iteration])[0]["greatest"] == 0


def known_signals() -> list[str]:
    """Names of all signals, causes before what follows from them."""
    return re.findall(r"signal_of\('(\w+)'", files("warehouse.sql.texts").joinpath("alarms.sql").read_text())


def check_signals(names: tuple[str, ...]) -> None:
    """StageError for a name that is no signal."""
    known = known_signals()
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise StageError(f"There is no signal '{unknown[0]}'. Known: {', '.join(known)}.")


def examples(connection: duckdb.DuckDBPyConnection, signal: str, iteration: int,
             num: int = 3) -> list[tuple[str, int]]:
    """Completions (task, sample index) of the iteration that show the signal best."""
    table, condition, order = BY_MISMATCH if signal in MISMATCH_SIGNALS else SHOWN_BY.get(signal, BY_REWARD)
    rows = rows_of(connection, f"SELECT task_id, sample_index FROM {table} WHERE iteration = "
                               f"{int(iteration)} "
                               f"AND purpose = 'train' AND {condition} ORDER BY {order}, task_id, "
                               f"sample_index "
                               f"LIMIT {int(num)}")
    return [(row["task_id"], row["sample_index"]) for row in rows]


def last_rollback(warehouse: Warehouse, until: int | None = None) -> int:
    """The iteration that the last rollback starts again from, of those up to `until`; 0 without any."""
    restarted = [version for version in warehouse.policy_versions()
                 if (until is None or version <= until)
                 and warehouse.policy(version).get("rolled_back_to") is not None]
    return max(restarted, default=0)


def alarm_lines(warehouse: Warehouse, alarms: list[Alarm], since: int | None = None) -> list[str]:
    """What to print: every alarm with its examples, then what to do; or what could not be judged yet."""
    if not alarms:
        return ["No alarm.", *unjudged(warehouse, last_rollback(warehouse) if since is None else since)]
    lines = []
    for alarm in alarms:
        lines.append(alarm.sentence)
        if alarm.signal in MISMATCH_SIGNALS:
            lines.append(f"    warehouse gaps {warehouse.root} --iteration {alarm.first_iteration}")
        lines += [f"    warehouse show {warehouse.root} {alarm.first_iteration}/{task}/{index}"
                  for task, index in alarm.examples]
    return [*lines, "", *_advice(warehouse, alarms)]


def unjudged(warehouse: Warehouse, since: int) -> list[str]:
    """What cannot be judged from iteration `since` on yet, and when it can; empty where everything is."""
    scored = sorted(choice.iteration for choice in scorer_choices(warehouse)
                    if choice.chosen and choice.purpose == "train")
    if not any(iteration >= since for iteration in scored):
        return [f"Nothing could be judged yet: no training iteration from {since} on is scored."]
    lines = []
    if not any(warehouse.stage("train", iteration=iteration).is_complete()
               for iteration in warehouse.iterations("train_steps") if iteration >= since):
        lines.append("Not judged yet: the mismatch of engine and trainer, until an iteration from "
                     f"{since} on is trained.")
    restart = last_rollback(warehouse, since)
    judged = [iteration for iteration in scored[BASELINE_ITERATIONS:] if iteration >= restart]
    if len(judged) < 2:
        lacking = max(0, BASELINE_ITERATIONS - len(scored)) + 2 - len(judged)
        after = f"since the rollback, {restart}" if restart else f"after the first {BASELINE_ITERATIONS}"
        lines.append("Not judged yet: trends such as truncation, entropy and length. They take two "
                     f"iterations in a row {after}, so they are judged from iteration "
                     f"{scored[-1] + lacking} on.")
    return lines


def _advice(warehouse: Warehouse, alarms: list[Alarm]) -> list[str]:
    """The policy to go back to: the last one that no alarm speaks against."""
    first = min(alarm.first_iteration for alarm in alarms)
    newest = max(warehouse.policy_versions(), default=0)
    lines = []
    if any(alarm.at_staleness_0 for alarm in alarms if alarm.first_iteration == first):
        # Policy `first` was not what sampled; the one trained on those samples is what was spoilt.
        sound = first
        lines.append(f"Mend the engine first, or it happens again: what sampled iteration {first} was not "
                     f"what was trained. Policy {first} is sound; policy {first + 1} was trained on these "
                     "samples.")
    else:
        sound = _policy_before(warehouse, first)
    if sound >= newest:
        return [*lines, f"Stop here: policy {newest} is the newest, there is none to go back from."]
    return [*lines, f"Stop here, or go back: warehouse rollback {warehouse.root} --to {sound}"]


def _policy_before(warehouse: Warehouse, version: int) -> int:
    """The policy that `version` was trained from; a copy made by a rollback counts as its original."""
    while version in warehouse.policy_versions():
        original = warehouse.policy(version).get("rolled_back_to")
        if original is None:
            break
        version = original
    return max(0, version - 1)
