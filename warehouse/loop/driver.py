"""rollout, score and train, iteration after iteration: the run's state decides what comes next.

Programs run while others are sampled. `warehouse.stages.warm` keeps the commands' state loaded: an engine
on each GPU, and the policy in each training process.
"""

import dataclasses
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from warehouse.inspect.advice import Advice, advise, alarm_lines, changed_settings
from warehouse.inspect.alarms import ALARM_EXIT_CODE, last_rollback, raised_alarms
from warehouse.inspect.summary import iteration_rows, line_of
from warehouse.loop.crew import Sampling, Start, Training
from warehouse.loop.devices import Crew, Worker
from warehouse.loop.jobs import Job, stop_all
from warehouse.maintain.prune import policy_bytes
from warehouse.maintain.rollback import end_at_alarm, roll_back
from warehouse.options import room_command
from warehouse.sql.database import compute_once, connect
from warehouse.sql.rollup import keep_rolled_up
from warehouse.stages import warm
from warehouse.stages.stop import StageStopped
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.names import base_purpose
from warehouse.store.run_folder import Warehouse

RESCUES = 3
FACTOR = 0.5                    # on the learning rate, after each rescue
ENGINE_SHARE = 0.4              # of a GPU's memory, if a training runs next to the engine
GROUP_SIZE = 16                 # default of `rollout`
PARTS = 4                       # per engine, so that others can take some over
LOOK_SECONDS = 0.05
NO_GRADIENT = 1                 # also the exit code of a training without a gradient


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    iterations: int
    ahead: bool = False
    ahead_by: int | None = None
    rescue: bool = False
    eval_every: int | None = None
    ignore: tuple[str, ...] = ()
    track: str | None = None

    @property
    def depth(self) -> int:
        """How many iterations are sampled ahead of the one that trains."""
        return self.ahead_by or int(self.ahead)


class Watched(NamedTuple):
    """The result of an iteration: its numbers, the alarms in words, and what to do about them."""

    rows: list[dict[str, Any]]
    lines: list[str]
    advice: Advice
    signals: list[str]
    changed: Sequence[str] = ()     # settings that are not those of the iteration before, in words


class Failed(Exception):
    """A command that failed; `said` is its output."""

    def __init__(self, words: list[str], code: int, said: str) -> None:
        self.words, self.code, self.said = words, code, said
        super().__init__(shlex.join(words))


