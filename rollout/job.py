"""Which rollout this is: iteration, purpose and policy, and which parts are missing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rollout.options import RolloutOptions
from rollout.parts import Part, split_parts
from rollout.prompts.selection import choose_tasks, named_by_query
from rollout.settings import MAY_CHANGE, stage_settings
from warehouse.ledger.state import TRAIN
from warehouse.stages.base_model import check_base
from warehouse.stages.shard import Shard
from warehouse.stages.space import sweep
from warehouse.store.checksums import OPTIMIZER
from warehouse.store.errors import StageError
from warehouse.store.names import turn_purpose
from warehouse.store.parts import part_number
from warehouse.store.run_folder import Stage, Warehouse

NO_POLICY = {"policy_version": None, "sha256": None, "kind": "foreign"}  # a model behind an API


@dataclass(frozen=True)
class Job:
    """Which rollout this is: the iteration, its purpose, and the sampling policy."""

    warehouse: Warehouse
    options: RolloutOptions
    iteration: int
    purpose: str
    policy: dict[str, Any]
    trained: int | None = None  # the begin entry of the training that wrote the policy
    decided: str | None = None  # how servers serve the policy, if they decide it

    @property
    def keys(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "purpose": self.purpose}

    @property
    def title(self) -> str:
        return f"iteration {self.iteration} ({self.purpose})"

    @property
    def stage(self) -> Stage:
        return self.warehouse.stage("rollout", **self.keys)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return stage_settings(self.warehouse, self.options, self.purpose, self.policy)

    @property
    def serve(self) -> str | None:
        """How the adapter is served, 'adapter' or 'merged'; None if the policy has none."""
        return self.decided or self.settings["serve"]

    @property
    def model(self) -> str:
        """The weights to load: those of a fully trained policy, else the base."""
        full = self.policy["kind"] == "full"
        return str(self.warehouse.policy_dir(self.policy["policy_version"])) if full else self.warehouse.model

    @property
    def adapter(self) -> Path | None:
        lora = self.policy["kind"] == "lora"
        return self.warehouse.policy_dir(self.policy["policy_version"]) if lora else None

    @property
    def probe(self) -> Path | None:
        """The trainer's logprobs of the policy; policies of version 0.2.0 and the base have none."""
        if self.policy is NO_POLICY:
            return None
        path = self.warehouse.policy_dir(self.policy["policy_version"]) / "probe.json"
        return path if path.exists() else None

    @property
    def imported_from(self) -> str | None:
        """The file whose rows `warehouse import` writes, or wrote, as this rollout."""
        return (self.stage.settings() or {}).get("imported_from")

    @property
    def plan_file(self) -> Path:
        return self.warehouse.folder("prompts", **self.keys) / "plan.json"

    def check(self) -> None:
        """StageError if it was begun with other settings, or if base or policy have changed.

        Settings include the user's own files, so these are read here, before an engine loads.
        """
        if self.imported_from:
            raise StageError(f"The import of {self.imported_from} as {self.title} is not complete. Run the "
                             f"same `warehouse import` again, or {self.stage.way_to_discard()}.")
        if self.settings and self.stage.settings():
            self.settle()
        check_base(self.warehouse)
        if self.policy is not NO_POLICY:
            self.warehouse.verify_policy(self.policy["policy_version"], unread=[OPTIMIZER])
        sweep(self.warehouse)

    def settle(self, *accepted: str, plan: Sequence[dict[str, Any]] = ()) -> None:
        """Begin the rollout of a plan, or check its settings against those it was begun with."""
        taken = list(dict.fromkeys(row["group_id"] for row in plan
                                   if not row["group_id"].startswith(f"{self.iteration}/")))
        self.stage.settle(self.settings, (*self.options.accept_change, *accepted), MAY_CHANGE,
                          reads=self.reads(plan, taken), taken=taken)

    def reads(self, plan: Sequence[dict[str, Any]], taken: Sequence[str]) -> list[int]:
        """Begin entries that it depends on: a training, and rollouts that it answers or continues."""
        state = self.warehouse.state
        before = {(row["parent_iteration"], row["parent_purpose"]) for row in plan
                  if row.get("parent_iteration") is not None}
        before |= {(number, TRAIN) for number in state.gone_on_with(self.iteration, taken).values()}
        lives = [state.life("rollout", *key) for key in before]
        return [*([] if self.trained is None else [self.trained]), *(life.begun for life in lives if life)]

    def prompts(self) -> list[dict[str, Any]]:
        return self.warehouse.read("prompts", **self.keys).to_pylist()

    def missing(self, prompts: list[dict[str, Any]], shard: Shard) -> list[Part]:
        """Parts of a worker's share that do not exist yet, without groups already carried over."""
        warehouse, keys = self.warehouse, self.keys
        present = {part_number(path) for path in warehouse.parts("completions", **keys)}
        later = warehouse.state.taken_groups(self.iteration) if self.purpose == TRAIN else {}
        decided = {part_number(path) for path in warehouse.parts("carried", **keys)}
        left = later.keys() | {*warehouse.read("carried", ["group_id"], **keys)["group_id"].to_pylist()}
        return [replace(part.without(left), decided=part.number in decided)
                for part in split_parts(prompts, self.options.part_size, shard) if part.number not in present]


