"""rollout, score and train, iteration after iteration: what comes next is asked of the run's state.

Programs run while others are sampled, and a training loads meanwhile. `warehouse.stages.warm` keeps loaded
what the commands load.
"""

import dataclasses
import shlex
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from warehouse.inspect.advice import Advice, advise, alarm_lines
from warehouse.inspect.alarms import ALARM_EXIT_CODE, last_rollback, raised_alarms
from warehouse.inspect.summary import iteration_rows, line_of
from warehouse.maintain.rollback import roll_back
from warehouse.sql.database import connect
from warehouse.sql.rollup import keep_rolled_up
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import base_purpose
from warehouse.store.run_folder import Warehouse

RESCUES = 3
FACTOR = 0.5                    # of the learning rate, after each rescue
ENGINE_SHARE = 0.4              # of a GPU's memory, where a training works beside the engine
LOOK_SECONDS = 0.05
NO_GRADIENT = 1                 # exit code of a training whose rows teach nothing, too


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """What `warehouse loop` was told; as its options."""

    iterations: int
    ahead: bool = False
    rescue: bool = False
    eval_every: int | None = None
    eval_options: str = ""
    ignore: tuple[str, ...] = ()
    track: str | None = None


class Running(Protocol):
    """A command under way: as `warehouse.loop.jobs.Job`."""

    words: list[str]

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...
    def said(self) -> str: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def end(self) -> int: ...


class Watched(NamedTuple):
    """What an iteration came to: its numbers, the alarms in words, and what to do about them."""

    rows: list[dict[str, Any]]
    lines: list[str]
    advice: Advice
    signals: list[str]


class Failed(Exception):
    """A command ended otherwise than it should; `said` are its words."""

    def __init__(self, words: list[str], code: int, said: str) -> None:
        self.words, self.code, self.said = words, code, said
        super().__init__(shlex.join(words))


