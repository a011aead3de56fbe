"""Arms: the same stored rows trained with other settings, side by side, each in a branch of its own.

What comes next of an arm follows from the state of its branch, so a command that was killed goes on, and an
arm that is finished is only read.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warehouse.experiments.arms_file import PARENT, Arm, with_settings
from warehouse.experiments.branch import make_branch
from warehouse.ledger.state import TRAIN, RunState
from warehouse.loop.driver import LOOK_SECONDS, Running
from warehouse.store.commit import commit_json, replace_bytes
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.json_files import read_json
from warehouse.store.run_folder import Warehouse, open_warehouse

RUN = "{run}"
FACTS = "arm.json"              # of an arm's folder: its settings and where it branched off
DOING = {"rollout": "sampling", "score": "running programs", "train": "training"}


class Plan(NamedTuple):
    """What is done with every arm: the policy it starts from, and how it is evaluated."""

    run: Warehouse
    folder: Path
    at: int
    iterations: int
    evaluate: int               # completions per held-out task

    @property
    def label(self) -> str:
        return f"arms-{self.evaluate}"

    @property
    def last(self) -> int:
        """The policy that is evaluated, and the iteration that gives the seeds."""
        return self.at + self.iterations


def policy_to_start_from(warehouse: Warehouse, folder: Path, at: int | None) -> int:
    """The policy that arms start from: the one asked for, that of arms in `folder`, or of the newest scored
    rows. StageError where there are no rows to train on.
    """
    state, run = warehouse.state, warehouse.root
    made = {facts["at"] for path in sorted(folder.glob(f"*/{FACTS}")) if (facts := read_json(path))}
    if made and at is not None and made != {at}:
        raise StageError(f"The arms in {folder} start from policy {min(made)}. Name another folder with "
                         "--folder for arms from another policy.")
    if made:
        return int(min(made))
    scored = [life.iteration for life in state.of_stage("rollout")
              if life.purpose == TRAIN and life.is_complete and not life.pruned
              and state.scorers(life.iteration, TRAIN) and life.iteration in state.policies]
    if at is None and scored:
        return max(scored)
    if at is not None:
        state.check_branch(at, rows=True)
    if at not in scored:
        which, named = (run, shell_quote(run)) if at is None else (
            f"Iteration {at}", f"{shell_quote(run)} --iteration {at}")
        raise StageError(f"{which} has no scored rows to train on. Run `rollout {named}` and `score {named}` "
                         "first, or name another policy with --at.")
    return at


def due(state: RunState, plan: Plan, arm: Arm) -> list[str] | None:
    """The words of the next command of an arm, with {run} for its run; None when it is complete.

    Iterations of which the branch has rows are trained on these, of others the arm samples its own. Last its
    evaluation is shown to the policy that all start from: how far it has gone from that.
    """
    for iteration in range(plan.at, plan.last if arm.name != PARENT else plan.at):
        number = ["--iteration", str(iteration)]
        if state.newest > iteration:
            continue
        if not state.is_complete("rollout", iteration, TRAIN):
            return ["rollout", RUN, *number, *arm.words("rollout")]
        if not state.scorers(iteration, TRAIN):
            return ["score", RUN, *number, "--purpose", TRAIN, *arm.words("score")]
        return ["train", RUN, *number]
    number, purpose = ["--iteration", str(plan.last)], f"eval-{plan.label}"
    if not state.is_complete("rollout", plan.last, purpose):
        policy = ["--policy", str(plan.at)] if arm.name == PARENT else []
        return ["rollout", RUN, "--eval", "--label", plan.label, *number, *policy, "--group-size",
                str(plan.evaluate)]
    if not state.scorers(plan.last, purpose):
        return ["score", RUN, *number, "--purpose", purpose]
    if arm.name != PARENT and not state.is_complete("logprobs", plan.last, purpose, f"policy-{plan.at}"):
        return ["train", "logprobs", RUN, "--policy", str(plan.at), "--iterations", str(plan.last),
                "--purpose", purpose]
    return None


def check_arm(plan: Plan, arm: Arm) -> None:
    """StageError where the folder of an arm holds another one, or none."""
    root = plan.folder / arm.name
    facts = read_json(root / FACTS)
    if arm.settings != arm.of_training and plan.iterations == 1:
        raise StageError(f"The arm {arm.name} has options of sampling, but with --iterations 1 arms train on "
                         "stored rows only. Raise --iterations, or leave these options out.")
    if facts is None:
        made = open_warehouse(root) if root.exists() else None
        if made and (plan.run.run_id not in made.owners or made.state.newest > plan.at):
            raise StageError(f"{root} exists already and is not an arm. Name the arm otherwise, or another "
                             "folder with --folder.")
    elif facts["run_id"] != plan.run.run_id:
        raise StageError(f"{root} is an arm of another run. Name another folder with --folder.")
    elif facts["settings"] != arm.settings:
        was = Arm(arm.name, facts["settings"]).title
        raise StageError(f"The arm {arm.name} was made with {was}, not with {arm.title}. Give it a name of "
                         f"its own, or remove {shell_quote(root)} to make it again.")


def prepare(plan: Plan, arm: Arm) -> Warehouse:
    """The branch of an arm, made where there is none, with the arm's settings in its config.toml."""
    root = plan.folder / arm.name
    if not (root / FACTS).exists():
        if not root.exists():
            plan.folder.mkdir(parents=True, exist_ok=True)
            make_branch(plan.run, root, plan.at, rows=True)
        config = root / "config.toml"
        if arm.of_training:
            replace_bytes(config, with_settings(read_config(config), arm.of_training).encode())
        commit_json(root / FACTS, {"run_id": plan.run.run_id, "at": plan.at, "settings": arm.settings})
    return open_warehouse(root)


