"""Wall time of an iteration, cold, warm and `--ahead` side by side: where it goes, by the stages' manifests.

    python -m benchmarks.loop [--model MODEL --tasks TASKS.jsonl --config config.toml] [--iterations 4]

Each is `warehouse loop` on a run of its own, one after the other on the same machine. An iteration counts
from one policy to the next, so that the first, in which the warm loop imports and starts its engine, is told
apart. Stages overlap: `else` is the time in which nothing was sampled, run or trained, `idle` that in which
the GPU had nothing to do, neither sampling nor logprobs and gradients.
"""

import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import click

from benchmarks.demo_time import WORK, stage_manifests
from warehouse.store.run_folder import Warehouse, open_warehouse

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples" / "demo"
WIDTHS = (10, 10, 9, 11, 8, 8, 8, 8)


class Span(NamedTuple):
    """A time in which a stage did its work, in Unix seconds."""

    start: float
    end: float


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
        heads = zip(("iteration", "sampling", "running", "gradients", "else", "share", "idle", "first"),
                    WIDTHS, strict=True)
        lines = ["loop  " + "".join(f"{head:>{width}}" for head, width in heads)]
        for way in ways:
            run = (folder or Path(scratch)) / way
            began, log = time.time(), run.with_suffix(".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            loop(run, way, model, tasks, config, iterations, log)
            lines.append(f"{way:<6}" + row(open_warehouse(run), began))
            click.echo(f"{way}: {time.time() - began:.0f} s for {iterations} iterations", err=True)
    click.echo("\n".join(lines))
    click.echo(f"seconds of wall time, mean of iterations 1 to {iterations - 1}; share and idle: in "
               f"percent of it; first: iteration 0; {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}")


def loop(run: Path, way: str, model: str, tasks: tuple[str, ...], config: str, iterations: int,
         log: Path) -> None:
    """Make a run and its iterations as a user would."""
    words = [word for task in tasks for word in ("--tasks", task)]
    variables = os.environ | ({"ROLLHOUSE_WARM": "off"} if way == "cold" else {})
    with log.open("w") as file:
        for command in (["warehouse", "init", str(run), "--model", model, "--config", config, *words],
                        ["warehouse", "loop", str(run), str(iterations),
                         *(["--ahead"] if way == "ahead" else [])]):
            done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, env=variables, check=False)
            if done.returncode not in (0, 3):        # 3: an alarm, which is no failure of the loop
                sys.exit(f"{' '.join(command)} ended with {done.returncode}; see {log}")


def row(warehouse: Warehouse, began: float) -> str:
    """Mean seconds of the iterations after the first: whole, by phase, and what no phase explains."""
    ends = sorted(manifest["finished_at"] for manifest in stage_manifests(warehouse, "train"))
    whole, wall = Span(ends[0], ends[-1]), mean(end - start for start, end in pairwise(ends))
    phases = [mean(sum(manifest["facts"]["seconds"].get(phase, 0.0) for phase in WORK[stage])
                   for manifest in stage_manifests(warehouse, stage) if 0 < manifest["iteration"] < len(ends))
              for stage in WORK]
    sampled, run, trained = work_spans(warehouse)
    nothing, idle = (1 - covered(spans, whole) / (whole.end - whole.start)
                     for spans in ([*sampled, *run, *trained], [*sampled, *trained]))
    values = (wall, *phases, nothing * wall, 100 * nothing, 100 * idle, ends[0] - began)
    return "".join(f"{value:>{width}.1f}" for value, width in zip(values, WIDTHS, strict=True))


def work_spans(warehouse: Warehouse) -> tuple[list[Span], ...]:
    """When completions were sampled, programs ran after that, and logprobs and gradients were computed.

    Manifests hold when a stage was over and how long its phases took: its work is put right before the
    phases that may follow it, writing among them, so that it comes out no longer than it was. Programs run
    while others are sampled; those that run longer count from the end of sampling.
    """
    sampled, run, trained, over = [], [], [], {}
    for manifest in stage_manifests(warehouse, "rollout"):
        seconds, end = manifest["facts"]["seconds"], manifest["finished_at"]
        sampled.append(Span(end - seconds["writing"] - seconds["sampling"], end - seconds["writing"]))
        over[manifest["iteration"], manifest["purpose"]] = end
    for manifest in stage_manifests(warehouse, "score"):
        seconds = manifest["facts"]["seconds"]
        end = manifest["finished_at"] - seconds["reading"] - seconds["metrics"] - seconds["writing"]
        run.append(Span(max(over[manifest["iteration"], manifest["purpose"]], end - seconds["running"]), end))
    for manifest in stage_manifests(warehouse, "train"):
        seconds = manifest["facts"]["seconds"]
        end = manifest["finished_at"] - seconds["writing"]
        trained.append(Span(end - sum(seconds.get(phase, 0.0) for phase in WORK["train"]), end))
    return sampled, run, trained


def covered(spans: list[Span], whole: Span) -> float:
    """Seconds of `whole` in which at least one of the spans goes on."""
    seconds, until = 0.0, whole.start
    for span in sorted(spans):
        start, end = max(span.start, until), min(span.end, whole.end)
        seconds += max(0.0, end - start)
        until = max(until, end)
    return seconds


if __name__ == "__main__":
    main()
