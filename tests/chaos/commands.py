"""Run one of the project's commands in this process, with a scripted engine, and die at a named instant.

    python -m tests.chaos.commands --list COMMAND ..             print every instant that is passed
    python -m tests.chaos.commands --real-engine --list ..       with vLLM instead of the scripted engine
    python -m tests.chaos.commands --die-once FILE COMMAND ..    kill -9 at the first that FILE does not list

An instant is a point of `warehouse.store.commit` (before write, before link, after link, ..) and a file.
"""

import importlib
import os
import random
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

from rollout.engines.engine import Request, Sampled, Sampling
from tests.building.scripted import ScriptedEncoder, ScriptedEngine
from warehouse.store import commit

COMMANDS = {"rollout": "rollout.cli:rollout", "score": "score.cli:score", "train": "train.cli:train",
            "warehouse": "warehouse.cli:cli", "reports": "reports.cli:cli"}
PROGRAMS = ("grid[:, ::-1]", "grid", "grid[::-1]", "grid.T", "grid + 1", "grid[", "grid[:, ::-1].copy()")


class ProgramEngine(ScriptedEngine):
    """Writes small grid programs, one of which mirrors the grid; the request's seed decides which."""

    def moves(self, prompt_ids: list[int]) -> bool:
        return True

    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Sampled]:
        for request in requests:
            draw = random.Random(request.seed)
            text = f"```python\ndef transform(grid):\n    return {draw.choice(PROGRAMS)}\n```"
            ids = list(text.encode())
            yield Sampled(request.index, ids, [-draw.random() for _ in ids], text, "stop")


def run(command: str, arguments: list[str], *, scripted: bool = True) -> None:
    """The command as its console script runs it, but for the engine if that is `scripted`."""
    if scripted:
        script_the_engine()
    module, _, name = COMMANDS[command].partition(":")
    getattr(importlib.import_module(module), name)(arguments)


def script_the_engine() -> None:
    engine = SimpleNamespace(load_encoder=lambda model, _revision: ScriptedEncoder(model),
                             VllmEngine=ProgramEngine().start)
    sys.modules["rollout.engines.vllm_engine"] = engine  # type: ignore[assignment]
    importlib.import_module("rollout").vllm_engine = engine  # type: ignore[attr-defined]


def watch(once: Path | None) -> None:
    """Print each instant as it is passed, or die at the first one that the file `once` does not list."""
    passed = set(once.read_text().splitlines()) if once and once.exists() else set()

    def reached(point: str, path: Path) -> None:
        run = next((folder for folder in path.parents if (folder / "warehouse.json").exists()), path.parent)
        instant = f"{point} {re.sub('spill-.*', 'spill', str(path.relative_to(run)))}"
        instant = re.sub("/generation=[^/]+", "", instant)          # of which some have names made up
        if once is None:
            print(f"instant: {instant}", flush=True)
        elif instant not in passed:
            with once.open("a") as stream:
                stream.write(f"{instant}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    commit.reached = reached


if __name__ == "__main__":
    options = sys.argv[1:]
    scripted = options[0] != "--real-engine"
    option, *words = options if scripted else options[1:]
    if option == "--list":
        watch(None)
    else:
        assert option == "--die-once"
        watch(Path(words.pop(0)))
    run(words[0], words[1:], scripted=scripted)
