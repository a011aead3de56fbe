"""Arms: the same stored rows trained with other settings, side by side, each in its own branch.

The next command of an arm follows from the state of its branch. So a killed command continues, and a
finished arm is only read.
"""

import time
from collections.abc import Callable, Sequence

from warehouse.experiments.arms_file import PARENT, Arm, with_settings
from warehouse.experiments.branch import make_branch
from warehouse.experiments.comparison import behind, evaluated
from warehouse.experiments.plan import FACTS, Plan
from warehouse.ledger.state import LATEST, TRAIN, RunState
from warehouse.loop.driver import LOOK_SECONDS
from warehouse.loop.jobs import Job, stop_all
from warehouse.sql.database import connect
from warehouse.store.commit import commit_json, replace_bytes
from warehouse.store.config_file import read_config
from warehouse.store.run_folder import Warehouse, open_warehouse

RUN = "{run}"
DOING = {"rollout": "sampling", "score": "running programs", "train": "training"}


def due(state: RunState, plan: Plan, arm: Arm, upto: int) -> list[str] | None:
    """The words of an arm's next command, with {run} for its run; None once policy `upto` is evaluated.

    An arm trains the rows that its branch has for an iteration, and samples its own for later iterations. The
    parent policy is applied to its last evaluation, to measure the KL between them.
    """
    is_parent, iteration = arm.name == PARENT, state.newest
    upto = plan.last if is_parent else upto
    if iteration < upto and not is_parent:
        number = ["--iteration", str(iteration)]
        if not state.is_complete("rollout", iteration, TRAIN):
            return ["rollout", RUN, *number, *arm.words("rollout")]
        if not state.scorers(iteration, TRAIN):
            return ["score", RUN, *number, "--purpose", TRAIN, *arm.words("score")]
        return ["train", RUN, *number, *scorer_of(plan, arm, iteration)]
    number = ["--iteration", str(upto)]
    if not state.is_complete("rollout", upto, plan.purpose):
        policy = ["--policy", str(plan.at)] if is_parent else []
        return ["rollout", RUN, "--eval", "--label", plan.label, *number, *policy, "--group-size",
                str(plan.evaluate)]
    if not state.scorers(upto, plan.purpose):
        return ["score", RUN, *number, "--purpose", plan.purpose]
    if (not is_parent and upto == plan.last
            and not state.is_complete("logprobs", upto, plan.purpose, f"policy-{plan.at}")):
        return ["train", "logprobs", RUN, "--policy", str(plan.at), "--iteration", str(upto),
                "--purpose", plan.purpose]
    return None


def scorer_of(plan: Plan, arm: Arm, iteration: int) -> list[str]:
    """Names the scorer whose rewards the run was trained on, if several scored the run's rows."""
    stored = iteration < plan.at + plan.stored
    if not stored or "scorer" in arm.settings or len(plan.run.state.scorers(iteration, TRAIN)) < 2:
        return []
    scorer, why = plan.run.choose_scorer(iteration, TRAIN)
    return [] if why == LATEST else ["--scorer", scorer]


def prepare(plan: Plan, arm: Arm) -> Warehouse:
    """The branch of an arm, created if missing. Until it trains, its config.toml follows that of the run."""
    root = plan.folder / arm.name
    if not (root / FACTS).exists():
        if not root.exists():
            make_branch(plan.run, root, plan.at, rows=True, through=plan.at + plan.stored - 1)
        commit_json(root / FACTS, {"run_id": plan.run.run_id, "at": plan.at, "stored": plan.stored,
                                   "settings": arm.settings})
    branch, config = open_warehouse(root), plan.run.root / "config.toml"
    if branch.state.newest == plan.at and (config.exists() or arm.of_training):
        wanted = (with_settings(read_config(config), arm.of_training).encode() if arm.of_training
                  else config.read_bytes())
        replace_bytes(root / "config.toml", wanted)
    return branch