class Loop:
    """One loop over a run; `start` runs a command, `tell` gets each event: its kind, facts, a line."""

    def __init__(self, warehouse: Warehouse, options: LoopOptions, crew: Crew, start: Start,
                 tell: Callable[[str, dict[str, Any], str], None],
                 show: Callable[[int, str], None] = lambda done, doing: None) -> None:
        self.warehouse, self.options, self.crew, self.start, self.tell, self.show = (
            warehouse, options, crew, start, tell, show)
        self.run = str(warehouse.root)
        self.rescues = RESCUES if options.rescue else 0
        self.sampling: dict[int, Sampling] = {}
        self.scoring: dict[int, Job] = {}
        self.training: Training | None = None
        self.watching: dict[int, Future[Watched]] = {}          # by iteration; not acted on yet
        self.since = 0
        self.is_disk_told = False
        self.watcher = ThreadPoolExecutor(1)

    def go(self) -> int:
        """Run all untrained iterations; return the exit code, that of alarms if they stop the loop."""
        try:
            return self._go()
        except Failed as failed:
            self.tell("failed", {"command": failed.words, "exit_code": failed.code}, failed.said.rstrip())
            return failed.code if failed.code > 0 else 1
        except StageStopped:
            self.show(self.warehouse.state.newest, "stopping; finished work is kept")
            raise
        finally:
            self.stop()
            self.watcher.shutdown(cancel_futures=True)

    def _go(self) -> int:
        number = 0
        if all(self._is_trained(each) for each in range(self.options.iterations)):
            self._tell_done()
        self.watcher.submit(lambda: raised_alarms(connect(self.warehouse)))  # imports, while engines start
        self._evaluate_if_due(0)
        while number < self.options.iterations:
            if self._is_trained(number):
                number += 1
                if number == self.warehouse.state.newest:      # the loop may have ended before or in it
                    self._evaluate_if_due(number)
                continue
            if number not in self.sampling:
                self._begin(number)
            self._wait(self.sampling[number], f"iteration {number}: sampling, running programs")
            self._sample_ahead(number)
            # With --ahead, the previous iteration is checked for alarms while this one trains.
            if (code := self._heed_alarms(number - 1 if self.options.depth else number)) is not None:
                return code
            if number not in self.scoring:                          # after a rescue: anew, or left untrained
                continue
            self._wait(self.scoring[number], f"iteration {number}: running programs", at=number)
            self.training = self._train(number)
            failed = self._wait(self.training, f"iteration {number}: training", allowed=NO_GRADIENT,
                                at=number)
            self.watching[number] = self.watcher.submit(self._look, number)
            if (failed or number + 1 not in self.sampling) and (code := self._heed_alarms()) is not None:
                return code
            if failed and not self._is_trained(number):
                raise Failed(self.training.words, failed, self.training.said())
            self._compare_with_disk(number + 1)
            self._evaluate_if_due(number + 1)
            number += 1
        if (code := self._heed_alarms()) is not None:
            return code
        if self._undone():                              # the last iteration was rescued
            self._tell_done()
        return 0

    def _undone(self) -> str:
        """That the last policy is an earlier one again; empty if it is not."""
        policy = self.warehouse.log.refresh().policies[self.options.iterations]
        return "" if policy.rolled_back_to is None else (
            f" Policy {policy.version} is policy {policy.rolled_back_to} again.")

    def _tell_done(self) -> None:
        newest = self.warehouse.log.refresh().newest
        again = f"warehouse loop {shell_quote(self.warehouse.root)} {newest + 1}"
        self.tell("done", {}, f"{newest} iterations are over.{self._undone()} To train one more: {again}")

    # The run ----------------------------------------------------------------------------------------------

    def _is_trained(self, iteration: int) -> bool:
        """Whether the policy after an iteration exists, from its training or from a rollback."""
        return iteration < self.warehouse.log.refresh().newest

    def _is_evaluated(self, version: int) -> bool:
        every = self.options.eval_every
        return every is not None and (version % every == 0 or version == self.options.iterations)

    def _evaluations(self) -> set[str]:
        """The purposes of the evaluations that `rollout --eval` writes: eval, eval-SPLIT, or eval-LABEL."""
        asked = room_command("rollout").make_context("rollout", [self.run, "--eval"]).params
        tasks = self.warehouse.read("tasks", ["split", "heldout"]).to_pylist()
        splits = asked["splits"] or {task["split"] for task in tasks if task["heldout"]}
        labels = [asked["label"]] if asked["label"] else [name.replace("-turn", "_turn") for name in splits]
        return {"eval", *(f"eval-{label}" for label in labels)}

    # Commands ---------------------------------------------------------------------------------------------

    def _begin(self, iteration: int, *more: str) -> None:
        """Sample an iteration, and run its programs as they are sampled."""
        words = ["--iteration", str(iteration)]
        self.sampling[iteration] = sampling = self._sample(
            iteration, "train", [*words, "--spill-seconds", "1", *more])
        self.scoring[iteration] = self.start(["score", self.run, *words],
                                             {warm.BESIDE: str(len(sampling.running) + 1)})

    def _sample_ahead(self, number: int) -> None:
        """Sample the next iteration while `number` is not trained, once the one before it is sampled.

        It samples with a policy that is `depth` iterations older than its own, but none that a rollback left.
        """
        last = max(self.sampling, default=number)
        if (last >= number + self.options.depth or last + 1 >= self.options.iterations
                or self._is_evaluated(last + 1)         # which needs the engine
                or last not in self.sampling or self.sampling[last].poll() != 0):
            return
        if not self._is_trained(last + 1):
            self._move_split(last)
            policy = max(last_rollback(self.warehouse), last + 1 - self.options.depth)
            self._begin(last + 1, "--policy", str(policy))

    def _sample(self, iteration: int, purpose: str, words: list[str]) -> Sampling:
        share = []
        if self.options.depth and not self.crew.is_split and "gpu-memory-utilization" not in self._config():
            share = ["--gpu-memory-utilization", str(ENGINE_SHARE)]
        return Sampling(self.start, ["rollout", self.run, *share, *words,
                                     *self._part_size(iteration, purpose)], self.crew,
                        partial(self._tell_lost, f"iteration {iteration} was sampled"))

    def _train(self, iteration: int) -> Training:
        track = ["--track", self.options.track] if self.options.track else []
        return Training(self.start, ["train", self.run, "--iteration", str(iteration), *track],
                        self.crew, partial(self._tell_lost, f"iteration {iteration} was trained"))

    def _part_size(self, iteration: int, purpose: str) -> list[str]:
        """A part size so small that several engines can share parts; a begun rollout keeps its size.

        A share is a number of complete parts.
        """
        begun = [life for life in self.warehouse.log.refresh().of_stage("rollout", iteration)
                 if base_purpose(str(life.purpose)).startswith(purpose)]
        if begun:
            size = begun[0].settings.get("part_size")       # None for an import
            return ["--part-size", str(size)] if size else []
        engines, config = len(self.crew.engines()), self._config()
        if engines == 1 or "part-size" in config:
            return []
        tasks = self.warehouse.read("tasks", ["heldout"])["heldout"].to_pylist()
        count = sum(heldout == (purpose == "eval") for heldout in tasks)
        if purpose != "eval":
            count = min(count, config.get("num-tasks", count)) * config.get("prompts-per-task", 1)
        return ["--part-size", str(config.get("group-size", GROUP_SIZE) * math.ceil(count / engines / PARTS))]

    def _config(self, stage: str = "rollout") -> dict[str, Any]:
        return read_config(self.warehouse.root / "config.toml").get(stage, {})

    def _compare_with_disk(self, version: int) -> None:
        """Say once if the policies after this one need more than is free."""
        needed = policy_bytes(self.warehouse, [version])[0] * (self.options.iterations - version)
        free = shutil.disk_usage(self.warehouse.root).free
        if needed > free and not self.is_disk_told and "keep-policies" not in self._config("train"):
            self.is_disk_told = True
            self.tell("disk", {"needed": needed, "free": free},
                      f"Policies up to {self.options.iterations} take {needed / 1e9:.1f} GB, and "
                      f"{free / 1e9:.1f} GB are free. keep-policies of [train] in config.toml keeps only the "
                      "last ones.")

    def _move_split(self, iteration: int) -> None:
        """Give the slower stage another GPU, according to the seconds of the last run of each."""
        if not (self.crew.adapts and iteration):
            return
        sampled = self.warehouse.stage("rollout", iteration=iteration, purpose="train").facts()
        trained = self.warehouse.stage("train", iteration=iteration - 1).facts()
        if not (sampled and trained):       # after a rollback
            return
        seconds = [sum(spent for phase, spent in facts["seconds"].items() if phase not in ("import", "start"))
                   for facts in (sampled, trained)]
        if self.crew.adapt(*seconds):
            self.tell("split", {"engines": len(self.crew.engines()), "trainers": len(self.crew.trainers()),
                                "sampling": seconds[0], "training": seconds[1]},
                      f"iteration {iteration} was sampled in {seconds[0]:.1f} s, the one before trained in "
                      f"{seconds[1]:.1f} s: from now on {counted(len(self.crew.engines()), 'engine')} and "
                      f"{counted(len(self.crew.trainers()), 'trainer')}")

    def _tell_lost(self, doing: str, worker: Worker, job: Job, then: str) -> None:
        code, left_out = job.poll(), self.crew.is_left_out(worker)
        self.tell("lost", {"device": worker.name, "command": job.words, "exit_code": code,
                           "left_out": left_out},
                  f"{worker.name}: `{job.words[0]}` ended with exit code {code} while {doing}; {then}"
                  + ("; from now on it is left out" if left_out else ""))

    def _wait(self, job: Job | Sampling | Training, doing: str, allowed: int = 0,
              at: int | None = None) -> int:
        """The exit code of a command once it has ended; Failed if it is neither 0 nor `allowed`.

        Meanwhile the iterations after `at` are sampled.
        """
        began = time.monotonic()
        while (code := job.poll()) is None:
            if at is not None:
                self._sample_ahead(at)
            self.show(self.warehouse.state.newest, f"{doing} ({time.monotonic() - began:.0f} s)")
            time.sleep(LOOK_SECONDS)
        if code not in (0, allowed):
            raise Failed(job.words, code, job.said())
        return code

    def _evaluate_if_due(self, version: int) -> None:
        """Sample and score the held-out tasks with a policy, unless this was done."""
        if not self._is_evaluated(version):
            return
        own = self._evaluations()
        done = [life for life in self.warehouse.state.of_stage("rollout", version)
                if base_purpose(str(life.purpose)) in own]
        if not done or not all(self.warehouse.state.scorers(version, str(life.purpose)) for life in done):
            doing, words = f"policy {version}: evaluation", [self.run, "--iteration", str(version)]
            self._wait(self._sample(version, "eval", ["--eval", *words[1:]]), doing)
            for purpose in self.warehouse.log.refresh().purposes(version):
                if purpose.startswith("eval"):
                    self._wait(self.start(["score", *words, "--purpose", purpose], {}), doing)
            for row in self.watcher.submit(self._rows, version, "eval").result():
                self.tell("evaluation", row, line_of(row))
            if self.options.track and version == self.options.iterations:  # no training comes after it
                self._wait(self.start(["train", "track", self.run, self.options.track], {}), doing)

    def stop(self) -> None:
        """Stop all running commands; finished work is kept."""
        works: list[Sampling | Training] = [*self.sampling.values()]
        works += [self.training] if self.training else []
        stop_all([*(job for work in works for job in work.jobs()), *self.scoring.values()])
        self.sampling.clear()
        self.scoring.clear()
        self.training = None

    # Alarms -----------------------------------------------------------------------------------------------

    def _rows(self, iteration: int, purpose: str) -> list[dict[str, Any]]:
        connection = connect(self.warehouse, inventory=keep_rolled_up(self.warehouse))
        return iteration_rows(connection, iteration, purpose)

    def _look(self, iteration: int) -> Watched:
        """The results of an iteration, and the alarms since the last look."""
        connection = compute_once(connect(self.warehouse, inventory=keep_rolled_up(self.warehouse)))
        since = max(last_rollback(self.warehouse), self.warehouse.state.unheeded, self.since)
        alarms = raised_alarms(connection, since=since, ignored=self.options.ignore)
        self.since = iteration + 1          # later iterations would report an old dip again
        rows = iteration_rows(connection, iteration) if self._is_trained(iteration) else []
        firing = [alarm for alarm in alarms if alarm.fired]
        return Watched(rows, alarm_lines(self.warehouse, connection, alarms, since) if firing else [],
                       advise(self.warehouse, connection, alarms), [alarm.signal for alarm in firing],
                       changed_settings(connection, iteration, 1, effects=False))

    def _heed_alarms(self, before: int | None = None) -> int | None:
        """The exit code if alarms end the loop, for iterations before `before` or all; else None."""
        code = None
        for iteration in [*self.watching]:
            if code is None and (before is None or iteration < before) and iteration in self.watching:
                code = self._heed(iteration, self.watching.pop(iteration))
        return code

    def _heed(self, iteration: int, watching: Future[Watched]) -> int | None:
        """Report the results of an iteration; return the exit code if its alarms end the loop."""
        while not watching.done():
            self.show(self.warehouse.state.newest, "looking for alarms")
            time.sleep(LOOK_SECONDS)
        watched = watching.result()
        for row in watched.rows:
            self.tell("iteration", row, "\n  ".join([line_of(row), *watched.changed]))
        if not watched.signals:
            return None
        back, newest = watched.advice.back, self.warehouse.state.newest
        facts = {"signals": watched.signals, "back": back}
        # A smaller step does not help if the sampled weights are not the trained ones.
        if not self.rescues or back is None or watched.advice.mend:
            lines = [line for line in watched.lines if line not in watched.changed]       # it is shown above
            lines.append("To go on nevertheless, repeat the command.")
            self.tell("alarm", facts, "\n".join(lines))
            end_at_alarm(self.warehouse, iteration, watched.signals)
            return ALARM_EXIT_CODE
        to_do = watched.advice.lines[-1:]       # going back, which follows
        self.tell("alarm", facts, "\n".join(line for line in watched.lines if line not in to_do))
        self.rescues -= 1
        self.watching.clear()
        self.stop()
        why = f"{', '.join(watched.signals)} since iteration {watched.advice.first}"
        said = roll_back(self.warehouse, back, why, FACTOR)
        self.tell("rescue", {"from": newest, "to": back, "why": why, "factor": FACTOR},
                  f"{said[0]}; the learning rate is multiplied by {FACTOR:g}")
        return None


