"""The scorer that options name, and reasons to stop `score`: nothing to do, a signal, an untrusted part."""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from score.display import Progress
from score.options import LaneOptions, LimitOptions, RewardOptions
from score.protocol.error_classes import ErrorClass
from score.rewards.named import check_kinds, default_reward
from score.rewards.scorer import Scorer
from score.sandbox.program import Outcome
from score.tasks.graded import IN_GRADER
from score.tasks.kinds import graders_of
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.stages.user_code import load_function
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError, shell_quote
from warehouse.store.names import is_of, sampled_by
from warehouse.store.run_folder import Warehouse

MAX_UNSCORED_SHARE = 0.01       # of a part's rows; above this the machine is broken
MAX_UNTESTABLE_SHARE = 0.2      # above this the tasks are wrong


def scorer_of(reward: RewardOptions, limits: LimitOptions, lanes: LaneOptions,
              tasks: Collection[tuple[str, Any]],
              replaced: Mapping[str, str]) -> tuple[Scorer, tuple[str, ...]]:
    """The scorer of tasks (kind and payload each), and the modules that their graders need in the lanes.

    StageError where a grader is missing or the reward does not fit the kinds of tasks.
    """
    graders, kinds = graders_of(tasks, lanes.import_path), {kind for kind, _payload in tasks}
    own = load_function(reward.reward_file, "--reward-file") if reward.reward_file else None
    if not own:
        check_kinds(reward.reward, kinds)
    imports = tuple(sorted(lanes.allow_import))
    return Scorer(reward.reward or default_reward(kinds), limits.limits, imports, own, graders.versions,
                  replaced), graders.modules


def check_any_scored(warehouse: Warehouse, scorer: str, purpose: str | None) -> None:
    """Raise StageError if there are no completions to score, StageStopped if a rollout is still under way."""
    rollouts = [(iteration, name) for iteration in warehouse.state.iterations("rollout")
                for name in warehouse.state.purposes(iteration) if is_of(name, purpose)]
    due = warehouse.state.due()
    is_under_way = (due.stage == "rollout" and (due.iteration, due.purpose) in rollouts) or any(
        (life.iteration, life.purpose) in rollouts for life in warehouse.state.reopened
        if life.stage == "rollout")
    if not is_under_way and any(scorer in warehouse.state.scorers(*rollout) for rollout in rollouts):
        return
    missing = (f"{by_address(str(warehouse.root))} has no completions"
               f"{f' of purpose {purpose}' if purpose else ''} to score")
    if rollouts:
        raise StageStopped(f"{missing} yet: the rollout is under way. Run `score` again once it is done.")
    options = sampled_by(purpose or "train")
    raise StageError(f"{missing}. Run `rollout {shell_quote(warehouse.root)}{options}` first.")


def check_stop(stop: StopRequest, progress: Progress, part: Path | None = None) -> None:
    """StageStopped after a request to stop: between parts at once, inside `part` after the grace period."""
    if stop.due() if part else stop.asked():
        dropped = f" and {part.name} dropped" if part else ""
        raise StageStopped(f"Stopped because {stop.reason}, with {progress.num_done} of {progress.num_parts} "
                           f"parts scored{dropped}. Run the same command again to go on.")


def check_unscored(outcomes: list[Outcome], path: Path) -> None:
    """StageError when too many programs of a part have no verdict, for want of machine or tests."""
    without = [outcome for outcome in outcomes if outcome.infrastructure]
    untestable = [outcome for outcome in without if outcome.error_class == ErrorClass.UNTESTABLE]
    failed = [outcome for outcome in without if outcome.error_class != ErrorClass.UNTESTABLE]
    of_all = f"of {len(outcomes)} programs of {path.name}"
    if len(untestable) > max(1, MAX_UNTESTABLE_SHARE * len(outcomes)):
        words = str(untestable[0].error_message)
        what, fault, correct = (("grader", "grader", "it") if words.startswith(IN_GRADER) else
                                ("tests", "tasks", "them (`warehouse tasks replace`)"))
        raise StageError(f"The {what} of {len(untestable)} {of_all} cannot be run ({words}). That is the "
                         f"{fault} and neither the programs nor this machine, so the part was not written: "
                         f"correct {correct}, then run `score` again.")
    if len(failed) > max(1, MAX_UNSCORED_SHARE * len(outcomes)):
        counts = Counter(str(outcome.error_class) for outcome in failed)
        classes = ", ".join(f"{count} x {name}" for name, count in counts.items())
        raise StageError(f"{len(failed)} {of_all} could not be run ({classes}; {failed[0].error_message}). "
                         "That is this machine and not the programs, so the part was not written: free "
                         "memory or processes, then run `score` again.")
