"""Random sequences of real commands, killed, paused, on full disks.

    python -m tests.chaos.sequences [--num 200]

After each command the run is sound, nothing complete is lost, and every refusal is one line; at the end the
loop goes on. A sequence that fails is made shorter, as long as it still fails, and printed.
"""

import argparse
import errno
import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.building.plain import sample, score, train
from tests.building.runs import TURN, arc_file, new_run, without_waiting
from tests.building.sound import check_run
from warehouse.ledger.log import Log
from warehouse.ledger.refusals import Refusal
from warehouse.maintain import prune
from warehouse.maintain.compact import compact_run
from warehouse.maintain.discard import discard
from warehouse.maintain.fix import fix
from warehouse.maintain.rollback import roll_back
from warehouse.maintain.tasks import add_tasks, replace_tasks
from warehouse.store import commit
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

KEPT = ["task_id", "sample_index", "completion"]     # of completions: what a merge or pruning leaves alone


class Killed(BaseException):
    """The process is gone: no `except Exception` hears of it."""


class Step(NamedTuple):
    """A command, a number that chooses what it is about, and what happens at a call that commits a file."""

    command: str
    number: int
    event: str = ""                 # kill, full, or the name of a command that runs meanwhile
    at: int = 0

    def __str__(self) -> str:
        event = f" with {self.event} at call {self.at}" if self.event else ""
        return f"{self.command}({self.number}){event}"


def _fix(warehouse: Warehouse) -> None:
    fix(warehouse, check_run(warehouse).changes)


def _damage(warehouse: Warehouse, number: int) -> None:
    """Flip a bit of a part of some stage."""
    parts = sorted({path for stage in warehouse.stages() for path in stage.folder.glob("*.parquet")})
    for path in parts[number % len(parts):][:1] if parts else []:
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 4
        path.unlink()
        path.write_bytes(content)