def check_options(warehouse: Warehouse, options: LoopOptions) -> None:
    """StageError if there is nothing to evaluate on, or if the learning rate would be 0."""
    state, run = warehouse.state, str(warehouse.root)
    train = room_command("train").make_context("train", [run]).params
    last, taken = train["total_steps"], warehouse.policy(state.newest).get("global_step", 0)
    if state.newest < options.iterations and last and taken >= last:
        raise StageError(f"The schedule of the learning rate ends at step {last}, and {taken} are taken. "
                         "Raise total-steps in config.toml to train on.")
    planned = taken + (options.iterations - state.newest) * (train["updates_per_batch"] or 1)
    if last and planned > last:
        print(f"The schedule of the learning rate ends at step {last}, the loop may end at step {planned}: "
              "raise total-steps in config.toml.", file=sys.stderr)
    if (kept := train["keep_policies"]) and kept <= options.depth:
        raise StageError(f"With --ahead-by {options.depth} rollouts use policies that keep-policies = {kept} "
                         f"removes. Raise it to {options.depth + 1}.")
    if options.eval_every and not any(warehouse.read("tasks", ["heldout"])["heldout"].to_pylist()):
        raise StageError("This run has no held-out tasks to evaluate on. Leave --eval-every out, "
                         f"or add some: warehouse tasks add {shell_quote(warehouse.root)} --heldout SOURCE")
