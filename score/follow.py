"""Scoring beside a rollout: programs run as completions end, so that a part is judged when it is whole."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from score.judging.completions import Questions
from score.judging.judge import plans_of
from score.sandbox.outcomes import Outcome
from score.sandbox.pool import usable_cores
from score.sandbox.program import Program
from warehouse.stages.children import Followed
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError
from warehouse.store.parts import part_number, read_parts, spills_of
from warehouse.store.run_folder import Warehouse

LOOK_SECONDS = 0.1          # between looks at what was saved
TELL_SECONDS = 120.0        # without anything new, until that is said
COLUMNS = ["group_id", "task_id", "completion", "finish_reason"]


def lanes_beside() -> int:
    """Lanes that leave a core to the sampler and one to a trainer, where there are so many."""
    cores = usable_cores()
    return cores - 2 if cores > 3 else cores


class Sampling:
    """A rollout under way, watched until it is complete or the process that samples it ended.

    What it saves of open parts (`rollout --spill-seconds`) is read as it comes, each file once. Nothing is
    written of it: rows are of whole parts alone. An object store is not asked, ten times a second: what the
    process writes is on this machine first.
    """

    def __init__(self, warehouse: Warehouse, process: int, shard: Shard, stop: StopRequest,
                 say: Callable[[str], None], **keys: Any) -> None:
        self.warehouse, self.shard, self.keys = warehouse, shard, keys
        self.sampler = Followed(process)
        self.stop, self.say, self.title = stop, say, f"iteration {keys['iteration']} ({keys['purpose']})"
        self.read: set[Path] = set()
        self.told = time.monotonic()

    def is_over(self) -> bool:
        """True once nothing more will come."""
        return self.sampler.has_ended() or self.warehouse.stage("rollout", **self.keys).is_complete()

    def wait_for_plan(self) -> None:
        """Until the prompts are stored, which is when sampling begins; StageError if that never happens."""
        while not any(self.warehouse.folder("prompts", **self.keys).glob("part-*.parquet")):
            if self.is_over():
                if self.warehouse.parts("prompts", **self.keys):
                    return
                raise StageError(f"Process {self.sampler.process} ended before it sampled anything of "
                                 f"{self.title}. See what it said, then run `rollout` and `score` again.")
            self.check()
            time.sleep(LOOK_SECONDS)

    def programs(self, questions: Questions) -> Iterator[Program | None]:
        """Those of completions that ended since; None where there is none at the moment.

        They end when a part is whole, with what was not known of it before, or when nothing more will come.
        """
        while True:
            self.check()
            over, folder = self.is_over(), self.warehouse.folder("completions", **self.keys)
            whole = self._unread(sorted(folder.glob("part-*.parquet")))
            for path in whole + self._unread(spills_of(folder / "part-*.parquet")):
                self.read.add(path)
                self.told = time.monotonic()
                yield from self._programs_in(path, questions)
            if whole or over:
                return
            looked = time.monotonic()
            while time.monotonic() < looked + LOOK_SECONDS:
                yield None

    def check(self) -> None:
        """StageStopped when told to stop; a line where nothing comes for long."""
        if self.stop.asked():
            raise StageStopped(f"Stopped because {self.stop.reason}, while {self.title} was being sampled; "
                               "parts that were scored are kept. Run `score` again once it is done.")
        if time.monotonic() - self.told > TELL_SECONDS:
            self.told = time.monotonic()
            self.say(f"score of {self.title} waits: process {self.sampler.process} runs, and has saved no "
                     f"further completion for {TELL_SECONDS:.0f} s")

    def _unread(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if path not in self.read
                and self.shard.holds(part_number(path.with_name(path.name.partition(".spill-")[0])))]

    def _programs_in(self, path: Path, questions: Questions) -> Iterator[Program]:
        try:
            rows: pa.Table = read_parts([path], "completions", COLUMNS)
        except StageError:          # a part was written in its place; or it is damaged, and others say so
            return
        for plan in plans_of(questions.items(rows.filter(pc.is_valid(rows["finish_reason"])))):
            if not isinstance(plan, Outcome):
                yield from plan
