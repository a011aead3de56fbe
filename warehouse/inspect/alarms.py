"""Signals of collapse in a run: what fired, what was raised once, and completions that show it."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from warehouse.inspect.render import short_number
from warehouse.sql.database import Connection, rows_of
from warehouse.sql.script import shipped
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.names import completion_name
from warehouse.store.run_folder import Warehouse

ALARM_EXIT_CODE = 3
RISEN = 0.1                     # share of completions; errors that rose by this are named

MISMATCH_SIGNALS = ("wrong_weights", "mismatch", "ess", "weight_mean", "weight_spread")
STEP_SIGNALS = ("step_ratio", "step_kl", "grad_norm", "clipping", "reuse")
BY_REWARD = ("samples", "true", "reward")
# Where to find completions that show a signal best, if not BY_REWARD: a table, a condition, an order.
SHOWN_BY = {
    **dict.fromkeys(MISMATCH_SIGNALS, ("train_samples", "true", "log_ratio_abs_max DESC NULLS LAST")),
    "truncation": ("samples", "truncated", "num_completion_tokens DESC"),
    "loops": ("samples", "loop_tokens > 0", "loop_tokens DESC"),
    "repetition": ("samples", "true", "ngram4_unique_ratio"),
    "no_code": ("samples", "NOT valid_code", "num_completion_tokens DESC"),
    "errors": ("samples", "valid_code AND error_class IS NOT NULL", "error_class"),
    "unmeasured": ("samples", "reward IS NULL", "task_id"),
    "empty": ("samples", "num_completion_tokens <= 1", "task_id"),
    "entropy_high": ("samples", "true", "nll_sampled DESC"),
    "entropy_low": ("samples", "true", "nll_sampled"),
    "length_up": ("samples", "true", "num_completion_tokens DESC"),
    "reward_hacking": ("samples", "NOT correct", "reward DESC"),
    "step_ratio": ("train_tokens", "true", "list_max(log_drift) DESC NULLS LAST"),
    "step_kl": ("train_tokens", "true",
                "list_sum(list_transform(log_drift, lambda d: exp(d) - 1 - d)) DESC NULLS LAST"),
    "clipping": ("train_tokens", "true", "list_sum(clipped) DESC NULLS LAST"),
    "grad_norm": ("train_samples", "optimizer_step = (SELECT arg_max(optimizer_step, grad_norm) "
                  "FROM train_steps WHERE iteration = $1)", "abs(advantage) DESC"),
    "reuse": ("samples", "false", "task_id"),      # caused by settings: no completion shows it
    "diversity": ("samples", "NOT correct AND NOT first_output", "num_completion_tokens"),
    "sharpening": ("samples", "task_id IN (SELECT task_id FROM task_results WHERE purpose = $2 "
                   "GROUP BY task_id HAVING max(c) FILTER (iteration < $1) > 0 "
                   "AND max(c) FILTER (iteration = $1) = 0)",
                   "reward DESC"),                  # tasks that were solved before and no longer are
}
# Signals in a row are over if pass@1 (the reward, if nothing is solved) was as good later as before them, at
# equal task difficulty: means of ten iterations or two evaluations in a row; of three if fewer came before.
RECOVERIES = """
    WITH results AS (
        SELECT purpose, iteration, CASE WHEN max(solving_plain) OVER (PARTITION BY purpose) > 0 THEN solving
                                        ELSE reward END AS value, if(purpose = 'train', 10, 2) AS needed
        FROM adjusted),
    smooth AS (
        SELECT *, CASE WHEN count(value) OVER former = needed THEN avg(value) OVER former
                       ELSE avg(value) OVER last_3 END AS up_to,
               CASE WHEN count(value) OVER following = needed THEN avg(value) OVER following END AS from_on
        FROM results WINDOW following AS (PARTITION BY purpose ORDER BY iteration
                                          ROWS BETWEEN CURRENT ROW AND needed - 1 FOLLOWING),
                            former AS (PARTITION BY purpose ORDER BY iteration ROWS needed - 1 PRECEDING),
                            last_3 AS (PARTITION BY purpose ORDER BY iteration ROWS 2 PRECEDING))
    SELECT purpose, begun, ended, max(from_on) FILTER (iteration > ended) AS later,
           later > 0 AND later >= coalesce(max(up_to) FILTER (iteration < begun),
                                           max(value) FILTER (iteration <= ended)) AS recovered
    FROM (SELECT DISTINCT purpose, begun, ended FROM held WHERE fired) JOIN smooth USING (purpose)
    GROUP BY purpose, begun, ended"""


class Alarm(NamedTuple):
    """A signal beyond its level: whether it fired, is over or was raised once, since when, and examples."""

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
    errors: list[str]  # errors that rose, if pass@1 falls or programs fail
    spoils_next: bool  # the sampling policy is sound; the one trained on its rows is not
    over: bool = False  # it fired, but the results have since been as good as before it

    @property
    def title(self) -> str:
        return self.signal if self.purpose == "train" else f"{self.signal} ({self.purpose})"

    @property
    def sentence(self) -> str:
        """The alarm as a line, without its examples."""
        again = (f", in {self.num_iterations} iterations up to {self.last_iteration}"
                 if self.num_iterations > 1 else "")
        return (f"{self.title} {'since' if self.fired else 'raised at'} iteration "
                f"{self.first_iteration}{again}: {self.meaning}, {short_number(self.value)}, "
                f"{'above' if self.above else 'below'} {short_number(self.level)}")

    def names(self) -> list[str]:
        """The names of the examples, as `score explain` takes them."""
        return [completion_name(self.first_iteration, self.purpose, *example) for example in self.examples]


def raised_alarms(connection: Connection, *, since: int = 0, ignored: tuple[str, ...] = (),
                  examples: bool = True) -> list[Alarm]:
    """Signals that fired, that are over, or were raised once, from iteration `since` on; causes come first.

    Signals raised before the last rollback up to `since` are left out. Finding `examples` takes longer.
    """
    return [Alarm(**row, examples=_examples(connection, row) if examples else [],
                  errors=_risen_errors(connection, row) if examples else [],
                  spoils_next=_spoils_next(connection, row)) for row in _raised(connection, since, ignored)]


def groups_of(alarms: Sequence[Alarm]) -> list[tuple[str, list[Alarm]]]:
    """Alarms that fired, that are over, and that were raised once, each with a title ('' for the first)."""
    once = [alarm for alarm in alarms if not alarm.fired and not alarm.over]
    return [("", [alarm for alarm in alarms if alarm.fired]),
            ("Over; results have since been as good as before", [alarm for alarm in alarms if alarm.over]),
            ("Raised once; an alarm if raised twice in a row", once)]


def alarm_count_lines(warehouse: Warehouse, alarms: list[Alarm]) -> list[str]:
    """A line with the number of fired and raised signals; none if there are none."""
    (_, firing), (_, over), (_, once) = groups_of(alarms)
    since = f"since iteration {firing[0].first_iteration}" if firing else ""
    counts = [f"{counted(len(group), 'signal')} {when}"
              for group, when in ((firing, since), (over, "over"), (once, "raised once")) if group]
    return [f"{', '.join(counts)}: warehouse watch {shell_quote(warehouse.root)}"] if counts else []


def _raised(connection: Connection, since: int, ignored: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """A row per purpose and signal that fired, is over or was raised since the last rollback up to `since`.

    Iterations before `since` are included only if they lead up to it without a gap.
    """
    rows = rows_of(connection, f"""
        WITH places AS (SELECT iteration, purpose, row_number() OVER (
                            PARTITION BY purpose ORDER BY iteration) AS place FROM iteration_stats),
             streaks AS (SELECT *, place - row_number() OVER (
                             PARTITION BY purpose, signal ORDER BY iteration) AS streak
                         FROM raised_signals LEFT JOIN places USING (iteration, purpose)
                         WHERE iteration >= (SELECT coalesce(max(policy_version), 0) FROM policies
                                             WHERE rolled_back_to IS NOT NULL AND policy_version <= $1)),
             held AS (SELECT *, min(iteration) OVER same AS begun, max(iteration) OVER same AS ended
                      FROM streaks WINDOW same AS (PARTITION BY purpose, signal, streak) QUALIFY ended >= $1),
             recoveries AS ({RECOVERIES}),
             judged AS (SELECT held.*, coalesce(recovered, false) AS over
                        FROM held LEFT JOIN recoveries USING (purpose, begun, ended))
        SELECT signal, purpose, any_value(fires) AND NOT over AS fired, over,
               min(iteration) AS first_iteration,
               max(iteration) AS last_iteration, count(*)::INTEGER AS num_iterations,
               arg_min(value, iteration) AS value, arg_min(level, iteration) AS level,
               any_value(above) AS above, any_value(meaning) AS meaning
        FROM (SELECT *, bool_or(fired) OVER (PARTITION BY purpose, signal, over) AS fires FROM judged)
        WHERE fired = fires AND fires >= over
        GROUP BY signal, purpose, over HAVING max(iteration) >= $1""", [since])
    order = known_signals()
    return sorted((row for row in rows if row["signal"] not in ignored),
                  key=lambda row: (not row["fired"], not row["over"], row["first_iteration"],
                                   order.index(row["signal"])))


def _spoils_next(connection: Connection, row: dict[str, Any]) -> bool:
    """True for bad steps, and for a mismatch in an iteration trained only on rows of its own policy."""
    if row["signal"] not in MISMATCH_SIGNALS:
        return row["signal"] in STEP_SIGNALS
    query = "SELECT max(staleness) AS greatest FROM rolled_mismatch WHERE iteration = $1"
    return rows_of(connection, query, [row["first_iteration"]])[0]["greatest"] == 0


def known_signals() -> list[str]:
    """Names of all signals, causes before consequences."""
    return re.findall(r"signal_of\('(\w+)'", shipped("alarms.sql"))


def check_signals(names: tuple[str, ...]) -> None:
    """StageError for a name that is not a signal."""
    known = known_signals()
    if unknown := sorted(set(names) - set(known)):
        raise StageError(f"There is no signal '{unknown[0]}'. Known: {', '.join(known)}.")


def _examples(connection: Connection, row: dict[str, Any]) -> list[tuple[str, int]]:
    """Three completions (task, sample index) of the iteration that show the signal best."""
    table, condition, order = SHOWN_BY.get(row["signal"], BY_REWARD)
    rows = rows_of(connection, f"SELECT task_id, sample_index FROM {table} WHERE iteration = $1 AND purpose "
                               f"= $2 AND {condition} ORDER BY {order}, task_id, sample_index LIMIT 3",
                   [row["first_iteration"], row["purpose"]])
    return [(example["task_id"], example["sample_index"]) for example in rows]


def _risen_errors(connection: Connection, row: dict[str, Any]) -> list[str]:
    """Errors that rose sharply since the previous iteration, if pass@1 fell or programs failed."""
    if row["signal"] not in ("solving_falls", "errors"):
        return []
    rows = rows_of(connection, """
        WITH own AS (SELECT * FROM errors WHERE purpose = $2),
             before AS (SELECT error_class, sum(share) AS share FROM own
                        WHERE iteration = (SELECT max(iteration) FROM iteration_stats
                                           WHERE purpose = $2 AND iteration < $1) GROUP BY ALL)
        SELECT error_class, sum(own.share) AS share, coalesce(any_value(before.share), 0) AS former,
               arg_max(example, num) AS example
        FROM own LEFT JOIN before USING (error_class) WHERE iteration = $1 GROUP BY error_class
        HAVING sum(own.share) > former + $3 ORDER BY sum(own.share) - former DESC""",
        [row["first_iteration"], row["purpose"], RISEN])
    former = f"the {'evaluation' if row['purpose'].startswith('eval') else 'iteration'} before"
    return [f"{each['error_class']}: {each['share']:.0%} of the completions, {each['former']:.0%} {former}"
            + (f"; {each['example']}" if each["example"] else "") for each in rows]


def last_rollback(warehouse: Warehouse) -> int:
    """The iteration that the last rollback continues from; 0 without any."""
    return max((version for version, policy in warehouse.state.policies.items()
                if policy.rolled_back_to is not None), default=0)
