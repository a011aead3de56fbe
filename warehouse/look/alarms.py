"""Signals of collapse in a run: what fired, what was raised once, and completions that show it."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from warehouse.look.render import short_number
from warehouse.sql.database import rows_of
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import UNTRUNCATED

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
    "step_ratio": ("train_tokens", "true", "list_max(log_drift) DESC NULLS LAST"),
    "step_kl": ("train_tokens", "true",
                "list_sum(list_transform(log_drift, lambda d: exp(d) - 1 - d)) DESC NULLS LAST"),
    "clipping": ("train_tokens", "true", "list_sum(clipped) DESC NULLS LAST"),
    "grad_norm": ("train_samples", "optimizer_step = (SELECT arg_max(optimizer_step, grad_norm) "
                  "FROM train_steps WHERE iteration = $1)", "abs(advantage) DESC"),
    "reuse": ("samples", "false", "task_id"),      # a matter of settings: no completion shows it
    "diversity": ("samples", "NOT correct AND NOT first_output", "num_completion_tokens"),
    "sharpening": ("samples", "task_id IN (SELECT task_id FROM task_results WHERE purpose = $2 "
                   "GROUP BY task_id HAVING max(c) FILTER (iteration < $1) > 0 "
                   "AND max(c) FILTER (iteration = $1) = 0)",
                   "reward DESC"),                  # tasks that were within reach and are no longer
}
BY_MISMATCH = ("train_samples", "true", "log_ratio_abs_max DESC NULLS LAST")
BY_REWARD = ("samples", "true", "reward")
MISMATCH_SIGNALS = ("wrong_weights", "mismatch", "token_ratio", "ess", "weight_mean", "weight_spread")
FRESH_SIGNALS = MISMATCH_SIGNALS[:3]     # of rows at staleness 0 alone
STEP_SIGNALS = ("step_ratio", "step_kl", "grad_norm", "clipping", "reuse")


class Alarm(NamedTuple):
    """A signal beyond its level: whether it fired or was raised once, since when, and three completions."""

    signal: str
    purpose: str
    fired: bool
    first_iteration: int
    last_iteration: int
    num_iterations: int
    value: float
    level: float
    above: bool
    meaning: str
    examples: list[tuple[str, int]]
    spoils_next: bool  # the policy that sampled is sound; what was trained on its completions is not

    @property
    def sentence(self) -> str:
        """The alarm as a line, its examples apart."""
        place = ("" if self.purpose == "train" else f" ({self.purpose})")
        again = (f", {self.num_iterations} iterations until {self.last_iteration}"
                 if self.num_iterations > 1 else "")
        return (f"{self.signal}{place} {'since' if self.fired else 'raised at'} iteration "
                f"{self.first_iteration}{again}: {self.meaning}, {short_number(self.value)}, "
                f"{'above' if self.above else 'below'} {short_number(self.level)}")

    def names(self) -> list[str]:
        """The examples as `warehouse show` takes them."""
        purpose = "" if self.purpose == "train" else f"{self.purpose}/"
        return [f"{self.first_iteration}/{purpose}{task}/{index}" for task, index in self.examples]


def raised_alarms(connection: duckdb.DuckDBPyConnection, *, since: int = 0, ignored: tuple[str, ...] = (),
                  examples: bool = True) -> list[Alarm]:
    """What fired, then what was raised once, at iteration `since` or later; causes before consequences.

    What was raised before the last rollback up to `since` is left out. Looking for `examples` takes longer.
    """
    return [Alarm(**row, examples=_examples(connection, row) if examples else [],
                  spoils_next=_spoils_next(connection, row)) for row in _raised(connection, since, ignored)]


def alarm_count_lines(warehouse: Warehouse, alarms: list[Alarm]) -> list[str]:
    """How many signals fire or are raised, in a line; none where none is."""
    firing = [alarm for alarm in alarms if alarm.fired]
    counts = [f"{len(firing)} {'signal' if len(firing) == 1 else 'signals'} since iteration "
              f"{firing[0].first_iteration}"] if firing else []
    once = len(alarms) - len(firing)
    counts += [f"{once} {'signal' if once == 1 else 'signals'} raised once"] if once else []
    return [f"{', '.join(counts)}: warehouse watch {warehouse.root}"] if counts else []


def _raised(connection: duckdb.DuckDBPyConnection, since: int,
            ignored: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """A row per purpose and signal that fired or was raised since the last rollback up to `since`."""
    rows = rows_of(connection, """
        SELECT signal, purpose, any_value(fires) AS fired, min(iteration) AS first_iteration,
               max(iteration) AS last_iteration, count(*)::INTEGER AS num_iterations,
               arg_min(value, iteration) AS value, arg_min(level, iteration) AS level,
               any_value(above) AS above, any_value(meaning) AS meaning
        FROM (SELECT *, bool_or(fired) OVER (PARTITION BY purpose, signal) AS fires FROM raised_signals
              WHERE iteration >= (SELECT coalesce(max(policy_version), 0) FROM policies
                                  WHERE rolled_back_to IS NOT NULL AND policy_version <= $1))
        WHERE fired = fires
        GROUP BY signal, purpose HAVING max(iteration) >= $1""", [since])
    order = known_signals()
    return sorted((row for row in rows if row["signal"] not in ignored),
                  key=lambda row: (not row["fired"], row["first_iteration"], order.index(row["signal"])))


def _spoils_next(connection: duckdb.DuckDBPyConnection, row: dict[str, Any]) -> bool:
    """True for bad steps, and for a mismatch in an iteration trained on rows of its own policy alone."""
    if row["signal"] not in MISMATCH_SIGNALS:
        return row["signal"] in STEP_SIGNALS
    query = "SELECT max(staleness) AS greatest FROM rolled_mismatch WHERE iteration = $1"
    return rows_of(connection, query, [row["first_iteration"]])[0]["greatest"] == 0


def known_signals() -> list[str]:
    """Names of all signals, causes before what follows from them."""
    return re.findall(r"signal_of\('(\w+)'", files("warehouse.sql.texts").joinpath("alarms.sql").read_text())


def check_signals(names: tuple[str, ...]) -> None:
    """StageError for a name that is no signal."""
    known = known_signals()
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise StageError(f"There is no signal '{unknown[0]}'. Known: {', '.join(known)}.")


def _examples(connection: duckdb.DuckDBPyConnection, row: dict[str, Any]) -> list[tuple[str, int]]:
    """Three completions (task, sample index) of the iteration that show the signal best."""
    signal = row["signal"]
    table, condition, order = BY_MISMATCH if signal in MISMATCH_SIGNALS else SHOWN_BY.get(signal, BY_REWARD)
    rows = rows_of(connection, f"SELECT task_id, sample_index FROM {table} "
                               f"WHERE iteration = $1 AND purpose = $2 AND {condition} "
                               f"ORDER BY {order}, task_id, sample_index LIMIT 3",
                   [row["first_iteration"], row["purpose"]])
    return [(example["task_id"], example["sample_index"]) for example in rows]


def last_rollback(warehouse: Warehouse, until: int | None = None) -> int:
    """The iteration that the last rollback starts again from, of those up to `until`; 0 without any."""
    for version in reversed(warehouse.policy_versions()):
        if (until is None or version <= until) and _rolled_back_to(warehouse, version) is not None:
            return version
    return 0


def _rolled_back_to(warehouse: Warehouse, version: int) -> int | None:
    """The policy that `version` is a copy of; a damaged policy.json was told when the run was opened."""
    with suppress(StageError):
        return warehouse.policy(version).get("rolled_back_to")
    return None


def alarm_lines(warehouse: Warehouse, connection: duckdb.DuckDBPyConnection, alarms: list[Alarm],
                since: int) -> list[str]:
    """What to print: every alarm with its examples, what was raised once, what was judged, what to do."""
    lines = []
    for alarm in alarms:
        if alarm is next((other for other in alarms if not other.fired), None):
            lines.append("Raised once; a second time in a row is an alarm:")
        lines.append(alarm.sentence)
        if alarm.signal in MISMATCH_SIGNALS:
            lines.append(f"    warehouse gaps {warehouse.root} --iteration {alarm.first_iteration}")
        lines += [f"    warehouse show {warehouse.root} {name}" for name in alarm.names()]
    advice = advice_lines(warehouse, connection, alarms)
    if advice:
        return [*lines, "", *advice]
    return ["No alarm.", *lines, *judged_lines(connection, since)]


def judged_lines(connection: duckdb.DuckDBPyConnection, since: int) -> list[str]:
    """What was held against how many signals from iteration `since` on, and against which it was not."""
    rows = rows_of(connection, """
        SELECT purpose, min(iteration) AS first, max(iteration) AS last, min(len(judged)) AS least,
               max(len(judged)) AS most, list_distinct(flatten(list(judged))) AS judged
        FROM (SELECT purpose, iteration,
                     coalesce(list(signal) FILTER (value IS NOT NULL AND level IS NOT NULL), []) AS judged
              FROM signals WHERE iteration >= $1 GROUP BY purpose, iteration)
        GROUP BY purpose ORDER BY purpose <> 'train', purpose""", [since])
    lines, unjudged = [], []
    if not any(row["purpose"] == "train" for row in rows):
        lines.append(f"Nothing could be judged yet: no training iteration from {since} on is scored.")
    for row in rows:
        training = row["purpose"] == "train"
        stretch = f"{row['first']}" + (f" to {row['last']}" if row["last"] > row["first"] else "")
        counts = f"{row['least']}" + (f" to {row['most']}" if row["most"] > row["least"] else "")
        name = "iteration" if training else row["purpose"]
        lines.append(f"Judged: {name} {stretch} by {counts} signals each.")
        left = [signal for signal in known_signals() if signal not in row["judged"]
                and (training or signal not in (*MISMATCH_SIGNALS, *STEP_SIGNALS))]
        if "step_ratio" in left:
            unjudged.append(f"Not judged until an iteration from {since} on is trained: the mismatch of "
                            "engine and trainer, the steps.")
            left = [signal for signal in left if signal not in (*MISMATCH_SIGNALS, *STEP_SIGNALS)]
        if "mismatch" in left:
            unjudged.append("Not judged, as all that was trained on came from earlier policies: "
                            f"{', '.join(FRESH_SIGNALS)}.")
            left = [signal for signal in left if signal not in FRESH_SIGNALS]
        if left:
            whose = "" if training else f" of {name}"
            unjudged.append(f"Not judged{whose} for want of earlier values: {', '.join(left)}.")
    return lines + unjudged


def _changed_sampling(connection: duckdb.DuckDBPyConnection, iteration: int) -> str:
    """What bent the distribution that an iteration was sampled from, as top_p 0.95; empty where nothing."""
    names = ", ".join(f"any_value({name}) FILTER ({name} <> {neutral}) AS {name}"
                      for name, neutral in UNTRUNCATED.items())
    [row] = rows_of(connection, f"SELECT {names} FROM completions WHERE iteration = $1 AND purpose = 'train'",
                    [iteration])
    return ", ".join(f"{name} {value:g}" for name, value in row.items() if value is not None)


def advice_lines(warehouse: Warehouse, connection: duckdb.DuckDBPyConnection,
                 alarms: list[Alarm]) -> list[str]:
    """What to mend, and the last policy that no alarm speaks against; no lines where none fired."""
    firing = [alarm for alarm in alarms if alarm.fired]
    if not firing:
        return []
    first = min(alarm.first_iteration for alarm in firing)
    newest = max(warehouse.policy_versions(), default=0)
    causes = [alarm.signal for alarm in firing if alarm.first_iteration == first and alarm.spoils_next]
    lines = []
    changed = _changed_sampling(connection, first) if set(causes) & set(MISMATCH_SIGNALS) else ""
    if changed:
        lines.append(f"Mend the sampling first, or it happens again: iteration {first} was drawn with "
                     f"{changed}, so its logprobs are of another distribution than the one that was trained. "
                     f"Policy {first} is sound; policy {first + 1} was trained on these samples.")
    elif any(signal in MISMATCH_SIGNALS for signal in causes):
        # Policy `first` was not what sampled; the one trained on those samples is what was spoilt.
        lines.append(f"Mend the engine first, or it happens again: what sampled iteration {first} was not "
                     f"what was trained. Policy {first} is sound; policy {first + 1} was trained on these "
                     "samples.")
    elif causes:
        lines.append("Smaller steps first (--learning-rate, --updates-per-batch), or it happens again: "
                     f"policy {first} is sound; policy {first + 1} was made by these steps.")
    sound = first if causes else _policy_before(warehouse, first)
    if sound >= newest:
        return [*lines, f"Stop here: policy {newest} is the newest, there is none to go back from."]
    return [*lines, f"Stop here, or go back: warehouse rollback {warehouse.root} --to {sound}"]


def _policy_before(warehouse: Warehouse, version: int) -> int:
    """The policy that `version` was trained from; a copy made by a rollback counts as its original."""
    while version in warehouse.policy_versions():
        original = _rolled_back_to(warehouse, version)
        if original is None:
            break
        version = original
    return max(0, version - 1)
