"""Losses, advantages and corrections against numbers of an independent implementation and brute force."""

import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from examples import losses as examples
from train.objective.correction import (
    effective_sample_size,
    importance_weights,
    off_policy_mask,
    veto_mask,
)
from train.objective.loss_table import LOSSES, Loss, find_loss
from train.objective.losses import (
    entropy_mask,
    group_advantages,
    importance_ratio,
    kl_to_reference,
    loss_scales,
)
from train.objective.losses import token_losses as losses_by_name

GOLDEN = json.loads((Path(__file__).parents[2] / "golden_grpo.json").read_text())
INPUTS = GOLDEN["inputs"]
# bnpo is dapo with another clip, which each case names; luspo, gspo summed, and reward parts that are
# normalized one by one (GDPO) are not in `train`.
CASES = [case for case in GOLDEN["cases"] if "multi_objective_aggregation" not in case["config"]
         and case["config"].get("loss_type") != "luspo"]
DETACHED = ("cispo", "vespo", "topr")       # the gradient flows through log pi alone
GROUPS = [4, 4]         # completions each
OWN = ("sapo", "vespo", "dppo", "topr")     # functions of examples/losses.py
MU = ("vespo", "dppo", "topr")              # their ratio is against mu: --correction none


def named(loss):
    """A loss as `--loss` takes it."""
    return f"{examples.__file__}:{loss}" if loss in OWN else loss


def token_losses(loss, *tensors, **options):
    return losses_by_name(named(loss), *tensors, **options)


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
    parts = torch.tensor([[math.nan if part is None else part for part in row] for row in INPUTS["rewards"]])
    weights = torch.tensor(config["reward_weights"] or [1.0, 1.0])
    missing = parts.isnan().all(dim=1)
    rewards = torch.where(missing, torch.nan, (parts.nan_to_num() * weights).sum(dim=1))
    return group_advantages(rewards, GROUPS, scale=config["scale_rewards"])


def weights_of(config, mask):
    if not config["vllm_importance_sampling_correction"]:
        return torch.ones_like(mask)
    return importance_weights(tensor("old") - tensor("sampling"), mask,
                              correction=config["vllm_importance_sampling_mode"].replace("_", "-"),
                              low=config["vllm_importance_sampling_clip_min"],
                              high=config["vllm_importance_sampling_clip_max"])[0]


def step_loss(config, policy, advantages):
    loss, mask = config["loss_type"].replace("bnpo", "dapo"), loss_mask(config)
    used = config["vllm_importance_sampling_correction"]
    weights, behaviour = weights_of(config, mask), tensor("sampling") if used else tensor("old")
    level = config["importance_sampling_level"]
    high = config["epsilon_high"] if config["epsilon_high"] is not None else config["epsilon"]
    per_token, _ = token_losses(loss, policy, tensor("old"), behaviour, advantages, mask,
                                clip_low=config["epsilon"],
                                clip_high=high, delta=config["delta"], level=level)
    if config["off_policy_mask_threshold"] is not None:
        dropped = off_policy_mask(policy, behaviour, advantages, mask,
                                  threshold=config["off_policy_mask_threshold"])
        per_token = per_token * ~dropped[:, None]
    if config["top_entropy_quantile"] < 1:
        kept = mask.clone()
        kept[mask.bool()] = entropy_mask(tensor("entropy")[mask.bool()],
                                         quantile=config["top_entropy_quantile"])
        per_token = per_token * kept
    if loss not in MU:
        per_token = per_token * weights
    if config["beta"]:
        ratio = importance_ratio(policy, tensor("old"), mask, level=level)
        ratio = ratio if config["use_bias_correction_kl"] else None
        per_token = per_token + config["beta"] * kl_to_reference(policy, tensor("ref"), ratio)
    scales = loss_scales(named(loss), mask.sum(dim=1), num_completions=8,
                         total_trainable_tokens=int(mask.sum()), max_completion_length=12)
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


def case_of(name, row):
    """Per-token loss of one completion by the formulas of the papers, in float64 with plain Python."""
    new, old, mu, advantage = (INPUTS["new"][row], INPUTS["old"][row], INPUTS["sampling"][row],
                               BRUTE_ADVANTAGES[row])
    length = INPUTS["lens"][row]
    w = [math.exp(new[t] - mu[t]) for t in range(length)]
    if name == "topr":
        weight = 1.0 if advantage >= 0 else min(1.0, math.prod(w))
        return [-weight * advantage * new[t] for t in range(length)]
    if name == "dppo":
        moved = [math.exp(new[t]) - math.exp(mu[t]) for t in range(length)]
        masked = [(advantage > 0 and d > 0.2) or (advantage < 0 and d < -0.2) for d in moved]
        return [0.0 if masked[t] else -w[t] * advantage for t in range(length)]
    if name in ("reinforce", "nll"):
        return [-advantage * new[t] for t in range(length)]
    if name == "gspo":
        s = math.exp(sum(new[t] - old[t] for t in range(length)) / length)
        return [-min(s * advantage, min(max(s, 0.8), 1.3) * advantage)] * length
    raise AssertionError(name)


