"""Pages of one iteration, of all tasks, and of one task: changes, histograms, and who solved it."""

import json
from typing import Any

from markupsafe import Markup

from reports.build import HELDOUT_SQL, heldout_words
from reports.figures_learning import draw_passes
from reports.grids import GridSheet
from reports.viewer import links
from reports.viewer.completions import prompt_of
from reports.viewer.distributions import bars_of, error_bars, histogram
from reports.viewer.find import listing
from reports.viewer.links import Query
from reports.viewer.overview import with_signals
from reports.viewer.render import Page
from reports.viewer.session import Asking, View
from warehouse.inspect.advice import SETTING_CHANGES
from warehouse.inspect.show import grid_pairs, judged_task
from warehouse.sql.catalog import quoted
from warehouse.store.errors import StageError, shell_quote

MEASURES = (("pass_at_1", "pass@1"), ("pass_at_max_k", "pass@{max_k}"), ("reward_mean", "mean reward"),
            ("truncated_share", "truncated"), ("valid_code_share", "with code"),
            ("failed_share", "programs failed"), ("loop_share", "loops"), ("tokens_mean", "tokens"),
            ("nll_sampled", "sampled NLL"), ("distinct_outputs_share", "different outputs"),
            ("zero_variance_share", "groups of equal rewards"), ("mismatch_kl", "mismatch"))
# The iteration and those that led to its policy: what a rollback left behind is not what it is compared with.
IN_LINE = """\
iteration <= $1 AND EXISTS (
    FROM ancestry() WHERE iteration BETWEEN begun AND ended AND epoch = (
        SELECT max(epoch) FROM ancestry() WHERE begun <= $1 AND ended = 2147483647))"""
TWO_SQL = f"""\
SELECT * FROM iteration_stats WHERE purpose = $2 AND {IN_LINE}
ORDER BY iteration DESC LIMIT 2"""
PARTS_SQL = """\
SELECT 'reward: ' || part AS name, max(mean) FILTER (iteration = $1) AS now,
       max(mean) FILTER (iteration = $3) AS former
FROM part_means WHERE purpose = $2 AND iteration IN ($1, $3) GROUP BY part ORDER BY part"""
NEXT_SQL = "SELECT min(iteration) AS iteration FROM iteration_stats WHERE iteration > $1 AND purpose = $2"
RAISED_SQL = """\
SELECT signal, value, level, above, fired, meaning FROM raised_signals
WHERE iteration = $1 AND purpose = $2 ORDER BY NOT fired, signal"""
NEW_SQL = """\
SELECT count(*) FILTER (iteration = $1) AS num, count(*) FILTER (iteration = $1 AND num_visits = 1) AS new
FROM (SELECT iteration, count(*) OVER (PARTITION BY task_id) AS num_visits FROM task_results
      WHERE purpose = $2 AND iteration IN ($1, $3))"""
MOVED_SQL = f"""\
WITH visits AS (SELECT task_id, iteration, n, c, c / n AS rate, reward_mean, tokens_mean, truncated_share,
                       lag(c / n) OVER (PARTITION BY task_id ORDER BY iteration) AS former,
                       lag(iteration) OVER (PARTITION BY task_id ORDER BY iteration) AS former_iteration
                FROM task_results WHERE purpose = $2 AND n > 0 AND {IN_LINE})
SELECT *, rate - former AS gain FROM visits WHERE iteration = $1
ORDER BY gain NULLS LAST, rate, task_id LIMIT 2000"""
HISTORY_SQL = """\
SELECT task_id, visits, first_solved, last_solved, last_iteration, best_rate, last_rate, forgotten
FROM task_history ORDER BY forgotten DESC, best_rate - last_rate DESC, task_id LIMIT 5000"""
VISITS_SQL = """\
SELECT iteration, purpose, scorer, policy_version, n, c, reward_mean, tokens_mean, truncated_share
FROM task_results WHERE task_id = $1 ORDER BY iteration DESC, purpose"""
GROUPS_SQL = """\
SELECT iteration, purpose, group_id, policy_version, n, c, reward_mean, reward_std, tokens_mean,
       distinct_outputs, iteration IN (FROM given_up) AS given_up
FROM groups WHERE task_id = $1 ORDER BY iteration DESC, purpose, group_id LIMIT 400"""
CHOSEN_SQL = """\
SELECT reward, num_completion_tokens, correct, error_class, error_name, error_message, advantage
FROM (FROM samples WHERE {chosen}) AS judged
LEFT JOIN (SELECT task_id, sample_index, advantage FROM train_samples
           WHERE trained_iteration = {number} AND iteration = {number} AND purpose = {purpose}) AS trained
    USING (task_id, sample_index)"""
FIRST_SQL = """\
SELECT iteration, purpose, sample_index, policy_version, num_completion_tokens, code
FROM samples WHERE task_id = $1 AND correct
     AND iteration = (SELECT min(iteration) FROM task_results WHERE task_id = $1 AND c > 0)
QUALIFY row_number() OVER (PARTITION BY code ORDER BY sample_index) = 1
ORDER BY num_completion_tokens, sample_index LIMIT 6"""


