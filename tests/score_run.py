"""A run folder with a few tasks and scripted completions, for the tests of `score`."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from warehouse.store.commit import commit_json
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import SCHEMA_VERSION, arrow_schema

TURN = {"train": [{"input": [[1, 2], [3, 4]], "output": [[2, 1], [4, 3]]},
                  {"input": [[5, 6, 7]], "output": [[7, 6, 5]]}],
        "test": [{"input": [[0, 9], [8, 0]], "output": [[9, 0], [0, 8]]}]}
FLIP = "import numpy as np\n\ndef transform(grid):\n    return np.fliplr(grid)\n"
SAME = "def transform(grid):\n    return grid\n"


def fenced(code: str) -> str:
    """The answer of a model that writes `code`."""
    return f"Here it is.\n```python\n{code}```\n"


def make_run(root: Path, tasks: dict[str, tuple[str, Any]]) -> Warehouse:
    """A run folder without completions; `tasks` maps task_id to (kind, payload)."""
    root.mkdir(parents=True)
    rows = [{"task_id": task_id, "source": "test", "split": "train", "heldout": False, "position": position,
             "kind": kind, "messages": None, "payload": json.dumps(payload)}
            for position, (task_id, (kind, payload)) in enumerate(tasks.items())]
    commit_json(root / "warehouse.json",
                {"schema_version": SCHEMA_VERSION, "run_id": "t", "model": "none"})
    warehouse = open_warehouse(root)
    warehouse.write_part("tasks", 0, pa.Table.from_pylist(rows, schema=arrow_schema("tasks")))
    return warehouse


def add_rollout(warehouse: Warehouse, completions: list[tuple[str, str]], *, iteration: int = 0,
                purpose: str = "train", part_size: int = 1000, complete: bool = True,
                **prompt: Any) -> None:
    """Write a rollout of (task_id, completion) rows; `prompt` overrides columns of every prompt.

    Completions of a task make one group in every part.
    """
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    groups = list(dict.fromkeys((task_id, number // part_size)
                                for number, (task_id, _text) in enumerate(completions)))
    prompts = [dict.fromkeys(arrow_schema("prompts").names) | keys
               | {"task_id": task_id, "group_id": group_name(iteration, task_id, part), "split": "train",
                  "prefill": "", "group_size": len(completions), "group_index": part} | prompt
               for task_id, part in groups]
    table = pa.Table.from_pylist(prompts, schema=arrow_schema("prompts"))
    warehouse.write_part("prompts", 0, table, **keys)
    seen: dict[str, int] = {}
    rows = []
    for number, (task_id, text) in enumerate(completions):
        seen[task_id] = seen.get(task_id, -1) + 1
        rows.append(completion_row(task_id, seen[task_id], text, iteration) | keys
                    | {"group_id": group_name(iteration, task_id, number // part_size)})
    stage = warehouse.stage("rollout", **keys)
    stage.settle({})
    for number in range(0, len(rows), part_size):
        table = pa.Table.from_pylist(rows[number:number + part_size], schema=arrow_schema("completions"))
        warehouse.write_part("completions", number // part_size, table, **keys)
    if complete:
        stage.complete({})


def group_name(iteration: int, task_id: str, part: int) -> str:
    """A name for the group of a task in one part."""
    return f"{iteration}-{task_id}" if part == 0 else f"{iteration}-{task_id}-{part}"


def completion_row(task_id: str, sample_index: int, text: str, iteration: int) -> dict[str, Any]:
    """One row of completions: one token per byte."""
    ids = list(text.encode("utf-8", "replace"))[:400]
    row = dict.fromkeys(arrow_schema("completions").names)
    return row | {"task_id": task_id, "sample_index": sample_index, "group_id": f"{iteration}-{task_id}",
                  "completion": text, "completion_ids": ids, "behaviour_logprobs": [-0.5] * len(ids),
                  "num_prompt_tokens": 7, "num_completion_tokens": len(ids), "finish_reason": "stop",
                  "policy_version": iteration,
                  "finished_at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}
