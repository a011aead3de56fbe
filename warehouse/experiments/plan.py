"""What every arm trains and how it is evaluated, and whether a run, a folder and an arm allow it."""

from pathlib import Path
from typing import NamedTuple

from warehouse.experiments.arms_file import Arm
from warehouse.ledger.state import TRAIN
from warehouse.options import untrusted
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.json_files import read_json
from warehouse.store.run_folder import Warehouse, open_warehouse

FACTS = "arm.json"              # in an arm's folder: its settings and where it branched off


class Plan(NamedTuple):
    """The work of every arm: the policy it starts from, what it trains, and how it is evaluated."""

    run: Warehouse
    folder: Path
    at: int
    iterations: int
    evaluate: int               # completions per held-out task
    stored: int = 1             # iterations with stored rows; the arm samples later ones
    stop_behind: bool = False

    @property
    def label(self) -> str:
        return f"arms-{self.evaluate}"

    @property
    def purpose(self) -> str:
        return f"eval-{self.label}"

    @property
    def last(self) -> int:
        """The last evaluated policy, and the iteration of its evaluation seeds."""
        return self.at + self.iterations

    @property
    def looks(self) -> range:
        """The evaluated policies."""
        return range(self.at + 1 if self.stop_behind else self.last, self.last + 1)


def policy_to_start_from(warehouse: Warehouse, folder: Path, at: int | None, stored: int = 1) -> int:
    """The policy that arms start from: `at`, that of the arms in `folder`, or that of the newest scored rows.
    StageError if one of the `stored` iterations has no rows to train on.
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
    if at is None:
        raise StageError(f"{run} has no scored rows to train on. Run `rollout {shell_quote(run)}` and `score "
                         f"{shell_quote(run)}` first, or name another policy with --at.")
    state.check_branch(at, rows=True)
    for iteration in range(at, at + stored):
        if iteration not in scored:
            named = f"{shell_quote(run)} --iteration {iteration}"
            raise StageError(f"Iteration {iteration} has no scored rows with tokens to train on. Name other "
                             f"iterations, or, unless it was pruned, first run `rollout {named}` and `score "
                             f"{named}`.")
    return at


def check_plan(plan: Plan) -> None:
    """StageError if the run is not trusted or cannot be branched there, or has no held-out tasks."""
    if said := untrusted(plan.run.root):
        raise StageError(said)
    plan.run.state.check_branch(plan.at, rows=True)
    if not any(plan.run.read("tasks", ["heldout"])["heldout"].to_pylist()):
        raise StageError("This run has no held-out tasks, so arms cannot be evaluated. Add some: warehouse "
                         f"tasks add {shell_quote(plan.run.root)} --heldout SOURCE")
    if plan.stop_behind and plan.iterations == 1:
        raise StageError("--stop-behind looks at the arms after each iteration but the last, and "
                         "--iterations 1 has no other. Raise --iterations, or leave --stop-behind out.")


def check_arm(plan: Plan, arm: Arm) -> None:
    """StageError if the folder of an arm holds something else, or an arm with other settings."""
    root = plan.folder / arm.name
    facts = read_json(root / FACTS)
    if arm.settings != arm.of_training and plan.iterations == plan.stored:
        raise StageError(f"The arm {arm.name} has options of sampling, but with these --iterations arms "
                         "train on stored rows only. Raise --iterations, or leave these options out.")
    if facts is None:
        made = open_warehouse(root) if root.exists() else None
        if made and (plan.run.run_id not in made.owners or made.state.newest > plan.at):
            raise StageError(f"{root} exists already and is not an arm. Rename the arm, or name another "
                             "folder with --folder.")
    elif facts["run_id"] != plan.run.run_id:
        raise StageError(f"{root} is an arm of another run. Name another folder with --folder.")
    elif facts.get("stored", 1) != plan.stored:
        raise StageError(f"The arms in {plan.folder} have the stored rows of {facts.get('stored', 1)} "
                         f"iterations, not of {plan.stored}. Name another folder with --folder.")
    elif facts["settings"] != arm.settings:
        was = Arm(arm.name, facts["settings"]).title
        raise StageError(f"The arm {arm.name} was made with {was}, not with {arm.title}. Give it a name of "
                         f"its own, or remove {shell_quote(root)} to make it again.")
