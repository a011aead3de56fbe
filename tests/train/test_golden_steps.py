"""Whole optimizer steps against stored numbers of another trainer: surrogate, masks and entropy bonus."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from train.cli import train as train_command
from train.inputs.groups import Rollout
from train.inputs.options import TrainOptions
from train.steps.gradients import step_loss
from train.steps.row import Row, RowGroup, plan_step, weigh_rows
from warehouse.fields import options_from

TESTS = Path(__file__).parents[1]
INPUTS = json.loads((TESTS / "golden_grpo.json").read_text())["inputs"]
GOLDEN = json.loads((TESTS / "golden_entropy_bonus.json").read_text())
LOSSES = {"bnpo": "dapo", **{name: f"{TESTS.parent}/examples/losses.py:{name}" for name in ("sapo", "vespo")}}
OPTIONS = {"loss_type": "--loss", "top_entropy_quantile": "--entropy-quantile",
           "entropy_coef": "--entropy-coef", "epsilon_high": "--clip-high",
           "mask_truncated_completions": "--mask-truncated"}


def settings_of(config, run):
    """The options of `train` that mean what the other trainer was told: bnpo is dapo with another clip."""
    config = config | {"loss_type": LOSSES.get(config["loss_type"], config["loss_type"])}
    arguments = ["--correction", "none"] if config["loss_type"] == LOSSES["vespo"] else []
    arguments += [str(run), "--clip-low", "0.2", "--clip-high", "0.2", "--max-completion-length", "12"]
    for name, value in config.items():
        if name in OPTIONS:
            arguments += [OPTIONS[name]] if value is True else [OPTIONS[name], str(value)]
    return options_from(TrainOptions, train_command.make_context("train", arguments).params)


def row(index, settings):
    length = INPUTS["lens"][index]

    def values(name):
        return torch.tensor(INPUTS[name][index][:length])

    rollout = Rollout("task", index, np.zeros(length, np.int32), values("sampling").numpy(), False, 0.0,
                      False, 0)
    return Row(rollout, 0, advantages=torch.tensor(GOLDEN["advantages"][index]).expand(length),
               old_logprobs=values("old"),
               entropy=values("entropy"),
               trainable=INPUTS["ends_with_eos"][index] or not settings.mask_truncated)


def step(settings, indices):
    """Loss of one optimizer step over some of the stored completions, and its gradients, [8, 12]."""
    rows = [row(index, settings) for index in indices]
    weigh_rows(rows, settings)
    plan_step([RowGroup(None, rows, 0)], [0], 0, settings)
    logprobs = torch.tensor(INPUTS["new"]).requires_grad_()
    entropy = torch.tensor(INPUTS["entropy"]).requires_grad_()
    places = [place for place, row in enumerate(rows) if row.trainable]
    chosen, forwarded = [rows[place] for place in places], [indices[place] for place in places]
    width = max(row.num_tokens for row in chosen)
    loss = step_loss(chosen, logprobs[forwarded][:, :width], entropy[forwarded][:, :width], settings)
    loss.backward()
    return torch.cat([loss.detach()[None], logprobs.grad.flatten(), entropy.grad.flatten()])


@pytest.mark.parametrize("case", [case for case in GOLDEN["cases"] if case["config"]["loss_type"] != "luspo"],
                         ids=lambda case: " ".join(f"{key}={value}" for key, value in case["config"].items()))
def test_a_step_with_an_entropy_bonus_is_that_of_the_other_trainer(case, tmp_path):
    """With gradient accumulation that trainer averages its micro-batches, each normalized alone."""
    settings = settings_of(case["config"], tmp_path)
    halves = torch.arange(8).chunk(case["config"].get("gradient_accumulation_steps", 1))
    actual = torch.stack([step(settings, half.tolist()) for half in halves]).mean(dim=0)
    expected = torch.tensor([case["loss"], *chain(*case["grad_logps"], *case["grad_entropy"])])
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
