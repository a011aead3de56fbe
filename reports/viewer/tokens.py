"""Tokens with all stored values, a section at a time, and those on which engine and trainer disagree most."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from reports.scale import number
from reports.viewer import links
from reports.viewer.links import Query
from reports.viewer.render import Page
from reports.viewer.session import Asking, View
from warehouse.inspect.show import Key
from warehouse.sql.catalog import condition, quoted
from warehouse.store.errors import StageError, printable
from warehouse.store.names import completion_name

WINDOW = 1500       # tokens of a page
MOST_FAR = 5        # listed tokens with the largest gaps
STEPS = 8           # shades on either side of zero

# Lists of the completion and of one training of it, cut to the section $6 .. $7 (from 1).
TOKENS_SQL = """\
SELECT ids[$6:$7] AS ids, mu[$6:$7] AS mu, old[$6:$7] AS old, drift[$6:$7] AS drift,
       clipped[$6:$7] AS clipped, advantage, len(ids) AS num
FROM (SELECT completion_ids AS ids, behaviour_logprobs AS mu FROM completions
      WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4) AS sampled
LEFT JOIN (SELECT old_logprobs AS old, advantage FROM train_samples
           WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4
             AND trained_iteration = $5) AS trained ON true
LEFT JOIN (SELECT log_drift AS drift, clipped FROM train_tokens
           WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4
             AND trained_iteration = $5) AS stepped ON true"""
WORDS_SQL = "SELECT token_id, token FROM vocabulary WHERE token_id IN (SELECT unnest($1::INTEGER[]))"
# The tokens of a completion on which engine and trainer disagree most.
FARTHEST_SQL = f"""\
SELECT position, gap FROM token_gaps($5)
WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4 AND gap <> 0
ORDER BY abs(gap) DESC, position LIMIT {MOST_FAR}"""
MOST_GAPS = 40
CONTEXT = 6             # tokens on each side
TRAININGS_SQL = """\
SELECT iteration AS number FROM stages WHERE stage = 'train' ORDER BY iteration DESC LIMIT 30"""
LARGEST_SQL = """\
SELECT coalesce(arg_max(iteration, log_ratio_abs_max), 0) AS iteration FROM iteration_stats
WHERE iteration NOT IN (SELECT unnest($1::INTEGER[]))"""
# The completions with the largest maximal gap hold the largest gaps: tokens of others are not read.
HOLDERS_SQL = """\
SELECT iteration, purpose, task_id, sample_index FROM train_samples
WHERE trained_iteration = $1 AND log_ratio_abs_max IS NOT NULL
ORDER BY log_ratio_abs_max DESC, iteration, purpose, task_id, sample_index LIMIT $2"""
WORST_SQL = """\
SELECT iteration, purpose, task_id, sample_index, position, token_id, behaviour_logprob, old_logprob, gap
FROM token_gaps($1) WHERE {chosen} AND (iteration, purpose, task_id, sample_index) IN ({keys})
ORDER BY abs(gap) DESC, task_id, sample_index, position LIMIT $2"""
AROUND_SQL = f"""\
SELECT completion_ids[greatest($5 - {CONTEXT} + 1, 1):$5] AS before,
       completion_ids[$5 + 2:$5 + 1 + {CONTEXT}] AS after
