"""The train stage on a run folder: what it writes, what it refuses, and that a killed one ends the same."""

import json
import math
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import train.finish
import train.run
import train.start
import train.steps.steps
from rollout.cli import rollout as rollout_command
from tests.building.runs import back_before, begin, change_document, copy_run, finish, write_part
from tests.building.sampled import (
    END,
    OPTIONS,
    SAVING,
    SCORER,
    load_policy,
    rewrite,
    run_train,
    sample_rows,
    tiny_run,
)
from train.cli import export
from train.cli import train as train_command
from train.inputs.signal import reasons_by_reward
from train.objective.loss_table import CORRECTIONS, LOSSES
from train.steps.row import build_batch
from warehouse.fields import options_from
from warehouse.store.schema import arrow_schema


def adapter(warehouse, version):
    return load_file(str(warehouse.policy_dir(version) / "adapter_model.safetensors"))


def refused(warehouse, *arguments):
    before = {path: path.stat().st_mtime_ns for path in warehouse.root.rglob("*")}
    result = run_train(warehouse, *arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.output
    assert {path: path.stat().st_mtime_ns for path in warehouse.root.rglob("*")} == before
    return result.stderr


def test_a_stage_writes_policy_rows_steps_and_manifest_and_says_so(run):
    result = run_train(run)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "iteration 0 is due"
    assert lines[-1].startswith("iteration 0: 3 steps, loss ") and "wrote policy 1" in lines[-1]
    policy, manifest = run.policy(1), run.stage("train", iteration=0).manifest()
    assert (policy["policy_version"], policy["parent"], policy["kind"], policy["global_step"]) == (1, 0,
                                                                                                   "lora", 3)
    assert manifest["facts"]["policy_version"] == 1 and manifest["facts"]["groups"]["groups"] == 8
    assert [part["name"] for part in manifest["parts"]] == [
        "samples-00000.parquet", "steps-00000.parquet", "tokens-00000.parquet"]
    assert not list(run.stage("train", iteration=0).folder.glob("checkpoint-*"))
    samples = run.read("train_samples", iteration=0).to_pylist()
    completions = run.read("completions", iteration=0, purpose="train").to_pylist()
    lengths = [row["num_completion_tokens"] for row in completions]
    assert [len(row["old_logprobs"]) for row in samples] == lengths
    equal = [row for row in samples if row["drop_reason"] == "zero_variance"]
    assert len(equal) == 12 and all(row["advantage"] == 0 and row["optimizer_step"] is None for row in equal)
    steps = run.read("train_steps", iteration=0).to_pylist()
    assert [row["global_step"] for row in steps] == [1, 2, 3]
    assert sum(row["num_groups"] for row in steps) == 8


def test_mismatch_at_staleness_0_in_float32_is_rounding(trained):
    mismatch, = trained.stage("train", iteration=0).manifest()["facts"]["mismatch"]
    assert mismatch["staleness"] == 0
    assert mismatch["log_ratio_abs_mean"] < 1e-6 and mismatch["mismatch_kl"] < 1e-10


def test_training_raises_the_probability_of_what_was_rewarded(trained):
    before, after = load_policy(trained, 0), load_policy(trained, 1)
    groups = train.start.build_batch(train_groups(trained), 0, settings_of(trained))
    gain = 0.0
    for group in groups:
        for row in group.rows:
            ids = torch.cat([group.prompt_ids, row.completion_ids])[None]
            with torch.no_grad():
                scores = [policy.full_logits(ids)[0, len(group.prompt_ids) - 1:-1].log_softmax(-1)
                          .gather(1, row.completion_ids[:, None]).sum() for policy in (before, after)]
            gain += float(row.advantages.mean()) * float(scores[1] - scores[0])
    assert gain > 0.5


def train_groups(run):
    from train.inputs.groups import load_groups
    return load_groups(run, 0, SCORER, truncated_sampling="refuse")


def settings_of(run):
    from train.inputs.options import TrainOptions
    context = train_command.make_context("train", [str(run.root), *OPTIONS])
    return options_from(TrainOptions, context.params)


def test_the_policy_loads_in_peft_and_is_what_its_hash_says(trained):
    model = AutoModelForCausalLM.from_pretrained(trained.model, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(model, str(trained.policy_dir(1)))
    ids = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, load_policy(trained, 1).full_logits(ids))
    assert len(trained.policy(1)["sha256"]) == 64


def test_the_probe_is_what_the_policy_says_to_a_stored_row_and_what_its_parent_said(trained):
    probe = json.loads((trained.policy_dir(1) / "probe.json").read_text())
    ids = torch.tensor(probe["prompt_ids"] + probe["completion_ids"])
    for version, name in ((1, "logprobs"), (0, "logprobs_before")):
        with torch.no_grad():
            scores = load_policy(trained, version).full_logits(ids[None])[0].log_softmax(-1)
        expected = scores[:-1].gather(1, ids[1:, None])[-len(probe["completion_ids"]):, 0]
        torch.testing.assert_close(torch.tensor(probe[name]), expected, rtol=0, atol=2e-5)
    assert probe["logprobs"] != probe["logprobs_before"]


def test_a_second_run_says_that_it_is_trained(run):
    run_train(run)
    assert run_train(run).stdout == ("nothing to train: iteration 1 has no rollout yet; "
                                     f"next: rollout {run.root}\n")
    assert run_train(run, "--iteration", "0").stdout == "iteration 0 is trained already: policy 1\n"
    begin(run, "rollout", {"policy_version": 1}, iteration=1, purpose="train")
    assert run_train(run).stdout == (
        f"nothing to train: the rollout of iteration 1 is not complete; next: rollout {run.root} "
        "--iteration 1, with the options it was begun with\n")


def test_the_next_iteration_starts_from_the_policy_and_its_optimizer(trained, tmp_path):
    run = copy_run(trained, tmp_path / "demo")
    sample_rows(run, 1)
    assert run_train(run).exit_code == 0
    moments = torch.load(run.policy_dir(2) / "optimizer.pt", weights_only=True)["state"]
    skipped = sum(run.stage("train", iteration=number).manifest()["facts"]["num_skipped"]
                  for number in (0, 1))
    assert {float(state["step"]) for state in moments.values()} == {6.0 - skipped}
    assert run.policy(2)["parent"] == 1 and run.policy(2)["global_step"] == 6


def test_a_dry_run_prints_the_table_and_writes_nothing(run):
    before = sorted(run.root.rglob("*"))
    result = run_train(run, "--dry-run")
    assert result.exit_code == 0 and "k3 KL" in result.stdout and result.stdout.endswith("nothing was "
                                                                                         "written\n")
    assert sorted(run.root.rglob("*")) == before


class Killed(BaseException):
    """Stands for kill -9: nothing of the stage handles it."""


KILL_POINTS = ["settle", "save_logprobs", "accumulate", "save", "write_part", "save_policy", "commit_policy",
               "complete"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", KILL_POINTS)
def test_a_stage_killed_anywhere_ends_in_the_same_adapter_when_run_again(trained, run, monkeypatch, point,
                                                                         when):
    from train.steps.checkpoint import Checkpoints
    from warehouse.store.run_folder import Stage, Warehouse
    owner = {"settle": Stage, "complete": Stage, "save_logprobs": Checkpoints, "save": Checkpoints,
             "write_part": Warehouse, "commit_policy": Warehouse,
             "accumulate": train.steps.steps, "save_policy": train.finish}[point]
    original, calls = getattr(owner, point), []

    def kill(*arguments, **options):
        calls.append(1)
        if len(calls) == (2 if point in ("accumulate", "save") else 1) and when == "before":
            raise Killed
        result = original(*arguments, **options)
        if len(calls) == (2 if point in ("accumulate", "save") else 1):
            raise Killed
        return result

    monkeypatch.setattr(owner, point, kill)
    with pytest.raises(Killed):
        CliRunner().invoke(train_command, [str(run.root), *OPTIONS, *SAVING], catch_exceptions=False)
    monkeypatch.undo()
    result = run_train(run, "--iteration", "0")
    assert result.exit_code == 0, result.output
    expected, actual = adapter(trained, 1), adapter(run, 1)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    columns = ["reward", "advantage", "old_logprobs", "optimizer_step"]
    rows, expected_rows = (warehouse.read("train_samples", iteration=0, columns=columns)
                           for warehouse in (run, trained))
    assert rows == expected_rows
    assert run.read("train_tokens", iteration=0) == trained.read("train_tokens", iteration=0)
    assert run.stage("train", iteration=0).is_complete()
    assert not list(run.stage("train", iteration=0).folder.glob("checkpoint-*"))


def test_sigterm_saves_and_exits_with_75_and_the_rerun_ends_the_same(trained, run, monkeypatch):
    original = train.steps.steps.take_step

    def take_step(*arguments, **options):
        result = original(*arguments, **options)
        signal.raise_signal(signal.SIGTERM)
        return result
    monkeypatch.setattr(train.steps.steps, "take_step", take_step)
    result = run_train(run)
    assert result.exit_code == 75, result.output
    assert "with 1 of 3 steps taken and saved" in result.stderr
    monkeypatch.undo()
    assert run_train(run).exit_code == 0
    expected, actual = adapter(trained, 1), adapter(run, 1)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_rows_of_another_adapter_stop_the_stage_before_the_first_gradient(run):
    run_train(run)
    sample_rows(run, 1, sampled_by=0, claimed=1)
    result = run_train(run)
    assert result.exit_code == 3
    assert "disagree at staleness 0" in result.stderr and "--max-mismatch" in result.stderr
    assert 2 not in run.state.versions
    assert run_train(run, "--max-mismatch", "1").exit_code == 0


def test_bad_input_is_refused_in_one_sentence_and_nothing_is_written(run, tmp_path):
    assert "has no complete training rollout" in refused(run, "--iteration", "3")
    assert "There is no loss 'ppo'" in refused(run, "--loss", "ppo")
    assert "leave --correction" in refused(run, "--loss", "reinforce", "--correction", "token-mask")
    assert "has not scored iteration 0" in refused(run, "--scorer", "other")
    rewrite(run, 0, "prompts", lambda row: {**row, "group_size": 1})
    assert "--group-size 2" in refused(run)


def test_a_base_model_that_has_changed_is_refused(run):
    weights = run.root / "model" / "model.safetensors"
    weights.chmod(0o644)
    with weights.open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"other")
    assert "has changed since the run was made" in refused(run)
    weights.parent.rename(run.root / "elsewhere")
    assert "is no longer at" in refused(run)


def test_unscored_and_twice_scored_iterations_are_refused(scored, run):
    sample_rows(run, 1, sampled_by=0)
    run = back_before(run, "score", complete=True, iteration=1, purpose="train", scorer=SCORER)
    assert "Run `score" in refused(run, "--iteration", "1")
    keys = {"iteration": 0, "purpose": "train"}
    rows = [{**row, "scorer": "other-2"} for row in run.read("samples", **keys, scorer=SCORER).to_pylist()]
    table = pa.Table.from_pylist(rows, arrow_schema("samples"))
    write_part(run, "samples", 0, table, **keys, scorer="other-2")
    finish(run, "score", **keys, scorer="other-2")
    assert "was scored by other-2, toy-1" in refused(run)


@pytest.mark.parametrize(("table", "change", "message"), [
    ("completions", lambda row: {**row, "top_p": 0.9}, "or add --top-k of 64 or less"),
    ("completions", lambda row: {**row, "support_ids": [[token] for token in row["completion_ids"][1:]]},
     "support_ids of"),
    ("completions", lambda row: {**row, "repetition_penalty": 1.1}, "repetition_penalty"),
    ("completions", lambda row: {**row, "temperature": 0.5, "logprobs_mode": "raw_logprobs"}, "raw_logprobs"),
    ("completions", lambda row: {**row, "behaviour_logprobs": row["behaviour_logprobs"][:-1]},
     "behaviour logprobs"),
    ("completions", lambda row: {**row, "behaviour_logprobs": None}, "behaviour logprobs"),
    ("completions", lambda row: {**row, "behaviour_logprobs": [math.nan for _ in row["behaviour_logprobs"]]},
     "finite"),
    ("completions", lambda row: {**row, "completion_ids": [END + 40 for _ in row["completion_ids"]]},
     "tokenizer"),
    ("completions", lambda row: {**row, "policy_sha256": "other"}, "other weights"),
    ("samples", lambda row: row if row["sample_index"] else None, "scored in part"),
])
def test_rows_that_cannot_be_trained_on_are_refused(run, table, change, message):
    rewrite(run, 0, table, change)
    assert message in refused(run)


def mismatch_of(result):
    """Mean |log rho| of the rows of the policy itself, as printed."""
    line = next(line for line in result.output.splitlines() if line.split()[:1] == ["0"])
    return float(line.split()[3])


def test_rows_of_truncated_sampling_are_weighed_over_what_it_left(tmp_path):
    run = tiny_run(tmp_path / "run")
    sample_rows(run, 0, top_k=6)
    shown = run_train(run, "--truncated-sampling", "uncorrected", "--max-mismatch", "1e9", "--dry-run")
    assert shown.exit_code == 0 and mismatch_of(shown) > 0.1, shown.output
    result = run_train(run)
    assert result.exit_code == 0 and mismatch_of(result) < 1e-5, result.output
    rows = {(row["task_id"], row["sample_index"]): row["old_logprobs"]
            for row in run.read("train_samples", iteration=0).to_pylist()}
    for row in run.read("completions", iteration=0, purpose="train").to_pylist():
        assert rows[row["task_id"], row["sample_index"]] == pytest.approx(row["behaviour_logprobs"], abs=2e-5)
    assert json.loads((run.policy_dir(1) / "probe.json").read_text())["logprobs_before"] is None


def test_changed_settings_are_refused_by_name(run):
    run_train(run)
    back_before(run, "train", complete=True, iteration=0)
    assert "learning-rate = 0.01, now it is 0.5" in refused(run, "--iteration", "0", "--learning-rate", "0.5")


def test_a_missing_reward_leaves_the_group_and_gets_no_gradient(run):
    rewrite(run, 0, "samples", lambda row: {**row, "reward": None} if row["sample_index"] == 2 else row)
    assert run_train(run).exit_code == 0
    rows = [row for row in run.read("train_samples", iteration=0).to_pylist() if row["sample_index"] == 2]
    assert {(row["drop_reason"], row["advantage"]) for row in rows} == {("missing_reward", 0.0)}
    assert all(row["reward"] is None for row in rows)


@pytest.mark.parametrize("loss", ["dapo", "grpo"])
def test_a_missing_reward_counts_in_the_denominators_with_a_kl_and_without(run, loss):
    rewrite(run, 0, "samples", lambda row: {**row, "reward": None} if row["sample_index"] < 4 else row)
    norms = []
    for name, beta in (("without", "0"), ("with", "1e-12")):
        one = copy_run(run, run.root.parent / name)
        assert run_train(one, "--loss", loss, "--kl-beta", beta, "--updates-per-batch", "1").exit_code == 0
        step, = one.read("train_steps", iteration=0).to_pylist()
        norms.append(step["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_rows_without_a_gradient_are_refused_before_torch_is_imported(run):
    rewrite(run, 0, "samples", lambda row: {**row, "reward": 0.5})
    program = ("import sys, click\nfrom train.cli import train\nfrom train.inputs.signal import NoGradient\n"
               f"try:\n    train.main([{str(run.root)!r}], standalone_mode=False)\n"
               "except click.ClickException as error:\n"
               "    print(error.exit_code, dict(error.__cause__.drops), 'torch' in sys.modules)\n")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    rows = run.read("samples", iteration=0, purpose="train", scorer=SCORER).num_rows
    assert said.stdout.splitlines()[-1] == f"1 {{'zero_variance': {rows}}} False"


@pytest.mark.parametrize("options", [
    (), ("--keep-truncated",), ("--scale-rewards", "none"), ("--loss", "nll"), ("--kl-beta", "0.1")])
def test_what_rewards_say_of_a_gradient_is_what_the_advantages_say(run, monkeypatch, options):
    drawn = random.Random(str(options))
    rewrite(run, 0, "samples", lambda row: {**row, "correct": drawn.random() < 0.3, "reward": drawn.choice(
        [None, 0.0, 1.0] if row["task_id"] > "task-2" else [0.5])})
    monkeypatch.setattr(train.run, "train_iteration", lambda _run, inputs, settings, **_more: found.append(
        (inputs, settings)))
    found = []
    run_train(run, *options)
    (inputs, settings), = found
    batch = build_batch(inputs.groups, 0, settings)
    assert reasons_by_reward(inputs, settings) == [row.drop_reason for group in batch for row in group.rows]


def test_a_step_without_a_gradient_updates_nothing_and_is_counted(run):
    assert run_train(run, "--updates-per-batch", "8", "--weight-decay", "0.1").exit_code == 0
    steps = run.read("train_steps", iteration=0).to_pylist()
    skipped = [json.loads(step["extra"])["skipped"] for step in steps]
    assert skipped == [step["grad_norm"] == 0 for step in steps] and sum(skipped) == 2
    moments = torch.load(run.policy_dir(1) / "optimizer.pt", weights_only=True)["state"]
    assert {float(value["step"]) for value in moments.values()} == {6.0}
    assert run.stage("train", iteration=0).manifest()["facts"]["num_skipped"] == 2


def test_a_missing_reward_is_no_target_of_a_loss_of_ones_own(run):
    other = copy_run(run, run.root.parent / "other")
    rewrite(run, 0, "samples", lambda row: {**row, "reward": None} if row["sample_index"] == 2 else row)
    (run.root / "loss.py").write_text("def own(policy, old, mu, advantages, mask):\n"
                                      "    return (policy - mu - advantages).square()\n")
    assert run_train(run, "--loss", f"{run.root}/loss.py:own", "--updates-per-batch", "1").exit_code == 0
    rows = run.read("train_samples", iteration=0).to_pylist()
    assert {(row["drop_reason"], row["optimizer_step"]) for row in rows
            if row["sample_index"] == 2} == {("missing_reward", None)}
    assert {row["drop_reason"] for row in rows if row["sample_index"] != 2} == {None}
    # Nor has it any part in advantages of the user's own, which are of the rewards that there are.
    rewrite(other, 0, "samples", lambda row: {**row, "reward": None} if row["sample_index"] == 2 else row)
    (other.root / "mine.py").write_text("def own(rows):\n    return [row['reward'] + 1 for row in rows]\n")
    assert run_train(other, "--advantages", f"{other.root}/mine.py:own").exit_code == 0
    for row in other.read("train_samples", iteration=0).to_pylist():
        assert row["advantage"] == pytest.approx(0 if row["reward"] is None else row["reward"] + 1)


def test_another_scorer_than_the_iteration_before_is_said(run):
    assert "rewards are those of" not in run_train(run).stdout
    sample_rows(run, 1, scorer="other-1")
    result = run_train(run)
    assert f"rewards are those of other-1; iteration 0 was trained on those of {SCORER}" in result.stdout


def test_a_group_without_any_reward_is_not_called_wrong(run):
    rewrite(run, 0, "samples", lambda row: {**row, "correct": True, **(
        {"reward": None, "correct": None} if row["task_id"] == "task-3" else
        {"reward": 1.0 if row["sample_index"] else None} if row["task_id"] == "task-1" else {})})
    result = run_train(run)
    [line] = [line for line in result.stdout.splitlines() if line.startswith("groups 8: ")]
    assert line.endswith("0 all wrong, 0 equal otherwise, 1 not measured") and ", 3 all right, " in line


def test_full_fine_tuning_writes_a_model_that_loads_by_itself(run):
    result = run_train(run, "--full", "--learning-rate", "1e-3")
    assert result.exit_code == 0, result.output
    base = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32)
    trained = AutoModelForCausalLM.from_pretrained(run.policy_dir(1), dtype=torch.float32)
    change = max(float((a - b).detach().abs().max()) for a,
                 b in zip(base.parameters(), trained.parameters(), strict=True))
    assert 1e-4 < change < 1e-1
    exported = CliRunner().invoke(train_command, ["export", str(run.root), "--output", f"{run.root}-plain"])
    assert exported.stdout.startswith("policy 1 written to") and "adapter" not in exported.stdout
    plain = AutoModelForCausalLM.from_pretrained(f"{run.root}-plain", dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), trained.parameters(), strict=True))
    left_out = {"optimizer.pt", "policy.json", "probe.json"}
    assert {path.name for path in run.policy_dir(1).iterdir()} - left_out == {
        path.name for path in Path(f"{run.root}-plain").iterdir()} - {"rollhouse.json"}
    sample_rows(run, 1, sampled_by=0)
    assert "kind 'full'" in refused(run)


