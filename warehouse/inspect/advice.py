"""The text about alarms: each with examples, which signals were checked, and what to do."""

import re
from typing import NamedTuple

from warehouse.inspect.alarms import MISMATCH_SIGNALS, STEP_SIGNALS, Alarm, groups_of, known_signals
from warehouse.inspect.render import UNSET, short_number
from warehouse.ledger.state import Life
from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import counted, shell_quote
from warehouse.store.names import UNTRUNCATED
from warehouse.store.run_folder import Warehouse

PAID_SIGNALS = ("reward_hacking", "truncation", "length_up", "loops", "repetition")

# Settings that are no choice: hashes, what a rollback changes, and how the work was divided.
NOT_TOLD = "sha256|version|scorer|^serve$|^imported_from$|^part_size$"
# Where a stage of training ran with another setting than before: iteration, stage, name, value, former.
SETTING_CHANGES = f"""
SELECT iteration, stage, name, value, former
FROM (SELECT *, lag(value) OVER by_setting AS former, row_number() OVER by_setting > 1 AS followed
      FROM (SELECT stage, iteration, unnest(json_keys(settings)) AS name, settings ->> name AS value
            FROM stages WHERE stage IN ('rollout', 'train') AND coalesce(purpose, 'train') = 'train'
            UNION ALL SELECT 'train', iteration, 'staleness',   -- news where it is higher than ever
                             (max(max(staleness)) OVER (ORDER BY iteration))::VARCHAR
            FROM rolled_mismatch GROUP BY iteration
            UNION ALL SELECT 'score', iteration, 'scorer', scorer FROM scorers
            WHERE chosen AND purpose = 'train')
      WINDOW by_setting AS (PARTITION BY stage, name ORDER BY iteration))
WHERE followed AND former IS DISTINCT FROM value
      AND (stage = 'score' OR NOT regexp_matches(name, '{NOT_TOLD}'))"""


def settings_between(former: Life, later: Life) -> list[str]:
    """Settings in which two stages of a kind differ, as `learning-rate 0.03 (was 0.0005)`."""
    return [f"{name.replace('_', '-')} {value} (was {former.settings[name]})"
            for name, value in sorted(later.settings.items())
            if not re.search(NOT_TOLD, name) and value != former.settings.get(name, value)]


def alarm_lines(warehouse: Warehouse, connection: Connection, alarms: list[Alarm], since: int) -> list[str]:
    """The lines to print: advice, every alarm with examples, and what was checked."""
    lines = list[str]()
    for title, group in groups_of(alarms):
        lines += [f"{title}:"] if title and group else []
        for alarm in group:
            lines.append(alarm.sentence)
            if alarm.signal in MISMATCH_SIGNALS:
                lines.append(f"    warehouse sql {shell_quote(warehouse.root)} \"FROM token_gaps("
                             f"{alarm.first_iteration}) ORDER BY abs(gap) DESC LIMIT 15\"")
            elif alarm.signal in STEP_SIGNALS:
                lines.append(f"    warehouse sql {shell_quote(warehouse.root)} \"SELECT optimizer_step, "
                             "policy_kl, clip_fraction, grad_norm FROM train_steps "
                             f"WHERE iteration = {alarm.first_iteration}\"")
            lines += [f"    {line}" for line in alarm.errors if f"    {line}" not in lines]
            if names := alarm.names():
                also = f" (also {', '.join(names[1:])})" if names[1:] else ""
                lines.append(f"    score explain {shell_quote(warehouse.root)} {shell_quote(names[0])}{also}")
    advice = advise(warehouse, connection, alarms).lines
    if fired := [f"{one.title} since iteration {one.first_iteration}" for one in alarms if one.fired]:
        return [f"Alarm: {', '.join(fired)}.", *advice, "", *lines]
    return ["No alarm.", *advice, *lines, *judged_lines(connection, since)]


