"""A step's gradient does not depend on packing, processes or passes; options do what they say."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence

import train.run
import train.steps.steps
from tests.building.runs import copy_run
from tests.building.sampled import OPTIONS, SCORER, load_policy, rewrite, run_train, sample_rows, tiny_run
from train.cli import train as train_command
from train.inputs.groups import load_groups
from train.inputs.options import TrainOptions
from train.inputs.settings import correction_of
from train.objective.correction import importance_weights, off_policy_mask
from train.objective.loss_table import LOSSES, find_loss
from train.objective.losses import importance_ratio, kl_to_reference, token_losses
from train.steps import gradients
from train.steps.accelerator import Processes
from train.steps.gradients import accumulate
from train.steps.logprob_pass import collect, fill_logprobs, hand_out
from train.steps.row import build_batch, forwardable, has_gradient, plan_step, weigh_rows
from train.steps.steps import learning_rate
from warehouse.fields import options_from
from warehouse.ledger.refusals import Refusal
from warehouse.maintain.prune import prune_run
from warehouse.maintain.rollback import roll_back


@pytest.fixture
def run(stale_run):
    return stale_run


def settings_of(run, *arguments):
    context = train_command.make_context("train", [str(run.root), *OPTIONS, "--tokens-per-batch", "1024",
                                                   *arguments])
    return options_from(TrainOptions, context.params)


def adapter(warehouse, version):
    return load_file(str(warehouse.policy_dir(version) / "adapter_model.safetensors"))


def assert_same_update(start, actual, expected, tolerance=1e-5):
    for name, tensor in expected.items():
        update = (tensor - start[name]).norm()
        assert update > 0, name
        assert (actual[name] - tensor).norm() <= tolerance * update, name


def step_gradient(policy, batch, settings):
    policy.model.zero_grad()
    loss = accumulate(policy, batch, list(range(len(batch))), Processes("cpu"), settings, online=False,
                      interrupted=lambda: False)
    gradients = {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                 for name, parameter in policy.trainable().items()}
    return loss, gradients


def plain_gradient(policy, batch, settings):
    """The same loss by forwarding every row alone with its prompt, zero-advantage rows included."""
    policy.model.zero_grad()
    rows = [(group, row) for group in batch for row in group.rows]
    logprobs, entropies = [], []
    for group, row in rows:
        logits = policy.full_logits(torch.cat([group.prompt_ids, row.completion_ids])[None])[0]
        scores = logits[len(group.prompt_ids) - 1:-1].log_softmax(-1)
        logprobs.append(scores.gather(1, row.completion_ids[:, None]).squeeze(1))
        entropies.append(-(scores.exp() * scores).sum(1))
    def padded(values):
        return pad_sequence(values, batch_first=True)
    policy_logprobs, old = padded(logprobs), padded([row.old_logprobs for _, row in rows])
    behaviour = padded([row.behaviour_logprobs for _, row in rows])
    ones = padded([torch.ones(len(row.completion_ids)) for _, row in rows])
    mask = ones * torch.tensor([float(row.trainable) for _, row in rows])[:, None]
    advantages = padded([row.advantages for _, row in rows])
    spec, (correction, low, high) = find_loss(settings.loss), correction_of(settings)
    per_token, _ = token_losses(settings.loss, policy_logprobs, old, behaviour, advantages, mask,
                                level=spec.level,
                                clip_low=spec.clip_low, clip_high=spec.clip_high)
    if not spec.corrects_itself:
        per_token = per_token * importance_weights(old - behaviour, ones, correction=correction, low=low,
                                                   high=high)[0]
    if settings.off_policy_threshold is not None:
        per_token = per_token * ~off_policy_mask(policy_logprobs, behaviour, advantages, mask,
                                                 threshold=settings.off_policy_threshold)[:, None]
    per_token = per_token * padded([row.mask for _, row in rows])
    if settings.kl_beta:
        reference = padded([row.ref_logprobs for _, row in rows])
        ratio = importance_ratio(policy_logprobs, old, mask, level=spec.level)
        per_token = per_token + settings.kl_beta * kl_to_reference(policy_logprobs, reference, ratio)
    counts = mask.sum(1)
    if spec.reduction == "completion":
        loss = ((per_token * mask).sum(1) / counts.clamp(min=1)).mean()
    elif spec.reduction == "token":
        loss = (per_token * mask).sum() / counts.sum()
    else:
        loss = (per_token * mask).sum(1).mean() / mask.shape[1]
    in_bonus = mask * padded([row.mask for _, row in rows])
    loss = loss - settings.entropy_coef * (padded(entropies) * in_bonus).sum() / in_bonus.sum()
    loss.backward()
    return float(loss.detach()), {name: parameter.grad.clone() for name,
                                  parameter in policy.trainable().items()}


# nll is reinforce with other advantages, and no completion here is right: see test_laboratory.
OWN = f"{Path(__file__).parents[2]}/examples/losses.py"
STEP_OPTIONS = [*(["--loss", loss] for loss in LOSSES if loss != "nll"),
                ["--loss", f"{OWN}:sapo"], ["--loss", f"{OWN}:vespo", "--correction", "none"],
                ["--correction", "sequence-mask", "--correction-low", "0.2", "--correction-high", "5"],
                ["--kl-beta", "0.3"], ["--loss", "grpo", "--entropy-coef", "0.05"],
                ["--entropy-quantile", "0.3"], ["--entropy-quantile", "0.3", "--entropy-coef", "0.05"],
                ["--mask-truncated"], ["--off-policy-threshold", "0.05"], ["--veto", "0.3"],
                ["--scale-rewards", "batch"], ["--scale-rewards", "none", "--loss", "dr_grpo"]]


@pytest.fixture(scope="module")
def moved(stale):
    """A policy away from pi_old, so that ratios and clips matter, and the logprobs from before that."""
    policy, settings = load_policy(stale, 1), settings_of(stale)
    batch = build_batch(load_groups(stale, 1, SCORER, truncated_sampling="refuse"), 1, settings)
    fill_logprobs(policy, batch, Processes("cpu"), settings.tokens_per_batch, "old_logprobs")
    with policy.without_adapter():
        fill_logprobs(policy, batch, Processes("cpu"), settings.tokens_per_batch, "ref_logprobs")
    for parameter in policy.trainable().values():
        parameter.data.mul_(1.1)
    return policy, collect(batch)


@pytest.mark.parametrize("options", STEP_OPTIONS, ids=" ".join)
def test_a_step_has_the_loss_and_gradient_of_rows_forwarded_one_by_one(stale, moved, options):
    settings, (policy, logprobs) = settings_of(stale, *options), moved
    batch = build_batch(load_groups(stale, 1, SCORER, truncated_sampling="refuse"), 1, settings)
    hand_out(forwardable(batch), logprobs)
    weigh_rows([row for group in batch for row in group.rows], settings)
    plan_step(batch, list(range(len(batch))), 0, settings)
    expected_loss, expected = plain_gradient(policy, batch, settings)
    assert any(not has_gradient(row, settings) for group in batch for row in group.rows) or settings.kl_beta \
        or settings.entropy_coef or find_loss(settings.loss).own
    for budget in (64, 4096):       # less than a group, and several groups
        packed = settings_of(stale, *options, "--tokens-per-batch", str(budget))
        loss, actual = step_gradient(policy, batch, packed)
        assert loss == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
        scale = max(float(gradient.norm()) for gradient in expected.values())
        for name, gradient in expected.items():
            assert (actual[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-6 * scale, name


@pytest.mark.parametrize("options", [["--mask-truncated"],
                                     ["--correction", "sequence-mask", "--correction-low", "0.95"]])
def test_one_step_takes_its_old_logprobs_from_its_own_forward(run, stale, tmp_path, monkeypatch, options):
    once = ["--updates-per-batch", "1", "--max-mismatch", "9", *options]
    assert run_train(run, *once).exit_code == 0
    twice = copy_run(stale, tmp_path / "twice")
    original = train.run.prepare
    def prepare(*arguments):
        learner = original(*arguments)
        assert learner.online
        learner.online = False
        return learner
    monkeypatch.setattr(train.run, "prepare", prepare)
    assert run_train(twice, *once).exit_code == 0
    assert_same_update(adapter(run, 1), adapter(run, 2), adapter(twice, 2))
    actual, expected = (
        pad_sequence([torch.tensor(row["old_logprobs"])
                      for row in warehouse.read("train_samples", iteration=1).to_pylist()])
        for warehouse in (run, twice))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    [step], [other] = (warehouse.read("train_steps", iteration=1).to_pylist() for warehouse in (run, twice))
    numbers, same = ({**row, **json.loads(row["extra"])} for row in (step, other))
    for name, value in same.items():
        if value is not None and name not in ("seconds", "extra"):
            assert numbers[name] == pytest.approx(value, rel=1e-3, abs=1e-9), name
    columns = ["drop_reason", "advantage", "num_trainable_tokens", "optimizer_step"]
    assert run.read("train_samples", iteration=1, columns=columns) == twice.read("train_samples", iteration=1,
                                                                                 columns=columns)


def test_a_step_tried_again_shares_every_group_once_between_processes(stale, monkeypatch):
    """A process that drops a group by its weights tells the others, who take other shares else."""
    settings, barrier = settings_of(stale, "--veto", "0.5"), threading.Barrier(2, timeout=600)
    told, taken = {}, {0: [], 1: []}

    class Two:
        count = 2

        def __init__(self, index):
            self.index = index

        def gather(self, values):
            told[self.index] = values
            barrier.wait()
            everything = told[0] + told[1]
            barrier.wait()
            return everything

    def forward(policy, group, rows, losses, settings, *, online):
        number = int(rows[0].rollout.task_id.removeprefix("task-"))
        taken[policy.index].append(number)
        for row in rows:
            row.old_logprobs = row.behaviour_logprobs - (2.0 if number % 3 == 1 else 0.0)
            row.entropy = row.log_drift = row.clipped = torch.ones(len(row.old_logprobs))
        gradients.weigh_rows(rows, settings)

    def train_twice(index):
        batch = build_batch(load_groups(stale, 1, SCORER, truncated_sampling="refuse"), 1, settings)
        for _ in range(2):
            plan_step(batch, list(range(len(batch))), 0, settings)
            taken[index].append("again")
            policy = SimpleNamespace(index=index, can_pack=False, shards=None)
            accumulate(policy, batch, list(range(len(batch))), Two(index), settings, online=True,
                       interrupted=lambda: False)

    monkeypatch.setattr(gradients, "_backward", forward)
    threads = [threading.Thread(target=train_twice, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    second = [taken[index][taken[index].index("again", 1) + 1:] for index in (0, 1)]
    assert sorted(second[0] + second[1]) == [2, 3, 5, 6]       # 0 and 4 have no gradient, 1 and 4 are vetoed


@pytest.mark.slow("two more processes that import torch, each time")
@pytest.mark.parametrize("updates", ["1", "3"])
def test_two_processes_train_the_same_adapter_as_one(run, stale, tmp_path, updates):
    alone = copy_run(stale, tmp_path / "alone")
    assert run_train(alone, "--updates-per-batch", updates).exit_code == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
               str(Path(sys.executable).with_name("train"))]
    result = subprocess.run([*command, str(run.root), *OPTIONS, "--updates-per-batch", updates],
                            capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert run.stage("train", iteration=1).manifest()["facts"]["num_processes"] == 2
    assert_same_update(adapter(alone, 1), adapter(run, 2), adapter(alone, 2), 1e-4)
    assert result.stdout.count("wrote policy 2") == 1


def test_replay_takes_the_rows_of_the_last_iterations_whatever_policy_sampled_them(run, tmp_path):
    assert run_train(run).exit_code == 0
    sample_rows(run, 2, num_groups=3)
    older = copy_run(run, tmp_path / "older")
    assert run_train(run, "--replay", "1").exit_code == 0      # iteration 1 is of policy 0, as in an arm
    assert {row["iteration"] for row in run.read("train_samples", iteration=2).to_pylist()} == {1, 2}
    assert run_train(older, "--replay", "2").exit_code == 0
    rows = older.read("train_samples", iteration=2).to_pylist()
    assert {(row["iteration"], row["staleness"], row["trained_iteration"]) for row in rows} == {
        (0, 2, 2), (1, 2, 2), (2, 0, 2)}
    assert [line["staleness"] for line in older.stage("train",
                                                      iteration=2).manifest()["facts"]["mismatch"]] == [0, 2]


def test_without_any_gradient_the_stage_stops_or_keeps_the_policy(run):
    rewrite(run, 1, "samples", lambda row: {**row, "reward": 0.5})
    result = run_train(run)
    assert result.exit_code == 1
    assert "--keep-if-nothing" in result.stderr and "42 zero_variance" in result.stderr
    assert run_train(run, "--keep-if-nothing").exit_code == 0
    before, after = adapter(run, 1), adapter(run, 2)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("updates", ["1", "3"])
def test_where_the_correction_leaves_nothing_the_stage_stops_or_keeps_the_policy(run, updates):
    options = ["--updates-per-batch", updates, "--correction", "sequence-mask", "--correction-low", "1e6",
               "--correction-high", "1e7"]
    assert "importance_mask" in run_train(run, *options, "--dry-run").stderr
    result = run_train(run, *options)
    assert result.exit_code == 1 and "--keep-if-nothing" in result.stderr, result.output
    assert "The bounds of --correction and --veto drop all" in result.stderr
    assert not (run.root / "train" / "iteration=1").exists()
    assert run_train(run, *options, "--keep-if-nothing").exit_code == 0
    before, after = adapter(run, 1), adapter(run, 2)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {row["drop_reason"] for row in run.read("train_samples", iteration=1).to_pylist()} == {
        "importance_mask", "zero_variance"}
    assert not run.read("train_tokens", iteration=1).num_rows


def test_kl_to_the_base_holds_the_policy_near_it(run, stale, tmp_path):
    free = copy_run(stale, tmp_path / "free")
    for warehouse, beta in ((free, "0"), (run, "20")):
        assert run_train(warehouse, "--kl-beta", beta, "--updates-per-batch", "7").exit_code == 0
    def distance(warehouse):
        ids = torch.arange(40)[None] % 61
        with torch.no_grad():
            scores = [load_policy(warehouse, version).full_logits(ids).log_softmax(-1) for version in (0, 2)]
        return float((scores[1].exp() * (scores[1] - scores[0])).sum())
    assert distance(run) < 0.7 * distance(free)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Three groups of the base policy; never to be written to."""
    run = tiny_run(tmp_path_factory.mktemp("runs") / "small")
    sample_rows(run, 0, num_groups=3)
    return run


