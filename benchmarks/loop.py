"""Wall time of an iteration, cold, warm and `--ahead` side by side: where it goes, by the stages' manifests.

    python -m benchmarks.loop [--model MODEL --tasks TASKS.jsonl --config config.toml] [--iterations 4]
    python -m benchmarks.loop --gpus 0 --gpus 0,1 --way warm --way ahead --grow ..     on several GPUs
    python -m benchmarks.loop --gpus 0,1 --way warm --kill ..        an engine and a trainer die in between

Each is `warehouse loop` on a run of its own, one after the other on the same machine. An iteration counts
from one policy to the next, so that the first, in which the warm loop imports and starts its engines, is told
apart. The last iterations of `ahead` are not counted: nothing is left to sample during them. Stages overlap:
`else` is the time in which nothing was sampled, run or trained, `idle` that in which no GPU had anything to
do, neither sampling nor logprobs and gradients. `each GPU idle` is what nvidia-smi
says: percent of the time without any kernel, after the first iteration.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import click

from benchmarks.demo_time import WORK, stage_manifests
from warehouse.store.run_folder import Warehouse, open_warehouse

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples" / "demo"
DEPTHS = {"ahead": 1, "ahead-by-2": 2}       # iterations that are sampled before one is trained
HEADS = ("iteration", "sampling", "running", "gradients", "else", "share", "idle", "first", "per minute")
MARK = "BENCHMARKS_LOOP"         # variable by which the processes of a run are found
WIDTHS = (10, 10, 9, 11, 8, 8, 8, 8, 12)


class Span(NamedTuple):
    """A time in which a stage did its work, in Unix seconds."""

    start: float
    end: float


@click.command()
@click.option("--model", default=str(ROOT / "examples" / "starter" / "model"), show_default=True)
@click.option("--tasks", multiple=True, default=(f"arc-agi-1:training@{DEMO / 'pool.txt'}",),
              show_default=True)
@click.option("--config", default=str(DEMO / "config.toml"), show_default=True)
@click.option("--iterations", type=click.IntRange(min=4), default=4, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=None,
              help="Where the runs are made. [default: a folder that is removed]")
@click.option("--way", "ways", type=click.Choice(["cold", "warm", "ahead", "ahead-by-2"]), multiple=True,
              default=("cold", "warm"))
@click.option("--gpus", multiple=True, default=("all",), show_default=True, help="As of `warehouse loop`.")
@click.option("--devices", type=int, default=None, help="Workers on a CPU in the place of GPUs.")
@click.option("--grow", is_flag=True, help="Tasks per iteration grow with the number of GPUs.")
@click.option("--kill", is_flag=True, help="Kill an engine in iteration 1, a trainer in iteration 2.")
def main(model: str, tasks: tuple[str, ...], config: str, iterations: int, folder: Path | None,
         ways: tuple[str, ...], gpus: tuple[str, ...], devices: int | None, grow: bool, kill: bool) -> None:
    """Run the loops and print seconds per iteration."""
    with tempfile.TemporaryDirectory() as scratch:
        lines = [f"{'loop':<16}" + "".join(f"{head:>{width}}" for head, width in
                                           zip(HEADS, WIDTHS, strict=True)) + "  each GPU idle"]
        for chosen, way in [(chosen, way) for chosen in gpus for way in ways]:
            run = (folder or Path(scratch)) / f"{way}-{chosen.replace(',', '-')}"
            began, log = time.time(), run.with_suffix(".log")
            log.parent.mkdir(parents=True, exist_ok=True)
            settings = grown(Path(config).read_text(), len(chosen.split(",")) if grow else 1)
            log.with_suffix(".toml").write_text(settings)
            more = ["--gpus", chosen, *(["--devices", str(devices)] if devices else []),
                    *(["--ahead-by", str(DEPTHS[way])] if way in DEPTHS else [])]
            with Utilization() as utilization, killing(run, log) if kill else contextlib.nullcontext():
                loop(run, way == "cold", model, tasks, iterations, log, more)
            warehouse = open_warehouse(run)
            lines.append(f"{way + ' ' + chosen:<16}" + row(warehouse, began, DEPTHS.get(way, 0)) + "  "
                         + utilization.idle(ends_of(warehouse)[0], time.time()))
            click.echo(f"{way} {chosen}: {time.time() - began:.0f} s for {iterations} iterations", err=True)
    click.echo("\n".join(lines))
    click.echo(f"seconds of wall time, means after the first iteration; share and idle: in "
               f"percent of it; first: iteration 0; per minute: completions; {os.cpu_count()} cores, load "
               f"{os.getloadavg()[1]:.1f}")


def grown(settings: str, factor: int) -> str:
    """The config with so many times the tasks, and without evaluations."""
    settings = re.sub(r"(?ms)^\[loop\]$.*?(?=^\[|\Z)", "", settings)
    return re.sub(r"(?m)^(num-tasks *= *)(\d+)", lambda found: f"{found[1]}{factor * int(found[2])}",
                  settings)


def loop(run: Path, is_cold: bool, model: str, tasks: tuple[str, ...], iterations: int, log: Path,
         more: list[str]) -> None:
    """Make a run and its iterations as a user would."""
    words = [word for task in tasks for word in ("--tasks", task)]
    variables = os.environ | ({"ROLLHOUSE_WARM": "off"} if is_cold else {}) | {MARK: str(run)}
    with log.open("w") as file:
        for command in (["warehouse", "init", str(run), "--model", model, "--config",
                         str(log.with_suffix(".toml")), *words],
                        ["warehouse", "loop", str(run), str(iterations), *more]):
            done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, env=variables, check=False)
            if done.returncode not in (0, 3):        # 3: an alarm, which is not a failure of the loop
                sys.exit(f"{' '.join(command)} ended with {done.returncode}; see {log}")


class Utilization:
    """How busy each GPU is, as nvidia-smi says it four times a second."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, float]] = []       # when, which GPU, percent

    def __enter__(self) -> "Utilization":
        command = ["nvidia-smi", "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits",
                   "-lms", "250"]
        self.process = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                        if shutil.which(command[0]) else None)
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        for line in (self.process and self.process.stdout) or ():
            index, percent = line.split(",")
            with contextlib.suppress(ValueError):            # "[N/A]"
                self.seen.append((time.time(), index, float(percent)))

    def idle(self, start: float, end: float) -> str:
        """Percent without work of each GPU from `start` to `end`."""
        gpus = sorted({index for _, index, _ in self.seen}, key=int)
        return " ".join(f"{100 - mean(values):.1f}" for gpu in gpus if (values := [
            percent for when, index, percent in self.seen if index == gpu and start < when < end])) or "-"


