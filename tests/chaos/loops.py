"""The real loop with the real engine, ended at random instants: python -m tests.chaos.loops [--num 100]

Ctrl-C, SIGTERM, a closed terminal, kill -9 of the loop or of one of its processes, the first second included.
After each nothing of it runs on, an ordered end has exit code 75 and no traceback, and in the end the same
command makes what an undisturbed loop makes, to the bit.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.loop import contents, new_run, problems
from warehouse.store.run_folder import Warehouse, open_warehouse

ITERATIONS = 2
ORDERED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KINDS = (*ORDERED, signal.SIGKILL, None)        # None: kill -9 of one process of it, drawn
GRACE = 20.0                                    # seconds in which all of it has to be gone


class Trial:
    """A loop over a run in a session of its own, with a temporary folder of its own."""

    def __init__(self, warehouse: Warehouse, folder: Path, devices: int) -> None:
        self.warehouse, self.folder = warehouse, folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = folder.with_suffix(".log")
        self.began = time.monotonic()
        command = [shutil.which("warehouse") or str(Path(sys.executable).with_name("warehouse")), "loop",
                   str(warehouse.root), str(ITERATIONS), "--devices", str(devices)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            start_new_session=True,
                                            env=os.environ | {"TMPDIR": str(folder)})

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it runs still."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def processes(self) -> list[int]:
        """All that run with its temporary folder, whoever started them."""
        mark, found = f"TMPDIR={self.folder}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes().split(b"\0") and not _is_zombie(entry):
                    found.append(int(entry.name))
        return found

    def end(self, kind: signal.Signals | None, draw: random.Random) -> None:
        """End it, or one of its processes."""
        target = self.process.pid if kind else draw.choice(self.processes() or [self.process.pid])
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, kind or signal.SIGKILL)

    def left_running(self) -> list[str]:
        """What runs still when it should all be gone."""
        until = time.monotonic() + GRACE
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:120] for pid in left]


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(") ")[2].startswith("Z")


def trial(warehouse: Warehouse, folder: Path, devices: int, kind: signal.Signals | None, instant: float,
          draw: random.Random) -> tuple[str, list[str]]:
    """End a loop after `instant` seconds; how it ended, and what was wrong with that."""
    loop = Trial(warehouse, folder, devices)
    code = loop.wait(instant)
    if code is None:
        loop.end(kind, draw)
        code = loop.wait(120)
    title = f"{kind.name if kind else 'a process killed'} after {instant:.2f} s"
    if code is None:
        os.killpg(loop.process.pid, signal.SIGKILL)
        return title, [f"{title}: it runs on"]
    said = loop.log.read_text(errors="replace")
    wrong = [f"{title}: left running: {each}" for each in loop.left_running()]
    if "Traceback" in said:
        wrong.append(f"{title}: {said[said.index('Traceback'):][-400:]}")
    if kind in ORDERED and code not in (75, 0, -kind):      # by the signal itself: before it listens
        wrong.append(f"{title}: exit code {code}: {said[-300:]}")
    return title, wrong


def main() -> None:
    """Try instants until there are enough; exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num", type=int, default=100, help="how many ends (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the instants (default 0)")
    parser.add_argument("--devices", type=int, default=1, help="engines and trainers (default 1)")
    options = parser.parse_args()
    draw, failures, tried = random.Random(options.seed), list[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="loops-") as scratch:
        folder = Path(scratch)
        reference = new_run(folder / "undisturbed")
        whole = Trial(reference, folder / "undisturbed-tmp", options.devices)
        if whole.wait(600) != 0:
            sys.exit(f"The undisturbed loop failed: {whole.log.read_text()[-2000:]}")
        seconds, expected = time.monotonic() - whole.began, contents(open_warehouse(reference.root))
        number = 0
        while tried.total() < options.num:
            number += 1
            warehouse = new_run(folder / f"run-{number}")
            for _ in range(draw.randint(2, 6)):
                kind, early = draw.choice(KINDS), draw.random() < 0.25
                instant = draw.uniform(0.0, 1.0 if early else seconds)
                aside = folder / f"{number}-tmp"
                title, wrong = trial(warehouse, aside, options.devices, kind, instant, draw)
                tried[kind.name if kind else "a process of it"] += 1
                for line in wrong:
                    print(f"FAILED {line}", flush=True)
                failures += wrong
            last = Trial(warehouse, folder / f"{number}-tmp", options.devices)
            code = last.wait(600)
            last.left_running()
            found = contents(open_warehouse(warehouse.root))
            wrong = [f"{key} differs" for key in expected.keys() | found.keys()
                     if expected.get(key) != found.get(key)]
            wrong += problems(open_warehouse(warehouse.root))
            wrong += [f"the same command ends with {code}: {last.log.read_text()[-300:]}"] if code else []
            wrong += [f"{left} is left" for left in last.folder.glob("rollhouse-*")
                      if not left.name.startswith("rollhouse-sql-")]          # a cache, which stays
            for line in wrong:
                print(f"FAILED run {number} after {title}: {line}", flush=True)
            failures += wrong
            print(f"{time.strftime('%H:%M:%S')} {tried.total()} ends, {len(failures)} failures", flush=True)
            shutil.rmtree(warehouse.root.parent)
    print(f"  {tried.total()} kills of loop, {dict(tried)}, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
