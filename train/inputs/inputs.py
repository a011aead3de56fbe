"""What a train stage starts from: the iteration due, its scorer, rows and parent policy; without torch."""

import hashlib
import json
from typing import Any, NamedTuple

from train.inputs.asked import rollouts_of
from train.inputs.groups import Group, load_groups
from train.inputs.options import TrainOptions
from train.inputs.own_advantages import OPTION
from train.inputs.settings import needs_groups
from train.objective.loss_table import find_loss
from warehouse.ledger.state import LATEST
from warehouse.stages.base_model import check_base
from warehouse.stages.user_code import UserFunction, load_function
from warehouse.store.commit import ensure_local, file_names, remove_folder
from warehouse.store.config_file import named_scorer
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.json_files import read_json
from warehouse.store.names import sampled_by, turn_of
from warehouse.store.run_folder import Stage, Warehouse


class Inputs(NamedTuple):
    """Everything read from the warehouse before the model is loaded."""

    iteration: int
    scorer: str
    parent: dict[str, Any]          # policy.json of the policy the stage starts from
    groups: list[Group]
    stage: Stage
    waiting: list[int]              # earlier iterations that are trained together with this one
    reads: list[int]                # begin entries of the stages that wrote the rows and the policy


def due_iteration(warehouse: Warehouse, purpose: str = "train") -> int | None:
    """The lowest untrained iteration, None if its rollout has not begun; StageError if it is not scored."""
    iteration = warehouse.state.train_due()
    if warehouse.state.scorers(iteration, purpose):
        return iteration
    if iteration > 0 and not warehouse.parts("completions", iteration=iteration, purpose=purpose):
        return None
    raise _unscored(warehouse, iteration, purpose)


def nothing_due(warehouse: Warehouse, purpose: str) -> str:
    """The message if `due_iteration` is None: what is missing, and what there is instead."""
    iteration = warehouse.state.train_due()
    if purpose == "train" and warehouse.state.life("rollout", iteration, purpose):
        return (f"nothing to train: the rollout of iteration {iteration} is not complete; next: rollout "
                f"{shell_quote(warehouse.root)} --iteration {iteration}, with the options it was begun with")
    others = [name for name in warehouse.state.purposes(iteration)
              if name == "train" or f"{name}-".startswith("distil-")]
    instead = f", but rows of purpose {' and '.join(others)} (see --purpose)" if others else ""
    of = "" if purpose == "train" else f" of purpose {purpose}"
    return (f"nothing to train: iteration {iteration} has no rollout{of} yet{instead}; "
            f"next: rollout {shell_quote(warehouse.root)}{sampled_by(purpose)}")


def scorer_to_train(warehouse: Warehouse, iteration: int, name: str | None, purpose: str = "train") -> str:
    """Identity of the scorer to train on; StageError if several are possible."""
    complete = warehouse.state.scorers(iteration, purpose)
    if not complete:
        raise _unscored(warehouse, iteration, purpose)
    scorer, reason = warehouse.state.choose_scorer(iteration, purpose, name or named_scorer(warehouse.root))
    if reason == LATEST:
        raise StageError(f"Iteration {iteration} was scored by {', '.join(complete)}. Name the one to train "
                         "on, as --scorer NAME, or for a loop as `scorer = \"NAME\"` below [train] of "
                         f"{warehouse.root / 'config.toml'}.")
    return scorer


def read_inputs(warehouse: Warehouse, iteration: int, scorer: str, settings: TrainOptions) -> Inputs:
    """Read and check the rows and the parent policy; nothing is written."""
    parent, state = warehouse.policy(iteration), warehouse.state
    if not state.policies[iteration].dropped:
        warehouse.verify_policy(iteration)
    check_base(warehouse)
    _check_parent(parent, settings)
    groups = _load_turns(warehouse, iteration, scorer, settings, settings.purpose)
    waiting = state.waiting_iterations(iteration)
    replayed = {*range(max(0, iteration - settings.replay), iteration)}
    for earlier in sorted({*waiting, *replayed - state.given_up_iterations(iteration)}):
        if warehouse.parts("completions", iteration=earlier, purpose="train"):
            groups += _load_turns(warehouse, earlier, scorer_to_train(warehouse, earlier, scorer), settings)
    if settings.turns and not groups:
        turns = ", ".join(map(str, settings.turns))
        raise StageError(f"Iteration {iteration} has no turn {turns} to train on. Roll it out with `rollout "
                         f"{shell_quote(warehouse.root)} --turn {settings.turns[0]}`, or leave --turns out.")
    for group in groups:
        _check_policies_of(group, warehouse, iteration)
    lives = rollouts_of(warehouse, groups)
    lives += [life for each in lives for life in state.of_stage("score", each.iteration, each.purpose)
              if life.is_complete and (life.iteration != iteration or life.scorer == scorer)]
    read = [state.policies[iteration].trained, *(life.begun for life in lives)]
    return Inputs(iteration, scorer, parent, groups, warehouse.stage("train", iteration=iteration), waiting,
                  [begun for begun in read if begun is not None])


def begin(inputs: Inputs, settings: TrainOptions) -> None:
    """Begin the training, or check that it was begun with these settings."""
    inputs.stage.settle(stage_settings(inputs, settings), reads=inputs.reads)


def stage_settings(inputs: Inputs, settings: TrainOptions) -> dict[str, Any]:
    """The settings recorded with the stage: its options, the scorer, and the weights it starts from."""
    names = json.dumps([[group.iteration, group.group_id] for group in inputs.groups])
    own = {f"{name}_sha256": user.content_hash for name, user in own_functions(settings).items()}
    if settings.purpose != "train":
        own["purpose"] = settings.purpose
    return {**settings.results(), **own, "scorer": inputs.scorer, "parent_sha256": inputs.parent["sha256"],
            "groups_sha256": hashlib.sha256(names.encode()).hexdigest()}


