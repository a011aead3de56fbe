"""A run as a process of its own."""

import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.study.run import Plan, execute


def work(plan: Plan, output: Path, deadline: float, score_options: tuple[str, ...],
         keep: bool = False) -> None:
    """Make the run in a scratch folder, or one that is kept, and add what it left to the results."""
    torch.set_num_threads(1)
    screen = os.dup(1)
    for stream in (1, 2):
        os.dup2(os.open(output / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    try:
        with tempfile.TemporaryDirectory(prefix="study-") as folder:
            run = output / "runs" / plan.name if keep else Path(folder) / "run"
            shutil.rmtree(run, ignore_errors=True)             # of a run that was out of time
            run.parent.mkdir(parents=True, exist_ok=True)
            result = execute(plan, run, deadline, score_options, output,
                             lambda result: add_result(output, result))
    except Exception:
        traceback.print_exc()
        _say(screen, f"{plan.name}: {traceback.format_exc().splitlines()[-1]}")
        sys.exit(1)
    add_result(output, result)
    fired = result["looks"][-1]["fired"][:4] if result["looks"] else []
    _say(screen, f"{plan.name}: {len(result['looks'])} iterations in {result['seconds']:.0f} s, "
                 f"{result['ended'][:90]} {' '.join(fired)}")


def add_result(output: Path, result: dict[str, Any]) -> None:
    """Append a line; the last one of a run counts."""
    file = os.open(output / "results.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (json.dumps(result) + "\n").encode())
    os.close(file)


def _say(screen: int, line: str) -> None:
    os.write(screen, f"{line}\n".encode())
