"""Which completions a gradient comes from: each alone, at the weights that the stage starts from."""

import torch
from torch import Tensor
from tqdm import tqdm

from train.steps.batch import has_gradient, plan_step
from train.steps.gradients import accumulate
from train.steps.row import Row, RowGroup
from train.steps.steps import Learner
from warehouse.store.names import completion_name


def explain_lines(learner: Learner, num: int) -> list[str]:
    """The `num` completions with the largest gradient of the batch taken as one step, as a table."""
    parts, whole = gradient_parts(learner)
    lines = [f"gradient of all completions as one step, norm {whole:.4g}; those with the largest:",
             f"{'norm':>9} {'share':>7} {'advantage':>9} {'reward':>7} {'tokens':>6}  completion"]
    return lines + [f"{norm:9.3g} {share:7.1%} {row.advantage:9.2f} {row.rollout.reward:7.2f} "
                    f"{row.num_tokens:6d}  {name}" for norm, share, row, name in parts[:num]]


def gradient_parts(learner: Learner) -> tuple[list[tuple[float, float, Row, str]], float]:
    """Every completion's part of the gradient, the largest first, and the norm of the whole.

    A part is the norm of its gradient g, g.G / G.G of it in the whole G (sums to 1), its row and its name. It
    takes a forward and backward per completion, twice: the whole is their sum, and a share needs both.
    """
    batch, settings = learner.batch, learner.settings
    plan_step(batch, list(range(len(batch))), 0, settings)
    chosen = [(group, row) for group in batch for row in group.rows if has_gradient(row, settings)]

    def gradient_of(group: RowGroup, row: Row) -> Tensor:
        learner.policy.model.zero_grad()
        single = RowGroup(group.stored, [row], group.staleness)
        accumulate(learner.policy, [single], [0], learner.processes, settings, online=False,
                   interrupted=lambda: False)
        return torch.cat([parameter.grad.flatten().double().cpu() if parameter.grad is not None
                          else torch.zeros(parameter.numel(), dtype=torch.float64)
                          for parameter in learner.policy.trainable().values()]) / learner.policy.loss_scale

    bar = tqdm(chosen, desc="gradients", unit="completion", leave=False)
    whole = sum((gradient_of(group, row) for group, row in bar),
                torch.zeros(learner.num_parameters(), dtype=torch.float64))
    square = float(whole.square().sum()) or 1.0
    parts = []
    for group, row in tqdm(chosen, desc="shares", unit="completion", leave=False):
        gradient = gradient_of(group, row)
        name = completion_name(group.stored.iteration, group.stored.purpose, row.rollout.task_id,
                               row.rollout.sample_index)
        parts.append((float(gradient.norm()), float(gradient @ whole) / square, row, name))
    learner.policy.model.zero_grad()
    return sorted(parts, key=lambda part: -part[0]), float(whole.norm())
