"""Programs per second of the sandbox: every tier against a plain fork, a cold subprocess, joblib, and exec.

    python -m benchmarks.score_throughput [--programs 1000] [--rounds 5] [--max-lanes N]

All configurations take turns in every round and the best round counts: other load only ever adds time.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import click
import numpy as np

from score.frames import Kind, encode_grids
from score.lane_process import LaneConfig
from score.lanes import LanePool, usable_cores
from score.limits import Limits
from score.lockdown import Layer
from score.program import Program
from score.tiers import TIERS, missing_for

SOURCE = ("import numpy as np\n# program {number}\n\ndef transform(grid):\n    out = np.zeros_like(grid)\n"
          "    out[grid > 0] = grid[grid > 0]\n    return np.fliplr(out)\n")
GRIDS = [np.arange(100, dtype=np.uint8).reshape(10, 10) % 10] * 5
COLD = "import sys\nimport numpy as np\nnames = {}\nexec(sys.stdin.read(), names)\n" \
       "print([names['transform'](np.ones((10, 10), int)).tolist() for _ in range(5)])"
TICK = os.sysconf("SC_CLK_TCK")


def programs(count: int) -> list[Program]:
    """Distinct programs of the kind that a model writes, five grids each."""
    return [Program(Kind.GRID, SOURCE.format(number=number), encode_grids(GRIDS)) for number in range(count)]


def run_source(source: str) -> bytes:
    """What every way of running does in the end."""
    names: dict = {}
    exec(compile(source, "program.py", "exec"), names)
    return encode_grids([names["transform"](grid.astype(np.int64)) for grid in GRIDS])


def plain_fork(source: str) -> None:
    """Fork, run, write the answer into a pipe, exit: no limits, no isolation, no clock."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, run_source(source))
        os._exit(0)
    os.close(write_end)
    os.read(read_end, 65536)
    os.close(read_end)
    os.waitpid(pid, 0)


def bare_fork(_source: str) -> None:
    """Fork and exit at once: the floor."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


BASELINES: dict[str, Callable[[str], object]] = {"bare fork": bare_fork, "fork + run": plain_fork,
                                                 "exec in process": run_source}


def serve_baseline(name: str) -> None:
    """In a fresh process: time each batch of sources that arrives on stdin."""
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        sources = [SOURCE.format(number=number) for number in range(int(line))]
        times = []
        started = time.perf_counter()
        for source in sources:
            began = time.perf_counter()
            BASELINES[name](source)
            times.append(time.perf_counter() - began)
        print(json.dumps({"seconds": time.perf_counter() - started, "times": times}), flush=True)


class Baseline:
    """A way of running without lanes, in its own process."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.score_throughput", "--serve", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, count: int) -> dict:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        return {"rate": count / found["seconds"], "times": found["times"], "cores": 1}

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Lanes:
    """Running lanes of one tier."""

    def __init__(self, layers: Layer, num_lanes: int) -> None:
        self.pool = LanePool(LaneConfig(layers), Limits(), num_lanes)
        self.cores = num_lanes

    def measure(self, count: int) -> dict:
        batch = programs(count)
        own, lanes, started = time.process_time(), self.lane_seconds(), time.perf_counter()
        for _ending in self.pool.run(batch):
            pass
        seconds = time.perf_counter() - started
        found = {"rate": count / seconds, "own": (time.process_time() - own) / count, "cores": self.cores,
                 "cpu": (self.lane_seconds() - lanes) / count}
        return found | {"times": list(self.latencies(batch[:200])) if self.cores == 1 else []}

    def latencies(self, batch: list[Program]) -> Iterator[float]:
        """Seconds from handing over one program to its answer, with nothing else in the lane."""
        for program in batch:
            started = time.perf_counter()
            list(self.pool.run([program]))
            yield time.perf_counter() - started

    def lane_seconds(self) -> float:
        """CPU seconds of the lanes and all their children so far."""
        total = 0
        for lane in self.pool.lanes:
            with open(f"/proc/{lane.pid}/stat") as stream:
                total += sum(map(int, stream.read().rpartition(")")[2].split()[11:15]))
        return total / TICK

    def close(self) -> None:
        self.pool.close()


