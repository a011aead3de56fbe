"""Completions by their names, and grids in the terminal."""

from collections.abc import Iterator
from typing import Any, TypeGuard

from warehouse.sql.database import Connection, rows_of
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import begins_purpose
from warehouse.store.run_folder import Warehouse
from warehouse.tasks.payloads import grid_problem

# xterm-256 backgrounds nearest to the usual ARC colours, and a digit if there is no colour.
BACKGROUNDS = (16, 26, 203, 40, 220, 248, 199, 208, 117, 88)

Key = tuple[int, str, str, int]         # iteration, purpose, task_id, sample_index


def parse_name(name: str) -> list[Key]:
    """`ITERATION/TASK/SAMPLE` or `ITERATION/PURPOSE/TASK/SAMPLE` as its parts; tasks may contain slashes.

    Several readings are possible, the likeliest comes first: a training task may begin like a purpose.
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


def find_completion(connection: Connection, iteration: int, purpose: str, task: str,
                    index: int) -> dict[str, Any] | None:
    """The columns of a completion except its tokens; None if there is none."""
    rows = rows_of(connection, "SELECT * EXCLUDE (completion_ids, behaviour_logprobs, support_ids) FROM "
                               "one_completion($1, $2, $3, of_purpose := $4)",
                   [iteration, task, index, purpose])
    return rows[0] if rows else None


def no_completion(warehouse: Warehouse, name: str) -> StageError:
    """The error if no completion is called `name`; it names one of another purpose."""
    iteration, purpose, task, index = parse_name(name)[0]
    for other in warehouse.state.purposes(iteration):
        rows = warehouse.read("completions", ["task_id", "sample_index"], task_ids={task},
                              iteration=iteration, purpose=other)
        if other != purpose and index in rows["sample_index"].to_pylist():
            meant = f"{iteration}/{other}/{task}/{index}"
            return StageError(f"There is no completion {name} in complete stages: did you mean {meant}?")
    return StageError(f"There is no completion {name} in complete stages. List them with `warehouse sql "
                      f"{shell_quote(warehouse.root)} \"SELECT task_id, count(*) AS completions FROM "
                      f"completions WHERE iteration = {iteration} AND purpose = '{purpose}' GROUP BY 1 "
                      "ORDER BY 1\"`")


def judged_task(warehouse: Warehouse, task: dict[str, Any], iteration: int, purpose: str,
                scorer: str | None) -> tuple[dict[str, Any], str]:
    """A task as a scorer judged it, and a line if it was corrected since; `task` is its row of today."""
    state = warehouse.state
    if task["task_id"] not in state.replaced_payloads:
        return task, ""
    scores = sorted(state.of_stage("score", iteration, purpose), key=lambda life: life.completed or 0)
    former = {life.scorer: state.former_task(task, life) for life in scores if life.is_complete}
    if not (then := former.get(scorer)):
        return task, ""
    newer = [name for name, row in former.items() if row is None]
    way = (f"`score explain` with `--scorer {newer[-1]}` shows the newer verdict" if newer else
           f"`score {shell_quote(warehouse.root)}` judges it again")
    return then, f"{scorer} judged this task as it was before it was corrected; {way}."


def grid_pairs(payload: Any, outputs: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Every pair of a task: its title, input, expected output, and the completion's output or None."""
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
        # The rows of a grid are equally wide; colour codes have no width.
        lines.append("   ".join(
            rows[index] + " " * (len(name) - width) if index < len(rows) else " " * max(len(name), width)
            for name, rows, width in blocks))
    return ["  " + line.rstrip() for line in lines]


def _row(cells: list[int], color: bool) -> str:
    if not color:
        return "".join(f" {cell}" for cell in cells)
    return "".join(f"\x1b[48;5;{BACKGROUNDS[cell]}m  " for cell in cells) + "\x1b[0m"


def is_grid(value: Any) -> TypeGuard[list[list[int]]]:
    """True for a valid ARC grid."""
    return grid_problem(value) is None
