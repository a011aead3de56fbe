"""Twenty thousand programs, one in twenty hostile, twice: nothing may grow, and both passes must agree.

    python -m benchmarks.score_soak [--programs 20000]

Prints memory, descriptors and processes as it goes, and ends with 1 if anything grew or any outcome differs.
"""

import os
import random
import sys
from collections import Counter
from pathlib import Path

import click
import numpy as np

from score.protocol.frames import JobKind, encode_grids
from score.sandbox.limits import Limits
from score.sandbox.outcomes import outcome_of
from score.sandbox.pool import LanePool, usable_cores
from score.sandbox.program import Program
from score.sandbox.ticket import Ending
from score.sandbox.tiers import open_lanes

GRID = np.arange(12, dtype=np.uint8).reshape(3, 4) % 10
HONEST = ("return np.fliplr(grid)", "return np.rot90(grid, 3)", "return grid[::-1]",
          "return np.kron(grid, [[1, 1]])", "return np.random.permutation(grid)",
          "return [[int(grid.max())]]",
          "raise ValueError('no')", "return grid + 10", "import scipy")
HOSTILE = ("while True: pass", "os._exit(0)", "ctypes.string_at(0)", "return np.ones(1 << 40)", "os.fork()",
           "os.kill(os.getppid(), 9)", "open('/tmp/x', 'w')", "raise ValueError('x' * 10**6)",
           "return transform(grid)", "os.closerange(0, 99)", "os.write(3, b'x' * 10**6)",
           "np.fliplr = None; return grid")
MAX_GROWTH_MIB = 16


def programs(count: int) -> list[Program]:
    """The same mixture every time."""
    rng = random.Random(7)
    bodies = [rng.choice(HOSTILE if rng.random() < 0.05 else HONEST) for _ in range(count)]
    head = "import ctypes, os\nimport numpy as np\n\ndef transform(grid):\n    "
    return [Program(JobKind.GRID, f"# {number}\n{head}{body}\n", encode_grids([GRID, GRID]))
            for number, body in enumerate(bodies)]


def state(pool: LanePool) -> dict[str, float]:
    """What must stay flat: memory of the scorer and of the largest lane, descriptors, processes."""
    processes = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    ours = sum(f"'scorer': {os.getpid()}," in command_line(entry) for entry in processes)
    return {"scorer MiB": resident("self"), "lane MiB": max(resident(str(lane.pid)) for lane in pool.lanes),
            "descriptors": len(os.listdir("/proc/self/fd")), "lane processes": ours}


def resident(pid: str) -> float:
    """Resident memory of a process, MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def command_line(pid: str) -> str:
    """Command line of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def one_pass(pool: LanePool,
             batch: list[Program]) -> tuple[dict[int, str], Counter[str], list[dict[str, float]]]:
    """All outcomes, the mix of classes, and the states seen on the way."""
    verdicts: dict[int, str] = {}
    seen = []
    for number, endings in pool.run(batch):
        verdicts[number] = verdict(batch[number], endings, pool.limits)
        if len(verdicts) % (len(batch) // 8) == 0:
            seen.append(state(pool))
            click.echo("  " + "  ".join(f"{name} {value:.0f}" for name, value in seen[-1].items()))
    seen.append(state(pool))                   # idle: a process that is still there now is one too many
    return verdicts, Counter(each.split()[0] for each in verdicts.values()), seen


def verdict(program: Program, endings: list[Ending], limits: Limits) -> str:
    """Class and result of a program, without its times."""
    outcome = outcome_of(program, endings, limits)
    shown = [grid.tolist() for grid in outcome.result or ()]
    return f"{outcome.error_class or 'ok'} {outcome.error_name} {outcome.error_message} {shown}"


@click.command()
@click.option("--programs", "count", default=20_000, show_default=True, help="Programs of each pass.")
def main(count: int) -> None:
    """Run both passes and say what changed."""
    limits = Limits(cpu_seconds=0.2, wall_seconds=2.0, memory_mib=128)
    pool, tier = open_lanes(None, unsafe=False, limits=limits, num_lanes=usable_cores())
    with pool:
        click.echo(f"tier {tier.name}, {len(pool.lanes)} lanes, {count} programs twice")
        batch = programs(count)
        passes = [one_pass(pool, batch) for _ in range(2)]
        first, last = passes[0][2][-1], passes[1][2][-1]
        growth = {name: round(last[name] - first[name], 1) for name in first}
        click.echo("  ".join(f"{name} {number}" for name, number in passes[0][1].most_common()))
        click.echo(f"growth: {growth}, lanes replaced: {pool.num_restarts}")
        same = passes[0][0] == passes[1][0]
        click.echo("both passes agree" if same else "THE PASSES DIFFER")
        for number in [number for number in range(count) if passes[0][0][number] != passes[1][0][number]][:9]:
            click.echo(f"  {batch[number].source.splitlines()[-1].strip()}: {passes[0][0][number][:200]} | "
                       f"{passes[1][0][number][:200]}")
        flat = growth["descriptors"] == growth["lane processes"] == 0 and max(
            growth["scorer MiB"], growth["lane MiB"]) < MAX_GROWTH_MIB
    sys.exit(0 if same and flat and not pool.num_restarts else 1)


if __name__ == "__main__":
    main()