def run_arms(plan: Plan, arms: list[Arm], jobs: int, start: Callable[[list[str]], Running],
             tell: Callable[[str, str], None], show: Callable[[int, str], None],
             more: tuple[str, ...] = ()) -> dict[str, str]:
    """Run what is due of the parent and of every arm, `jobs` commands at once, one of them sampling.

    Of each arm that could not be finished the last words of the command that failed. `tell` hears of each
    arm that ends and how, `show` how many have and what is done; `more` are words for every rollout.
    """
    waiting = [Arm(PARENT, {}), *arms]
    runs: dict[str, Warehouse] = {}
    began: dict[str, float] = {}
    running: dict[str, Running] = {}
    last: dict[str, list[str]] = {}
    failed: dict[str, str] = {}

    def end(name: str, how: str) -> None:
        waiting[:] = [arm for arm in waiting if arm.name != name]
        spent = f" ({time.monotonic() - began[name]:.0f} s)" if name in last else ""
        tell(name, f"{name}: {how}{spent}")

    def begin(arm: Arm) -> None:
        """Start the command that is due of an arm, unless it samples while another does; or note its end."""
        began.setdefault(arm.name, time.monotonic())
        if arm.name not in runs:
            runs[arm.name] = prepare(plan, arm)
        run = runs[arm.name]
        words = due(run.log.refresh(), plan, arm)
        if words is None:
            end(arm.name, "complete")
            return
        if words[0] == "rollout" and any(job.words[0] == "rollout" for job in running.values()):
            return                                          # there is one engine
        if words == last.get(arm.name):
            failed[arm.name] = f"`{' '.join(words)}` ended without an error and was not complete"
            end(arm.name, failed[arm.name])
            return
        last[arm.name] = words
        extra = more if words[0] == "rollout" else ()
        running[arm.name] = start([*(word.replace(RUN, str(run.root)) for word in words), *extra])

    try:
        while waiting:
            for name, job in [*running.items()]:
                if (code := job.poll()) is not None:
                    del running[name]
                    if code != 0:
                        failed[name] = last_words(job.said()) or f"`{job.words[0]}` ended with {code}"
                        end(name, failed[name])
            for arm in [*waiting]:
                if len(running) < jobs and arm.name not in running:
                    begin(arm)
            doing = ", ".join(f"{name} {DOING[job.words[0]]}" for name, job in running.items())
            show(len(arms) + 1 - len(waiting), doing)
            if running:
                time.sleep(LOOK_SECONDS)
    finally:
        for job in running.values():
            job.stop()
        for job in running.values():
            job.end()
    return failed


def last_words(said: str) -> str:
    """The last line that a command printed, which says why it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else ""


def check_plan(plan: Plan) -> None:
    """StageError where the run cannot be branched there, or holds no task out to evaluate on."""
    plan.run.state.check_branch(plan.at, rows=True)
    if not any(plan.run.read("tasks", ["heldout"])["heldout"].to_pylist()):
        raise StageError("This run holds no tasks out, so arms cannot be evaluated. Add some: warehouse "
                         f"tasks add {shell_quote(plan.run.root)} --heldout SOURCE")
