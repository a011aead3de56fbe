"""The page of tokens on which engine and trainer disagree most, shown in their text."""

from typing import Any

from reports.viewer import links
from reports.viewer.links import Query
from reports.viewer.render import Page
from reports.viewer.session import Asking, View
from reports.viewer.tokens import WINDOW, words_of
from warehouse.sql.catalog import condition, quoted
from warehouse.store.errors import StageError
from warehouse.store.names import completion_name

MOST_GAPS = 40
CONTEXT = 12            # tokens on each side
TRAININGS_SQL = """\
SELECT iteration AS number FROM stages WHERE stage = 'train' ORDER BY iteration DESC LIMIT 30"""
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


def gaps_page(_view: View, ask: Asking, query: Query) -> Page:
    """The tokens of a training iteration, by default the last, with the largest gaps."""
    others = [row["number"] for row in ask.rows(TRAININGS_SQL)]
    iteration = query.number("iteration") if query.text("iteration", "") else max(others, default=0)
    rows = worst_gaps(ask, iteration, MOST_GAPS)
    everything = query.number("spread", 0)      # reads every token
    return Page("gaps.html", f"Engine against trainer, iteration {iteration}", {
        "rows": rows, "iteration": iteration, "others": others,
        "by_position": ask.rows("FROM gaps_by_position($1)", [iteration]) if everything else [],
        "by_origin": ask.rows("FROM gaps_by_origin($1)", [iteration]) if everything else []})


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