def test_full_fine_tuning_with_kl_starts_at_zero_kl(small, tmp_path):
    run = copy_run(small, tmp_path / "full")
    result = run_train(run, "--full", "--kl-beta", "1", "--updates-per-batch", "1", "--loss", "grpo")
    assert result.exit_code == 0, result.output
    step, = run.read("train_steps", iteration=0).to_pylist()
    assert abs(step["loss"]) < 1e-5 and step["policy_kl"] < 1e-10


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", [[], ["--full"]])
def test_half_precision_trains_towards_the_same_adapter(small, tmp_path, dtype, kind):
    run = copy_run(small, tmp_path / "half")
    result = run_train(run, *kind, "--dtype", dtype, "--max-mismatch", "1")
    assert result.exit_code == 0, result.output
    steps = run.read("train_steps", iteration=0).to_pylist()
    assert sum(0 < step["grad_norm"] < 10 for step in steps) == 2
    mismatch, = run.stage("train", iteration=0).manifest()["facts"]["mismatch"]
    assert 1e-5 < mismatch["log_ratio_abs_mean"] < 0.1


@pytest.mark.parametrize(("schedule", "step", "rate"), [
    ("constant", 0, 0.25), ("constant", 2, 0.75), ("constant", 3, 1.0), ("constant", 50, 1.0),
    ("linear", 3, 1.0),
    ("linear", 8, 0.5), ("linear", 13, 0.0), ("linear", 99, 0.0), ("cosine", 3, 1.0), ("cosine", 8, 0.5),
    ("cosine", 13, 0.0)])
