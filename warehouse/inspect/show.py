"""One completion in the terminal: what it was asked, what it wrote, what its program made of the grids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from warehouse.inspect.render import short_number
from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError, printable, shell_quote
from warehouse.store.names import begins_purpose

# xterm-256 backgrounds nearest to the usual ARC colours, and a digit where there is no colour.
BACKGROUNDS = (16, 26, 203, 40, 220, 248, 199, 208, 117, 88)
MOST_ROWS = 60                   # and columns, of a grid that is shown
FACTS = ("policy_version", "finish_reason", "num_prompt_tokens", "num_completion_tokens", "temperature",
         "logprob_sum", "nll_sampled", "ngram4_unique_ratio", "loop_tokens", "cpu_seconds", "sandbox_tier",
         "engine", "dtype", "host", "scorer")


Key = tuple[int, str, str, int]         # iteration, purpose, task_id, sample_index


def parse_name(name: str) -> list[Key]:
    """`ITERATION/TASK/SAMPLE` or `ITERATION/PURPOSE/TASK/SAMPLE` as its parts; tasks may contain slashes.

    What it may mean, the likeliest first: a task to train on may begin like a purpose.
    """
    pieces = name.split("/")
    try:
        iteration, index = int(pieces[0]), int(pieces[-1])
    except ValueError:
        pieces = []
    if len(pieces) < 3:
        raise StageError(f"'{name}' does not name a completion. Write ITERATION/TASK/SAMPLE, for example "
                         "3/00d62c1b/5, or 3/eval/00d62c1b/5 for an evaluation.")
    keys = [(iteration, "train", "/".join(pieces[1:-1]), index)]
    if len(pieces) > 3 and begins_purpose(pieces[1]):
        keys.insert(0, (iteration, pieces[1], "/".join(pieces[2:-1]), index))
    return keys


def completion_row(connection: Connection, run: Path, name: str) -> dict[str, Any]:
    """The columns of the completion `name` but its tokens; StageError where there is none."""
    found = (find_completion(connection, *key) for key in parse_name(name))
    row = next((row for row in found if row is not None), None)
    if row is None:
        raise no_completion(run, name)
    return row


def find_completion(connection: Connection, iteration: int, purpose: str, task: str,
                    index: int) -> dict[str, Any] | None:
    """The same by its keys; None where there is none."""
    rows = rows_of(connection, "SELECT * EXCLUDE (completion_ids, behaviour_logprobs, support_ids) FROM "
                               "one_completion($1, $2, $3, of_purpose := $4)",
                   [iteration, task, index, purpose])
    return rows[0] if rows else None


def no_completion(run: Path, name: str) -> StageError:
    """What is said where nothing is called `name`."""
    iteration, purpose, _, _ = parse_name(name)[0]
    return StageError(f"There is no completion {name} in complete stages. List them with `warehouse sql "
                      f"{shell_quote(run)} \"SELECT task_id, count(*) AS completions FROM completions WHERE "
                      f"iteration = {iteration} AND purpose = '{purpose}' GROUP BY 1 ORDER BY 1\"`")


def completion_lines(connection: Connection, run: Path, name: str, *, color: bool,
                     prompt: bool = False) -> list[str]:
    """The lines to print about the completion `name`."""
    row = completion_row(connection, run, name)
    iteration, purpose = row["iteration"], row["purpose"]
    task, index = row["task_id"], row["sample_index"]
    verdict = "not scored" if row["reward"] is None and row["scorer"] is None else (
        f"{'right' if row['correct'] else 'wrong'}, reward {_shown(row['reward'])}")
    title = printable(task, kept="")
    lines = [f"{title}  iteration {iteration}  {purpose}  sample {index}: {verdict}", ""]
    lines += [f"  {fact:<22} {_shown(row[fact])}" for fact in FACTS if row[fact] is not None]
    lines += _group_lines(connection, row)
    if row["error_class"]:
        error = f"{row['error_class']} {row['error_name'] or ''} {row['error_message'] or ''}"
        lines.append(f"  {'error':<22} {printable(error)}")
    asked = rows_of(connection, ASKED_SQL, [iteration, purpose, row["group_id"]])
    lines += [f"  {'answers to':<22} {printable(each['parent'], kept='')}, told by {each['feedback_format']}"
              for each in asked if each["parent"]]
    if prompt:
        lines += ["", "prompt", *_indent(asked[0]["prompt"] if asked else "(not stored)")]
    lines += ["", "completion", *_indent(row["completion"] or "")]
    payload = rows_of(connection, "SELECT payload FROM tasks WHERE task_id = $1", [task])
    pairs = grid_pairs(json.loads(payload[0]["payload"]) if payload else None,
                       json.loads(row["outputs"] or "null"))
    return lines + [line for title, given, expected, output in pairs
                    for line in ("", title, *pair_lines({"input": given, "output": expected}, output, color))]


def _shown(value: Any) -> Any:
    return short_number(value) if isinstance(value, float) else printable(str(value), kept="")


ASKED_SQL = """
SELECT prompt, feedback_format,
       parent_iteration || '/' || parent_purpose || '/' || task_id || '/' || parent_sample_index AS parent
