"""Programs per second of the sandbox: every tier against a plain fork, a cold subprocess, joblib, and exec.

    python -m benchmarks.score [--programs 250] [--rounds 8]

All ways take turns in every round. A rate is that of the best round, because other load only ever takes
away; a ratio is the median over the rounds of two that were measured one after the other.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.score_baselines import BASELINES, SOURCE
from benchmarks.score_ways import Cold, JoblibWorkers, Lanes, Plain, Way
from score.isolation.lockdown import Layer
from score.options import ScoreOptions
from score.rewards.scorer import Scorer
from score.run import run_score
from score.sandbox.pool import usable_cores
from score.sandbox.tiers import TIERS, missing_for
from tests.building.runs import new_run
from tests.building.texts import add_rollout, fenced

Rounds = list[dict[str, Any]]


@click.command()
@click.option("--programs", "num_programs", default=250, show_default=True, help="Programs per round.")
@click.option("--rounds", default=8, show_default=True, help="Rounds in which all ways take turns.")
@click.option("--max-lanes", default=usable_cores(), show_default=True, help="Lanes to scale up to.")
def main(num_programs: int, rounds: int, max_lanes: int) -> None:
    """Measure every way of running programs and print one line for each."""
    ways: dict[str, Way] = {}
    for name in ("D", "C", "B", "A"):
        ways["fork + run"] = ways.get("fork + run") or Plain("fork + run")
        layers, _words = TIERS[name]
        if missing_for(layers) is None:
            ways[f"tier {name}"] = Lanes(layers, 1)
    for count in range(2, max_lanes + 1):
        ways[f"fork + run, {count} at a time"] = Plain("fork + run", count)
        ways[f"tier C, {count} lanes"] = Lanes(Layer.SECCOMP, count)
    ways |= {name: Plain(name) for name in BASELINES if name not in ways}
    ways |= {"cold subprocess": Cold(), f"joblib exec, {max_lanes} workers": JoblibWorkers(max_lanes)}
    measured: dict[str, Rounds] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 else reversed(list(ways)):
            measured[name].append(ways[name].measure(num_programs))
    for name, way in ways.items():
        click.echo(line_of(name, way.cores, measured[name], measured["fork + run"]))
        way.close()
    for count in range(2, max_lanes + 1):
        lanes = ratio(measured[f"tier C, {count} lanes"], measured["tier C"])
        forks = ratio(measured[f"fork + run, {count} at a time"], measured["fork + run"])
        click.echo(f"{count} lanes against 1: {lanes:.2f} x; {count} plain forks at a time: {forks:.2f} x")
    click.echo(whole_stage(num_programs * rounds))


def line_of(name: str, cores: int, rounds: Rounds, reference: Rounds) -> str:
    """Programs/s per core, the share of fork+run, latencies, and CPU time of lane and scorer per program."""
    times = sorted(min((done["times"] for done in rounds if done["times"]), key=statistics.median,
                       default=[]))
    quantiles = (f"p50 {times[len(times) // 2] * 1e3:6.2f}  p99 {times[len(times) * 99 // 100] * 1e3:6.2f} ms"
                 if times else " " * 25)
    best = max(done["rate"] for done in rounds) / cores
    cpu = (f"  lane {least(rounds, 'cpu'):.2f}  scorer {least(rounds, 'own'):.3f} ms of CPU"
           if "cpu" in rounds[0] else "")
    return f"{name:<26} {best:6.0f}/s per core {ratio(rounds, reference) / cores:7.0%}  {quantiles}{cpu}"


def least(rounds: Rounds, name: str) -> float:
    """Milliseconds of the best round."""
    return min(done[name] for done in rounds) * 1e3


def ratio(rounds: Rounds, reference: Rounds) -> float:
    """How many times the rate of the reference, in the median of the rounds."""
    return statistics.median(ours["rate"] / theirs["rate"]
                             for ours, theirs in zip(rounds, reference, strict=True))


def whole_stage(count: int) -> str:
    """The scorer's CPU time per completion from Parquet to Parquet, lanes and their start not counted."""
    with tempfile.TemporaryDirectory() as folder:
        warehouse = new_run(Path(folder) / "run")
        add_rollout(warehouse, [("turn", fenced(SOURCE.format(number=number))) for number in range(count)])
        said: list[str] = []
        options = ScoreOptions(warehouse.root, iteration=0, grace=0.0)
        started, wall = time.process_time(), time.perf_counter()
        run_score(options, Scorer("arc-v1"), said.append)
        cpu, wall = time.process_time() - started, time.perf_counter() - wall
    return (f"`score` of {count} completions: {count / wall:.0f}/s, {cpu / count * 1e3:.3f} ms of the "
            "scorer's CPU each, from Parquet to Parquet, with start and self-test")


if __name__ == "__main__":
    main()