def test_learning_rate_warms_up_and_follows_its_schedule(stale, schedule, step, rate):
    settings = settings_of(stale, "--learning-rate", "1", "--warmup-steps", "3", "--schedule", schedule,
                           "--total-steps", "13")
    assert learning_rate(step, settings) == pytest.approx(rate, abs=1e-9)


def test_the_schedule_goes_on_from_stage_to_stage(run):
    assert run_train(run, "--warmup-steps", "9").exit_code == 0
    rates = run.read("train_steps", iteration=1).column("learning_rate").to_pylist()
    assert rates == pytest.approx([1e-2 * step / 10 for step in (4, 5, 6)])


def test_tracking_that_is_not_installed_is_one_sentence(run):
    result = run_train(run, "--track", "trackio")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and "trackio" in result.stderr


def test_the_kl_to_the_base_is_stored_with_a_weight_and_by_request(run, stale, tmp_path):
    """Against both models' own forwards, in float64."""
    plain, weighed = (copy_run(stale, tmp_path / name) for name in ("plain", "weighed"))
    assert run_train(run, "--kl-monitor").exit_code == run_train(plain).exit_code == 0
    assert run_train(weighed, "--kl-beta", "0.1").exit_code == 0
    assert_same_update(adapter(run, 1), adapter(run, 2), adapter(plain, 2))
    prompts = {row["group_id"]: row["prompt_ids"]
               for row in run.read("prompts", iteration=1, purpose="train").to_pylist()}
    ids = {(row["task_id"], row["sample_index"]): row["completion_ids"]
           for row in run.read("completions", iteration=1, purpose="train").to_pylist()}
    policies = [load_policy(run, version) for version in (1, 0)]
    for row in run.read("train_samples", iteration=1).to_pylist()[::5]:
        whole = torch.tensor(prompts[row["group_id"]] + ids[row["task_id"], row["sample_index"]])
        with torch.no_grad():
            now, base = (policy.full_logits(whole[None])[0].double().log_softmax(-1)[:-1]
                         .gather(1, whole[1:, None])[len(prompts[row["group_id"]]) - 1:, 0]
                         for policy in policies)
        assert row["base_log_ratio"] == pytest.approx(float((now - base).mean()), abs=1e-5)
        k3 = ((base - now).exp() - 1 - (base - now)).mean()
        assert row["base_kl"] == pytest.approx(float(k3), abs=1e-5) and row["base_kl"] > 0
    for warehouse in (run, weighed):
        steps = warehouse.read("train_steps", iteration=1).to_pylist()
        assert all(step["base_kl"] > 0 and step["base_log_ratio"] is not None for step in steps)
    steps = plain.read("train_steps", iteration=1).to_pylist()
    assert {(step["base_kl"], step["base_log_ratio"]) for step in steps} == {(None, None)}