class Loop:
    """One loop over a run; `start` runs a command, `tell` hears of each event: its kind, facts, a line."""

    def __init__(self, warehouse: Warehouse, options: LoopOptions, start: Callable[[list[str]], Running],
                 tell: Callable[[str, dict[str, Any], str], None],
                 show: Callable[[int, str], None] = lambda done, doing: None) -> None:
        self.warehouse, self.options, self.start, self.tell, self.show = (
            warehouse, options, start, tell, show)
        self.run = str(warehouse.root)
        self.rescues = RESCUES if options.rescue else 0
        self.sampling: dict[int, Running] = {}
        self.scoring: dict[int, Running] = {}
        self.training: dict[int, Running] = {}
        self.turns: dict[int, Running] = {}             # a training begins when its turn, a process, ends
        self.watching: Future[Watched] | None = None
        self.since: int | None = None
        self.watcher = ThreadPoolExecutor(1)

    def go(self) -> int:
        """All iterations that are not trained; the exit code, that of alarms where they stop it."""
        try:
            return self._go()
        except Failed as failed:
            self.tell("failed", {"command": failed.words, "exit_code": failed.code}, failed.said.rstrip())
            return failed.code if failed.code > 0 else 1
        finally:
            self.stop()
            self.watcher.shutdown(cancel_futures=True)

    def _go(self) -> int:
        number = 0
        self._evaluate_if_due(0)
        while number < self.options.iterations:
            if self._is_trained(number):
                number += 1
                continue
            if number not in self.sampling:
                self._begin(number)
            self._wait(self.sampling[number], f"iteration {number}: sampling, running programs")
            if self.options.ahead and not self._ends_a_stretch(number):
                self._begin_ahead(number + 1)
            if (code := self._heed_alarms()) is not None:           # of the iteration before
                return code
            if number not in self.scoring:                          # after a rescue: anew, or left untrained
                continue
            self._wait(self.scoring[number], f"iteration {number}: running programs")
            self.turns.pop(number).kill()
            failed = self._wait(self.training[number], f"iteration {number}: training", allowed=NO_GRADIENT)
            self.watching = self.watcher.submit(self._look, number)
            # Where the next iteration is sampled already, the one after it is begun before the watch is over.
            ahead = self.sampling.get(number + 1)
            code = self._heed_alarms() if failed or not ahead or ahead.poll() is None else None
            if code is not None:
                return code
            if failed and not self._is_trained(number):
                raise Failed(self.training[number].words, failed, self.training[number].said())
            self._evaluate_if_due(number + 1)
            number += 1
        code = self._heed_alarms()
        return 0 if code is None else code

    # The run ----------------------------------------------------------------------------------------------

    def _is_trained(self, iteration: int) -> bool:
        """Whether the policy after an iteration is there, from its training or from a rollback."""
        return iteration < self.warehouse.log.refresh().newest

    def _ends_a_stretch(self, iteration: int) -> bool:
        """Whether nothing is sampled ahead: the loop ends, or an evaluation wants the engine for itself."""
        return iteration + 1 == self.options.iterations or self._is_evaluated(iteration + 1)

    def _is_evaluated(self, version: int) -> bool:
        every = self.options.eval_every
        return every is not None and (version % every == 0 or version == self.options.iterations)

    # Commands ---------------------------------------------------------------------------------------------

    def _begin(self, iteration: int, *more: str) -> None:
        """Sample an iteration, run its programs as they are sampled, and load what its training needs."""
        share = []
        if self.options.ahead and "gpu-memory-utilization" not in {
                key.replace("_", "-") for key in self._config("rollout")}:
            share = ["--gpu-memory-utilization", str(ENGINE_SHARE)]
        words = ["--iteration", str(iteration)]
        self.sampling[iteration] = sampling = self.start(
            ["rollout", self.run, *words, "--spill-seconds", "1", *share, *more])
        self.scoring[iteration] = self.start(["score", self.run, *words, "--follow", str(sampling.pid)])
        self.turns[iteration] = turn = self.start(["sleep", "infinity"])
        rate = ["--lr-after-rollback", str(FACTOR)] if self.options.rescue else []
        track = ["--track", self.options.track] if self.options.track else []
        self.training[iteration] = self.start(["train", self.run, *words, *track, *rate,
                                               "--follow", str(turn.pid)])

    def _begin_ahead(self, iteration: int) -> None:
        """Sample by the policy before an iteration's own, which is being trained."""
        if not self._is_trained(iteration):
            self._begin(iteration, "--policy-version", str(iteration - 1))

    def _config(self, table: str) -> dict[str, Any]:
        return read_config(self.warehouse.root / "config.toml").get(table, {})

    def _wait(self, job: Running, doing: str, allowed: int = 0) -> int:
        """Its exit code, once it has ended; Failed where that is neither 0 nor `allowed`."""
        began = time.monotonic()
        while (code := job.poll()) is None:
            self.show(self.warehouse.state.newest, f"{doing} ({time.monotonic() - began:.0f} s)")
            time.sleep(LOOK_SECONDS)
        if code not in (0, allowed):
            raise Failed(job.words, code, job.said())
        return code

    def _evaluate_if_due(self, version: int) -> None:
        """Sample and score the held-out tasks with a policy, unless that was done."""
        if not self._is_evaluated(version):
            return
        done = [life for life in self.warehouse.state.of_stage("rollout", version)
                if base_purpose(str(life.purpose)).startswith("eval")]
        if not done or not all(self.warehouse.state.scorers(version, str(life.purpose)) for life in done):
            doing, words = f"policy {version}: evaluation", [self.run, "--iteration", str(version)]
            self._wait(self.start(["rollout", *words[:1], "--eval", *words[1:],
                                   *shlex.split(self.options.eval_options)]), doing)
            for purpose in self.warehouse.log.refresh().purposes(version):
                if purpose.startswith("eval"):
                    self._wait(self.start(["score", *words, "--purpose", purpose]), doing)
            for row in self.watcher.submit(self._rows, version, "eval").result():
                self.tell("evaluation", row, line_of(row))

    def stop(self) -> None:
        """End what runs: samplers and scorers keep what they have, who waits for a turn has nothing."""
        for number in self.turns:
            self.training.pop(number).kill()
        running = [*self.sampling.values(), *self.scoring.values(), *self.training.values()]
        for job in running:
            job.stop()
        for job in running:
            job.end()
        # Last: the process that trains ends a moment after the command, and would find its rows missing.
        for turn in self.turns.values():
            turn.kill()
            turn.end()
        for jobs in (self.sampling, self.scoring, self.training, self.turns):
            jobs.clear()

    # Alarms -----------------------------------------------------------------------------------------------

    def _rows(self, iteration: int, purpose: str) -> list[dict[str, Any]]:
        inventory = keep_rolled_up(self.warehouse)
        return iteration_rows(connect(self.warehouse, inventory=inventory), inventory, iteration, purpose)

    def _look(self, iteration: int) -> Watched:
        """What an iteration came to, and the alarms since the last look."""
        inventory = keep_rolled_up(self.warehouse)
        connection = connect(self.warehouse, inventory=inventory)
        since = last_rollback(self.warehouse) if self.since is None else self.since
        alarms = raised_alarms(connection, since=since, ignored=self.options.ignore)
        self.since = iteration + 1          # later iterations judge a dip anew that is long over
        rows = iteration_rows(connection, inventory, iteration) if self._is_trained(iteration) else []
        firing = [alarm for alarm in alarms if alarm.fired]
        return Watched(rows, alarm_lines(self.warehouse, connection, alarms, since) if firing else [],
                       advise(self.warehouse, connection, alarms), [alarm.signal for alarm in firing])

    def _heed_alarms(self) -> int | None:
        """The exit code where alarms end the loop; after a rescue, or without alarms, None."""
        if self.watching is None:
            return None
        watching, self.watching = self.watching, None
        while not watching.done():
            self.show(self.warehouse.state.newest, "looking for alarms")
            time.sleep(LOOK_SECONDS)
        watched = watching.result()
        for row in watched.rows:
            self.tell("iteration", row, line_of(row))
        if not watched.signals:
            return None
        back, newest = watched.advice.back, self.warehouse.state.newest
        facts = {"signals": watched.signals, "back": back}
        self.tell("alarm", facts, "\n".join(watched.lines))
        # A smaller step is no help where what was sampled is not what is trained.
        if not self.rescues or back is None or watched.advice.mend:
            return ALARM_EXIT_CODE
        self.rescues -= 1
        self.stop()
        why = f"{', '.join(watched.signals)} since iteration {watched.advice.first}"
        said = roll_back(self.warehouse, back, why)
        self.tell("rescue", {"from": newest, "to": back, "why": why, "factor": FACTOR},
                  f"{said[0]}; the learning rate is multiplied by {FACTOR:g}")
        return None


def check_options(warehouse: Warehouse, options: LoopOptions) -> None:
    """StageError for options of evaluations that are no words, and where the run holds no task out."""
    try:
        shlex.split(options.eval_options)
    except ValueError as error:
        raise StageError(f"--eval-options {options.eval_options!r}: {error}. Close the quote.") from error
    if options.eval_every and not any(warehouse.read("tasks", ["heldout"])["heldout"].to_pylist()):
        raise StageError("This run holds no tasks out, so nothing can be evaluated. Leave --eval-every out, "
                         f"or add some: warehouse tasks add {shell_quote(warehouse.root)} --heldout SOURCE")
