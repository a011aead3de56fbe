"""Alarms that fired in a run, with completions that show what happened."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from warehouse.database import rows_of
from warehouse.errors import StageError
from warehouse.render import short_number
from warehouse.store import Warehouse

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
    """Alarms still raised at iteration `since` or later, earliest first."""
    rows = rows_of(connection, "SELECT * FROM alarms WHERE last_iteration >= $1 "
                               "ORDER BY first_iteration, signal", [since])
    return [Alarm(**row, examples=examples(connection, row["signal"], row["first_iteration"]))
            for row in rows if row["signal"] not in ignored]


def check_signals(names: tuple[str, ...]) -> None:
    """StageError for a name that is no signal."""
    text = files("warehouse").joinpath("alarms.sql").read_text()
    known = re.findall(r"signal_of\('(\w+)'", text)
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


def last_rollback(warehouse: Warehouse) -> int:
    """The iteration that the last rollback starts again from; 0 where there was none."""
    restarted = [version for version in warehouse.policy_versions()
                 if warehouse.policy(version).get("rolled_back_to") is not None]
    return max(restarted, default=0)


def alarm_lines(warehouse: Warehouse, alarms: list[Alarm]) -> list[str]:
    """What to print: every alarm with its examples, then what to do."""
    if not alarms:
        return ["No alarm."]
    lines = []
    for alarm in alarms:
        lines.append(alarm.sentence)
        lines += [f"    warehouse show {warehouse.root} {alarm.first_iteration}/{task}/{index}"
                  for task, index in alarm.examples]
    healthy = max(0, min(alarm.first_iteration for alarm in alarms) - 1)
    lines += ["", f"Stop here, or go back: warehouse rollback {warehouse.root} --to {healthy}"]
    return lines
