"""python -m tests.fuzz [--faults 500] [--inputs 1000] [--seed 0] [--only NUMBER]"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.faults import Faults, make_run
from tests.fuzz.inputs import Inputs
from tests.fuzz.trials import load

Trial = Callable[[random.Random, Path], list[str]]


def try_many(kind: str, trial: Trial, numbers: range | list[int], seed: int, folder: Path) -> list[str]:
    """One trial for each number, drawn from it and the seed; what went wrong."""
    failures = []
    for number in numbers:
        told = trial(random.Random(f"{kind} {number} of {seed}"), folder / f"{kind}-{number}")
        failures += [f"{kind} {number}: {text}" for text in told]
        for text in told:
            print(f"FAILED {kind} {number}: {text}", flush=True)
    return failures


def fuzz(num_faults: int, num_inputs: int, seed: int, first: int = 0) -> list[str]:
    """As many faults and inputs as asked for; what went wrong, and a line for each kind."""
    failures = []
    load()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        run = make_run(folder / "whole")
        trials: list[tuple[str, Callable[[], Trial], int]] = [
            ("fault", lambda: Faults(run).fail, num_faults),
            ("input", lambda: Inputs(run).answer, num_inputs)]
        for kind, prepare, count in (each for each in trials if each[2]):
            began = time.monotonic()
            wrong = try_many(kind, prepare(), range(first, first + count), seed, folder)
            print(f"{count} {kind}s, {len(wrong)} failures, {time.monotonic() - began:.0f} s", flush=True)
            failures += wrong
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first, to see it again")
    options = parser.parse_args()
    sys.exit(bool(fuzz(options.faults, options.inputs, options.seed, options.first)))
