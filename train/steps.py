"""One optimizer step: gradients of every group with signal, summed over processes, clipped, applied."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.accelerator import Processes
from train.correction import clamp_log_ratio, effective_sample_size, k3, off_policy_masked
from train.losses import LOSSES, importance_ratio, kl_to_reference, token_losses
from train.model import Policy
from train.settings import Settings
from train.shard import Row, RowGroup, has_gradient, plan_step
from train.shared_prompt import backward_group, score_group


class StepSums:
    """Sums over the tokens of one step, added up by its micro-batches."""

    def __init__(self) -> None:
        self.sums = torch.zeros(6, dtype=torch.float64)     # loss, tokens, clipped, policy_kl, k2, entropy
        self.ratio_max = torch.zeros(1, dtype=torch.float64)

    def add(self, loss: Tensor, log_ratio: Tensor, clipped: Tensor, entropy: Tensor, mask: Tensor) -> None:
        """Add one micro-batch: its loss, and [B, T] tensors over the mask."""
        ratio = (clamp_log_ratio(log_ratio) * mask).double()
        totals = [loss.double(), mask.sum(), (clipped * mask).sum(), (k3(ratio) * mask).sum(),
                  (ratio.square() / 2 * mask).sum(), (entropy * mask).sum()]
        self.sums += torch.stack([total.detach().double().cpu() for total in totals])
        self.ratio_max = torch.maximum(self.ratio_max, ratio.max().exp().cpu())


def score_shard(policy: Policy, shard: list[RowGroup], processes: Processes, settings: Settings, *,
                progress: Callable[[int], Any]) -> list[tuple[int, list[Tensor], list[Tensor]]]:
    """(group, logprobs, entropies) of the forwardable rows of every group, under the policy as it is."""
    costs = [group_cost(one) for one in shard]
    mine = share(list(range(len(shard))), costs, processes)
    found = []
    for index in mine:
        one, rows = shard[index], shard[index].forwardable
        if rows:
            logprobs, entropies = score_group(
                policy, one.prompt_ids.to(policy.device),
                [row.completion_ids.to(policy.device) for row in rows],
                temperature=one.group.temperature, token_budget=settings.tokens_per_batch)
            found.append((index, [values.cpu() for values in logprobs],
                          [values.cpu() for values in entropies]))
        progress(1)
    return processes.gather(found)


def take_step(policy: Policy, optimizer: torch.optim.Optimizer, shard: list[RowGroup], groups: list[int],
              step: int,
              processes: Processes, settings: Settings, *, learning_rate: float,
              interrupted: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
    """Take one optimizer step over `groups`; its metrics, or None if interrupted before it was applied.

    Denominators are those of all rows of the step, so it does not matter which process forwards which group,
    how rows are packed, or that rows without gradient are left out.
    """
    started = time.perf_counter()
    total_tokens = plan_step(shard, groups, step, settings)
    sums = StepSums()
    active = [index for index in groups if any(has_gradient(row, settings) for row in shard[index].rows)]
    for index in share(active, [group_cost(shard[index]) for index in active], processes):
        if processes.count == 1 and interrupted():
            optimizer.zero_grad()
            return None
        _backward(policy, shard[index], total_tokens, sums, settings)
    parameters = list(policy.trainable().values())
    processes.sum_gradients(parameters)
    grad_norm = torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm or float("inf"))
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()
    metrics = _metrics(sums, processes, [row for index in groups for row in shard[index].rows])
    return {"optimizer_step": step, "grad_norm": float(grad_norm), "learning_rate": learning_rate,
            "num_groups": len(groups), "num_trainable_tokens": total_tokens, **metrics,
            "seconds": time.perf_counter() - started}


def group_cost(one: RowGroup) -> int:
    """Tokens that the group's forward takes."""
    return len(one.prompt_ids) + sum(len(row.completion_ids) for row in one.rows)


