"""Start one command of the project and kill it, at a named instant, at a random one, or not at all."""

import contextlib
import multiprocessing
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from warehouse.store.run_folder import Warehouse

ROOT = Path(__file__).parents[2]
COMMANDS = {"rollout": ("rollout",), "turn": ("rollout", "--turn", "2"), "score": ("score",),
            "train": ("train",),
            "compact": ("warehouse", "compact"), "report": ("reports", "build")}
# But for what `train` needs, which few of them run.
PRELOADED = ["rollout.cli", "rollout.run", "score.cli", "score.run", "train.cli", "warehouse.cli",
             "tests.building.scripted"]


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
    return _fork(step, warehouse, ["--list"])


def at_next_instant(step: Step, warehouse: Warehouse, passed: Path) -> Ended:
    """Kill -9 at the first named instant that the file `passed` does not list yet; it does then."""
    return _fork(step, warehouse, ["--die-once", str(passed)])


def at_random(step: Step, warehouse: Warehouse, seconds: float, draw: random.Random) -> Ended:
    """Kill -9 at a random instant of the `seconds` that the command takes when undisturbed.

    Half the time its whole process group dies at once, as when a machine vanishes; half the time the command
    alone, as when the system runs out of memory.
    """
    instant, group = draw.uniform(0.05, seconds), draw.random() < 0.5
    process, began = start(step, warehouse), time.monotonic()
    try:
        output, _ = process.communicate(timeout=instant)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return Ended(process.returncode, output, time.monotonic() - began)


def orphans(warehouse: Warehouse) -> list[str]:
    """Processes that still name the run well after its commands ended."""
    until = time.monotonic() + 120
    while True:
        alive = [f"process {path.parent.name}" for path in Path("/proc").glob("[0-9]*/cmdline")
                 if str(warehouse.root).encode() in _content(path)]
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.2)


def start(step: Step, warehouse: Warehouse) -> subprocess.Popen[str]:
    """Start the command in a process group of its own."""
    words = _words(step, warehouse, ["--list"])
    return subprocess.Popen([sys.executable, "-m", "tests.chaos.commands", *words], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def _fork(step: Step, warehouse: Warehouse, option: list[str]) -> Ended:
    """Run the command in a process forked from one that has imported what commands need, and no more."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as output:
        process = context.Process(target=_run, args=(_words(step, warehouse, option), output.name))
        process.start()
        process.join()
        assert process.exitcode is not None
        return Ended(process.exitcode, output.read(), time.monotonic() - began)


def _run(words: list[str], output: str) -> None:
    os.setsid()
    os.chdir(ROOT)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1) for number in (1, 2))      # noqa: SIM115
    sys.argv = ["tests.chaos.commands", *words]
    runpy.run_module("tests.chaos.commands", run_name="__main__")


def _words(step: Step, warehouse: Warehouse, option: list[str]) -> list[str]:
    command, *words = COMMANDS[step.name]
    engine = ["--real-engine"] if step.real else []
    named = ["--iteration", str(step.iteration)] if step.name != "report" else []
    return [*engine, *option, command, *words, str(warehouse.root), *named]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended meanwhile
