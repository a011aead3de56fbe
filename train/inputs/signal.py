"""Which completions have no gradient, according to their rewards: known before torch loads."""

import math
from collections import Counter
from collections.abc import Collection

from train.inputs.groups import Rollout
from train.inputs.inputs import Inputs
from train.inputs.options import TrainOptions
from train.objective.loss_table import find_loss
from warehouse.store.errors import StageError, shell_quote

LEFT_OUT = ("empty", "truncated", "not_right")      # their tokens are outside of the loss mask
WEIGHED_OUT = ("importance_mask", "vetoed")         # their tokens are in the mask, with weight 0
WAITING = "waiting"                                 # a later iteration trains on them


class NoGradient(StageError):
    """No completion of an iteration has a gradient; `drops` counts the reasons."""

    def __init__(self, inputs: Inputs, reasons: Collection[str | None], purpose: str) -> None:
        self.drops = Counter(reason for reason in reasons if reason)
        rollouts = [rollout for group in inputs.groups for rollout in group.rollouts]
        right, cut = (sum(getattr(each, name) for each in rollouts) for name in ("correct", "truncated"))
        run = inputs.stage.warehouse.root
        keep = "write the policy unchanged with --keep-if-nothing."
        if self.drops.keys() & {*WEIGHED_OUT}:
            way_out = ("The bounds of --correction and --veto drop all that had one: choose "
                       f"others, or {keep}")
        elif rollouts and not right and inputs.iteration > 0:
            way_out = (f"None of {len(rollouts)} is right and {cut} are cut off. If earlier policies solved "
                       f"such tasks, this is a collapse: `warehouse watch {shell_quote(run)}` names the "
                       f"policy to go back to. Else the tasks are too hard: roll out others, or {keep}")
        else:
            way_out = (f"Roll out more or other tasks (after `warehouse discard {shell_quote(run)} "
                       f"--iteration {inputs.iteration} --purpose {purpose}`), or {keep}")
        super().__init__(f"No completion of iteration {inputs.iteration} has a gradient: "
                         f"{listed(self.drops)}. {way_out}")


def check_signal(inputs: Inputs, settings: TrainOptions) -> None:
    """NoGradient if the rewards within each group are equal and no other term has a gradient."""
    if (settings.advantages or settings.teacher or settings.until_signal or settings.keep_if_nothing
            or settings.dry_run or settings.track):     # these report more before they end
        return
    reasons = reasons_by_reward(inputs, settings)
    if all(reasons):
        raise NoGradient(inputs, reasons, settings.purpose)


def reasons_by_reward(inputs: Inputs, settings: TrainOptions) -> list[str | None]:
    """For each completion, why its reward gives no gradient; None if it gives one, or may."""
    reasons: list[str | None] = []
    for group in inputs.groups:
        rewards = {rollout.reward for rollout in group.rollouts if not math.isnan(rollout.reward)}
        reasons += [drop_reason(rollout, settings, has_advantage=find_loss(settings.loss).correct_only or (
            len(rewards) > 1 and not math.isnan(rollout.reward))) for rollout in group.rollouts]
    return reasons


def drop_reason(rollout: Rollout, settings: TrainOptions, *, has_advantage: bool) -> str | None:
    """Why a completion gives no gradient; None if it gives one."""
    if not len(rollout.completion_ids):
        return "empty"
    if settings.mask_truncated and rollout.truncated:
        return "truncated"
    if find_loss(settings.loss).correct_only and not rollout.correct:
        return "not_right"
    if math.isnan(rollout.reward) and not has_advantage and not (settings.kl_beta or settings.entropy_coef):
        return "missing_reward"
    return None if has_advantage or has_other_terms(settings) else "zero_variance"


def has_other_terms(settings: TrainOptions) -> bool:
    """Whether the loss may have a term that needs no advantage: a KL, an entropy bonus, one of the user's."""
    return bool(settings.kl_beta or settings.entropy_coef or find_loss(settings.loss).own)


def listed(drops: Counter[str]) -> str:
    """How many completions give no gradient, by reason, in words."""
    return ", ".join(f"{number} {reason}" for reason, number in drops.most_common()) or "none"
