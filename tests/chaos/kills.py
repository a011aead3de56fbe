"""Start one command of the project and kill it, at a named instant, at a random one, or not at all."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from warehouse.store.run_folder import Warehouse

ROOT = Path(__file__).parents[2]
COMMANDS = {"rollout": ("rollout",), "turn": ("rollout", "--turn", "2"), "score": ("score",),
            "train": ("train",),
            "compact": ("warehouse", "compact"), "report": ("reports", "build")}


class Step(NamedTuple):
    """One command of the loop; `real` samples with vLLM instead of the scripted engine."""

    name: str
    iteration: int
    real: bool = False


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def instants(self) -> list[str]:
        """Instants that a command passed which was run to its end."""
        return re.findall(r"^instant: (.*)$", self.output, flags=re.MULTILINE)


def to_the_end(step: Step, warehouse: Warehouse) -> Ended:
    """Run the command undisturbed."""
    return _run(step, warehouse, ["--list"])


def at_next_instant(step: Step, warehouse: Warehouse, passed: Path) -> Ended:
    """Kill -9 at the first named instant that the file `passed` does not list yet; it does then."""
    return _run(step, warehouse, ["--die-once", str(passed)])


def at_random(step: Step, warehouse: Warehouse, seconds: float, draw: random.Random) -> Ended:
    """Kill -9 at a random instant of the `seconds` that the command takes when undisturbed.

    Half the time its whole process group dies at once, as when a machine vanishes; half the time the command
    alone, as when the system runs out of memory.
    """
    instant, group = draw.uniform(0.05, seconds), draw.random() < 0.5
    return _run(step, warehouse, ["--list"], kill_after=instant, group=group)


def orphans(warehouse: Warehouse) -> list[str]:
    """Processes that still name the run well after its commands ended."""
    until = time.monotonic() + 120
    while True:
        alive = [f"process {path.parent.name}" for path in Path("/proc").glob("[0-9]*/cmdline")
                 if str(warehouse.root).encode() in _content(path)]
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.2)


def start(step: Step, warehouse: Warehouse, option: tuple[str, ...] = ("--list",)) -> subprocess.Popen[str]:
    """Start the command in a process group of its own."""
    command, *words = COMMANDS[step.name]
    engine = ["--real-engine"] if step.real else []
    named = ["--iteration", str(step.iteration)] if step.name != "report" else []
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.commands", *engine, *option, command, *words,
         str(warehouse.root), *named],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def _run(step: Step, warehouse: Warehouse, option: list[str], *, kill_after: float | None = None,
         group: bool = True) -> Ended:
    began = time.monotonic()
    process = start(step, warehouse, tuple(option))
    try:
        output, _ = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return Ended(process.returncode, output, time.monotonic() - began)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended meanwhile
