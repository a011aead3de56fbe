"""docs/tasks.md: every example line is a task that can be imported, and every kind and source has its row."""

import json
import re
from pathlib import Path

from warehouse.sources.benchmarks import BENCHMARKS
from warehouse.tasks.task_files import KINDS, read_jsonl

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()


def test_the_example_lines_are_tasks_of_every_kind(tmp_path: Path) -> None:
    rows = re.findall(r"^\| ([\w-]+) \| `(\{.*\})` \|$", PAGE, flags=re.MULTILINE)
    assert {kind for kind, _ in rows} == set(KINDS)
    (tmp_path / "tasks.jsonl").write_text("\n".join(line for _, line in rows))
    tasks = list(read_jsonl(tmp_path / "tasks.jsonl"))
    assert [task.kind for task in tasks] == [kind for kind, _ in rows]
    assert [task.task_id for task in tasks] == [json.loads(line)["task_id"] for _, line in rows]


def test_every_benchmark_has_a_row() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)[:\[]", PAGE, flags=re.MULTILINE)) >= BENCHMARKS.keys()