BRUTE_ADVANTAGES = [0.7, -1.3, 0.2, -0.4, 1.9, -0.8, 0.0, 0.5]


@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize("name", ["topr", "dppo", "gspo", "reinforce", "nll"])
def test_losses_without_golden_numbers_are_their_formulas_in_float64(name, spread, monkeypatch):
    # Wider gaps between pi and mu reach the masks and clips that the stored inputs do not.
    wide = [[spread * (a - b) + b for a, b in zip(new, mu, strict=True)]
            for new, mu in zip(INPUTS["new"], INPUTS["sampling"], strict=True)]
    monkeypatch.setitem(INPUTS, "new", wide)
    new, old, mu = (torch.tensor(INPUTS[key], dtype=torch.float64) for key in ("new", "old", "sampling"))
    mask = (torch.arange(12) < torch.tensor(INPUTS["lens"])[:, None]).double()
    level = find_loss(named(name)).level
    actual, _ = token_losses(name, new, old, mu, torch.tensor(BRUTE_ADVANTAGES, dtype=torch.float64), mask,
                             clip_low=0.2, clip_high=0.3, level=level)
    for row in range(8):
        assert actual[row][:INPUTS["lens"][row]].tolist() == pytest.approx(case_of(name, row), abs=1e-12)


@pytest.mark.parametrize("name", ["topr", "dppo", "cispo", "sapo", "vespo", "reinforce"])
def test_gradients_are_those_of_central_differences(name):
    new, old, mu = (torch.tensor(INPUTS[key], dtype=torch.float64) for key in ("new", "old", "sampling"))
    mask = (torch.arange(12) < torch.tensor(INPUTS["lens"])[:, None]).double()
    advantages = torch.tensor(BRUTE_ADVANTAGES, dtype=torch.float64)

    def total(policy, detached):
        # What is detached in the loss is held at its value at `new` while the difference is taken.
        if name not in DETACHED:
            per_token, _ = token_losses(name, policy, old, mu, advantages, mask, clip_low=0.2, clip_high=5.0)
            return (per_token * mask).sum()
        return (detached / new * policy * mask).sum()

    per_token, _ = token_losses(name, new, old, mu, advantages, mask, clip_low=0.2, clip_high=5.0)
    policy = new.clone().requires_grad_()
    losses, _ = token_losses(name, policy, old, mu, advantages, mask, clip_low=0.2, clip_high=5.0)
    (losses * mask).sum().backward()
    for row, token in ((0, 0), (0, 11), (1, 3), (3, 7), (5, 8), (6, 2)):
        step = torch.zeros_like(new)
        step[row, token] = 1e-6
        slope = (total(new + step, per_token) - total(new - step, per_token)) / 2e-6
        assert float(policy.grad[row, token]) == pytest.approx(float(slope), abs=1e-7)


def test_advantages_per_token_are_used_token_by_token():
    new, old, mu = (tensor(name) for name in ("new", "old", "sampling"))
    mask = (torch.arange(12) < torch.tensor(INPUTS["lens"])[:, None]).float()
    per_token = torch.tensor(BRUTE_ADVANTAGES)[:, None] * torch.linspace(-1, 1, 12)
    for name in ("dapo", "cispo", "reinforce", "topr"):
        losses, _ = token_losses(name, new, old, mu, per_token, mask, clip_low=0.2, clip_high=0.3)
        for place in (0, 5):
            whole, _ = token_losses(name, new, old, mu, per_token[:, place], mask, clip_low=0.2,
                                    clip_high=0.3)
            torch.testing.assert_close(losses[:, place], whole[:, place])


def brute_weights(correction, log_ratio, low, high):
    """Weights of one completion, in float64 with plain Python."""
    ratios = [math.exp(min(20, max(-20, gap))) for gap in log_ratio]
    product = math.exp(min(20, max(-20, sum(log_ratio))))
    if correction == "token-truncate":
        return [min(max(ratio, low), high) for ratio in ratios]
    if correction == "token-mask":
        return [ratio if low <= ratio <= high else 0.0 for ratio in ratios]
    if correction == "sequence-truncate":
        return [min(max(product, low), high)] * len(ratios)
    if correction == "sequence-mask":
        return [product if low <= product <= high else 0.0] * len(ratios)
    raise AssertionError(correction)


LOG_RATIOS = st.lists(st.lists(st.floats(-30, 30) | st.floats(-0.1, 0.1), min_size=1, max_size=8), min_size=1,
                      max_size=5)


