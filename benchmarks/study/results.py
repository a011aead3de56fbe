"""What the runs of a study left, read back."""

import json
from pathlib import Path
from typing import Any


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results of all runs in a folder: of each the last line."""
    path = folder / "results.jsonl"
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return list({name_of(result): result for result in results}.values())


def history_of(folder: Path, name: str) -> Path:
    """Where the history of a run lies."""
    return folder / "history" / name.replace("/", "-").replace(" ", "_")


def name_of(result: dict[str, Any]) -> str:
    """STUDY/KIND/SEED."""
    return f"{result['study']}/{result['kind']}/{result['seed']}"
