"""Current activity in a run: incomplete stages, their progress, the disk."""

import shutil
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from reports.scale import duration, number
from reports.viewer import render
from reports.viewer.links import Query
from reports.viewer.session import Asking, View
from warehouse.store.checksums import FileState, file_state
from warehouse.store.run_folder import Stage, Warehouse

QUIET = 600             # seconds without a write, after which a stage may have ended


def now_answer(view: View, _ask: Asking, _query: Query) -> dict[str, str]:
    """The version of the complete data, and current activity as HTML."""
    disk = shutil.disk_usage(view.warehouse.root)
    unfinished = [stage for stage in view.warehouse.stages() if not stage.is_complete()][-8:]
    html = render.fragment("now.html", stages=[progress(view.warehouse, stage) for stage in unfinished],
                           due=view.warehouse.state.due().stage,
                           disk=f"{disk.free / 1e9:,.1f} GB free of {disk.total / 1e9:,.1f} GB")
    return {"version": view.version, "html": html}


def progress(warehouse: Warehouse, stage: Stage) -> dict[str, Any]:
    """Progress of a stage: rows of its parts and of its spills."""
    keys = stage.identity
    began = warehouse.state.entries[stage.life.begun].at if stage.life else None
    facts: dict[str, Any] = {"title": stage.title, "rows": "", "share": None, "rate": "", "last": ""}
    table = {"rollout": "completions", "score": "samples"}.get(stage.name)
    newest = stage.last_write() or began
    if table:
        files = stage.written()
        done, tokens = map(sum, zip(*(rows_and_tokens(file, file_state(file)) for file in files), strict=True)
                           ) if files else (0, 0)
        planned = sum(sum_of(part, file_state(part)) for part in warehouse.parts(
            "prompts", iteration=keys["iteration"], purpose=keys["purpose"]))       # 0 without a plan yet
        facts |= {"rows": f"{done:,} of {planned:,} completions" if planned else f"{done:,} completions",
                  "share": round(100 * min(done / planned, 1)) if planned else None}
        if began and newest and newest > began and tokens:
            facts["rate"] = f"{number(tokens / (newest - began))} tokens/s since it began"
    if newest:
        age = max(0.0, time.time() - newest)
        ended = ": it may have ended" if age > QUIET else ""
        facts["last"] = f"last write {duration(age)} ago{ended}"
    return facts


@lru_cache(maxsize=4096)
def rows_and_tokens(path: Path, _state: FileState) -> tuple[int, int]:
    """The number of finished completions in a part or spill, and their tokens."""
    table = pq.read_table(path, columns=["num_completion_tokens", "finish_reason"])
    finished = table.filter(table["finish_reason"].is_valid())
    return len(finished), sum(filter(None, finished["num_completion_tokens"].to_pylist()))


@lru_cache(maxsize=4096)
def sum_of(path: Path, _state: FileState) -> int:
    """The number of completions planned in a part of prompts."""
    return sum(filter(None, pq.read_table(path, columns=["group_size"])["group_size"].to_pylist()))