@contextlib.contextmanager
def killing(run: Path, log: Path) -> Iterator[None]:
    """Kill -9 of an engine while iteration 1 is sampled, and of a trainer while iteration 2 is trained."""
    over = threading.Event()

    def wait_and_kill(pattern: str, process: str) -> None:
        while not over.is_set() and not any(run.glob(pattern)):
            time.sleep(0.05)
        for name in Path("/proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                own = f"{MARK}={run}".encode() in (name.parent / "environ").read_bytes().split(b"\0")
                if own and name.read_text().strip() == process and not over.is_set():
                    os.kill(int(name.parent.name), signal.SIGKILL)
                    click.echo(f"killed {process}, process {name.parent.name}", err=True)

    def work() -> None:
        wait_and_kill("completions/iteration=1/purpose=train/*/part-*", "rollout@1")
        wait_and_kill("train/iteration=2/*/checkpoint-0", "train@1")
    threading.Thread(target=work, daemon=True).start()
    yield
    over.set()
    click.echo("".join(line for line in log.read_text().splitlines(True) if "ended with exit code" in line))
    subprocess.run(["warehouse", "check", str(run)], cwd=ROOT, check=True)


def ends_of(warehouse: Warehouse) -> list[float]:
    """When each training was over, in Unix seconds."""
    return sorted(manifest["finished_at"] for manifest in stage_manifests(warehouse, "train"))


def row(warehouse: Warehouse, began: float, depth: int) -> str:
    """Mean seconds of the counted iterations: whole, by phase, and what no phase explains."""
    ends = ends_of(warehouse)
    ends = ends[:len(ends) - depth]
    whole, wall = Span(ends[0], ends[-1]), mean(end - start for start, end in pairwise(ends))
    phases = [mean(sum(manifest["facts"]["seconds"].get(phase, 0.0) for phase in WORK[stage])
                   for manifest in stage_manifests(warehouse, stage) if 0 < manifest["iteration"] < len(ends))
              for stage in WORK]
    sampled, run, trained = work_spans(warehouse)
    nothing, idle = (1 - covered(spans, whole) / (whole.end - whole.start)
                     for spans in ([*sampled, *run, *trained], [*sampled, *trained]))
    completions = mean(manifest["facts"]["num_completions"] for manifest in
                       stage_manifests(warehouse, "rollout") if 0 < manifest["iteration"] < len(ends))
    values = (wall, *phases, nothing * wall, 100 * nothing, 100 * idle, ends[0] - began,
              60 * completions / wall)
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
