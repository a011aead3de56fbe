"""What became slower since another revision, both measured by turns on this machine.

    python -m benchmarks.against REV [--only tests --only train] [--rounds 7] [--demo]

A worktree of REV is made for it. Each measure runs in a process per revision, in turns, so that other load
meets both; a ratio is the median over the rounds of two that were measured one after the other, and it is
beyond noise where three quarters of the rounds agree. --demo adds the stages of an iteration of the demo.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
ONE_CORE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MANY_CALLS = "def check(candidate):\n    for n in range(10_000):\n        assert candidate(n, 1) == n + 1\n"
THREE = [f"assert f({n}, 2) == {n + 2}" for n in range(3)]
QUERIES = ("FROM iteration_stats", "FROM task_history", "FROM raised_signals", "FROM costs",
           "SELECT task_id, avg(reward) FROM samples GROUP BY 1")
Times = dict[str, float]


def score_programs(_folder: Path) -> Callable[[], Times]:
    """Seconds of a grid program, of a program with three tests, and of a test with 10,000 calls."""
    from benchmarks.score_baselines import PAYLOAD, SOURCE
    from score.isolation.lockdown import Layer
    from score.judging.completions import Item
    from score.judging.judge import measure, run_programs
    from score.protocol.frames import JobKind
    from score.sandbox.executor import Executor
    from score.sandbox.lane_handle import LaneConfig
    from score.sandbox.limits import Limits
    from score.sandbox.pool import LanePool
    from score.sandbox.program import Program
    from score.tasks.kinds import graders_of, load_task
    from score.tasks.measures import Answer
    limits, preload = Limits(cpu_seconds=8.0, wall_seconds=40.0), graders_of([("function", {})]).modules
    grids = LanePool(LaneConfig(Layer.SECCOMP), limits, 1)
    functions = LanePool(LaneConfig(Layer.SECCOMP, preload=preload), limits, 1)

    def judge(count: int, tests: Any) -> float:
        task = load_task("t", "function", {"entry_point": "f", "tests": tests})
        items = [Item(task, Answer("", f"def f(a, b):\n    return a + b  # {number}\n"))
                 for number in range(count)]
        began = time.perf_counter()
        rows = measure(items, run_programs(Executor(functions), items))
        assert all(row.measures.correct for row in rows), rows[0].outcome
        return (time.perf_counter() - began) / count

    def once() -> Times:
        batch = [Program(JobKind.GRID, SOURCE.format(number=number), PAYLOAD) for number in range(100)]
        began = time.perf_counter()
        for _ending in grids.run(batch):
            pass
        return {"score: a grid program": (time.perf_counter() - began) / len(batch),
                "score: a program with three tests": judge(40, THREE),
                "score: a test with 10,000 calls": judge(1, MANY_CALLS)}
    return once


def train_step(folder: Path) -> Callable[[], Times]:
    """Seconds of a step on a small model with random weights."""
    from benchmarks.train_rows import make_model, parse_shape
    from benchmarks.train_variants import run
    make_model(folder, "small", 8)

    def once() -> Times:
        step = run("shared", "small", folder, parse_shape("128x8x64"), 3, "float32", 4096, 0)
        return {"train: a step": step["wall_seconds"]}
    return once


def queries(folder: Path) -> Callable[[], Times]:
    """Seconds of the warehouse's questions to a run of forty iterations."""
    from tests.building.weather import build_run
    from warehouse.sql.database import connect, rows_of
    warehouse = build_run(folder / "run", iterations=40)

    def once() -> Times:
        times = {}
        began = time.perf_counter()
        connection = connect(warehouse)
        times["warehouse: connect"] = time.perf_counter() - began
        for query in QUERIES:
            began = time.perf_counter()
            rows_of(connection, query)
            times[f"warehouse: {query}"] = time.perf_counter() - began
        return times
    return once


