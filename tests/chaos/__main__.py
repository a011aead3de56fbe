"""All of it, two programs at a time, and one table: python -m tests.chaos [--kills 300] [--seed 0].

Kills of the stages (soak.py), of the whole loop (loops.py) and of the commands that care for a run (care.py),
files of a whole run lost (losses.py), random sequences of commands (sequences.py), files damaged and inputs
made up at random (tests/fuzz). `--share 0.05` tries a twentieth of it, to see that it runs.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FAULTS, INPUTS, SEQUENCES, PIECES = 500, 1000, 20, 4
LOOPS = {1: 60, 2: 40}          # ends of the whole loop on so many devices
COUNTED = re.compile(r" *(\d+) (kills of [\w-]+|sequences|losses|faults|inputs)(?: .*|,.*|$)")


def programs(kills: int, seed: int, share: float) -> list[list[str]]:
    """What is run, the longest first: modules and their options."""
    faults, inputs = (max(1, round(number * share / PIECES)) for number in (FAULTS, INPUTS))
    pieces = [["tests.fuzz", "--seed", str(seed), *words] for piece in range(PIECES) for words in (
        ["--faults", str(faults), "--inputs", "0", "--first", str(piece * faults)],
        ["--faults", "0", "--inputs", str(inputs), "--first", str(piece * inputs)])]
    return [["tests.chaos.soak", "--kills", str(max(1, round(kills * share))), "--seed", str(seed)],
            *(["tests.chaos.loops", "--num", str(max(1, round(number * share))), "--seed", str(seed),
               "--devices", str(devices)] for devices, number in LOOPS.items()),
            ["tests.chaos.care", "--every", str(max(1, round(1 / share)))],
            ["tests.chaos.losses", "--share", str(min(1, share)), "--seed", str(seed)],
            ["tests.chaos.sequences", "--num", str(max(1, round(SEQUENCES * share))), "--seed", str(seed)],
            *sorted(pieces, reverse=True)]


def run(words: list[str]) -> tuple[Counter[str], Counter[str]]:
    """Run one program and pass on what it says; how often each thing was tried, and how often it failed."""
    began, tried, failed = time.monotonic(), Counter[str](), Counter[str]()
    command = [sys.executable, "-m", *words]
    said = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    lines = said.stdout.splitlines()
    for line in lines:
        if line.startswith("FAILED"):
            print(line, flush=True)
        elif match := COUNTED.fullmatch(line):
            tried[match[2]] += int(match[1])
    wrong = sum(line.startswith("FAILED") for line in lines)
    if said.returncode and not wrong:       # it broke down itself
        print(said.stdout, flush=True)
    failed[words[0]] = wrong or bool(said.returncode)
    print(f"{time.strftime('%H:%M:%S')} {' '.join(words)}: {tried.total()} tried, {failed.total()} failures, "
          f"{time.monotonic() - began:.0f} s", flush=True)
    return tried, failed


def main() -> None:
    """Run all, print the table; exit code 1 if anything failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="how many stages have to die (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default 0)")
    parser.add_argument("--share", type=float, default=1.0, help="this part of it alone (default 1)")
    options = parser.parse_args()
    began, tried, failed = time.monotonic(), Counter[str](), Counter[str]()
    with ThreadPoolExecutor(2) as two:
        for one_tried, one_failed in two.map(run, programs(options.kills, options.seed, options.share)):
            tried, failed = tried + one_tried, failed + one_failed
    print("\n| what | tried |\n|---|---|")
    for what, number in sorted(tried.items(), key=lambda item: (not item[0].startswith("kills"), -item[1])):
        print(f"| {what} | {number} |")
    kills = sum(number for what, number in tried.items() if what.startswith("kills"))
    print(f"| all | {kills} kills, {tried['faults']} faults, {tried['inputs']} inputs: {failed.total()} "
          f"failures in {time.monotonic() - began:.0f} s, seed {options.seed} |")
    sys.exit(bool(failed.total()))


if __name__ == "__main__":
    main()
