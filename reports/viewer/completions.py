"""Pages of a group and of one completion."""

import difflib
import json
from importlib import import_module
from typing import Any

from markupsafe import Markup

from reports.grids import GridSheet
from reports.viewer import links
from reports.viewer.links import Query
from reports.viewer.render import MOST_SHOWN, Page
from reports.viewer.session import Asking, View
from reports.viewer.tokens import FARTHEST_SQL, WINDOW, stretch_of
from warehouse.inspect.show import Key, find_completion, grid_pairs, judged_task, parse_name
from warehouse.store.errors import StageError, printable
from warehouse.store.names import completion_name

MOST_TURNS = 20
MOST_LINES = 600        # of a compared program
RUN = ("grid", "function", "stdio")     # kinds whose answers are programs
MEMBERS_SQL = """\
SELECT task_id, sample_index, num_tokens, ended, completion, reward, correct, test_correct_grids,
       error_class, error_name, error_message, outputs, code, scorer, advantage, drop_reason
FROM (SELECT task_id, sample_index, completion, num_completion_tokens AS num_tokens, finish_reason AS ended
      FROM completions WHERE iteration = $1 AND purpose = $2 AND group_id = $3) AS sampled
LEFT JOIN (FROM samples WHERE iteration = $1 AND purpose = $2 AND group_id = $3) AS judged
    USING (task_id, sample_index)
LEFT JOIN (SELECT task_id, sample_index, arg_max(advantage, trained_iteration) AS advantage,
                  arg_max(drop_reason, trained_iteration) AS drop_reason
           FROM train_samples WHERE iteration = $1 AND purpose = $2 AND group_id = $3
           GROUP BY ALL) AS trained USING (task_id, sample_index)
ORDER BY reward DESC NULLS LAST, sample_index LIMIT 256"""
PROMPT_SQL = "SELECT * FROM prompts WHERE iteration = $1 AND purpose = $2 AND group_id = $3"
TRAINED_SQL = """\
SELECT trained_iteration, staleness, optimizer_step, scorer, reward, advantage, num_trainable_tokens,
       drop_reason, log_ratio_abs_max, mismatch_kl, importance_weight_mean, kept_fraction, entropy
FROM train_samples WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4
ORDER BY trained_iteration"""
VERDICTS_SQL = """\
SELECT * FROM all_samples WHERE iteration = $1 AND purpose = $2 AND task_id = $3 AND sample_index = $4
ORDER BY scorer"""
MADE_BY_SQL = """\
SELECT stage, iteration, purpose, scorer, settings, host, finished_at, rollhouse_version
FROM stages WHERE (stage = 'rollout' AND iteration = $1 AND purpose = $2)
      OR (stage = 'score' AND iteration = $1 AND purpose = $2 AND scorer = $3)
      OR (stage = 'train' AND iteration IN (SELECT unnest($4::INTEGER[])))
ORDER BY stage, iteration"""
ANSWERS_SQL = """\
SELECT DISTINCT prompts.iteration, prompts.purpose, prompts.group_id FROM prompts
WHERE parent_iteration = $1 AND parent_purpose = $2 AND task_id = $3 AND parent_sample_index = $4"""


def row_of(ask: Asking, name: str) -> dict[str, Any]:
    """The row of the completion `name`; StageError if there is none."""
    row = next((row for key in parse_name(name) if (row := find_completion(ask.connection, *key))), None)
    if row is None:
        raise StageError(f"There is no completion {name} in complete stages: it was discarded, pruned or "
                         "rolled back meanwhile, or never there. Look for it under Find.")
    return row


def prompt_of(ask: Asking, iteration: int, purpose: str, group: str) -> dict[str, Any]:
    """The row of a group's prompt; {} if there is none."""
    return (ask.rows(PROMPT_SQL, [iteration, purpose, group]) or [{}])[0]


def group_page(view: View, ask: Asking, query: Query) -> Page:
    """All completions of a group side by side, and the difference between two of them."""
    iteration, group = query.number("iteration"), query.text("group")
    purpose = query.text("purpose", "train")
    members = ask.rows(MEMBERS_SQL, [iteration, purpose, group])
    if not members:
        raise StageError(f"There is no group {group} in iteration {iteration}, purpose {purpose}: it was "
                         "discarded or pruned meanwhile, or never existed. Open it from its task.")
    task, sheet = members[0]["task_id"], GridSheet()
    _, payload, corrected = judged(view, ask, task, iteration, purpose, members[0]["scorer"])
    for member in members:
        member["name"] = completion_name(iteration, purpose, task, member["sample_index"])
        member["pairs"] = drawn(sheet, payload, parsed(member["outputs"]), longest=84)
    first = query.number("a", members[0]["sample_index"])
    second = query.number("b", members[-1]["sample_index"])
    programs = {member["sample_index"]: member["code"] or member["completion"] or "" for member in members}
    if not {first, second} <= programs.keys():
        raise StageError(f"The group has no completions {first} and {second}. Choose two of its own.")
    return Page("group.html", f"Group {group}", {
        "iteration": iteration, "purpose": purpose, "group": group, "task": task, "members": members,
        "a": first, "b": second, "difference": difference(programs[first], programs[second]),
        "corrected": corrected, "prompt": prompt_of(ask, iteration, purpose, group).get("prompt", ""),
        "symbols": Markup(sheet.symbols())})


