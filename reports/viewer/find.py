"""Completions that satisfy a condition, as a scrolling list, and completions that contain a text."""

import json
from collections.abc import Iterator
from typing import Any

from reports.scale import number
from reports.viewer import links
from reports.viewer.links import Query
from reports.viewer.render import Page
from reports.viewer.session import Asking, View
from warehouse.sql.catalog import quoted
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError
from warehouse.store.names import completion_name

KEYS = "iteration, purpose, task_id, sample_index"
LISTED = f"{KEYS}, reward, correct, error_class, num_completion_tokens, finish_reason, policy_version"
BY_KEY = f"iteration DESC, {KEYS.partition(', ')[2]}"
MOST_ROWS = 400         # in one answer
MOST_HITS = 1000        # of a search
HEADS = ("completion", "reward", "verdict", "tokens", "ended", "error", "policy")
# Common questions: the text of the link, a condition, an order.
QUESTIONS = (
    ("Highest reward", "reward IS NOT NULL", "reward DESC, iteration DESC"),
    ("Rewarded, though wrong", "NOT correct AND reward > 0", "reward DESC"),
    ("Nearly right", "NOT correct AND test_pixel_score >= 0.5", "test_pixel_score DESC, iteration DESC"),
    ("Right", "correct", "iteration DESC, num_completion_tokens"),
    ("Truncated", "truncated", "iteration DESC, num_completion_tokens DESC"),
    ("Loops", "loop_tokens >= 32", "iteration DESC, loop_tokens DESC"),
    ("Failed", "error_class IS NOT NULL AND valid_code", "iteration DESC, error_class, error_name"),
    ("Not measured", "reward IS NULL", "iteration DESC"),
    ("Longest", "true", "num_completion_tokens DESC"),
    ("Least expected", "true", "nll_sampled DESC"),
    ("Evaluations", "purpose LIKE 'eval%'", "iteration DESC"),
)


def rows_sql(where: str, order: str, offset: int, limit: int) -> str:
    """The query of a section of the list. A line break ends a comment at the end of the condition."""
    return (f"SELECT {LISTED}\nFROM samples WHERE ({where or 'true'}\n)\n"
            f"ORDER BY {order or BY_KEY}\nLIMIT {limit} OFFSET {offset}")


def count_of(ask: Asking, where: str) -> int:
    if not where:
        return int(ask.rows("SELECT coalesce(sum(num_completions), 0) AS num FROM iteration_stats")[0]["num"])
    return int(ask.checked(f"SELECT count(*) AS num FROM samples WHERE ({where}\n)")[0]["num"])


def listed(row: dict[str, Any]) -> dict[str, Any]:
    key = row["iteration"], row["purpose"], row["task_id"], row["sample_index"]
    verdict = "not scored" if row["correct"] is None else "right" if row["correct"] else "wrong"
    cells = [completion_name(*key), number(row["reward"]), verdict, str(row["num_completion_tokens"]),
             row["finish_reason"] or "", row["error_class"] or "",
             "" if row["policy_version"] is None else str(row["policy_version"])]
    return {"href": links.completion(*key), "cells": cells}


def listing(ask: Asking, where: str, order: str, num: int = 50) -> dict[str, Any]:
    """The beginning of a list; the page's script requests the rest while scrolling."""
    rows = [listed(row) for row in ask.checked(rows_sql(where, order, 0, num))]
    total = count_of(ask, where) if len(rows) == num else len(rows)
    return {"heads": HEADS, "rows": rows, "total": total,
            "source": links.address("rows", where=where or "true", order=order)}


def rows_answer(_view: View, ask: Asking, query: Query) -> dict[str, Any]:
    limit = min(query.number("limit", MOST_ROWS), MOST_ROWS)
    sql = rows_sql(query.text("where", ""), query.text("order", ""), query.number("offset", 0), limit)
    return {"rows": [listed(row) for row in ask.checked(sql)]}


def find_page(view: View, ask: Asking, query: Query) -> Page:
    """Find completions by a condition, by their text, or by both."""
    where, order, text = (query.text(name, "") for name in ("where", "order", "text"))
    problem, found = "", None
    if not text:
        try:
            found = listing(ask, where, order)
        except StageError as error:
            problem = str(error)
    saved = read_config(view.warehouse.root / "config.toml").get("links", {})
    return Page("find.html", "Find", {
        "where": where, "order": order, "text": text, "found": found, "problem": problem, "saved": saved,
        "questions": QUESTIONS, "heads": HEADS, "search": links.address("search", text=text, where=where)})


def search_lines(view: View, ask: Asking, text: str, where: str) -> Iterator[str]:
    """Completions that contain the text, newest iteration first: a line per hit and per searched iteration.

    Each query covers one iteration, so the search ends soon after the client disconnects.
    """
    stages = sorted({(held.stage.identity["iteration"], held.stage.identity["purpose"])
                     for held in view.inventory.stages if held.stage.name == "rollout" and held.manifest},
                    key=lambda key: (-key[0], key[1] != "train", key[1]))
    hits = 0
    for looked, (iteration, purpose) in enumerate(stages, start=1):
        try:
            rows = ask.checked(search_sql(iteration, purpose, text, where, MOST_HITS - hits))
        except (StageError, MemoryError) as error:
            yield json.dumps({"error": str(error)}) + "\n"
            return
        hits += len(rows)
        yield "".join(json.dumps({**listed(row), "around": row["around"]}) + "\n" for row in rows)
        yield json.dumps({"looked": looked, "of": len(stages), "hits": hits}) + "\n"
        if hits >= MOST_HITS:
            return


def search_sql(iteration: int, purpose: str, text: str, where: str, limit: int) -> str:
    """Completions of one rollout that contain a text, with the context of its first occurrence."""
    place = f"strpos(completion, {quoted(text)})"
    keys = f"iteration = {iteration} AND purpose = {quoted(purpose)}"
    return f"""\
SELECT {LISTED}, around
FROM (SELECT {KEYS}, finish_reason, num_completion_tokens, policy_version,
             substr(completion, greatest({place} - 40, 1), {len(text) + 80}) AS around
      FROM completions WHERE {keys} AND contains(completion, {quoted(text)}))
LEFT JOIN (SELECT * EXCLUDE (finish_reason, num_completion_tokens, policy_version)
           FROM samples WHERE {keys}) USING ({KEYS})
WHERE ({where or 'true'}
)
ORDER BY task_id, sample_index LIMIT {limit}"""
