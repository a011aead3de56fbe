"""The optimizer steps of a stage: gradients, checks, update, checkpoint; and the learning rate of each."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from train.inputs.options import TrainOptions
from train.inputs.settings import asks_base
from train.model.policy import Policy
from train.model.sharding import local
from train.objective.correction import clamp_log_ratio, effective_sample_size, k3
from train.steps.accelerator import Processes
from train.steps.checkpoint import Checkpoints
from train.steps.gradients import accumulate
from train.steps.logprob_pass import STEP_COLUMNS, collect, hand_out
from train.steps.row import UNKNOWN, Row, RowGroup, forwardable, has_gradient, plan_step
from warehouse.stages.clock import bar_options
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError, first_line
from warehouse.store.run_folder import Stage


@dataclass
class Learner:
    """What the steps of a stage work on, in one process."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    batch: list[RowGroup]
    plan: list[list[int]]           # groups of each step
    checkpoints: Checkpoints
    processes: Processes
    settings: TrainOptions
    stage: Stage
    global_step: int                # optimizer steps before this stage
    rate: float                     # factor of the learning rate, by the run's rollbacks
    online: bool                    # a single step: pi_old comes from its own forward

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.policy.trainable().values())


def take_steps(learner: Learner, *, stop: StopRequest, before_update: Callable[[], None],
               log: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Metrics of every step from the latest checkpoint on; StageStopped on a request to stop, all saved."""
    steps, tokens = learner.checkpoints.restore(learner.policy, learner.optimizer)
    hand_out(forwardable(learner.batch), tokens)
    saved, saved_at, first = len(steps), time.monotonic(), learner.processes.first
    if saved:
        say(f"continues after step {saved} of {len(learner.plan)}")
    for step, groups in enumerate(learner.plan[:saved]):
        plan_step(learner.batch, groups, step, learner.settings)
        log(steps[step])        # what a tracker got after the checkpoint is overwritten
    for step in tqdm(range(saved, len(learner.plan)), desc="steps", unit="step", disable=not first,
                     leave=False, **bar_options()):
        try:
            metrics = take_step(learner, step, stop, before_update)
        except (RuntimeError, MemoryError):     # the accelerator or its memory failed: keep the steps before
            if learner.processes.count == 1 and len(steps) > saved:
                save_steps(learner, steps)
            raise
        if metrics is not None:
            steps.append(metrics)
            log(metrics)
        saving = time.monotonic() - saved_at >= learner.settings.checkpoint_seconds
        stopping, due = map(any, zip(*learner.processes.gather([(stop.due(), saving)]), strict=True))
        if len(steps) > saved and len(steps) < len(learner.plan) and (due or stopping):
            save_steps(learner, steps)
            saved, saved_at = len(steps), time.monotonic()
        if stopping and len(steps) < len(learner.plan):
            raise StageStopped(f"Stopped because {stop.reason}, with {len(steps)} of {len(learner.plan)} "
                               "steps taken and saved. Run the same command again to continue.")
    return steps


def save_steps(learner: Learner, steps: list[dict[str, Any]]) -> None:
    learner.checkpoints.save(len(steps), learner.policy, learner.optimizer, steps,
                             collect(learner.batch, STEP_COLUMNS))


def take_step(learner: Learner, step: int, stop: StopRequest,
              before_update: Callable[[], None]) -> dict[str, Any] | None:
    """Metrics of one step; None if a stop was requested, or if its forward shows no gradient."""
    started = time.perf_counter()
    settings, processes, policy = learner.settings, learner.processes, learner.policy
    groups = learner.plan[step]
    parameters = list(policy.trainable().values())
    while True:
        total_tokens = plan_step(learner.batch, groups, step, settings)
        loss = accumulate(policy, learner.batch, groups, processes, settings, online=learner.online,
                          interrupted=lambda: processes.count == 1 and stop.due())
        if loss is None:
            learner.optimizer.zero_grad()
            return None
        grad_norm = _reduce_gradients(policy, parameters, processes, settings)
        if math.isfinite(grad_norm):
            break
        learner.optimizer.zero_grad()
        if not policy.lower_loss_scale():
            raise StageError(f"The gradient of step {step} is not a finite number; nothing of it was "
                             "applied. Lower --learning-rate, or train with --dtype float32; before that, "
                             f"{learner.stage.way_to_discard()}.")
    if learner.online:
        before_update()
        if not learner.plan:        # its own forward has shown that nothing has a gradient
            learner.optimizer.zero_grad()
            return None
    rows = [row for index in groups for row in learner.batch[index].rows]
    rate = learning_rate(learner.global_step + step, settings) * learner.rate
    for parameter_group in learner.optimizer.param_groups:
        parameter_group["lr"] = rate
    if skipped := grad_norm == 0:      # AdamW would still move by its moments and weight decay
        learner.optimizer.zero_grad()
    else:
        _update(learner, step)
    return {"optimizer_step": step, "global_step": learner.global_step + step + 1, "grad_norm": grad_norm,
            "learning_rate": rate, "num_groups": len(groups), "num_completions": len(rows),
            "num_trainable_tokens": total_tokens, "loss": sum(processes.gather([loss])),
            **_metrics(rows, total_tokens, settings), "skipped": skipped,
            "seconds": time.perf_counter() - started}


def check_schedule(learner: Learner, say: Callable[[str], None]) -> None:
    """StageError if the schedule has ended before this stage; a line if it ends within it."""
    settings, first, count = learner.settings, learner.global_step, len(learner.plan)
    last = settings.total_steps
    if settings.schedule == "constant" or not count or last is None or first + count <= last:
        return
    if first >= last:
        raise StageError(f"The {settings.schedule} schedule ended at --total-steps {last}, and {first} steps "
                         "are taken: the learning rate would be 0. Raise --total-steps.")
    say(f"the learning rate reaches 0 at step {last}; the stage continues to {first + count}")


def learning_rate(global_step: int, settings: TrainOptions) -> float:
    """Learning rate of a step counted from 0 over the whole run: linear warmup, then the schedule."""
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if global_step < warmup:
        return peak * (global_step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return peak
    assert settings.total_steps is not None
    progress = min(1.0, (global_step - warmup) / max(1, settings.total_steps - warmup))
    return peak * (1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)


@torch.no_grad()
def _reduce_gradients(policy: Policy, parameters: list[torch.nn.Parameter], processes: Processes,
                      settings: TrainOptions) -> float:
    """Sum the gradients over processes, undo the loss scale, clip; return the norm before clipping."""
    processes.sum_gradients(parameters)
    if policy.loss_scale != 1:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= policy.loss_scale
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if policy.shards:
        norm = torch.tensor(processes.gather([float(norm)]), dtype=torch.float64).norm().float()
    if settings.max_grad_norm:
        torch._foreach_mul_(gradients, (settings.max_grad_norm / (norm + 1e-6)).clamp(max=1))
    return float(norm)


def _update(learner: Learner, step: int) -> None:
    """Apply the gradients. A failure leaves half an update: the StageError prevents that it is saved."""
    try:
        learner.optimizer.step()
    except (RuntimeError, MemoryError) as error:
        raise StageError(f"The update of step {step} failed: {first_line(error)}. Run the same "
                         "command again; it continues from the last checkpoint.") from error
    learner.optimizer.zero_grad()
    finite = all(bool(local(value).isfinite().all()) for value in learner.policy.trainable().values())
    if not all(learner.processes.gather([finite])):
        raise StageError(f"After step {step} the policy has weights that are not finite. Lower "
                         f"--learning-rate; before that, {learner.stage.way_to_discard()}.")


def _metrics(rows: list[Row], total_tokens: int, settings: TrainOptions) -> dict[str, Any]:
    """What a step's rows, of all processes, say of it: means over the tokens with a gradient.

    `ess` (of pi_old / mu, None without mu) and `entropy` (of pi_old) are over all trainable tokens.
    """
    moving = [row for row in rows if has_gradient(row, settings)]
    trainable = [row for row in rows if row.trainable]

    def joined(some: list[Row], value: Callable[[Row], Tensor]) -> Tensor:
        return torch.cat([UNKNOWN, *map(value, some)])

    drift = clamp_log_ratio(joined(moving, lambda row: row.log_drift)).double()
    gap = joined(moving if asks_base(settings) else [],
                 lambda row: row.log_drift + row.old_logprobs - row.ref_logprobs).double()
    known = not any(math.isnan(mu) for row in trainable for mu in row.rollout.behaviour_logprobs[:1])
    entropy, count = joined(trainable, lambda row: row.entropy), max(len(drift), 1)
    return {"clip_fraction": float(joined(moving, lambda row: row.clipped).sum()) / max(total_tokens, 1),
            "policy_kl": float(k3(drift).sum()) / count, "policy_k2": float(drift.square().sum()) / 2 / count,
            "policy_ess": effective_sample_size(joined(moving, lambda row: row.log_drift + row.log_ratio)),
            "ratio_max": float(drift.exp().max()) if len(drift) else 0.0, "num_forwarded_tokens": len(drift),
            "base_kl": float(k3(-gap).mean()) if len(gap) else None,
            "base_log_ratio": float(gap.mean()) if len(gap) else None,
            "ess": effective_sample_size(joined(trainable, lambda row: row.log_ratio)) if known else None,
            "entropy": float(entropy.double().mean()) if len(entropy) else 0.0}
