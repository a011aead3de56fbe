"""What `rollout --carry-over` gains under a long tail of lengths, simulated, and what it costs in a run.

    python -m benchmarks.carry          tokens per second for the same completions, by the share waited for
    python -m benchmarks.carry RUN      mixed completions, staleness and ESS of the iterations trained

The simulation has the plan and the ending of the real command; of the engine it has slots, a step that takes
longer the more completions are in it, and prompts (with what is drawn already) that are read once more where
a completion goes on. Lengths are lognormal with a spread between tasks and one within, cut at a limit.
"""

import argparse
import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rollout.carry import Ending
from warehouse.sql.database import connect, rows_of
from warehouse.store.run_folder import open_warehouse

GROUPS, GROUP_SIZE, SLOTS, PROMPT, LIMIT = 64, 16, 512, 300, 8192
MEDIAN, BETWEEN_TASKS, WITHIN_TASK = 500, 0.8, 0.8
STEP, PER_COMPLETION, READ_PER_SECOND = 0.010, 0.000_02, 40_000        # seconds, seconds, prompt tokens
RULES = ("1", "0.98", "0.95", "0.9", "0.8", "0.7", "0.5", "48groups", "32groups")


@dataclass
class Completion:
    """One completion of a group: how long it will be, and which policy drew how much of it."""

    group: int
    length: int
    drawn: int = 0
    by_version: Counter[int] = field(default_factory=Counter)


@dataclass
class Totals:
    """What a whole run took."""

    seconds: float = 0.0
    iterations: int = 0
    tokens: int = 0
    stale: Counter[int] = field(default_factory=Counter)     # tokens by staleness when trained
    mixed: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--within", type=float, default=WITHIN_TASK, help="Spread of lengths within a task.")
    given = parser.parse_args()
    if given.run:
        print_run(given.run)
        return
    lengths = draw_lengths(given.iterations * GROUPS, given.within)
    print(f"{lengths.size} completions, mean {lengths.mean():.0f} tokens, longest of an iteration "
          f"{lengths.reshape(given.iterations, -1).max(axis=1).mean():.0f}, {given.slots} slots")
    print(f"{'rule':>9} {'iterations':>10} {'tokens/s':>9} {'times':>6} {'mixed':>6}  "
          "tokens by staleness 0, 1, 2, more")
    ordinary = 0.0
    for rule in RULES:
        totals = simulate(lengths, rule, given.slots)
        assert totals.tokens == lengths.sum(), "the same completions"
        rate = totals.tokens / totals.seconds
        ordinary = ordinary or rate
        ages = [totals.stale[0], totals.stale[1], totals.stale[2]]
        shares = " ".join(f"{count / totals.tokens:.3f}" for count in [*ages, totals.tokens - sum(ages)])
        print(f"{rule:>9} {totals.iterations:>10} {rate:>9,.0f} {rate / ordinary:>6.2f} "
              f"{totals.mixed / lengths.size:>6.1%}  {shares}")


def draw_lengths(num_groups: int, within: float) -> np.ndarray:
    """Tokens of each completion, [groups, group size]."""
    draw = np.random.default_rng(0)
    logs = (np.log(MEDIAN) + BETWEEN_TASKS * draw.standard_normal((num_groups, 1))
            + within * draw.standard_normal((num_groups, GROUP_SIZE)))
    return np.clip(np.exp(logs), 1, LIMIT).astype(int)


def simulate(lengths: np.ndarray, rule: str, slots: int) -> Totals:
    """All groups, iteration after iteration; the last ones wait for everything."""
    totals, begun, open_groups = Totals(), 0, dict[int, list[Completion]]()
    while begun < len(lengths) or open_groups:
        unfinished = [each for group in open_groups.values() for each in group if each.drawn < each.length]
        fresh = (GROUPS * GROUP_SIZE - len(unfinished)) // GROUP_SIZE
        for number in range(begun, min(begun + fresh, len(lengths))):
            open_groups[number] = [Completion(number, length) for length in lengths[number].tolist()]
        begun = min(begun + fresh, len(lengths))
        last = begun == len(lengths)
        now = "1" if last else rule
        totals.seconds += sample(open_groups, now, totals.iterations, slots)
        for number, group in list(open_groups.items()):
            if all(each.drawn == each.length for each in group):
                settle(group, totals)
                del open_groups[number]
        totals.iterations += 1
    return totals


def sample(groups: dict[int, list[Completion]], rule: str, version: int, slots: int) -> float:
    """One iteration of the engine; its seconds."""
    members = [each for group in groups.values() for each in group]
    waiting = [each for each in members if each.drawn < each.length]
    ending = Ending(rule, 1, [str(each.group) for each in members], [str(each.group) for each in waiting],
                    num_before=len(members) - len(waiting))
    seconds, now, read = 0.0, 0, set[int]()
    inside: list[tuple[int, int, int]] = []         # step at which it ends, its number, step at which it came
    for number, each in enumerate(waiting):
        if len(inside) == slots:
            seconds += advance(inside, now)
            now = finish(inside, waiting, ending, version)
            if ending.is_due():
                break
        seconds += (each.drawn + PROMPT * (each.group not in read)) / READ_PER_SECOND
        read.add(each.group)
        heapq.heappush(inside, (now + each.length - each.drawn, number, now))
    while inside and not ending.is_due():
        seconds += advance(inside, now)
        now = finish(inside, waiting, ending, version)
    for _, number, came in inside:
        draw(waiting[number], now - came, version)
    return seconds


def advance(inside: list[tuple[int, int, int]], now: int) -> float:
    """Seconds until the next completion ends."""
    return (inside[0][0] - now) * (STEP + PER_COMPLETION * len(inside))


def finish(inside: list[tuple[int, int, int]], waiting: list[Completion], ending: Ending,
           version: int) -> int:
    """Take out the completion that ends first; the step at which it does."""
    now, number, _ = heapq.heappop(inside)
    each = waiting[number]
    draw(each, each.length - each.drawn, version)
    ending.note(str(each.group))
    return now


def draw(each: Completion, num_tokens: int, version: int) -> None:
    """A policy draws tokens of a completion."""
    each.drawn += num_tokens
    if num_tokens:
        each.by_version[version] += num_tokens


def settle(group: list[Completion], totals: Totals) -> None:
    """A whole group is trained, in the iteration that `totals` is at."""
    for each in group:
        totals.tokens += each.length
        totals.mixed += len(each.by_version) > 1
        for version, count in each.by_version.items():
            totals.stale[totals.iterations - version] += count


def print_run(run: Path) -> None:
    """Of each trained iteration: completions of several policies, and ESS / n by staleness of the tokens."""
    warehouse = open_warehouse(run)
    connection = connect(warehouse)
    query = """SELECT iteration, count(*) AS num, count(version_segments) AS mixed FROM completions
               WHERE purpose = 'train' GROUP BY iteration ORDER BY iteration"""
    for row in rows_of(connection, query, []):
        manifest = warehouse.stage("train", iteration=row["iteration"]).manifest() or {"facts": {}}
        lines = manifest["facts"].get("mismatch", [])
        ages = ", ".join(f"staleness {line['staleness']}: {line['num_tokens']} tokens, "
                         f"ESS/n {line['ess']:.3f}" for line in lines)
        print(f"iteration {row['iteration']}: {row['num']} completions, {row['mixed']} of several policies; "
              f"{ages or 'not trained'}")


if __name__ == "__main__":
    main()