class Cold:
    """A new Python for every program."""

    def measure(self, count: int) -> dict:
        times = []
        for number in range(max(5, count // 100)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-I", "-c", COLD], input=SOURCE.format(number=number), text=True,
                           capture_output=True, check=True)
            times.append(time.perf_counter() - began)
        return {"rate": len(times) / sum(times), "times": times, "cores": 1}

    def close(self) -> None:
        pass


class JoblibWorkers:
    """Warm joblib workers that execute programs in their own process, as graders without isolation do."""

    def __init__(self, num_workers: int) -> None:
        from joblib import Parallel
        self.parallel, self.cores = Parallel(n_jobs=num_workers, backend="loky"), num_workers
        self.measure(num_workers)  # starts the workers

    def measure(self, count: int) -> dict:
        from joblib import delayed
        sources = [SOURCE.format(number=number) for number in range(count)]
        started = time.perf_counter()
        self.parallel(delayed(run_source)(source) for source in sources)
        return {"rate": count / (time.perf_counter() - started), "times": [], "cores": self.cores}

    def close(self) -> None:
        from joblib.externals.loky import get_reusable_executor
        get_reusable_executor().shutdown(wait=True)


@click.command()
@click.option("--programs", "num_programs", default=1000, show_default=True, help="Programs per round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; the best of each way counts.")
@click.option("--max-lanes", default=usable_cores(), show_default=True, help="Lanes to scale up to.")
@click.option("--serve", type=click.Choice(list(BASELINES)), hidden=True)
def main(num_programs: int, rounds: int, max_lanes: int, serve: str | None) -> None:
    """Measure every way of running programs and print one line for each."""
    if serve:
        serve_baseline(serve)
        return
    ways: dict[str, Baseline | Lanes | Cold | JoblibWorkers] = {name: Baseline(name) for name in BASELINES}
    ways["cold subprocess"] = Cold()
    ways[f"joblib, {max_lanes} workers"] = JoblibWorkers(max_lanes)
    for name in "DCBA":
        layers, _words = TIERS[name]
        if missing_for(layers) is None:
            ways[f"tier {name}"] = Lanes(layers, 1)
    for count in range(2, max_lanes + 1):
        ways[f"tier C, {count} lanes"] = Lanes(Layer.SECCOMP, count)
    found: dict[str, list[dict]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way.measure(num_programs))
    report(found)
    for way in ways.values():
        way.close()


def report(rounds: dict[str, list[dict]]) -> None:
    """One line per way of running, best round first."""
    reference = max(found["rate"] for found in rounds["fork + run"])
    print(f"{'':<18} {'programs/s':>10} {'of fork+run':>11} {'p50 ms':>7} {'p99 ms':>7} {'lane CPU ms':>11} "
          f"{'scorer CPU ms':>13}")
    for name, all_found in rounds.items():
        best = max(all_found, key=lambda found: found["rate"])
        times = sorted(min((found["times"] for found in all_found if found["times"]), key=statistics.median,
                           default=[]))
        middle, late = (times[len(times) // 2], times[len(times) * 99 // 100]) if times else (0.0, 0.0)
        quantiles = f"{middle * 1e3:7.2f} {late * 1e3:7.2f}" if times else " " * 15
        share = best["rate"] / reference / best["cores"]
        cpu = f"{best['cpu'] * 1e3:11.2f} {best['own'] * 1e3:13.3f}" if "cpu" in best else ""
        print(f"{name:<18} {best['rate']:10.0f} {share:11.0%} {quantiles} {cpu}")


if __name__ == "__main__":
    main()
