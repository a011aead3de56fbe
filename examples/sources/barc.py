"""BARC's synthetic ARC tasks: rows with `examples`, pairs of grids.

    warehouse init RUN --model .. --tasks "examples/sources/barc.py:tasks?file=data.jsonl"

Of the pairs with grids of ARC the first four are shown and the fifth is the test. Rows with fewer
than two are left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from warehouse.sources.tables import Row, read_rows, value_of
from warehouse.tasks.payloads import grid_problem

PAIRS = 5               # of some thirty that a row holds: as many as tasks of ARC have


def tasks(file: str) -> Iterator[Row]:
    """The tasks of a file as objects with task_id, kind and payload."""
    for number, (where, row) in enumerate(read_rows(Path(file))):
        pairs = [pair for pair in map(as_pair, value_of(row, "examples", where, list))
                 if not any(map(grid_problem, pair.values()))][:PAIRS]
        if len(pairs) > 1:
            yield {"task_id": f"barc-{number}", "kind": "grid",
                   "payload": {"train": pairs[:-1], "test": pairs[-1:]}}


def as_pair(example: Any) -> dict[str, Any]:
    """An example, a list of two or an object, as input and output."""
    if isinstance(example, dict):
        return {"input": example.get("input"), "output": example.get("output")}
    given, wanted = example if isinstance(example, list | tuple) and len(example) == 2 else (None, None)
    return {"input": given, "output": wanted}
