"""Run one of the project's commands in this process, with a scripted engine, and die at a named instant.

    python -m tests.chaos.commands --list COMMAND ...        print every instant that the command passes
    python -m tests.chaos.commands --die-at N COMMAND ...    kill -9 at the N-th of them, from 1

An instant is a point of `warehouse.commit` (before write, before link, after link, ..) with the file's name.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

from rollout.engine import Request, Sampled, Sampling
from tests.scripted import ScriptedEncoder, ScriptedEngine
from warehouse import commit

COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
PROGRAMS = ("grid[:, ::-1]", "grid", "grid[::-1]", "grid.T", "grid + 1", "grid[", "grid[:, ::-1].copy()")


class ProgramEngine(ScriptedEngine):
    """Writes small grid programs, one of which mirrors the grid; the request's seed decides which."""

    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Sampled]:
        for request in requests:
            draw = random.Random(request.seed)
            text = f"```python\ndef transform(grid):\n    return {draw.choice(PROGRAMS)}\n```"
            ids = list(text.encode())
            yield Sampled(request.index, ids, [-draw.random() for _ in ids], text, "stop")


def run(command: str, arguments: list[str]) -> None:
    """The command as its console script runs it, but for the engine."""
    engine = SimpleNamespace(PromptEncoder=ScriptedEncoder, VllmEngine=ProgramEngine().start)
    sys.modules["rollout.vllm_engine"] = engine  # type: ignore[assignment]
    importlib.import_module("rollout").vllm_engine = engine  # type: ignore[attr-defined]
    module, _, name = COMMANDS[command].partition(":")
    getattr(importlib.import_module(module), name)(arguments)


def watch(die_at: int | None) -> None:
    """Print each instant as it is passed, and die at one of them."""
    passed = 0

    def reached(point: str, path: Path) -> None:
        nonlocal passed
        passed += 1
        if die_at is None:
            print(f"instant {passed}: {point} {path.name}", flush=True)
        elif passed == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    commit.reached = reached


if __name__ == "__main__":
    option, *words = sys.argv[1:]
    if option == "--list":
        watch(None)
    else:
        assert option == "--die-at"
        watch(int(words.pop(0)))
    run(words[0], words[1:])