def judged_lines(connection: Connection, since: int) -> list[str]:
    """How many signals were checked from iteration `since` on, and which not at the last of them."""
    rows = rows_of(connection, """
        SELECT purpose, min(iteration) AS first, max(iteration) AS last, min(len(judged)) AS least,
               max(len(judged)) AS most, arg_max(judged, iteration) AS lately,
               arg_max(measured, iteration) AS measured
        FROM (SELECT purpose, iteration, coalesce(list(signal) FILTER (value IS NOT NULL), []) AS measured,
                     coalesce(list(signal) FILTER (value IS NOT NULL AND level IS NOT NULL), []) AS judged
              FROM signals WHERE iteration >= $1 GROUP BY purpose, iteration)
        GROUP BY purpose ORDER BY purpose <> 'train', purpose""", [since])
    lines = []
    if not any(row["purpose"] == "train" for row in rows):
        lines.append(f"No training iteration from {since} on is scored.")
    for row in rows:
        training = row["purpose"] == "train"
        stretch = f"{row['first']}" + (f" to {row['last']}" if row["last"] > row["first"] else "")
        counts = f"{row['least']}" + (f" to {row['most']}" if row["most"] > row["least"] else "")
        name = "iteration" if training else row["purpose"]
        lines.append(f"Checked: {name} {stretch}, {counts} signals each.")
        left = [signal for signal in known_signals() if signal not in row["lately"]
                and (training or signal not in (*MISMATCH_SIGNALS, *STEP_SIGNALS))]
        for lack, of_these in (("earlier iterations of the same scorer", row["measured"]),
                               ("a training, rows of its own policy, or outputs to compare",
                                {*left} - {*row["measured"]})):
            if said := ", ".join(signal for signal in left if signal in of_these):
                lines.append(f"Not checked at {name} {row['last']}, for lack of {lack}: {said}.")
    return lines


def _changed_sampling(connection: Connection, iteration: int) -> str:
    """Sampling options that changed the distribution of an iteration, as top_p 0.95; empty if none did."""
    names = ", ".join(f"any_value({name}) FILTER ({name} <> {neutral}) AS {name}"
                      for name, neutral in UNTRUNCATED.items())
    [row] = rows_of(connection, f"SELECT {names} FROM completions WHERE iteration = $1 AND purpose = 'train'",
                    [iteration])
    return ", ".join(f"{name} {value:g}" for name, value in row.items() if value is not None)


def changed_settings(connection: Connection, iteration: int, num_iterations: int = 10,
                     effects: bool = True) -> list[str]:
    """The last two changes of stage settings, with `effects` also of staleness, up to this iteration."""
    rows = rows_of(connection, f"""
        SELECT iteration, string_agg(
            concat(stage, ' ', name, ' ', coalesce(value, '{UNSET}'),
                   ' (was ', coalesce(former, '{UNSET}'), ')'), ', ' ORDER BY stage, name) AS changes
        FROM ({SETTING_CHANGES}) WHERE iteration > $1 - $2 AND iteration <= $1 AND ($3 OR name <> 'staleness')
        GROUP BY iteration ORDER BY iteration DESC LIMIT 2""", [iteration, num_iterations, effects])[::-1]
    return [f"Settings changed at iteration {row['iteration']}: {row['changes']}." for row in rows]


class Advice(NamedTuple):
    """What to do about alarms: in words, and for a loop."""

    lines: list[str]
    first: int | None = None    # iteration of the first alarm that fired
    mend: bool = False          # something else must be fixed first: smaller steps do not help
    back: int | None = None     # the policy to go back to


def advise(warehouse: Warehouse, connection: Connection, alarms: list[Alarm]) -> Advice:
    """What was changed and what to fix, and the last policy without a fired alarm against it."""
    firing = [alarm for alarm in alarms if alarm.fired]
    if not firing:
        once = [alarm for alarm in alarms if not alarm.over]
        return Advice(changed_settings(connection, once[0].first_iteration) if once else [])
    first = min(alarm.first_iteration for alarm in firing)
    newest = warehouse.state.newest
    causes = [alarm.signal for alarm in firing if alarm.first_iteration == first and alarm.spoils_next]
    # Results that are bad already show the policy that sampled them: the steps before were too large, too.
    shown = any(alarm.first_iteration == first and not alarm.spoils_next for alarm in firing)
    lines = changed_settings(connection, first)
    mismatched = not set(causes).isdisjoint(MISMATCH_SIGNALS)
    changed = _changed_sampling(connection, first) if mismatched else ""
    paid = _paid(connection, firing)
    if changed:
        lines.append(f"Fix the sampling first, or it happens again: iteration {first} was sampled with "
                     f"{changed}, so its logprobs belong to another distribution than the trained one. "
                     f"Policy {first} is sound; policy {first + 1} was trained on these samples.")
    elif mismatched:
        # Policy `first` did not sample these rows; the policy trained on them is the damaged one.
        lines.append(f"Fix the engine first, or it happens again: iteration {first} was not sampled by "
                     f"the trained policy. {_gaps(connection, first, causes)}Policy {first} is sound; policy "
                     f"{first + 1} was trained on these samples.")
    elif paid:
        lines.append(f"Fix the reward first, or it happens again: {paid}. Earlier policies learned from it, "
                     "too.")
    elif causes:
        way_out = ("Fewer rows of earlier iterations first (--replay)" if set(causes) == {"reuse"} else
                   "Smaller steps first (--learning-rate, --updates-per-batch)")
        lines.append(f"{way_out}, or it happens again: " + ("" if shown else f"policy {first} is sound; ")
                     + f"policy {first + 1} was made by {_steps(connection, first)}.")
    sound = first if mismatched or (causes and not shown) else _policy_before(warehouse, first)
    mend = bool(mismatched or paid)
    if sound >= newest:
        lines.append(f"Stop here: policy {newest} is the newest, so there is nothing to go back from.")
        return Advice(lines, first, mend)
    if warehouse.state.policies[sound].dropped:
        lines.append(f"Stop here. The weights of policy {sound} and of those before it are removed "
                     "(--keep-policies): restore them from a copy, or roll back to policy 0, the base.")
        return Advice(lines, first, mend)
    lines.append(f"Stop here, or go back: warehouse rollback {shell_quote(warehouse.root)} --to {sound}")
    return Advice(lines, first, mend, sound)


