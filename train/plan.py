"""What a stage does with its rows, known before a model is loaded: steps, rows put off, or nothing to do."""

import json
from collections.abc import Callable

import torch

from train.finish import WAITING, is_waiting
from train.inputs.asked import teacher_advantages
from train.inputs.inputs import Inputs, stage_settings
from train.inputs.options import TrainOptions
from train.inputs.own_advantages import own_advantages
from train.inputs.signal import NoGradient
from train.steps.accelerator import Processes
from train.steps.batch import build_batch, split_into_steps
from train.steps.checkpoint import Checkpoints
from train.steps.mismatch import group_counts
from train.steps.row import RowGroup
from warehouse.store.errors import counted

MOST_ROLLOUTS = 5           # that --until-signal gathers before it trains on what there is


def plan_batch(inputs: Inputs, settings: TrainOptions, checkpoints: Checkpoints, processes: Processes,
               say: Callable[[str], None]) -> tuple[list[RowGroup], list[list[int]]]:
    """The rows and their split into steps; NoGradient, before a model is loaded, if none has a gradient."""
    batch = build_batch(inputs.groups, inputs.iteration, settings,
                        advantages_given(inputs, settings, checkpoints, processes))
    wait_for_signal(inputs, batch, settings, say)
    nothing = has_nothing(batch)
    if nothing and not (settings.keep_if_nothing or settings.dry_run or is_waiting(batch)):
        raise no_gradient(inputs, batch, settings.purpose)
    plan = [] if nothing else split_into_steps(batch, settings, seed=f"{settings.seed}:{inputs.iteration}")
    if plan and settings.updates_per_batch and settings.updates_per_batch > len(plan):
        say(f"{counted(len(plan), 'optimizer step')} of {counted(len(batch), 'group')}, fewer than "
            f"--updates-per-batch {settings.updates_per_batch}: a step takes whole groups")
    return batch, plan


def advantages_given(inputs: Inputs, settings: TrainOptions, checkpoints: Checkpoints,
                     processes: Processes) -> list[torch.Tensor] | None:
    """What --teacher or --advantages gives the rows; the latter is kept for a stage that goes on."""
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
    """What the stage's first checkpoint holds of all rows; None if there is none.

    A dry run may have other settings than the stage, whose checkpoint is of other rows or another dtype then.
    """
    now, before = stage_settings(inputs, settings), inputs.stage.settings() or {}
    other = settings.dry_run and json.loads(json.dumps(now)) != before
    return None if other else checkpoints.logprobs()


def wait_for_signal(inputs: Inputs, batch: list[RowGroup], settings: TrainOptions,
                    say: Callable[[str], None]) -> None:
    """Put the rows off where too few groups have a signal and fewer than MOST_ROLLOUTS wait already.

    The policy is then passed on unchanged and the next iteration samples on with it: DAPO's dynamic sampling
    (arXiv 2503.14476), a rollout at a time.
    """
    wanted, signal = settings.until_signal or 0, group_counts(batch)["mixed"]
    if signal >= wanted or len(inputs.waiting) + 1 >= MOST_ROLLOUTS:
        return
    for row in (row for group in batch for row in group.rows):
        row.drop_reason = WAITING
    say(f"{signal} of {len(batch)} groups have a signal, fewer than --until-signal {wanted}: the policy is "
        f"passed on unchanged, and iteration {inputs.iteration + 1} samples on with it")


def has_nothing(batch: list[RowGroup]) -> bool:
    """Whether every completion is known to give no gradient."""
    return all(row.drop_reason for group in batch for row in group.rows)


def no_gradient(inputs: Inputs, batch: list[RowGroup], purpose: str) -> NoGradient:
    """What is raised where no completion has a gradient, with what the forward has shown."""
    return NoGradient(inputs, [row.drop_reason for group in batch for row in group.rows], purpose)
