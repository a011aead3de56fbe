"""The long chaos run: real commands killed at every named instant and at random ones, until enough died.

    python -m tests.chaos.soak --kills 300 --seed 0

Each round takes a fresh run through two iterations of rollout, score, train, compact and report, kills every
command several times, runs it to its end, and compares the whole with an undisturbed run.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.kills import Ended, Step, at_next_instant, at_random, orphans, to_the_end
from tests.chaos.loop import contents, leftovers, new_run, page, problems
from warehouse.store.run_folder import Warehouse

STEPS = ("rollout", "score", "train", "compact", "report")
REAL_EVERY = 6  # one round of this many samples with the real engine


@dataclass
class Tally:
    """Kills by stage and kind, and everything that went wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def count(self, step: Step, kind: str, ended: Ended) -> None:
        """Book one attempt to kill a command."""
        if ended.killed:
            self.kills[f"{step.name} {kind}"] += 1
        else:
            self.finished[step.name] += 1
        if not ended.killed and ended.code != 0:
            self.failures.append(f"{step.name} of iteration {step.iteration} exited with {ended.code}: "
                                 f"{ended.output[-400:]}")

    def total(self) -> int:
        return sum(self.kills.values())


def soak(num_kills: int, seed: int, folder: Path) -> Tally:
    """Rounds of kills until `num_kills` commands died."""
    tally, draw = Tally(), random.Random(seed)
    reference = new_run(folder / "undisturbed")
    durations = {step: to_the_end(step, reference) for step in _steps(real=False)}
    assert not any(ended.code for ended in durations.values()), durations
    expected = {False: contents(reference)}
    every_instant(tally, folder / "instants", expected[False])
    say(tally, "every named instant")
    number = 0
    while tally.total() < num_kills:
        number += 1
        real = number % REAL_EVERY == 1
        if real and True not in expected:
            real_reference = new_run(folder / "undisturbed-real")
            durations |= {step: to_the_end(step, real_reference) for step in _steps(real=True)}
            expected[True] = contents(real_reference)
        warehouse = new_run(folder / f"round-{number}")
        for step in _steps(real):
            for _ in range(draw.randint(1, 2) if step.name == "train" or step.real else draw.randint(2, 6)):
                tally.count(step, "at random", at_random(step, warehouse, durations[step].seconds, draw))
            finish(tally, step, warehouse)
        compare(tally, f"round {number}", warehouse, expected[real])
        say(tally, f"round {number}{', real engine' if real else ''}")
    return tally


def every_instant(tally: Tally, folder: Path, expected: dict[str, object]) -> None:
    """One kill at each instant that each command passes, one after the other on the same run."""
    warehouse, passed = new_run(folder), folder / "passed"
    for step in _steps(real=False):
        while (ended := at_next_instant(step, warehouse, passed)).killed:
            tally.count(step, "at a named instant", ended)
        finish(tally, step, warehouse)
    compare(tally, "every instant", warehouse, expected)


def finish(tally: Tally, step: Step, warehouse: Warehouse) -> None:
    """Run a command to its end after its kills."""
    ended = to_the_end(step, warehouse)
    if ended.code:
        tally.failures.append(f"{step.name} of iteration {step.iteration} cannot be finished: "
                              f"{ended.output[-400:]}")


def compare(tally: Tally, title: str, warehouse: Warehouse, expected: dict[str, object]) -> None:
    """Rows, rewards and adapters against the undisturbed run; files against what may lie there."""
    found = contents(warehouse)
    for key in sorted(expected.keys() | found.keys()):
        if found.get(key) != expected.get(key):
            tally.failures.append(f"{title}: {key} differs from the undisturbed run ({warehouse.root})")
    tally.failures += [f"{title}: {path} could be picked up by a reader" for path in leftovers(warehouse)]
    tally.failures += [f"{title}: check says: {problem}" for problem in problems(warehouse)]
    killed = page(warehouse)
    (warehouse.root / "report.html").unlink(missing_ok=True)
    finish(tally, Step("report", 1), warehouse)
    if not killed or killed != page(warehouse):
        tally.failures.append(f"{title}: the report differs from an undisturbed one of the same run")
    tally.failures += [f"{title}: {process} outlived its command" for process in orphans(warehouse)]


def say(tally: Tally, what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}: {tally.total()} kills so far, {len(tally.failures)} failures",
          flush=True)


def _steps(real: bool) -> list[Step]:
    return [Step(name, iteration, real and name == "rollout") for iteration in (0, 1) for name in STEPS]


def main() -> None:
    """Run, print the counts and the failures; exit code 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="how many commands have to die (default 300)")
    parser.add_argument("--folder", help="where the runs lie, to try a filesystem (default: the system's)")
    parser.add_argument("--seed", type=int, default=0, help="of the instants (default 0)")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=options.folder) as folder:
        tally = soak(options.kills, options.seed, Path(folder))
        for failure in tally.failures:
            print(f"FAILED {failure}")
    for kind, count in sorted(tally.kills.items()):
        print(f"  {count:4d} kills of {kind}")
    print(f"{tally.total()} kills, {sum(tally.finished.values())} commands that ended before their "
          f"kill, {len(tally.failures)} failures, {time.monotonic() - began:.0f} s")
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