def _discard(warehouse: Warehouse, number: int) -> None:
    purpose = ("train", "eval", None)[number % 3]
    discard(warehouse, number // 3 % (warehouse.state.newest + 2), purpose)


COMMANDS: dict[str, Callable[[Warehouse, int], object]] = {
    "rollout": lambda run, _: sample(run),
    "ahead": lambda run, _: sample(run, iteration=run.state.newest + 1, policy_version=run.state.newest),
    "carry over": lambda run, _: sample(run, carry_over="0.5"),
    "score": lambda run, _: score(run),
    "train": lambda run, _: train(run),
    "evaluation": lambda run, number: sample(run, evaluate=True, iteration=number % (run.state.newest + 1)),
    "rollback": lambda run, number: roll_back(run, number % (run.state.newest + 1)),
    "discard": _discard,
    "fix": lambda run, _: _fix(run),
    "damage": _damage,
    "compact": lambda run, _: compact_run(run),
    "prune": lambda run, number: prune.prune_run(run, number % (run.state.newest + 1) + 1, dry_run=False),
    "prune policies": lambda run, number: prune.prune_policies(run, number % 3 + 1),
    "prune ended": lambda run, _: prune.prune_ended(run, dry_run=False),
    "tasks add": lambda run, _: add_tasks(run, (f"more={run.root.parent / 'more.json'}",), ()),
    "tasks replace": lambda run, _: replace_tasks(run, (str(run.root.parent / "other.json"),)),
}
MEANWHILE = sorted(COMMANDS.keys() - {"prune ended"})   # that waits an hour for what no entry names yet
USUAL = ("rollout", "score", "train")


def drawn(seed: int, num_steps: int) -> list[Step]:
    """A sequence: half of it the loop, half anything, a third of that disturbed."""
    draw, steps = random.Random(seed), []
    for place in range(num_steps):
        command = USUAL[place // 2 % 3] if place % 2 else draw.choice(sorted(COMMANDS))
        event = draw.choice(["kill", "full", *MEANWHILE]) if draw.random() < 0.35 else ""
        steps.append(Step(command, draw.randrange(100), event, draw.randrange(1, 12)))
    return steps


class Sequence:
    """A run on which steps are taken."""

    def __init__(self, folder: Path) -> None:
        arc_file(folder, ["more"])
        (folder / "other.json").write_text(json.dumps({"t0": {"train": TURN["test"], "test": TURN["train"]}}))
        self.root = new_run(folder / "run", {"t0": TURN, "t1": TURN}, {"h0": TURN}).root
        self.rows: dict[int, str] = {}
        self.damaged = False

    def take(self, step: Step) -> None:
        """One command, as a process of its own would run it; AssertionError for what must not be."""
        try:
            with self._disturbed(step):
                COMMANDS[step.command](open_warehouse(self.root), step.number)
        except Killed:
            pass
        except StageError as error:
            assert len(str(error).splitlines()) == 1, f"{error}"
        self.damaged |= "damage" in (step.command, step.event)
        self.look()
        if step.command == "fix" and not step.event:
            self.damaged = False

    @contextmanager
    def _disturbed(self, step: Step) -> Iterator[None]:
        calls = 0

        def reached(_point: str, path: Path) -> None:
            nonlocal calls
            calls += 1
            if calls != step.at or not step.event:
                return
            if step.event == "kill":
                raise Killed
            if step.event == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            with patch.object(commit, "reached", lambda *_: None):
                try:
                    COMMANDS[step.event](open_warehouse(self.root), step.number)
                except StageError as error:
                    assert len(str(error).splitlines()) == 1, f"{error}"
        with patch.object(commit, "reached", reached):
            yield

    def look(self) -> None:
        """The run is sound, and what was complete is there as it was, unless a command ended it."""
        warehouse = open_warehouse(self.root)
        state = warehouse.state
        assert Log(self.root).state().lives == state.lives
        if self.damaged:
            return
        problems = [each for each in check_run(warehouse).problems if "complete, but stages" not in each]
        assert not problems, problems[0]
        for life in state.of_stage("rollout"):
            if life.is_complete and not life.lost:
                keys: dict[str, Any] = {"iteration": life.iteration, "purpose": life.purpose}
                rows = warehouse.read("completions", KEPT, **keys).to_pylist()
                found = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
                assert self.rows.setdefault(life.begun, found) == found, f"{life.title} has other rows"

    def finish(self) -> None:
        """The loop goes on: a policy more than there is."""
        self.take(Step("fix", 0))
        wanted, said = open_warehouse(self.root).state.newest + 1, ""
        for _ in range(36):
            state = open_warehouse(self.root).state
            if state.newest >= wanted:
                return
            try:
                self._go_on(state.due().stage)
            except StageError as error:
                said = str(error)
                if isinstance(error, Refusal) and error.code == "gone_on_with":     # as it says
                    discard(open_warehouse(self.root), error.fields["number"], "train")
        raise AssertionError(f"the loop does not go on: {said}")

    def _go_on(self, stage: str) -> None:
        """The stage that comes next, with the settings that it was begun with, or afresh where it says so."""
        for command in (stage, *["carry over"][:stage == "rollout"]):
            try:
                COMMANDS[command](open_warehouse(self.root), 0)
                return
            except StageError as error:
                refused = error
        if stage == "rollout" and "warehouse discard" in str(refused):
            discard(open_warehouse(self.root), open_warehouse(self.root).state.rollout_due(), "train")
        else:
            raise refused


def trial(steps: list[Step]) -> str | None:
    """What is wrong with a sequence, and where; None if nothing is."""
    with (tempfile.TemporaryDirectory(prefix="sequence-") as folder, without_waiting(),
          patch.object(prune, "UNDER_WAY_SECONDS", 0)):
        place: object = "the end"
        try:
            run = Sequence(Path(folder))
            for place in steps:
                run.take(place)
            place = "the end"
            run.finish()
        except Exception as error:
            return f"{place}: {type(error).__name__}: {str(error).replace(folder, '')[:300]}"
    return None


def shortened(steps: list[Step]) -> list[Step]:
    """A part of a failing sequence that fails still."""
    size = len(steps) // 2
    while size:
        for first in range(0, len(steps), size):
            fewer = steps[:first] + steps[first + size:]
            if trial(fewer):
                steps = fewer
                break
        else:
            size //= 2
    return steps


def main() -> None:
    """Try sequences; exit code 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num", type=int, default=20, help="how many sequences (default 20)")
    parser.add_argument("--steps", type=int, default=30, help="how long each is (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the first (default 0)")
    options = parser.parse_args()
    failures = 0
    for seed in range(options.seed, options.seed + options.num):
        steps = drawn(seed, options.steps)
        if said := trial(steps):
            failures += 1
            print(f"FAILED seed {seed}: {said}", flush=True)
            shorter = shortened(steps)
            print("   ", " -> ".join(map(str, shorter)), "|", trial(shorter), flush=True)
    print(f"  {options.num} sequences of {options.steps} commands, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