FROM prompts
WHERE iteration = $1 AND purpose = $2 AND group_id = $3"""
GROUP_SQL = """
SELECT n, c, reward_mean FROM groups
WHERE iteration = $1 AND purpose = $2 AND group_id = $3 AND n > 0"""
TRAINED_SQL = """
SELECT trained_iteration, advantage, drop_reason, log_ratio_mean, log_ratio_abs_max FROM train_samples
WHERE iteration = $1 AND purpose = $2 AND group_id = $3 AND sample_index = $4
ORDER BY trained_iteration"""


def _group_lines(connection: Connection, row: dict[str, Any]) -> list[str]:
    """How the completion stands in its group, and what each training made of it."""
    key = [row["iteration"], row["purpose"], row["group_id"]]
    lines = [f"  {'group':<22} {group['c']} of {group['n']} right, mean reward {group['reward_mean']:.4g}"
             for group in rows_of(connection, GROUP_SQL, key)]
    for trained in rows_of(connection, TRAINED_SQL, [*key, row["sample_index"]]):
        facts = [f"{name} {value:.4g}" for name, value in (
            ("advantage", trained["advantage"]), ("mean log ratio to the engine", trained["log_ratio_mean"]),
            ("largest", trained["log_ratio_abs_max"])) if value is not None]
        facts += [f"dropped: {trained['drop_reason']}"] if trained["drop_reason"] else []
        lines.append(f"  {'trained in iteration':<22} {trained['trained_iteration']}: {', '.join(facts)}")
    return lines


def _indent(text: str) -> list[str]:
    return ["  " + line for line in printable(text).splitlines()]


def grid_pairs(payload: Any, outputs: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Every pair of a task: its title, input, expected output, and what a completion made of it or None."""
    task, made = (value if isinstance(value, dict) else {} for value in (payload, outputs))
    for split in ("train", "test"):
        grids = made.get(split) or []
        for number, pair in enumerate(task.get(split) or []):
            if isinstance(pair, dict) and "input" in pair:
                yield (f"{split} {number + 1}", pair["input"], pair.get("output"),
                       grids[number] if number < len(grids) else None)


def pair_lines(pair: dict[str, Any], output: Any, color: bool) -> list[str]:
    """Input, expected output and the program's output of a pair, side by side; two characters per cell."""
    blocks: list[tuple[str, list[str], int]] = []
    for name, grid in (("input", pair["input"]), ("expected", pair.get("output")), ("output", output)):
        if is_grid(grid):
            blocks.append((name, [_row(row, color) for row in grid], 2 * len(grid[0])))
        else:
            blocks.append((name, ["(none)"], len("(none)")))
    lines = ["   ".join(name.ljust(width) for name, _rows, width in blocks)]
    for index in range(max(len(rows) for _name, rows, _width in blocks)):
        # The rows of a grid are equally wide; colours take no room.
        lines.append("   ".join(
            rows[index] + " " * (len(name) - width) if index < len(rows) else " " * max(len(name), width)
            for name, rows, width in blocks))
    return ["  " + line.rstrip() for line in lines]


def _row(cells: list[int], color: bool) -> str:
    if not color:
        return "".join(f" {cell}" for cell in cells)
    return "".join(f"\x1b[48;5;{BACKGROUNDS[cell]}m  " for cell in cells) + "\x1b[0m"


def is_grid(value: Any) -> TypeGuard[list[list[int]]]:
    """True for a rectangle of colours 0 to 9 of at most 60 by 60."""
    if not isinstance(value, list | tuple) or not value or len(value) > MOST_ROWS:
        return False
    widths = {len(row) if isinstance(row, list | tuple) else 0 for row in value}
    return (len(widths) == 1 and 0 < widths.pop() <= MOST_ROWS
            and all(isinstance(cell, int) and 0 <= cell <= 9 for row in value for cell in row))
