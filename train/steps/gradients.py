"""Gradients of one optimizer step: the loss of stored rows, group by group, added up in the parameters."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from train.inputs.options import TrainOptions
from train.inputs.settings import asks_base
from train.model.packs import PromptGroup
from train.model.policy import Policy
from train.model.shared_prompt import backward_pack
from train.objective.correction import off_policy_mask
from train.objective.loss_table import find_loss
from train.objective.losses import importance_ratio, kl_to_reference, token_losses
from train.steps.accelerator import Processes
from train.steps.logprob_pass import Place, exchange, in_step, packs_to_forward
from train.steps.row import Row, RowGroup, has_gradient, weigh_rows


def accumulate(policy: Policy, batch: list[RowGroup], groups: list[int], processes: Processes,
               settings: TrainOptions, *, online: bool, interrupted: Callable[[], bool]) -> float | None:
    """Add the gradients of this process's part of the step; return its part of the loss, None if interrupted.

    With `online` the policy is pi_old: the old logprobs are those of this forward. Rows without gradient are
    skipped, which changes nothing: the denominators count them.
    """
    losses, forwarded, budget = list[Tensor](), list[Place](), settings.tokens_per_batch
    wanted = {index: [place for place, row in enumerate(batch[index].rows) if has_gradient(row, settings)]
              for index in groups}
    packs = packs_to_forward(policy, batch, wanted, processes, budget)
    with in_step(policy, packs, processes, budget, backward=True):
        for members, places in packs:
            if interrupted():
                return None
            _backward(policy, members, [batch[index].rows[place] for index, place in places], losses,
                      settings, online=online)
            forwarded += places
    for index, place in forwarded:
        row = batch[index].rows[place]
        row.log_drift, row.clipped = row.log_drift.cpu(), row.clipped.cpu()
    # A retried step may distribute the same groups differently.
    online_columns = ("old_logprobs", "entropy", "weights", "kept") if online else ()
    exchange(batch, forwarded, processes, (*online_columns, "log_drift", "clipped"))
    return float(sum(losses))


def step_loss(rows: list[Row], logprobs: Tensor, entropy: Tensor, settings: TrainOptions) -> Tensor:
    """The contribution of the rows, [B, T] logprobs and entropy, to the loss of the step."""
    columns = [[row.behaviour_logprobs for row in rows], [row.old_logprobs for row in rows],
               [torch.ones(row.num_tokens) for row in rows], [row.mask for row in rows],
               [row.weights for row in rows], [row.advantages for row in rows]]
    columns += [[row.ref_logprobs for row in rows]] if asks_base(settings) else []
    padded = torch.stack([pad_sequence(column, batch_first=True) for column in columns])
    behaviour, old, mask, alive, weights, advantages, *reference = padded.to(logprobs.device)
    start = behaviour if settings.correction == "bypass" else old      # the denominator of the ratio
    scales, bonus_scales = torch.tensor([[row.scale, row.bonus_scale] for row in rows],
                                        device=logprobs.device).T
    spec = find_loss(settings.loss)
    low = spec.clip_low if settings.clip_low is None else settings.clip_low
    high = spec.clip_high if settings.clip_high is None else settings.clip_high
    per_token, clipped = token_losses(settings.loss, logprobs, start, behaviour, advantages, mask,
                                      clip_low=low, clip_high=high, delta=settings.delta, level=spec.level)
    factor = alive * weights
    if settings.off_policy_threshold is not None:
        factor = factor * ~off_policy_mask(logprobs, behaviour, advantages, mask,
                                           threshold=settings.off_policy_threshold)[:, None]
    per_token = per_token * factor
    if settings.kl_beta:
        ratio = importance_ratio(logprobs, start, mask, level=spec.level)
        per_token = per_token + settings.kl_beta * kl_to_reference(logprobs, reference[0], ratio)
    loss = ((per_token * mask).sum(dim=1) * scales).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * ((entropy * alive).sum(dim=1) * bonus_scales).sum()
    clipped = clipped * ((factor != 0) & (advantages != 0))
    for row, drift, was_clipped in zip(rows, logprobs.detach() - old, clipped, strict=True):
        row.log_drift, row.clipped = drift[:row.num_tokens], was_clipped[:row.num_tokens]
    return loss


def _backward(policy: Policy, groups: list[PromptGroup], rows: list[Row], losses: list[Tensor],
              settings: TrainOptions, *, online: bool) -> None:
    def rows_loss(indices: list[int], logprobs: Tensor, entropy: Tensor) -> Tensor:
        chosen = [rows[index] for index in indices]
        if online:
            known = zip(chosen, logprobs.detach().cpu(), entropy.detach().cpu(), strict=True)
            for row, row_logprobs, row_entropy in known:
                row.old_logprobs = row_logprobs[:row.num_tokens].clone()
                row.entropy = row_entropy[:row.num_tokens].clone()
            weigh_rows(chosen, settings)
        loss = step_loss(chosen, logprobs, entropy, settings)
        losses.append(loss.detach().double())       # on the device: micro-batches need no synchronisation
        return loss

    backward_pack(policy, groups, rows_loss, token_budget=settings.tokens_per_batch)