@given(rows=LOG_RATIOS, correction=st.sampled_from(["token-truncate", "token-mask", "sequence-truncate",
                                                    "sequence-mask"]),
       bounds=st.sampled_from([(0.5, 2.0), (0.99, 1.01), (1e-4, 5.0), (None, 2.0), (0.5, None),
                               (None, None)]))
def test_weights_are_their_formulas_in_float64_for_any_lengths(rows, correction, bounds):
    low, high = bounds
    padded = pad_sequence([torch.tensor(row, dtype=torch.float64) for row in rows], batch_first=True,
                          padding_value=7.0)
    mask = pad_sequence([torch.ones(len(row), dtype=torch.float64) for row in rows], batch_first=True)
    result = importance_weights(padded, mask, correction=correction, low=low, high=high)
    for row, weights, kept in zip(rows, *result, strict=True):
        clamped = [min(20, max(-20, gap)) for gap in row]
        expected = brute_weights(correction, clamped, low or 0, math.inf if high is None else high)
        assert weights[:len(row)].tolist() == pytest.approx(expected, rel=1e-9)
        unbounded = brute_weights(correction, clamped, 0, math.inf)
        changed = [abs(weight - ratio) > 1e-9 * ratio
                   for weight, ratio in zip(expected, unbounded, strict=True)]
        assert kept[:len(row)].tolist() == [not bound for bound in changed]


def test_a_veto_drops_completions_with_an_impossible_token():
    log_ratio = torch.tensor([[0.0, -9.3, 5.0], [0.0, -9.1, 0.0], [0.0, 0.0, -50.0]])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, 1, 0]])
    assert veto_mask(log_ratio, mask, threshold=1e-4).tolist() == [True, False, False]      # log 1e-4 = -9.21


def test_effective_sample_size_is_one_for_equal_weights_and_falls_with_their_spread():
    assert effective_sample_size(torch.full((7,), -0.3)) == pytest.approx(1)
    assert effective_sample_size(torch.tensor([0.0, -18, -18, -18])) == pytest.approx(0.25)
    assert effective_sample_size(torch.tensor([0.0, math.log(3)])) == pytest.approx(16 / 20)


def test_the_entropy_mask_takes_more_tokens_than_a_quantile_of_torch_does():
    entropy = torch.arange(2**24 + 8, dtype=torch.float32).flip(0)
    assert int(entropy_mask(entropy, quantile=0.25).sum()) == pytest.approx(2**22, abs=2**11)    # and ties


@pytest.mark.parametrize("quantile", [0.1, 0.3, 0.5])
def test_entropies_that_differ_by_rounding_alone_are_in_together_or_out_together(quantile):
    generator = torch.Generator().manual_seed(1)
    others = torch.rand(60, generator=generator)
    for _ in range(20):
        first = 0.7 * (1 + 1e-6 * torch.randn(20, generator=generator))     # first tokens of a group
        mask = entropy_mask(torch.cat([first, others]), quantile=quantile)
        assert mask[:20].sum() in (0, 20)


@given(groups=st.lists(st.lists(st.none() | st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2,
                                max_size=6), min_size=1, max_size=5),
       scale=st.sampled_from(["group", "none"]))
def test_advantages_leave_missing_rewards_out_and_are_zero_for_equal_ones(groups, scale):
    rewards = torch.tensor([math.nan if reward is None else reward for group in groups for reward in group],
                           dtype=torch.float64)
    actual = group_advantages(rewards, [*map(len, groups)], scale=scale).tolist()
    for group in groups:
        advantages, actual = actual[:len(group)], actual[len(group):]
        present = [reward for reward in group if reward is not None]
        if len(set(present)) <= 1:
            assert advantages == [0.0] * len(group)
            continue
        divisor = statistics.stdev(present) + 1e-4 if scale == "group" else 1
        expected = [0.0 if reward is None else (reward - statistics.mean(present)) / divisor
                    for reward in group]
        assert advantages == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_scales_add_up_whatever_the_packing(loss):
    tokens = torch.tensor([3, 0, 7, 1])
    whole = loss_scales(loss, tokens, num_completions=4, total_trainable_tokens=11, max_completion_length=10)
    halves = [loss_scales(loss, part, num_completions=4, total_trainable_tokens=11, max_completion_length=10)
              for part in tokens.split(2)]
    assert torch.equal(whole, torch.cat(halves))


def test_a_loss_without_a_formula_is_not_taken_for_another(monkeypatch):
    monkeypatch.setitem(LOSSES, "new", Loss("token"))
    ones = torch.ones(1, 2)
    with pytest.raises(AssertionError, match="the loss new has no formula"):
        token_losses("new", -ones, -ones, -ones, torch.ones(1), ones, clip_low=0.2, clip_high=0.2)
