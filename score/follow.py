"""Scoring during a rollout: programs run as completions end, so complete parts only need to be judged."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from score.judging.completions import Questions
from score.judging.judge import plans_of
from score.sandbox.pool import usable_cores
from score.sandbox.program import Outcome, Program
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError
from warehouse.store.parts import part_number, read_parts
from warehouse.store.run_folder import Warehouse

LOOK_SECONDS = 0.1          # between looks at what was saved
WHOLE_SECONDS = 30.0        # that a complete part waits, while programs of other parts run
COLUMNS = ["group_id", "task_id", "completion", "finish_reason"]


def lanes_beside(others: int) -> int:
    """Number of lanes that leaves one core to each other process (sampler, trainer), if there are enough."""
    cores = usable_cores()
    return cores - others if cores > others + 1 else cores


class Sampling:
    """A rollout under way, watched until it is complete.

    What it saves of open parts (`rollout --spill-seconds`) is read as it comes, each file once. Nothing is
    written of it: rows are of whole parts alone. An object store is not asked, ten times a second: what the
    processes write is on this machine first.
    """

    def __init__(self, warehouse: Warehouse, shard: Shard, stop: StopRequest, **keys: Any) -> None:
        self.warehouse, self.shard, self.keys = warehouse, shard, keys
        self.stop, self.title = stop, f"iteration {keys['iteration']} ({keys['purpose']})"
        self.read: set[Path] = set()

    def is_over(self) -> bool:
        return self.warehouse.stage("rollout", **self.keys).is_complete()

    def wait_for_plan(self) -> None:
        """Wait until the prompts are stored, which is when sampling begins."""
        while not self.is_over():
            if self.warehouse.part_path("prompts", 0, **self.keys).exists():
                return
            self.check()
            time.sleep(LOOK_SECONDS)

    def programs(self, questions: Questions) -> Iterator[Program | None]:
        """Yield programs of finished completions; None is a heartbeat.

        They end when nothing more will come, or WHOLE_SECONDS after a part was whole: whoever runs them then
        waits for the slowest program, and lanes are idle.
        """
        until = float("inf")
        while True:
            self.check()
            over, written = self.is_over(), self.warehouse.stage("rollout", **self.keys).written()
            whole = self._unread([path for path in written if path.suffix == ".parquet"])
            for path in whole + self._unread([path for path in written if ".spill-" in path.name]):
                self.read.add(path)
                yield from self._programs_in(path, questions)
            if whole:
                until = min(until, time.monotonic() + WHOLE_SECONDS)
            if over or time.monotonic() >= until:
                return
            looked = time.monotonic()
            while time.monotonic() < looked + LOOK_SECONDS:
                yield None

    def check(self) -> None:
        """StageStopped after a request to stop."""
        if self.stop.asked():
            raise StageStopped(f"Stopped because {self.stop.reason}, while {self.title} was being sampled; "
                               "parts that were scored are kept. Run `score` again once it is done.")

    def _unread(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if path not in self.read
                and self.shard.holds(part_number(path.with_name(path.name.partition(".spill-")[0])))]

    def _programs_in(self, path: Path, questions: Questions) -> Iterator[Program]:
        try:
            rows: pa.Table = read_parts([path], "completions", COLUMNS)
        except StageError:          # a part has replaced it, or it is damaged, which other checks report
            return
        for plan in plans_of(questions.items(rows.filter(pc.is_valid(rows["finish_reason"])))):
            if not isinstance(plan, Outcome):
                yield from plan