def test_global_steps_count_on_after_a_rollback(run):
    assert run_train(run).exit_code == 0
    roll_back(run, 1)
    sample_rows(run, 2, num_groups=4)
    assert run_train(run).exit_code == 0
    steps = [step for iteration in (0, 1, 2)
             for step in run.read("train_steps", iteration=iteration).column("global_step").to_pylist()]
    assert steps == list(range(1, 10))


def test_extra_metrics_are_json(run):
    assert run_train(run).exit_code == 0
    extra = [json.loads(text) for text in run.read("train_steps", iteration=1).column("extra").to_pylist()]
    names = {"policy_k2", "policy_ess", "num_forwarded_tokens", "skipped"}
    assert all(set(metrics) == names for metrics in extra)


def test_only_the_last_policies_keep_their_weights_when_asked(run):
    assert run_train(run).exit_code == 0
    sample_rows(run, 2, num_groups=3)
    said = run_train(run, "--keep-policies", "2").output
    assert "removed the weights of policy 1 (keep-policies 2)" in said
    assert [path.name for path in run.policy_dir(1).iterdir()] == ["policy.json"]
    assert adapter(run, 2) and adapter(run, 3)
    sample_rows(run, 3, num_groups=3)
    assert run_train(run, "--replay", "3").exit_code == 0  # rows of the pruned policy are as good as before


