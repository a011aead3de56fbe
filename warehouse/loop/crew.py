"""A rollout by several engines, and a training by several processes, each handled as one running command."""

import time
from collections.abc import Callable, Mapping, Sequence

from warehouse.loop.devices import Crew, Worker
from warehouse.loop.jobs import Job, stop_all
from warehouse.stages.shard import Shard
from warehouse.store.errors import STOPPED_EXIT_CODE

SECONDS_TO_NOTICE = 5.0         # for training processes to end after one of them ended
Start = Callable[[list[str], Mapping[str, str]], Job]
Lost = Callable[[Worker, Job, str], None]       # the failed worker, its command, what happens next


class Sampling:
    """A rollout with one engine per share; if an engine fails, the others sample its share."""

    def __init__(self, start: Start, words: Sequence[str], crew: Crew, lost: Lost) -> None:
        self.start, self.words, self.crew, self.lost = start, [*words], crew, lost
        workers = crew.engines()
        self.free = list(workers)
        self.shares = [Shard(index, len(workers)) for index in range(len(workers))]
        self.running: list[tuple[Worker, Shard, Job]] = []
        self.failed: Job | None = None          # the last failed engine
        self.code: int | None = None
        self._begin()

    def poll(self) -> int | None:
        """0 once all shares are done; a failure's exit code if no engine is left to finish."""
        for entry in [*self.running] if self.code is None else ():
            worker, share, job = entry
            code = job.poll()
            if code is None:
                continue
            self.running.remove(entry)
            if code != STOPPED_EXIT_CODE:
                self.crew.note_end(worker, "rollout", well=code == 0)
            if code == 0:
                self.free.append(worker)
                continue
            self.failed = job
            others = len(self.running) + len(self.free)
            if code == STOPPED_EXIT_CODE or not others:
                self.code = code
                return code
            self.shares += [Shard(share.index + share.count * part, share.count * others)
                            for part in range(others)]
            self.lost(worker, job, "the others sample its share")
        if self.code is None:
            self._begin()
            self.code = None if self.running else 0
        return self.code

    def _begin(self) -> None:
        while self.shares and self.free:
            worker, share = self.free.pop(0), self.shares.pop(0)
            shard = [] if share.count == 1 else ["--shard", str(share)]
            self.running.append((worker, share, self.start([*self.words, *shard], worker.place)))

    def said(self) -> str:
        """The output of the failed engine."""
        return self.failed.said() if self.failed else ""

    def jobs(self) -> list[Job]:
        return [job for _, _, job in self.running]


class Training:
    """A training by processes that work together; if some fail, it continues from its checkpoint."""

    def __init__(self, start: Start, words: Sequence[str], crew: Crew, lost: Lost) -> None:
        self.start, self.words, self.crew, self.lost = start, [*words], crew, lost
        self._begin()

    def _begin(self) -> None:
        self.running = [(worker, self.start(self.words, worker.place)) for worker in self.crew.trainers()]
        self.failed: list[tuple[Worker, Job]] = []
        self.since: float | None = None         # when the first one was seen to have failed

    def poll(self) -> int | None:
        """0 once all ended without errors; the exit code if all failed or were stopped."""
        codes = [job.poll() for _, job in self.running]
        if any(codes) and self.since is None:
            self.since = time.monotonic()
        waited = self.since is not None and time.monotonic() - self.since > SECONDS_TO_NOTICE
        if None in codes and not waited:
            return None
        # Processes that end because of another one exit with 75; with NCCL they would wait forever.
        self.failed = [each for each, code in zip(self.running, codes, strict=True)
                       if code not in (None, 0, STOPPED_EXIT_CODE)]
        if not self.failed:
            for worker, _ in self.running:
                self.crew.note_end(worker, "train", well=True)
            return STOPPED_EXIT_CODE if any(codes) else 0
        if len(self.failed) == len(self.running):
            return self.failed[0][1].poll()
        for job in self.jobs():
            job.kill()
        self.crew.together = []         # what follows forms a new group, in new processes
        for worker, job in self.failed:
            self.crew.note_end(worker, "train", well=False)
            self.lost(worker, job, "the training continues from its checkpoint")
        stop_all(self.jobs())
        self._begin()
        return None

    def said(self) -> str:
        """The output of the failed process, or else of the first."""
        return (self.failed or self.running)[0][1].said()

    def jobs(self) -> list[Job]:
        return [job for _, job in self.running]