def demo(folder: Path) -> Callable[[], Times]:
    """Seconds of the commands of the demo's first iteration, each in a process of its own."""
    number = iter(range(1000))

    def once() -> Times:
        run, times = str(folder / f"demo{next(number)}"), {}
        for name, *words in (("warehouse", "init", run, "--model", "examples/starter/model", "--config",
                              "examples/demo/config.toml", "--tasks", "synthetic:40:3"),
                             ("rollout", run), ("score", run), ("train", run), ("warehouse", "summary", run),
                             ("reports", "build", run)):
            entry = "cli" if name in ("warehouse", "reports") else name
            title = f"demo: {name} {words[0]}" if entry == "cli" else f"demo: {name}"
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"from {name}.cli import {entry}; {entry}()", *words],
                           check=True, stdout=subprocess.DEVNULL)
            times[title] = time.perf_counter() - began
        return times
    return once


MEASURES: dict[str, Callable[[Path], Callable[[], Times]]] = {
    "score": score_programs, "train": train_step, "warehouse": queries, "demo": demo}


def work(name: str) -> None:
    """In a process of one revision: measure once per line of stdin."""
    with tempfile.TemporaryDirectory() as folder:
        once = MEASURES[name](Path(folder))
        for _line in sys.stdin:
            print(json.dumps(once()), flush=True)


@contextmanager
def worktree(revision: str) -> Any:
    """A checkout of a revision."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", f"{folder}/rev", revision], check=True)
        try:
            yield Path(folder) / "rev"
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/rev"], check=True)


def by_turns(name: str, roots: list[Path], rounds: int) -> list[list[Times]]:
    """What each of the revisions took, round by round; the first round warms up."""
    processes = [subprocess.Popen([sys.executable, "-P", __file__, name], cwd=root, text=True,
                                  env={**os.environ, **ONE_CORE, "PYTHONPATH": str(root)},
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) for root in roots]
    measured: list[list[Times]] = [[] for _ in roots]
    for number in range(rounds + 1):
        for place in (0, 1) if number % 2 else (1, 0):
            stdin, stdout = processes[place].stdin, processes[place].stdout
            assert stdin is not None and stdout is not None
            stdin.write("once\n")
            stdin.flush()
            line = stdout.readline()
            if not line:
                raise click.ClickException(f"{name} cannot be measured in {roots[place]}")
            measured[place].append(json.loads(line))
    for process in processes:
        process.communicate()
    return [times[1:] for times in measured]


def lines_of(ours: list[Times], theirs: list[Times]) -> list[str]:
    """What each thing takes now, how many times as long as before, and whether that is beyond noise."""
    lines = []
    for name in ours[0].keys() & theirs[0].keys():
        ratios = [our[name] / their[name] for our, their in zip(ours, theirs, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        verdict = "slower" if low > 1 and middle > 1.03 else "faster" if high < 1 and middle < 0.97 else ""
        seconds = statistics.median(our[name] for our in ours)
        lines.append(f"{name:<45}{seconds * 1e3:10.2f} ms {middle:6.2f} x  ({low:.2f} to {high:.2f})  "
                     f"{verdict}")
    return sorted(lines)


@click.command()
@click.argument("revision")
@click.option("--only", multiple=True, type=click.Choice(list(MEASURES)), help="Measures; may be repeated.")
@click.option("--rounds", default=7, show_default=True, help="Rounds in which both take turns, at least 2.")
@click.option("--demo", "with_demo", is_flag=True, help="The demo's stages, too, a minute per round.")
def main(revision: str, only: tuple[str, ...], rounds: int, with_demo: bool) -> None:
    """Print what this revision takes, and how many times as long as REVISION."""
    names = only or tuple(name for name in MEASURES if name != "demo" or with_demo)
    with worktree(revision) as theirs:
        for name in names:
            for line in lines_of(*by_turns(name, [ROOT, theirs], rounds)):
                click.echo(line)


if __name__ == "__main__":
    main() if __package__ else work(sys.argv[1])