def _gaps(connection: Connection, iteration: int, causes: list[str]) -> str:
    """How many tokens have another logprob: another policy shifts many, another tokenizer few by a lot."""
    [row] = rows_of(connection, """
        SELECT count(*) AS num, count(*) FILTER (abs(gap) > 0.05) AS moved,
               count(*) FILTER (abs(gap) > 5) AS far FROM token_gaps($1)""", [iteration])
    if not row["moved"]:
        return ""
    like = ("" if "wrong_weights" not in causes else ", as with another tokenizer"
            if row["far"] > 0.2 * row["moved"] else ", as with another policy")
    return (f"{row['moved'] / row['num']:.0%} of its tokens are off by 0.05 and more, "
            f"{row['far'] / row['moved']:.0%} of these by 5 and more{like}. ")


def _steps(connection: Connection, iteration: int) -> str:
    """How many steps a stage made, on how many completions, and their KL: a few large steps, or many."""
    [row] = rows_of(connection, """
        SELECT count(*) AS num, avg(num_completions) AS size, max(policy_kl) AS most,
               arg_min(policy_kl, optimizer_step) FILTER (optimizer_step > 0) AS earliest
        FROM train_steps WHERE iteration = $1""", [iteration])
    far = (f", KL {short_number(row['earliest'])} after the first, {short_number(row['most'])} at most"
           if row["earliest"] is not None else "")
    return f"{counted(row['num'], 'step')} of {counted(round(row['size']), 'completion')}{far}"


def _paid(connection: Connection, firing: list[Alarm]) -> str:
    """The reward of wrong completions if it rose: its mean, or its correlation with text; else empty."""
    suspects = [alarm for alarm in firing if alarm.signal in PAID_SIGNALS and alarm.purpose == "train"]
    hacked = [alarm for alarm in suspects if alarm.signal == "reward_hacking"]
    if not suspects:
        return ""
    at = min(alarm.first_iteration for alarm in hacked or suspects)
    [row] = rows_of(connection, """
        WITH begun AS (SELECT min(iteration) AS begin FROM iteration_stats WHERE purpose = 'train')
        SELECT avg(reward) FILTER (iteration = $1) AS now, avg(reward) FILTER (iteration = begin) AS former,
               corr(reward, num_completion_tokens) FILTER (iteration = $1) AS longer,
               corr(reward, 1 - unique_token_ratio) FILTER (iteration = $1) AS repeated
        FROM samples, begun WHERE NOT correct AND purpose = 'train' AND iteration IN ($1, begin)""", [at])
    ways = [(row[name], f"{way} ones more") for name, way in (
        ("longer", "longer"), ("repeated", "more repetitive")) if (row[name] or 0) > 0.5]
    if row["now"] is None or row["former"] is None or not (hacked or (ways and row["now"] > row["former"])):
        return ""
    return ", ".join([f"in iteration {at} wrong completions were paid {short_number(row['now'])} on average, "
                      f"{short_number(row['former'])} at first",
                      *(f"{way} (correlation {most:.2f})" for most, way in sorted(ways)[-1:])])


def _policy_before(warehouse: Warehouse, version: int) -> int:
    """The policy that `version` was trained from; a rollback's copy counts as its original."""
    policies = warehouse.state.policies
    while version in policies and (original := policies[version].rolled_back_to) is not None:
        version = original
    return max(0, version - 1)
