"""Ways of running programs without the sandbox, each in a process of its own.

But for FROM_SCORER, which forks what a scorer is, they hold no more than a lane does.

`python -m benchmarks.score_baselines NAME` reads a number of programs per line and answers with their times.
"""

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np

from score.jobs.grids_and_scripts import run_grids
from score.protocol.frames import encode_grids

SOURCE = ("import numpy as np\n# program {number}\n\ndef transform(grid):\n    out = np.zeros_like(grid)\n"
          "    out[grid > 0] = grid[grid > 0]\n    return np.fliplr(out)\n")
GRIDS = [np.arange(100, dtype=np.uint8).reshape(10, 10) % 10] * 5
PAYLOAD = encode_grids(GRIDS)


def run_source(source: str) -> bytes:
    """What every way of running does in the end."""
    return run_grids(compile(source, "program.py", "exec"), PAYLOAD)


def timed_run(source: str) -> float:
    """Seconds that running the program in this process takes."""
    began = time.perf_counter()
    run_source(source)
    return time.perf_counter() - began


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


FROM_SCORER = "fork + run, from a scorer"
BASELINES: dict[str, Callable[[str], object]] = {"bare fork": bare_fork, "fork + run": plain_fork,
                                                 FROM_SCORER: plain_fork,
                                                 "exec in process": run_source}


def serve(name: str) -> None:
    """Time each batch of programs that is asked for on stdin."""
    run = BASELINES[name]
    for number in range(20):
        run_source(SOURCE.format(number=number))
    if name == FROM_SCORER:
        importlib.import_module("score.run")
    else:
        gc.collect()
        gc.freeze()
    for line in sys.stdin:
        sources = [SOURCE.format(number=number) for number in range(int(line))]
        times = []
        started = time.perf_counter()
        for source in sources:
            began = time.perf_counter()
            run(source)
            times.append(time.perf_counter() - began)
        print(json.dumps({"seconds": time.perf_counter() - started, "times": times}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