def test_out_of_memory_names_what_to_lower_and_keeps_the_steps(run, stale, tmp_path, monkeypatch):
    whole = copy_run(stale, tmp_path / "whole")
    assert run_train(whole).exit_code == 0
    original, calls = train.steps.steps.accumulate, []
    def full(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")
        return original(*arguments, **options)
    monkeypatch.setattr(train.steps.steps, "accumulate", full)
    result = run_train(run)
    assert result.exit_code == 1 and "Lower --tokens-per-batch, now 1024" in result.stderr
    monkeypatch.undo()
    monkeypatch.setattr(train.steps.steps, "accumulate",
                        lambda *a, **k: calls.append(1) or original(*a, **k))
    assert run_train(run, "--tokens-per-batch", "16").exit_code == 0 and len(calls) == 2 + 2
    assert_same_update(adapter(run, 1), adapter(run, 2), adapter(whole, 2), 1e-4)


def test_too_few_groups_with_a_signal_wait_and_are_trained_on_together_with_the_next(scored, tmp_path):
    waiting, plain = (copy_run(scored, tmp_path / name) for name in "ab")
    result = run_train(waiting, "--until-signal", "7")
    assert result.exit_code == 0, result.output
    assert "6 of 8 groups have a gradient, fewer than --until-signal 7" in result.stdout
    assert waiting.read("train_steps", iteration=0).num_rows == 0
    assert {row["drop_reason"] for row in waiting.read("train_samples", iteration=0).to_pylist()} == {
        "waiting"}
    assert all(not tensor.any() for name, tensor in adapter(waiting, 1).items() if "lora_B" in name)
    sample_rows(waiting, 1)
    result = run_train(waiting, "--until-signal", "7")
    assert "no update; iteration" not in result.stdout
    rows = waiting.read("train_samples", iteration=1).to_pylist()
    assert {row["iteration"] for row in rows if row["drop_reason"] is None} == {0, 1}
    assert max(row["mismatch_kl"] for row in rows) < 1e-9       # sampled by the very weights that are trained
    # One optimizer step on both is what replaying the first, untrained, would have been.
    assert run_train(plain, "--learning-rate", "0").exit_code == 0
    sample_rows(plain, 1)
    expected = {(row["iteration"], row["task_id"], row["sample_index"], row["advantage"]) for row in rows}
    assert run_train(plain, "--replay", "1").exit_code == 0
    replayed = plain.read("train_samples", iteration=1).to_pylist()
    assert {(row["iteration"], row["task_id"], row["sample_index"], row["advantage"])
            for row in replayed} == expected
    sample_rows(waiting, 2)
    assert run_train(waiting).exit_code == 0       # what was trained on waits no longer
    assert {row["iteration"] for row in waiting.read("train_samples", iteration=2).to_pylist()} == {2}


def test_after_five_rollouts_it_trains_on_what_there_is(scored, tmp_path):
    run = copy_run(scored, tmp_path / "run")
    for iteration in range(5):
        if iteration:
            sample_rows(run, iteration, num_groups=1)
        result = run_train(run, "--until-signal", "99")
        assert ("no update; iteration" in result.stdout) == (iteration < 4), result.output
    assert {row["iteration"] for row in run.read("train_samples", iteration=4).to_pylist()} == set(range(5))


def test_after_a_rollback_rows_of_the_policies_between_neither_wait_nor_are_replayed(scored, tmp_path):
    run = copy_run(scored, tmp_path / "run")
    assert run_train(run, "--until-signal", "7").exit_code == 0
    with pytest.raises(Refusal) as refused:
        prune_run(run, 1, dry_run=True)
    assert refused.value.code == "waiting_needed"
    sample_rows(run, 1)
    assert run_train(run).exit_code == 0
    sample_rows(run, 2)
    roll_back(run, 1)
    prune_run(run, 1, dry_run=False)
    sample_rows(run, 3)
    assert run_train(run, "--replay", "2").exit_code == 0
    rows = run.read("train_samples", iteration=3).to_pylist()
    assert {row["iteration"] for row in rows} == {1, 3}     # 1 is of the policy that was taken up again
