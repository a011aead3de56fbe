"""The ways of running programs that benchmarks/score.py compares: each measures a batch and can be closed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from benchmarks.score_baselines import PAYLOAD, SOURCE, timed_run
from score.isolation.lockdown import Layer
from score.protocol.frames import JobKind
from score.sandbox.lane_handle import LaneConfig, lane_environment
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.program import Program

COLD = "import sys\nimport numpy as np\nnames = {}\nexec(sys.stdin.read(), names)\n" \
       "print([names['transform'](np.ones((10, 10), int)).tolist() for _ in range(5)])"
TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parent.parent
LATENCIES = 200


class Way(Protocol):
    """One way of running programs, on `cores` cores."""

    cores: int

    def measure(self, count: int) -> dict[str, Any]:
        """`rate` in programs/s and `times` in seconds, of `count` programs."""

    def close(self) -> None:
        """End its processes."""


class Plain:
    """A way without lanes, in processes of its own that run side by side."""

    def __init__(self, name: str, cores: int = 1) -> None:
        command = [sys.executable, "-s", "-B", "-m", "benchmarks.score_baselines", name]
        self.cores = cores
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                           env=lane_environment(), cwd=ROOT) for _ in range(cores)]

    def measure(self, count: int) -> dict[str, Any]:
        answers = []
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{count // self.cores}\n")
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        slowest = max(answer["seconds"] for answer in answers)
        return {"rate": count / slowest,
                "times": [seconds for answer in answers for seconds in answer["times"]]}

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


class Lanes:
    """Running lanes of one tier."""

    def __init__(self, layers: Layer, cores: int) -> None:
        self.pool = LanePool(LaneConfig(layers), Limits(), cores)
        self.cores = cores

    def measure(self, count: int) -> dict[str, Any]:
        batch = [Program(JobKind.GRID, SOURCE.format(number=number), PAYLOAD) for number in range(count)]
        own, lanes, started = time.process_time(), self.lane_seconds(), time.perf_counter()
        for _ending in self.pool.run(batch):
            pass
        seconds = time.perf_counter() - started
        figures = {"rate": count / seconds, "own": (time.process_time() - own) / count,
                 "cpu": (self.lane_seconds() - lanes) / count}
        return figures | {"times": list(self.latencies(batch[:LATENCIES])) if self.cores == 1 else []}

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
            stat = Path(f"/proc/{lane.pid}/stat").read_text()
            total += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
        return total / TICK

    def close(self) -> None:
        self.pool.close()


class Cold:
    """A new Python for every program."""

    cores = 1

    def measure(self, count: int) -> dict[str, Any]:
        times = []
        for number in range(max(5, count // 50)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-I", "-c", COLD], input=SOURCE.format(number=number), text=True,
                           capture_output=True, check=True)
            times.append(time.perf_counter() - began)
        return {"rate": len(times) / sum(times), "times": times}

    def close(self) -> None:
        pass


class JoblibWorkers:
    """Warm joblib workers that execute programs in their own process, as graders without isolation do."""

    def __init__(self, cores: int) -> None:
        from joblib import Parallel
        self.parallel, self.cores = Parallel(n_jobs=cores, backend="loky"), cores
        self.measure(20 * cores)  # starts the workers

    def measure(self, count: int) -> dict[str, Any]:
        from joblib import delayed
        sources = [SOURCE.format(number=number) for number in range(count)]
        started = time.perf_counter()
        times = self.parallel(delayed(timed_run)(source) for source in sources)
        return {"rate": count / (time.perf_counter() - started), "times": times}

    def close(self) -> None:
        from joblib.externals.loky import get_reusable_executor
        get_reusable_executor().shutdown(wait=True)
