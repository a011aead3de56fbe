"""Run folders for tests: a fake model folder, a few small grid tasks."""

from __future__ import annotations

import json
from pathlib import Path

from warehouse.init import init_run
from warehouse.store.run_folder import Warehouse, open_warehouse

GRID_TASK = {"train": [{"input": [[1, 2], [3, 4]], "output": [[2, 1], [4, 3]]},
                       {"input": [[5, 0]], "output": [[0, 5]]}],
             "test": [{"input": [[7, 8, 9]], "output": [[9, 8, 7]]}]}


def fake_model(folder: Path) -> Path:
    """A folder that passes for a model as far as the warehouse looks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 1024}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def arc_file(folder: Path, names: list[str]) -> Path:
    """An ARC task file in Kaggle's format."""
    path = folder / f"{names[0]}.json"
    path.write_text(json.dumps(dict.fromkeys(names, GRID_TASK)))
    return path


def small_run(folder: Path, num_tasks: int = 5, num_heldout: int = 2) -> Warehouse:
    """A run with training tasks t0.. and held-out tasks h0.."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = arc_file(folder, [f"t{number}" for number in range(num_tasks)])
    heldout = arc_file(folder, [f"h{number}" for number in range(num_heldout)])
    init_run(folder / "run", str(fake_model(folder / "model")), (str(tasks),), (str(heldout),))
    return open_warehouse(folder / "run")
