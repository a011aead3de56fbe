"""Losses, advantages and corrections against numbers of an independent implementation and brute force."""

import json
import math
from pathlib import Path

import pytest
import torch

from train.advantages import group_advantages, separate_advantages
from train.correction import importance_weights, off_policy_masked
from train.losses import LOSSES, entropy_mask, importance_ratio, kl_to_reference, loss_scales, token_losses

GOLDEN = json.loads((Path(__file__).parent / "golden_grpo.json").read_text())
INPUTS, CASES = GOLDEN["inputs"], GOLDEN["cases"]
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


def tensor(name):
    return torch.tensor(INPUTS[name], dtype=torch.float32)


def loss_mask(config):
    lengths = torch.tensor(INPUTS["lens"])
    mask = (torch.arange(12) < lengths[:, None]).float()
    if config["env"]:
        rows = [row + [0] * (12 - len(row)) for row in INPUTS["env_mask"]]
        mask = mask * torch.tensor(rows)
    if config["mask_truncated_completions"]:
        mask = mask * torch.tensor(INPUTS["ends_with_eos"])[:, None]
    return mask


def advantages_of(config):
    parts = torch.tensor([[math.nan if one is None else one for one in row] for row in INPUTS["rewards"]])
    weights = torch.tensor(config["reward_weights"] or [1.0, 1.0])
    if config["multi_objective_aggregation"] == "normalize_then_sum":
        return separate_advantages(parts, GROUPS, weights)
    missing = parts.isnan().all(dim=1)
    rewards = torch.where(missing, torch.nan, (parts.nan_to_num() * weights).sum(dim=1))
    return group_advantages(rewards, GROUPS, scale=config["scale_rewards"])


def weights_of(config, mask):
    if not config["vllm_importance_sampling_correction"]:
        return torch.ones_like(mask)
    return importance_weights(tensor("old") - tensor("sampling"), mask,
                              correction=config["vllm_importance_sampling_mode"].replace("_", "-"),
                              low=config["vllm_importance_sampling_clip_min"],
                              high=config["vllm_importance_sampling_clip_max"])


def step_loss(config, policy, advantages):
    loss, mask = config["loss_type"], loss_mask(config)
    used = config["vllm_importance_sampling_correction"]
    weights, behaviour = weights_of(config, mask), tensor("sampling") if used else tensor("old")
    level = config["importance_sampling_level"]
    high = config["epsilon_high"] if config["epsilon_high"] is not None else config["epsilon"]
    per_token, _ = token_losses(loss, policy, tensor("old"), behaviour, advantages, mask,
                                clip_low=config["epsilon"],
                                clip_high=high, delta=config["delta"], level=level)
    if config["off_policy_mask_threshold"] is not None:
        dropped = off_policy_masked(policy, behaviour, advantages, mask,
                                    threshold=config["off_policy_mask_threshold"])
        per_token = per_token * ~dropped[:, None]
    if config["top_entropy_quantile"] < 1:
        per_token = per_token * entropy_mask(tensor("entropy"), mask, quantile=config["top_entropy_quantile"])
    if not LOSSES[loss].corrects_itself:
        per_token = per_token * weights
    if config["beta"]:
        ratio = importance_ratio(policy, tensor("old"), mask, level=level)
        ratio = ratio if config["use_bias_correction_kl"] else None
        per_token = per_token + config["beta"] * kl_to_reference(policy, tensor("ref"), ratio)
    scales = loss_scales(loss, mask.sum(dim=1), num_completions=8, total_trainable_tokens=int(mask.sum()),
                         max_completion_length=12)
    return ((per_token * mask).sum(dim=1) * scales).sum()


def name_of(case):
    return " ".join(f"{key}={value}" for key, value in case["config"].items())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_golden_case_has_the_same_advantages_weights_loss_and_gradient(case):
    config = {**GOLDEN["base"], **case["config"]}
    advantages = advantages_of(config)
    torch.testing.assert_close(advantages, torch.tensor(case["advantages"]), atol=1e-6, rtol=0)
    if case["is_ratio"] is not None:
        expected = torch.tensor(case["is_ratio"]).expand(8, 12)
        mask = loss_mask(config).bool()
        torch.testing.assert_close(weights_of(config, mask.float())[mask], expected[mask], atol=1e-6, rtol=0)
    policy = tensor("new").requires_grad_()
    loss = step_loss(config, policy, advantages)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(case["loss"], abs=1e-6)
    torch.testing.assert_close(policy.grad, torch.tensor(case["grad_logps"]), atol=1e-6, rtol=0)