def own_functions(settings: TrainOptions) -> dict[str, UserFunction]:
    """The user's functions by what they replace: `advantages`, `loss`."""
    own = {"advantages": settings.advantages and load_function(settings.advantages, OPTION),
           "loss": find_loss(settings.loss).own}
    return {name: user for name, user in own.items() if user}


def mismatch_floor(warehouse: Warehouse, iteration: int) -> float | None:
    """Mean k3 KL of iteration 0, which has no adapter to mix up: the rounding error; None if unknown."""
    facts = warehouse.stage("train", iteration=0).facts() if iteration else None
    lines = facts.get("mismatch", []) if facts else []
    fresh = [line["mismatch_kl"] for line in lines if line["staleness"] == 0 and line["num_tokens"]]
    return fresh[0] if fresh else None


def finish_committed(warehouse: Warehouse, inputs: Inputs, settings: TrainOptions) -> bool:
    """Complete a stage that was killed after its policy was written; False if it was not."""
    if inputs.stage.life is None:
        return False
    begin(inputs, settings)
    folder = warehouse.new_policy_dir(inputs.iteration)
    ensure_local([folder / "policy.json"])
    policy = read_json(folder / "policy.json", facts=dict)
    if policy is None or not warehouse.parts("train_steps", iteration=inputs.iteration):
        return False
    complete_stage(inputs, {**policy["facts"], "seconds": {}})
    return True


def complete_stage(inputs: Inputs, facts: dict[str, Any]) -> None:
    """Remove the stage's checkpoints now that its policy is committed; write its manifest last."""
    folder = inputs.stage.folder
    for name in {name.partition("/")[0] for name in file_names(folder, "checkpoint-*")}:
        remove_folder(folder / name)
    inputs.stage.complete(facts)


def _load_turns(warehouse: Warehouse, iteration: int, scorer: str, settings: TrainOptions,
               base: str = "train") -> list[Group]:
    groups = []
    for purpose in warehouse.state.turns(iteration, base) or [base]:
        turn = turn_of(purpose)
        if settings.turns and turn not in settings.turns:
            continue
        rollout = warehouse.state.life("rollout", iteration, purpose)
        if rollout and rollout.pruned:
            way_out = ("A smaller --replay leaves it out." if settings.replay
                       else "A branch without --with-rows samples it again.")
            raise StageError(f"The tokens of iteration {iteration} were pruned; it cannot be trained on "
                             f"again. {way_out}")
        if scorer not in warehouse.state.scorers(iteration, purpose):
            raise StageError(f"The turns {turn} of iteration {iteration} are not scored by {scorer}: run "
                             f"`rollout {shell_quote(warehouse.root)} --turn {turn}` to its end and `score "
                             f"{shell_quote(warehouse.root)}`, or train on others with --turns.")
        groups += load_groups(warehouse, iteration, scorer, purpose=purpose, alone=not needs_groups(settings),
                              truncated_sampling=settings.truncated_sampling)
    return groups


def _unscored(warehouse: Warehouse, iteration: int, purpose: str) -> StageError:
    if not warehouse.stage("rollout", iteration=iteration, purpose=purpose).is_complete():
        of = "training rollout" if purpose == "train" else f"rollout of purpose {purpose}"
        return StageError(f"Iteration {iteration} has no complete {of}. Run `rollout "
                          f"{shell_quote(warehouse.root)}{sampled_by(purpose)} --iteration {iteration}` "
                          "and then `score` first.")
    return StageError(f"The rows of purpose {purpose} of iteration {iteration} are not scored. "
                      f"Run `score {shell_quote(warehouse.root)} --iteration {iteration}` first.")


def _check_parent(parent: dict[str, Any], settings: TrainOptions) -> None:
    version, kind = parent["policy_version"], "full" if settings.full else "lora"
    if parent["kind"] not in ("base", kind):
        way = "with" if parent["kind"] == "full" else "without"
        raise StageError(f"Policy {version} is of kind '{parent['kind']}'. "
                         f"Train {way} --full, or start a new run.")
    stored = parent.get("settings", {})
    for key in ("lora_rank", "lora_alpha", "rslora", "lora_targets") if parent["kind"] == "lora" else ():
        if key in stored and stored[key] != getattr(settings, key):
            raise StageError(f"The adapter of policy {version} has {key.replace('_', '-')} = {stored[key]}, "
                             f"now it is {getattr(settings, key)}. An adapter keeps its shape for the whole "
                             "run: pass the former value, or start a new run.")


def _check_policies_of(group: Group, warehouse: Warehouse, iteration: int) -> None:
    rollout = warehouse.state.life("rollout", group.iteration, group.purpose)
    shared = rollout.shared if rollout else None
    for version, sha256 in group.policies.items():
        if sha256 is None or (shared is not None and version > shared):     # of the run it branched off
            continue
        if version > iteration:
            raise StageError(f"Group {group.group_id} was sampled by policy {version}, later than policy "
                             f"{iteration} that this stage starts from. Train the iteration that follows it.")
        if version not in warehouse.state.versions:
            continue    # pruned: only rows of the trained policy can be checked
        expected = warehouse.policy(version)["sha256"]
        if sha256 != expected:
            raise StageError(f"Group {group.group_id} was sampled by other weights than policy {version} "
                             f"holds (sha256 {sha256[:12]}, not {expected[:12]}). Roll the iteration out "
                             "again.")
