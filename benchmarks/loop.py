"""Wall time of an iteration, cold, warm and `--ahead` side by side: where it goes, by the stages' manifests.

    python -m benchmarks.loop [--model MODEL --tasks TASKS.jsonl --config config.toml] [--iterations 4]

Each is examples/loop.sh on a run of its own, one after the other on the same machine. An iteration counts
from one policy to the next, so that the first, in which the warm loop imports and starts its engine, is told
apart. Programs run beside sampling, and ahead all does: what is else comes out smaller, or below 0. `tail`
is from the end of sampling to that of scoring.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import click

from benchmarks.demo_time import WORK
from warehouse.store.run_folder import Warehouse, open_warehouse

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples" / "demo"
WIDTHS = (10, 10, 9, 11, 8, 8, 8, 8)


@click.command()
@click.option("--model", default=str(ROOT / "examples" / "starter" / "model"), show_default=True)
@click.option("--tasks", multiple=True, default=(f"arc-agi-1:training@{DEMO / 'pool.txt'}",),
              show_default=True)
@click.option("--config", default=str(DEMO / "config.toml"), show_default=True)
@click.option("--iterations", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=None,
              help="Where the runs are made. [default: a folder that is removed]")
@click.option("--way", "ways", type=click.Choice(["cold", "warm", "ahead"]), multiple=True,
              default=("cold", "warm"))
def main(model: str, tasks: tuple[str, ...], config: str, iterations: int, folder: Path | None,
         ways: tuple[str, ...]) -> None:
    """Run the loops and print seconds per iteration."""
    with tempfile.TemporaryDirectory() as scratch:
        heads = zip(("iteration", "sampling", "running", "gradients", "else", "share", "tail", "first"),
                    WIDTHS, strict=True)
        lines = ["loop  " + "".join(f"{head:>{width}}" for head, width in heads)]
        for way in ways:
            run = (folder or Path(scratch)) / way
            began, log = time.time(), run.with_suffix(".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            loop(run, way, model, tasks, config, iterations, log)
            lines.append(f"{way:<6}" + row(open_warehouse(run), iterations, began))
            click.echo(f"{way}: {time.time() - began:.0f} s for {iterations} iterations", err=True)
    click.echo("\n".join(lines))
    click.echo(f"seconds of wall time, mean of iterations 1 to {iterations - 1}; share: of else, in percent; "
               f"first: iteration 0; {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}")


def loop(run: Path, way: str, model: str, tasks: tuple[str, ...], config: str, iterations: int,
         log: Path) -> None:
    """Make a run and its iterations as a user would."""
    words = [word for task in tasks for word in ("--tasks", task)]
    variables = os.environ | ({"ROLLHOUSE_WARM": "off"} if way == "cold" else {})
    with log.open("w") as file:
        for command in (["warehouse", "init", str(run), "--model", model, "--config", config, *words],
                        ["bash", str(ROOT / "examples" / "loop.sh"), str(run), str(iterations),
                         *(["--ahead"] if way == "ahead" else [])]):
            done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, env=variables, check=False)
            if done.returncode not in (0, 3):        # 3: an alarm, which is no failure of the loop
                sys.exit(f"{' '.join(command)} ended with {done.returncode}; see {log}")


def row(warehouse: Warehouse, iterations: int, began: float) -> str:
    """Mean seconds of the iterations after the first: whole, by phase, and what no phase explains."""
    manifests = [warehouse.root / "train" / f"iteration={i}" / "manifest.json" for i in range(iterations)]
    ends = [path.stat().st_mtime for path in manifests if path.exists()]
    wall = mean(end - start for start, end in pairwise(ends))
    phases = [mean(work(warehouse, stage, i) for i in range(1, len(ends))) for stage in WORK]
    rest = wall - sum(phases)
    scored, sampled = ([manifest(warehouse, stage, i)["finished_at"] for i in range(1, len(ends))]
                       for stage in ("score", "rollout"))
    tail = mean(scored) - mean(sampled)
    values = (wall, *phases, rest, 100 * rest / wall, tail, ends[0] - began)
    return "".join(f"{value:>{width}.1f}" for value, width in zip(values, WIDTHS, strict=True))


def manifest(warehouse: Warehouse, stage: str, iteration: int) -> dict[str, Any]:
    """What a stage of an iteration wrote down."""
    folder = {"rollout": "completions", "score": "samples", "train": "train"}[stage]
    [path] = (warehouse.root / folder / f"iteration={iteration}").rglob("manifest.json")
    return json.loads(path.read_text())


def work(warehouse: Warehouse, stage: str, iteration: int) -> float:
    """Seconds that a stage of an iteration sampled, ran programs, or computed logprobs and gradients."""
    seconds = manifest(warehouse, stage, iteration)["facts"]["seconds"]
    return sum(seconds.get(phase, 0.0) for phase in WORK[stage])


if __name__ == "__main__":
    main()