def share(groups: list[int], costs: list[int], processes: Processes) -> list[int]:
    """The groups of this process: the costliest first, each to the process with the least work so far."""
    loads = [0] * processes.count
    mine = []
    for index, cost in sorted(zip(groups, costs, strict=True), key=lambda pair: (-pair[1], pair[0])):
        target = loads.index(min(loads))
        loads[target] += cost
        if target == processes.index:
            mine.append(index)
    return mine


def learning_rate(global_step: int, settings: Settings) -> float:
    """Learning rate of a step counted from 0 over the whole run: linear warmup, then the schedule."""
    import math
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if global_step < warmup:
        return peak * (global_step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return peak
    assert settings.total_steps is not None
    progress = min(1.0, (global_step - warmup) / max(1, settings.total_steps - warmup))
    return peak * (1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)


def _backward(policy: Policy, one: RowGroup, total_tokens: int, sums: StepSums, settings: Settings) -> None:
    rows = [row for row in one.rows if has_gradient(row, settings)]

    def rows_loss(indices: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
        chosen = [rows[index] for index in indices]
        loss, clipped, mask, old = step_loss(chosen, logprobs, entropy, total_tokens, settings)
        sums.add(loss.detach(), (logprobs - old).detach(), clipped, entropy, mask)
        return loss

    backward_group(policy, one.prompt_ids.to(policy.device),
                   [row.completion_ids.to(policy.device) for row in rows],
                   rows_loss, temperature=one.group.temperature, token_budget=settings.tokens_per_batch)


def step_loss(rows: list[Row], logprobs: Tensor, entropy: Tensor, total_tokens: int,
              settings: Settings) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the rows add to the loss of the step; and clipped, mask and old logprobs, [B, T]."""
    def padded(values: list[Tensor]) -> Tensor:
        return pad_sequence(values, batch_first=True).to(logprobs.device)

    behaviour = padded([row.behaviour_logprobs for row in rows])
    old = behaviour if settings.correction == "bypass" else padded([row.old_logprobs for row in rows])
    mask = padded([torch.ones(len(row.completion_ids)) for row in rows])
    advantages = torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=logprobs.device)
    scales = torch.tensor([row.scale for row in rows], dtype=torch.float32, device=logprobs.device)
    spec = LOSSES[settings.loss]
    low = spec.clip_low if settings.clip_low is None else settings.clip_low
    high = spec.clip_high if settings.clip_high is None else settings.clip_high
    per_token, clipped = token_losses(settings.loss, logprobs, old, behaviour, advantages, mask, clip_low=low,
                                      clip_high=high, delta=settings.delta, level=spec.level)
    per_token = per_token * padded([row.kept for row in rows])
    if not spec.corrects_itself:
        per_token = per_token * padded([row.weights for row in rows])
    if settings.off_policy_threshold is not None:
        dropped = off_policy_masked(logprobs, behaviour, advantages, mask,
                                    threshold=settings.off_policy_threshold)
        per_token = per_token * ~dropped[:, None]
    if settings.kl_beta:
        ratio = importance_ratio(logprobs, old, mask, level=spec.level) if settings.kl_ratio else None
        reference = padded([row.ref_logprobs for row in rows if row.ref_logprobs is not None])
        per_token = per_token + settings.kl_beta * kl_to_reference(logprobs, reference, ratio)
    loss = ((per_token * mask).sum(dim=1) * scales).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * (entropy * mask).sum() / max(total_tokens, 1)
    return loss, clipped, mask, old


def _metrics(sums: StepSums, processes: Processes, rows: list[Row]) -> dict[str, Any]:
    totals = processes.sum(sums.sums).tolist()
    loss, tokens = totals[0], max(totals[1], 1)
    weights = [row.weights for row in rows if row.trainable]
    return {"loss": loss, "clip_fraction": totals[2] / tokens, "policy_kl": totals[3] / tokens,
            "policy_k2": totals[4] / tokens, "entropy": totals[5] / tokens,
            "ratio_max": float(processes.max(sums.ratio_max)), "num_forwarded_tokens": int(totals[1]),
            "num_completions": len(rows),
            "ess": effective_sample_size(torch.cat(weights)) if weights else 0.0}
