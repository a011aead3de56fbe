"""Seconds that each command takes in a run of many iterations, beside the same in a run of one.

    python -m benchmarks.long_past --iterations 1000 [--folder DIR] [--times 3]

The run is the chaos suite's (five small tasks, twenty completions, the starter policy) with its first
iteration copied; it is built in half a minute, and kept with --folder. The engine is scripted: what is
measured is what a stage does around its work. A stage runs on a copy of the metadata each time.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.building.long import lengthen
from tests.chaos.kills import ROOT, Step, to_the_end
from tests.chaos.loop import new_run
from warehouse.store.run_folder import Warehouse, open_warehouse

# The first summary has neither a rollup nor a list of what was verified, the first check no list of footers.
COMMANDS = ("warehouse summary", "warehouse summary", "warehouse check --quick", "warehouse check --quick",
            "rollout", "score", "train")


def run_of(folder: Path, iterations: int) -> Warehouse:
    """The run with as many iterations, made unless it is there."""
    if not (folder / "run").exists():
        warehouse = new_run(folder)
        for name in ("rollout", "score", "train"):
            assert to_the_end(Step(name, 0), warehouse).code == 0
        lengthen(warehouse, iterations)
    return open_warehouse(folder / "run")


def seconds_of(command: str, run: Path) -> tuple[float, float]:
    """Wall and CPU seconds of a command in a process of its own."""
    room, *words = command.split()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "tests.chaos.commands", "--list", room, *words[:1], str(run),
                           *words[1:]], cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def measure(run: Path, times: int) -> list[tuple[float, float]]:
    """The best of some runs of each command; every run of them all starts from the same files."""
    taken = []
    for _ in range(times):
        for name in ("iterations", "warehouse.sql"):
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        taken.append([seconds_of(command, run) for command in COMMANDS])
        newest = max(open_warehouse(run).state.versions)
        for table in ("prompts", "completions", "samples", "train"):
            shutil.rmtree(run / table / f"iteration={newest - 1}")
        shutil.rmtree(run / "policies" / str(newest))
    return [min(column) for column in zip(*taken, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-") as scratch:
        folder = options.folder or Path(scratch)
        rows = [measure(run_of(folder / str(count), count).root, options.times)
                for count in (1, options.iterations)]
    print(f"{'command':<24} {'1 iteration':>20} {options.iterations:>9} iterations     more CPU")
    for command, short, long in zip(COMMANDS, *rows, strict=True):
        print(f"{command:<24} {short[0]:8.2f} s {short[1]:6.2f} cpu  {long[0]:8.2f} s {long[1]:6.2f} cpu  "
              f"{long[1] - short[1]:+8.2f} s")