def test_every_option_in_the_docs_exists_and_every_loss_and_correction_is_documented():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "training.md").read_text() + (docs / "corrections.md").read_text()
    known = {option for parameter in [*train_command.params, *export.params, *rollout_command.params]
             for option in [*parameter.opts, *parameter.secondary_opts]}
    launchers = {"--standalone", "--nproc-per-node", "--num_processes", "--max-logprobs"}
    assert set(re.findall(r"--[a-z][a-z0-9_-]+", page)) - launchers <= known
    for name in (*LOSSES, *CORRECTIONS):
        assert name in page, name


def test_a_model_of_the_hub_is_loaded_at_the_commit_that_the_run_was_made_with(run, monkeypatch):
    from train.model.tiny_copy import AutoModelForCausalLM
    change_document(run.root / "warehouse.json", model_revision="c0ffee")
    loaded, original = [], AutoModelForCausalLM.from_pretrained

    def note(source, revision=None, **options):
        loaded.append(revision)
        return original(source, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", note)
    result = CliRunner().invoke(train_command, [str(run.root), *OPTIONS, "--kl-beta", "0.1"])
    assert result.exit_code == 0, result.output
    assert loaded and set(loaded) == {"c0ffee"}


def test_tokens_and_logprobs_are_held_once_as_they_lie_in_the_part(trained):
    for rollout in (rollout for group in train_groups(trained) for rollout in group.rollouts):
        for values in (rollout.completion_ids, rollout.behaviour_logprobs):
            assert values.itemsize == 4 and not values.flags.owndata