def iteration_page(view: View, ask: Asking, query: Query) -> Page:
    """One iteration: changes since the previous one, histograms, its tasks and completions."""
    number, purpose = query.number("iteration"), query.text("purpose", "train")
    where, order = query.text("where", ""), query.text("order", "")
    stats = ask.rows(TWO_SQL, [number, purpose])
    if not stats or stats[0]["iteration"] != number:
        raise StageError(f"Iteration {number}, purpose {purpose}, is not scored, or was discarded meanwhile. "
                         f"`warehouse summary {shell_quote(view.warehouse.root)}` lists what is.")
    former = stats[1] if len(stats) > 1 else {}
    before = former.get("iteration")
    held = f"iteration = {number} AND purpose = {quoted(purpose)}"
    chosen = f"{held} AND ({where}\n)" if where else held
    with_signals(view, ask)
    ask.hold_chosen(CHOSEN_SQL.format(chosen=chosen, number=number, purpose=quoted(purpose)))
    purposes = ask.rows("SELECT purpose FROM iteration_stats WHERE iteration = $1 ORDER BY 1", [number])
    return Page("iteration.html", f"Iteration {number}" + ("" if purpose == "train" else f", {purpose}"), {
        "number": number, "purpose": purpose, "where": where, "stats": stats[0],
        "following": ask.rows(NEXT_SQL, [number, purpose])[0]["iteration"],
        "purposes": [row["purpose"] for row in purposes],
        "measures": [*[(name.format(**stats[0]), stats[0][key], former.get(key)) for key, name in MEASURES],
                     *[tuple(row.values()) for row in ask.rows(PARTS_SQL, [number, purpose, before])]],
        "before": before,
        "others": ask.rows(NEW_SQL, [number, purpose, before])[0] if former else {"new": 0},
        "raised": ask.rows(RAISED_SQL, [number, purpose]),
        "changes": ask.rows(f"SELECT * FROM ({SETTING_CHANGES}) WHERE iteration = $1 ORDER BY stage, name",
                            [number]) if purpose == "train" else [],
        "tasks": ask.rows(MOVED_SQL, [number, purpose]),
        "spreads": spreads(ask, number, purpose, where),
        "errors": error_bars(ask), "found": listing(ask, chosen, order)})


def spreads(ask: Asking, number: int, purpose: str, where: str) -> list[dict[str, Any]]:
    """Histograms of the chosen completions; a bar narrows the choice."""
    def link(condition: str) -> str:
        both = f"({where}\n) AND {condition}" if where else condition
        return links.iteration(number, purpose, where=both)

    keys = (f"(SELECT task_id, sample_index FROM train_samples WHERE trained_iteration = {number} AND "
            f"iteration = {number} AND purpose = {quoted(purpose)} AND ")
    made = []
    for title, value in (("Reward", "reward"), ("Length, tokens", "num_completion_tokens"),
                         ("Advantage", "advantage")):
        if bars := bars_of(ask, value):
            if value == "advantage":
                bars = [bar._replace(where=f"(task_id, sample_index) IN {keys}{bar.where})") for bar in bars]
            made.append({"title": title, "svg": Markup(histogram(bars, link))})
    return made


def tasks_page(_view: View, ask: Asking, _query: Query) -> Page:
    """Every task: when it was solved, its best rate, and whether it was forgotten."""
    rows, gains = ask.rows(HISTORY_SQL), ask.rows(HELDOUT_SQL)
    said, heads = heldout_words(gains) if gains else ("", [])
    return Page("tasks.html", "Tasks", {"rows": rows, "lost": [row for row in rows if row["forgotten"]],
                                        "gains": gains, "said": said, "heads": heads})


def task_page(view: View, ask: Asking, query: Query) -> Page:
    """One task: its prompt, its curve, its groups, and the programs that solved it first."""
    name = query.text("task")
    known = ask.rows("SELECT * FROM tasks WHERE task_id = $1", [name])
    if not known:
        raise StageError(f"There is no task '{name}' in this run.")
    task, sheet, groups = known[0], GridSheet(), ask.rows(GROUPS_SQL, [name])
    payload = json.loads(task["payload"] or "{}")
    pairs = [(title, Markup(sheet.draw(given, longest=160)), Markup(sheet.draw(wanted, longest=160)))
             for title, given, wanted, _ in grid_pairs(payload, None)]
    prompt = prompt_of(ask, groups[0]["iteration"], groups[0]["purpose"],
                       groups[0]["group_id"]) if groups else {}
    visits = ask.rows(VISITS_SQL, [name])
    lines = [judged_task(view.warehouse, task, visit["iteration"], visit["purpose"], visit["scorer"])[1]
             for visit in visits]
    return Page("task.html", f"Task {name}", {
        "task": task, "pairs": pairs, "groups": groups, "curve": curve(visits),
        "corrected": [line for line in dict.fromkeys(lines) if line],
        "payload": "" if pairs else json.dumps(payload, indent=1, ensure_ascii=False),
        "prompt": prompt.get("prompt", ""), "messages": task["messages"],
        "first": ask.rows(FIRST_SQL, [name]), "symbols": Markup(sheet.symbols())})


def curve(visits: list[dict[str, Any]]) -> Markup:
    """The share of right completions at every visit, training as a line, evaluations as rings."""
    rows = [{**row, "k": 1, "pass_at_k": row["c"] / row["n"], "low": None, "high": None}
            for row in visits if row["n"]]
    return Markup(draw_passes(rows).svg if rows else "")
