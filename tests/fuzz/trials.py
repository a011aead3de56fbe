"""Commands run in a process of their own, with a time and a memory that they may take, and what they said."""

import importlib
import json
import os
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from click.testing import CliRunner

from tests.chaos.commands import COMMANDS, script_the_engine
from warehouse.stages.warm_server import load_rooms

SECONDS = 300.0         # after which a command is said to hang; a busy machine is slow
MEMORY = 16 << 30       # of addresses, beyond those it began with: DuckDB reserves far more than it touches


class Said(NamedTuple):
    """How a command ended: its exit code, and its traceback or '' where it ended in order."""

    words: list[str]
    code: int
    output: str
    errors: str
    traceback: str

    @property
    def named(self) -> str:
        """The command as a person would type it, cut."""
        return " ".join(word if len(word) < 60 else f"{word[:57]}.." for word in self.words)


def command_of(name: str) -> click.Command:
    """The command of that console script, which samples with the scripted engine."""
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def ask(commands: Sequence[Sequence[str]], folder: Path, seconds: float = SECONDS) -> list[Said]:
    """Run the commands one after the other, in `folder`; the last is said to hang where time is over."""
    answers = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe would fill up)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        begun = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (begun + MEMORY,) * 2)
        for words in commands:
            answers.write(json.dumps(_answer(list(words))) + "\n")
            answers.flush()
        os._exit(0)
    died = _wait(child, seconds)
    answers.seek(0)
    said = [Said(*json.loads(line)) for line in answers.read().splitlines()]
    if len(said) < len(commands):
        said.append(Said(list(commands[len(said)]), -1, "", "", died))
    return said


def load() -> None:
    """Import what the commands need, once: every one of them is a fork of this process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""     # a GPU's driver reserves more addresses than they may take
    script_the_engine()
    load_rooms()


def _wait(child: int, seconds: float) -> str:
    """Why the child gave no answer; '' if it ended by itself."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return f"the process died: {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"no answer after {seconds:g} s"


def _answer(words: list[str]) -> Said:
    script_the_engine()
    result = CliRunner().invoke(command_of(words[0]), words[1:])
    broken = result.exception is not None and not isinstance(result.exception, SystemExit)
    trace = "".join(traceback.format_exception(*result.exc_info)) if broken and result.exc_info else ""
    if "Traceback (most recent call last)" in result.output:
        trace = result.output
    return Said(words, result.exit_code, result.stdout[-4000:], result.stderr[-4000:], trace[-4000:])