def find_jobs(warehouse: Warehouse, options: RolloutOptions) -> list[Job]:
    """The rollouts that the options select: one, or one per split for an evaluation without a label.

    The purpose is `eval` for the run's first held-out split, or for its only one, and `eval-SPLIT` for the
    others. A begun evaluation continues although its --tasks-sql now returns other tasks.
    """
    known = warehouse.read("tasks", ["task_id", "split", "heldout"]).to_pylist()
    heldout = dict.fromkeys(task["split"] for task in known if task["heldout"])
    if not options.evaluate or options.label or len({task["split"] for task in known}) == 1 > len(heldout):
        return [find_job(warehouse, options)]
    tasks = choose_tasks(warehouse, options.replace(tasks_sql=None, splits=options.splits or tuple(heldout)))
    each = {split: options.replace(splits=(split,), label=split.replace("-turn", "_turn"))
            for split in dict.fromkeys(task["split"] for task in tasks)}    # `eval-x-turn2` are second turns
    if (first := warehouse.state.split_of_eval(known)) in each:
        each[first] = options.replace(splits=())
    if (query := options.tasks_sql) is not None and len(each) > 1:
        begun = [split for split, chosen in each.items() if options.turn == 1
                 and (find_job(warehouse, chosen).stage.settings() or {}).get("tasks_sql") == query]
        if len(begun) < len(each):
            begun += [task["split"] for task in named_by_query(warehouse, query, tasks)]
        each = {split: chosen for split, chosen in each.items() if split in begun} or each
    return [find_job(warehouse, chosen) for chosen in each.values()]


def find_job(warehouse: Warehouse, options: RolloutOptions) -> Job:
    """For training the rollout that is due next, for an evaluation that of the newest policy.

    A later turn belongs to the newest iteration that has the turn before it.
    """
    base = "eval" if options.evaluate else "distil" if options.distil else "train"
    base = f"{base}-{options.label}" if options.label else base
    purpose = turn_purpose(base, options.turn)
    if options.iteration is not None:
        iteration = options.iteration
    elif options.turn > 1:
        iteration = warehouse.state.turn_due(base, options.turn)
    elif base != "train":
        newest = warehouse.state.newest
        iteration = newest if options.policy_version is None else options.policy_version
    else:
        iteration = warehouse.state.rollout_due()
    if options.model:
        return Job(warehouse, options, iteration, purpose, NO_POLICY)
    version = options.policy_version
    if version is None:                 # a begun rollout keeps its policy
        begun = warehouse.stage("rollout", iteration=iteration, purpose=purpose).settings() or {}
        version = begun.get("policy_version")
    version = iteration if version is None else version
    policies = warehouse.state.policies
    newest = max(policies)
    if version not in policies:
        raise StageError(f"Iteration {iteration} samples with policy {version}, which does not exist yet; "
                         f"the newest is {newest}. Score and train iteration {newest} first, or name another "
                         "policy with --policy.")
    return Job(warehouse, options, iteration, purpose, warehouse.policy(version), policies[version].trained)