FROM completions WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4"""


class Quantity(NamedTuple):
    """A value that colours tokens: its name, its meaning, its values, and the value of the darkest shade."""

    key: str
    name: str
    meaning: str
    values: list[float | None]
    full: float


class Stretch(NamedTuple):
    """Tokens first .. first + len(words) - 1 of `total`."""

    first: int
    total: int
    words: list[str]
    ids: list[int]
    quantities: list[Quantity]

    def shades(self, key: str) -> list[str]:
        """A class per token for the sign and size of its value."""
        chosen = next((each for each in self.quantities if each.key == key), None)
        return [shade(value, chosen.full) for value in chosen.values] if chosen else [""] * len(self.words)

    def data(self) -> dict[str, Any]:
        """The data from which the script recolours tokens and shows their values."""
        return {"first": self.first, "ids": self.ids, "quantities": [
            {"key": each.key, "name": each.name, "meaning": each.meaning, "shades": self.shades(each.key),
             "values": [number(value) for value in each.values]} for each in self.quantities]}


def shade(value: float | None, full: float) -> str:
    """The class of a value: p1 .. p8 above zero, m1 .. m8 below."""
    if value is None or not math.isfinite(value) or full <= 0:
        return ""
    step = min(STEPS, round(abs(value) / full * STEPS))          # no colour if it is small
    return f"{'p' if value > 0 else 'm'}{step}" if step else ""


def stretch_of(ask: Asking, key: Key, trained: int | None, first: int) -> Stretch | None:
    """The tokens from `first` on; None if they were pruned. `trained` is a training that read them."""
    rows = ask.rows(TOKENS_SQL, [*key, -1 if trained is None else trained, first + 1, first + WINDOW])
    if not rows or rows[0]["ids"] is None:
        return None
    row = rows[0]
    ids = row["ids"]
    return Stretch(first, row["num"], words_of(ask, ids), ids, quantities_of(row))


def words_of(ask: Asking, ids: list[int], kept: str = "\n") -> list[str]:
    """The text of each token; control characters, except `kept`, are spelled out."""
    words = {each["token_id"]: each["token"] for each in ask.rows(WORDS_SQL, [ids])}
    return [printable(words.get(token, f"<{token}>"), kept=kept) for token in ids]


def quantities_of(row: dict[str, Any]) -> list[Quantity]:
    """The stored and derived values of the tokens; missing ones are left out."""
    size = len(row["ids"])
    mu, old, drift = (padded(row[name], size) for name in ("mu", "old", "drift"))
    clipped, advantage = padded(row["clipped"], size), row["advantage"]
    gap = [None if a is None or b is None else a - b for a, b in zip(old, mu, strict=True)]
    pull = [None if d is None or advantage is None else 0.0 if c else advantage * math.exp(min(d, 20.0))
            for d, c in zip(drift, clipped, strict=True)]
    total = sum(abs(value) for value in pull if value is not None)
    share = [value and value / total if total else value for value in pull]
    made = [
        Quantity("logprob", "Logprob, engine", "log mu: log-probability in the engine, nats", mu, 5.0),
        Quantity("old", "Logprob, trainer", "log pi_old: in the trainer, before its steps, nats", old, 5.0),
        Quantity("gap", "Engine against trainer", "log pi_old - log mu, nats; 0 if they agree", gap,
                 spread(gap, 0.05)),
        Quantity("rho", "Log importance ratio", "log of pi_old / mu; colours end at 1 nat", gap, 1.0),
        Quantity("ratio", "Log ratio at its step", "log pi - log pi_old at the step that trained on it",
                 drift, spread(drift, 0.05)),
        Quantity("clip", "Clipped", "1 if clipping removed the token's gradient", clipped, 1.0),
        Quantity("pull", "Gradient share", "advantage x ratio of tokens that were not clipped, as a share of "
                 "the sum of its sizes over this stretch", share, spread(share, 1e-9)),
        Quantity("advantage", "Advantage", "of the whole completion",
                 [advantage if value is not None else None for value in old], abs(advantage or 0) or 1.0)]
    return [each for each in made if any(value is not None for value in each.values)]


def padded(values: Sequence[float] | None, size: int) -> list[float | None]:
    """A list of one value per token, None where there is no value."""
    known: list[float | None] = list(values or [])
    return known[:size] + [None] * (size - len(known))


def spread(values: Sequence[float | None], least: float) -> float:
    """The largest absolute value, for the darkest shade; at least `least`."""
    return max([least, *(abs(value) for value in values if value is not None and math.isfinite(value))])


def gaps_page(view: View, ask: Asking, query: Query) -> Page:
    """The tokens of a training iteration, by default that with the largest gap of all that have tokens."""
    others = [row["number"] for row in ask.rows(TRAININGS_SQL)]
    pruned = [life.iteration for life in view.warehouse.state.of_stage("train") if life.pruned]
    iteration = query.number("iteration") if query.text("iteration", "") else (
        ask.rows(LARGEST_SQL, [pruned])[0]["iteration"])
    rows = worst_gaps(ask, iteration, MOST_GAPS)
    return Page("gaps.html", f"Engine against trainer, iteration {iteration}", {
        "rows": rows, "iteration": iteration, "others": others})


def worst_gaps(ask: Asking, iteration: int, num: int) -> list[dict[str, Any]]:
    """The tokens with the largest gaps, with the text around them, the completion's name and its page."""
    holders = [tuple(row.values()) for row in ask.rows(HOLDERS_SQL, [iteration, num])]
    if not holders:
        raise StageError("No old logprobs are stored for that iteration. Run `train` on it first.")
    # Iterations and purposes come first, so that other files stay unread.
    chosen = condition({"iteration": {key[0] for key in holders}, "purpose": {key[1] for key in holders}})
    keys = ", ".join(f"({number}, {quoted(purpose)}, {quoted(task)}, {index})"
                     for number, purpose, task, index in holders)
    rows = ask.rows(WORST_SQL.format(chosen=chosen, keys=keys), [iteration, num])
    for row in rows:
        key = (row["iteration"], row["purpose"], row["task_id"], row["sample_index"])
        [around] = ask.rows(AROUND_SQL, [*key, row["position"]])
        for name, ids in (("before", around["before"]), ("token", [row["token_id"]]),
                          ("after", around["after"])):
            row[name] = "".join(words_of(ask, ids, kept=""))
        row["name"] = completion_name(*key)
        row["href"] = links.address("completion", name=row["name"], colour="gap", trained=iteration,
                                    first=row["position"] // WINDOW * WINDOW, at=row["position"])
    return rows
