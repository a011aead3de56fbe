"""What a stage will do with its rows, known before a model is loaded: steps, postponed rows, or nothing."""

import json
from collections.abc import Callable

import torch

from train.inputs.asked import teacher_advantages
from train.inputs.inputs import Inputs, stage_settings
from train.inputs.options import TrainOptions
from train.inputs.own_advantages import own_advantages
from train.inputs.signal import WAITING, NoGradient
from train.steps.accelerator import Processes
from train.steps.batch import build_batch, split_into_steps
from train.steps.checkpoint import Checkpoints
from train.steps.mismatch import group_counts
from train.steps.row import RowGroup
from warehouse.store.errors import counted

MOST_ROLLOUTS = 5           # with this many, --until-signal trains in any case


def plan_batch(inputs: Inputs, settings: TrainOptions, checkpoints: Checkpoints, processes: Processes,
               say: Callable[[str], None]) -> tuple[list[RowGroup], list[list[int]]]:
    """The rows and their split into steps; NoGradient, before a model is loaded, if none has a gradient."""
    batch = build_batch(inputs.groups, inputs.iteration, settings,
                        advantages_given(inputs, settings, checkpoints, processes))
    wait_for_signal(inputs, batch, settings, say)
    nothing = has_nothing(inputs, batch, settings)
    plan = [] if nothing else split_into_steps(batch, settings, seed=f"{settings.seed}:{inputs.iteration}")
    if plan and settings.updates_per_batch and settings.updates_per_batch > len(plan):
        say(f"{counted(len(plan), 'optimizer step')} of {counted(len(batch), 'group')}, fewer than "
            f"--updates-per-batch {settings.updates_per_batch}: a step takes whole groups")
    return batch, plan


def advantages_given(inputs: Inputs, settings: TrainOptions, checkpoints: Checkpoints,
                     processes: Processes) -> list[torch.Tensor] | None:
    """The advantages from --teacher or --advantages; those of --advantages are saved for a resumed stage."""
    if settings.teacher:
        said = teacher_advantages(checkpoints.warehouse, inputs.groups, settings.teacher)
        return [torch.tensor(value, dtype=torch.float32) for value in said]
    name = settings.advantages
    if name is None:
        return None
    stored = stored_logprobs(inputs, settings, checkpoints) or {}
    if "advantages" in stored:
        lengths = [len(rollout.completion_ids) for group in inputs.groups for rollout in group.rollouts]
        return list(stored["advantages"].split(lengths))
    ages = [inputs.iteration - group.policy_version for group in inputs.groups]
    given = processes.by_first(lambda: own_advantages(name, inputs.groups, ages))
    return [torch.tensor(value, dtype=torch.float32) for value in given]


def stored_logprobs(inputs: Inputs, settings: TrainOptions,
                    checkpoints: Checkpoints) -> dict[str, torch.Tensor] | None:
    """The logprobs of all rows in the stage's first checkpoint; None if there is none.

    A dry run may have other settings than the stage; then the checkpoint has other rows or another dtype.
    """
    now, before = stage_settings(inputs, settings), inputs.stage.settings() or {}
    other = settings.dry_run and json.loads(json.dumps(now)) != before
    return None if other else checkpoints.logprobs()


def wait_for_signal(inputs: Inputs, batch: list[RowGroup], settings: TrainOptions,
                    say: Callable[[str], None]) -> None:
    """Postpone the rows if too few groups have a signal and fewer than MOST_ROLLOUTS wait already.

    The unchanged policy then samples the next iteration: DAPO's dynamic sampling (arXiv 2503.14476), one
    rollout at a time.
    """
    wanted, signal = settings.until_signal or 0, group_counts(batch)["mixed"]
    if signal >= wanted or len(inputs.waiting) + 1 >= MOST_ROLLOUTS:
        return
    for row in (row for group in batch for row in group.rows):
        row.drop_reason = WAITING
    say(f"{signal} of {len(batch)} groups have a signal, fewer than --until-signal {wanted}: no update; "
        f"iteration {inputs.iteration + 1} samples with the same policy")


def has_nothing(inputs: Inputs, batch: list[RowGroup], settings: TrainOptions) -> bool:
    """Whether every completion is known to give no gradient; NoGradient unless the stage may go on so."""
    reasons = [row.drop_reason for group in batch for row in group.rows]
    if all(reasons) and not (settings.keep_if_nothing or settings.dry_run or WAITING in reasons):
        raise NoGradient(inputs, reasons, settings.purpose)
    return all(reasons)
