"""One verdict in full: the prompt, the program, its outputs, the expected outputs, and the reward."""

import json
from pathlib import Path
from typing import Any

from score.inspect.units import unit_lines
from warehouse.inspect.show import completion_lines, completion_row, grid_pairs
from warehouse.sql.database import connect, rows_of
from warehouse.store.errors import printable
from warehouse.store.run_folder import open_warehouse


def explain_completion(run: Path, completion: str, *, colors: bool) -> str:
    """What `warehouse show` says of a completion, and its verdict; StageError where there is none."""
    connection = connect(open_warehouse(run))
    row = completion_row(connection, run, completion)
    [task] = rows_of(connection, "SELECT kind, payload FROM tasks WHERE task_id = $1", [row["task_id"]])
    lines = completion_lines(connection, run, completion, color=colors, prompt=True)
    if row["scorer"] is not None:
        lines += ["", *verdict_lines(row, task["kind"], json.loads(task["payload"]))]
    return "\n".join(lines)


def verdict_lines(sample: dict[str, Any], kind: str, payload: dict[str, Any]) -> list[str]:
    """Which of its outputs are right, its error, and the terms of its reward."""
    outputs = json.loads(sample["outputs"] or "null")
    if kind == "grid":
        lines = [f"{title}: {'not known' if wanted is None else 'right' if output == wanted else 'wrong'}"
                 for title, _given, wanted, output in grid_pairs(payload, outputs)]
    else:
        lines = unit_lines(kind, payload, outputs["test"] if outputs else None)
    if sample["error_class"]:
        words = [sample["error_class"], sample["error_name"], sample["error_message"]]
        lines.append(printable(": ".join(filter(None, words))))
    terms = json.loads(sample["reward_parts"] or "{}")
    total = "none: it could not be measured" if sample["reward"] is None else f"{sample['reward']:.4g}"
    sum_of_terms = " + ".join(f"{name} {value:.4g}" for name, value in terms.items())
    return [*lines, f"reward {total}" + (f" = {sum_of_terms}" if sum_of_terms else "")]