class Arms:
    """The arms of a plan at work: `start` runs a command, `tell` is called when an arm ends, `show` gets the
    number of ended arms and the current work; `more` is added to every rollout command.
    """

    def __init__(self, plan: Plan, start: Callable[[list[str]], Job], tell: Callable[[str], None],
                 show: Callable[[int, str], None], more: Sequence[str] = ()) -> None:
        self.plan, self.start, self.tell, self.show, self.more = plan, start, tell, show, more
        self.failed: dict[str, str] = {}        # last line of the failed command
        self.stopped: dict[str, str] = {}       # why the arm was stopped
        self.num_complete = 0
        self._running: dict[str, Job] = {}
        self._runs: dict[str, Warehouse] = {}
        self._last: dict[str, list[str]] = {}

    def run(self, arms: Sequence[Arm], jobs: int) -> None:
        """Run the due commands of the parent and of every arm, `jobs` at once, one of them sampling.

        If the plan evaluates in between, all arms wait there for each other; clearly worse ones are stopped.
        """
        try:
            going = [Arm(PARENT, {}), *arms]
            for upto in self.plan.looks:
                self._run_until(upto, going, jobs)
                going = [arm for arm in going if arm.name not in self.failed and arm.name != PARENT]
                if upto < self.plan.last:
                    self._stop_behind(upto, going)
                    going = [arm for arm in going if arm.name not in self.stopped]
        finally:
            stop_all([*self._running.values()])

    def _stop_behind(self, policy: int, arms: list[Arm]) -> None:
        tasks = {}
        for arm in arms:
            with connect(self._runs[arm.name]) as connection:
                tasks[arm.name] = evaluated(connection, self.plan, policy)
        with connect(self.plan.run) as connection:
            for name, why in behind(connection, tasks).items():
                self.stopped[name] = f"policy {policy}: {why}"
                self.tell(f"{name}: stopped at {self.stopped[name]}")

    def _run_until(self, upto: int, arms: list[Arm], jobs: int) -> None:
        """Run until policy `upto` of every arm is evaluated, or the arm has failed."""
        waiting = [*arms]
        while waiting:
            for name, job in [*self._running.items()]:
                if (code := job.poll()) is not None:
                    del self._running[name]
                    if code != 0:
                        said = job.said().strip().splitlines() or [f"`{job.words[0]}` ended with {code}"]
                        self._fail(name, said[-1].strip().removeprefix("Error: "))
            waiting = [arm for arm in waiting if arm.name not in self.failed]
            for arm in [*waiting]:
                num_counted = sum(job.words[0] != "score" for job in self._running.values())
                if num_counted < jobs and arm.name not in self._running and self._begin(arm, upto):
                    waiting.remove(arm)
            doing = ", ".join(f"{name} {DOING[job.words[0]]}" for name, job in self._running.items())
            self.show(self.num_complete + len(self.failed) + len(self.stopped), doing)
            if self._running:
                time.sleep(LOOK_SECONDS)

    def _begin(self, arm: Arm, upto: int) -> bool:
        """Start an arm's due command, unless it samples while another does; True if no command is due."""
        name = arm.name
        if name not in self._runs:
            self._runs[name] = prepare(self.plan, arm)
        run = self._runs[name]
        words = due(run.log.refresh(), self.plan, arm, upto)
        if words is None:
            if upto == self.plan.last or name == PARENT:
                self.num_complete += 1
                self.tell(f"{name}: complete")
            return True
        if words[0] == "rollout" and any(job.words[0] == "rollout" for job in self._running.values()):
            return False                                        # there is one engine
        if words == self._last.get(name):
            self._fail(name, f"`{' '.join(words)}` ended without an error but is not complete")
            return True
        self._last[name] = words
        extra = self.more if words[0] == "rollout" else ()
        self._running[name] = self.start([*(word.replace(RUN, str(run.root)) for word in words), *extra])
        return False

    def _fail(self, name: str, why: str) -> None:
        self.failed[name] = why
        self.tell(f"{name}: {why}")