def difference(one: str, other: str) -> list[tuple[str, str]]:
    """Lines of two programs: of both (' '), of the first only ('-'), of the second only ('+')."""
    left, right = (printable(text[:MOST_SHOWN]).splitlines()[:MOST_LINES] for text in (one, other))
    return [(line[0], line[2:]) for line in difflib.ndiff(left, right, charjunk=None) if line[0] in " +-"
            ] if left != right else []


def completion_page(view: View, ask: Asking, query: Query) -> Page:
    """One completion: its conversation, tokens, origin, and the verdict of a scorer."""
    row = row_of(ask, query.text("name"))
    key: Key = (row["iteration"], row["purpose"], row["task_id"], row["sample_index"])
    verdicts = {verdict["scorer"]: verdict for verdict in ask.rows(VERDICTS_SQL, list(key))}
    if named := query.text("scorer", ""):
        if named not in verdicts:
            raise StageError(f"No scorer {named} judged it: choose one of {', '.join(verdicts) or 'none'}.")
        row.update(verdicts[named])
    trainings = ask.rows(TRAINED_SQL, list(key))
    last = trainings[-1]["trained_iteration"] if trainings else None
    trained = query.number("trained") if query.text("trained", "") else last
    at = query.number("at") if query.text("at", "") else None
    first = query.number("first", 0)
    stretch = stretch_of(ask, key, trained, first)
    known = [each.key for each in stretch.quantities] if stretch else []
    colour = query.text("colour", "logprob")
    colour = colour if colour in known else (known or [""])[0]
    sheet, outputs = GridSheet(), parsed(row["outputs"])
    kind, payload, corrected = judged(view, ask, row["task_id"], key[0], key[1], row["scorer"])
    prompt = prompt_of(ask, key[0], key[1], row["group_id"])
    return Page("completion.html", f"Completion {query.text('name')}", {
        "row": row, "name": query.text("name"), "prompt": prompt, "trainings": trainings, "trained": trained,
        "stretch": stretch, "colour": colour, "at": at, "window": WINDOW,
        "far": ask.rows(FARTHEST_SQL, [*key, trained]) if stretch and trained is not None else [],
        "pairs": drawn(sheet, payload, outputs, longest=112), "units": units(kind, payload, outputs),
        "ran": kind in RUN, "corrected": corrected,
        "others": [scorer for scorer in verdicts if scorer != row["scorer"]],
        "parts": parsed(row["reward_parts"]), "extra": parsed(row["extra"]),
        "turns": conversation(ask, row, prompt), "answers": ask.rows(ANSWERS_SQL, list(key)),
        "made_by": ask.rows(MADE_BY_SQL, [key[0], key[1], row["scorer"] or "",
                                          [each["trained_iteration"] for each in trainings]]),
        "symbols": Markup(sheet.symbols())})


def conversation(ask: Asking, row: dict[str, Any], prompt: dict[str, Any]) -> list[dict[str, str]]:
    """The turns before a completion, first one first: by whom, text, the completion's page and verdict."""
    turns: list[dict[str, str]] = []
    while prompt.get("parent_iteration") is not None and len(turns) < MOST_TURNS:
        key = (prompt["parent_iteration"], prompt["parent_purpose"], row["task_id"],
               prompt["parent_sample_index"])
        parent = find_completion(ask.connection, *key)
        if parent is None:
            break
        before = prompt["prompt"] or ""
        begin = before.rfind(parent["completion"] or "\x00")
        answer = before[begin + len(parent["completion"] or ""):] if begin >= 0 else ""
        verdict = "not scored" if parent["correct"] is None else "right" if parent["correct"] else "wrong"
        turns = [{"by": "policy", "text": parent["completion"] or "", "href": links.completion(*key),
                  "verdict": verdict},
                 {"by": f"feedback, {prompt['feedback_format']}", "text": answer, "href": ""}, *turns]
        prompt = prompt_of(ask, key[0], key[1], parent["group_id"])
    return turns


def units(kind: str, payload: dict[str, Any], outputs: dict[str, Any]) -> str:
    """What `score explain` says of a task without grids; "" for grids, and without outputs."""
    if kind in ("", "grid") or "test" not in outputs:
        return ""
    return "\n".join(import_module("score.inspect.units").unit_lines(kind, payload, outputs["test"]))


def drawn(sheet: GridSheet, payload: Any, outputs: Any, *, longest: int) -> list[dict[str, Any]]:
    """Drawings of input, expected output and output of every pair of a grid task."""
    return [{"title": title, "given": Markup(sheet.draw(given, longest=longest)),
             "expected": Markup(sheet.draw(wanted, longest=longest)),
             "output": Markup(sheet.draw(made, wanted, longest=longest)), "right": made == wanted}
            for title, given, wanted, made in grid_pairs(payload, outputs)]


def judged(view: View, ask: Asking, task: str, iteration: int, purpose: str,
           scorer: str | None) -> tuple[str, dict[str, Any], str]:
    """A task's kind and payload as a scorer judged it, and a line if it was corrected since.

    All are empty if the task no longer exists.
    """
    rows = ask.rows("SELECT task_id, kind, payload FROM tasks WHERE task_id = $1", [task])
    if not rows:
        return "", {}, ""
    then, corrected = judged_task(view.warehouse, rows[0], iteration, purpose, scorer)
    return then["kind"], parsed(then["payload"]), corrected


def parsed(text: str | None) -> dict[str, Any]:
    """A JSON object; {} for anything else."""
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}
