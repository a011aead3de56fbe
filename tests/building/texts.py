"""A rollout of texts that a test names, for what `score` makes of them."""

from typing import Any

from tests.building.runs import completion_row, finish, prompt_row, write_rows
from warehouse.store.run_folder import Warehouse

# What begins and ends thoughts, and the special tokens in it, by a model that writes so.
THOUGHTS = {
    "Qwen3": ("<think>", "</think>"), "Seed-OSS": ("<seed:think>", "</seed:think>"),
    "Hunyuan 3": ("<think:6124c78e>", "</think:6124c78e>"), "MiniMax M3": ("<mm:think>", "</mm:think>"),
    "Ministral 3": ("[THINK]", "[/THINK]"), "Command A": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
    "GPT-OSS": ("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>")}
FLIP = "import numpy as np\n\ndef transform(grid):\n    return np.fliplr(grid)\n"
SAME = "def transform(grid):\n    return grid\n"


def fenced(code: str) -> str:
    """The answer of a model that writes `code`."""
    return f"Here it is.\n```python\n{code}```\n"


def add_rollout(warehouse: Warehouse, completions: list[tuple[str, str]], *, iteration: int = 0,
                purpose: str = "train", part_size: int = 1000, complete: bool = True,
                settings: dict[str, Any] | None = None, **columns: Any) -> None:
    """Write a rollout of (task_id, completion) rows; `columns` override those of every prompt.

    Completions of a task make one group in every part; a token is a byte.
    """
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    prompts: dict[tuple[str, int], dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for number, (task_id, text) in enumerate(completions):
        part = number // part_size
        prompt = prompts.setdefault((task_id, part), prompt_row(
            task_id, len(completions), group_index=part, **keys, **columns))
        ids = list(text.encode("utf-8", "replace"))[:400]
        before = sum(row["task_id"] == task_id for row in rows)
        rows.append(completion_row(prompt, before, ids, [-0.5] * len(ids), text))
    write_rows(warehouse, "prompts", [list(prompts.values())], settings=settings)
    write_rows(warehouse, "completions",
               [rows[start:start + part_size] for start in range(0, len(rows), part_size)])
    if complete:
        finish(warehouse, "rollout", **keys)
