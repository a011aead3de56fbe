"""Wrong rows, options and limits are refused in one sentence, nothing written; what changes is said."""

import json
import math

import pytest
import torch
from click.testing import CliRunner

from tests.building.runs import copy_run
from tests.building.sampled import OPTIONS, SCORER, rewrite, run_train, sample_rows
from train.cli import train as train_command
from train.inputs.inputs import read_inputs, stage_settings
from train.inputs.options import TrainOptions
from train.inputs.settings import fill_in
from train.run import name_what_to_lower
from warehouse.cli import cli
from warehouse.fields import options_from
from warehouse.sql.database import connect, rows_of
from warehouse.store.errors import StageError


@pytest.fixture(scope="module")
def trained(scored, tmp_path_factory):
    """Policy 1 after one step at a learning rate of 1e-6."""
    warehouse = copy_run(scored, tmp_path_factory.mktemp("runs") / "trained")
    assert run_train(warehouse, "--learning-rate", "1e-6", "--updates-per-batch", "1").exit_code == 0
    return warehouse


@pytest.fixture(scope="module")
def sampled_again(trained, tmp_path_factory):
    """With iteration 1 sampled by policy 1; never to be written to."""
    warehouse = copy_run(trained, tmp_path_factory.mktemp("runs") / "again")
    sample_rows(warehouse, 1)
    return warehouse


@pytest.fixture
def next_run(sampled_again, tmp_path):
    """A copy of that."""
    return copy_run(sampled_again, tmp_path / "next")


def refused(warehouse, *arguments, code=1):
    before = {path: path.stat().st_mtime_ns for path in warehouse.root.rglob("*")}
    result = run_train(warehouse, *arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert {path: path.stat().st_mtime_ns for path in warehouse.root.rglob("*")} == before
    return result.stderr


FLOATS = [parameter for parameter in train_command.params if "float" in parameter.type.name]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_float_option_takes_what_is_no_number(scored, value):
    assert len(FLOATS) > 15
    for parameter in FLOATS:
        assert parameter.opts[0] in refused(scored, parameter.opts[0], value, code=2)


@pytest.mark.parametrize(("option", "value"), [
    ("--learning-rate", "-1"), ("--kl-beta", "-0.1"), ("--clip-low", "-1"), ("--adam-beta1", "1"),
    ("--entropy-quantile", "0"), ("--veto", "-1"),
    ("--threads", "100000"), ("--checkpoint-seconds", "-1"), ("--lora-alpha", "0")])
def test_values_out_of_range_are_refused_before_anything_is_read(tmp_path, option, value):
    result = CliRunner().invoke(train_command, [str(tmp_path / "nowhere"), option, value])
    assert result.exit_code == 2 and option in result.stderr and "nowhere" not in result.stderr


@pytest.mark.parametrize(("options", "message"), [
    (["--loss", "reinforce", "--clip-low", "0.1"], "The loss reinforce does not use --clip-low."),
    (["--loss", "cispo", "--clip-low", "0.1"], "The loss cispo does not use --clip-low."),
    (["--loss", "cispo", "--clip-high", "0.28"], "of cispo it is the largest ratio, by default 5"),
    (["--loss", "nll", "--clip-high", "0.1"], "does not use --clip-high."),
    (["--loss", "nll", "--delta", "2"], "does not use --delta."),
    (["--loss", "nll", "--clip-low", "0.1", "--clip-high", "0.1"],
     "--clip-low, --clip-high. Leave them out, or take one that does: dapo, grpo, dr_grpo, gspo."),
    (["--max-completion-length", "9"], "take one that does: dr_grpo."),
    (["--loss", "nll", "--scale-rewards", "none"], "divides by no std"),
    (["--correction", "bypass", "--correction-high", "2"], "The correction bypass has no bounds"),
    (["--loss", "reinforce", "--correction-low", "0.1"], "The correction none has no bounds"),
    (["--total-steps", "9"], "--schedule linear"),
    (["--loss", "nll", "--off-policy-threshold", "0.5"], "leave it out"),
    (["--loss", "gspo", "--entropy-quantile", "0.3"], "leave no token out"),
    (["--full", "--lora-rank", "8"], "leave --lora-rank out")])
def test_an_option_that_would_change_nothing_is_refused(scored, options, message):
    assert message in refused(scored, *options)


@pytest.mark.parametrize("device", ["cuda:99", "quantum", "mps"])
def test_a_device_that_is_not_there_is_named(run, device):
    assert f"--device {device} is not there" in refused(run, "--device", device)


@pytest.mark.parametrize(("table", "change", "message"), [
    ("completions", lambda row: row if row["sample_index"] else None, "5 of its 6 completions"),
    ("completions", lambda row: None if row["task_id"] == "task-3" else row, "has 0 completions"),
    ("completions", lambda row: {**row, "behaviour_logprobs": [0.1 for _ in row["behaviour_logprobs"]]},
     "above 0"),
    ("completions", lambda row: {**row, "completion_ids": [-1] * len(row["completion_ids"])}, "token id -1"),
    ("prompts", lambda row: {**row, "prompt_ids": [-1, 5]}, "token id -1"),
    ("samples", lambda row: {**row, "reward": math.inf if row["sample_index"] else 0.0}, "has reward inf"),
    ("samples", lambda row: {**row, "reward": 1e300 if row["sample_index"] else 0.0}, "has reward 1e+300"),
])
def test_rows_that_would_train_something_else_are_refused(run, table, change, message):
    rewrite(run, 0, table, change)
    assert message in refused(run)


@pytest.mark.parametrize("rate", ["2e-5", "1e-4"])
def test_rows_of_the_base_labelled_policy_1_are_caught_after_small_steps(run, tmp_path, rate):
    assert run_train(run, "--learning-rate", rate, "--updates-per-batch", "8").exit_code == 0
    honest = copy_run(run, tmp_path / "honest")
    sample_rows(run, 1, sampled_by=0, claimed=1)
    result = run_train(run)
    assert result.exit_code == 3 and "times what rounding made in iteration 0" in result.stderr, result.output
    sample_rows(honest, 1)
    assert run_train(honest).exit_code == 0


def test_an_error_without_a_message_is_still_a_sentence(monkeypatch, run):
    def fail(*_arguments, **_options):
        raise MemoryError
    with pytest.raises(StageError, match="Out of memory: MemoryError: no message"), \
            name_what_to_lower(lambda: 5):
        fail()
    monkeypatch.setattr("torch.optim.AdamW.step", fail)
    result = run_train(run)
    assert result.exit_code == 1 and "The update of step 0 failed: MemoryError: no message." in result.stderr


def test_too_little_memory_names_what_to_lower():
    with pytest.raises(StageError, match="Lower --tokens-per-batch, now 5, or --gpu-memory-utilization"), \
            name_what_to_lower(lambda: 5):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_half_precision_says_what_its_table_cannot_tell(run):
    result = run_train(run, "--dtype", "bfloat16", "--dry-run", "--max-mismatch", "1")
    assert result.exit_code == 0 and "cannot tell whether the engine served this policy" in result.stdout


def test_under_bypass_drift_is_measured_against_the_policy_that_the_stage_started_from(next_run):
    rewrite(next_run, 1, "completions", lambda row: {**row, "behaviour_logprobs": [
        value - 1 for value in row["behaviour_logprobs"]]})
    result = run_train(next_run, "--correction", "bypass", "--max-mismatch", "9", "--updates-per-batch", "1")
    assert result.exit_code == 0, result.output
    step, = next_run.read("train_steps", iteration=1).to_pylist()
    assert step["policy_kl"] < 1e-9 and step["ratio_max"] == pytest.approx(1, abs=1e-4)


def test_ess_entropy_and_clip_fraction_are_over_all_trainable_tokens_in_every_mode(trained, tmp_path):
    facts, stale = [], copy_run(trained, tmp_path / "stale")
    sample_rows(stale, 1, sampled_by=0)
    for more in ([], ["--kl-beta", "1e-9"], ["--mask-truncated"]):  # from the step's own forward, or before
        run = copy_run(stale, tmp_path / "-".join(["run", *more]))
        result = run_train(run, "--updates-per-batch", "1", *more)
        assert result.exit_code == 0, result.output
        step, = run.read("train_steps", iteration=1).to_pylist()
        line, = run.stage("train", iteration=1).manifest()["facts"]["mismatch"]
        assert step["ess"] == pytest.approx(line["ess"], rel=1e-6)
        assert line["num_tokens"] == step["num_trainable_tokens"]
        assert f"{line['ess']:5.3f}" in result.stdout
        samples = run.read("train_samples", iteration=1).to_pylist()
        mean = sum(row["entropy"] * row["num_trainable_tokens"] for row in samples) / line["num_tokens"]
        assert step["entropy"] == pytest.approx(mean, rel=1e-5)
        facts.append((step["ess"], step["entropy"], step["clip_fraction"]))
        connection, shared = connect(run), "kept_fraction, importance_weight_mean, num_tokens"
        view, = rows_of(connection, f"SELECT ess, mismatch_kl, {shared} FROM mismatch WHERE iteration = 1")
        for name, value in view.items():
            assert value == pytest.approx(line[name], rel=1e-5), name
    assert facts[0] == pytest.approx(facts[1], rel=1e-4)


def test_vetoed_rows_with_a_kl_are_rows_that_the_step_used(next_run):
    options = ["--veto", "5", "--updates-per-batch", "1"]       # every rho is below 5: all rows are vetoed
    assert run_train(next_run, *options, "--kl-beta", "0.1").exit_code == 0
    rows = next_run.read("train_samples", iteration=1).to_pylist()
    assert {(row["drop_reason"], row["optimizer_step"]) for row in rows} == {(None, 0)}
    assert {row["kept_fraction"] for row in rows} == {0.0}


def test_a_missing_optimizer_is_said(next_run):
    (next_run.policy_dir(1) / "optimizer.pt").unlink()
    assert "optimizer.pt is missing" in refused(next_run)
    policy = next_run.policy(1)
    policy.pop("files")     # as version 0.2.0 wrote it
    (next_run.policy_dir(1) / "policy.json").write_text(json.dumps(policy))
    result = run_train(next_run)
    assert result.exit_code == 0
    assert "optimizer.pt is missing: AdamW starts with fresh moments" in result.stdout


def test_a_learning_rate_of_0_beyond_the_schedule_is_not_silent(next_run):
    linear = ["--schedule", "linear", "--total-steps"]
    assert "ended at --total-steps 1" in refused(next_run, *linear, "1")
    result = run_train(next_run, *linear, "3")
    assert result.exit_code == 0 and "the learning rate reaches 0 at step 3" in result.stdout


def test_more_updates_than_groups_are_said_and_the_former_name_is_taken(run):
    result = run_train(run, "--updates-per-shard", "1000")
    assert result.exit_code == 0, result.output
    assert "8 optimizer steps of 8 groups, fewer than --updates-per-batch 1000" in result.stdout
    helped = CliRunner().invoke(train_command, ["--help"]).stdout
    assert "--updates-per-batch" in helped and "per-shard" not in helped


def test_config_takes_the_former_name_and_flags_win(scored, tmp_path):
    for number, (flags, steps) in enumerate((([], 2), (["--updates-per-batch", "4"], 4))):
        run = copy_run(scored, tmp_path / str(number))
        (run.root / "config.toml").write_text("[train]\nupdates-per-shard = 2\n")
        options = [value for value in OPTIONS if value not in ("--updates-per-batch", "3")]
        result = CliRunner().invoke(train_command, [str(run.root), *options, *flags])
        assert result.exit_code == 0, result.output
        assert run.read("train_steps", iteration=0).num_rows == steps


def test_a_dry_run_exits_as_training_would_and_shows_a_trained_iteration(run, trained, tmp_path):
    rewrite(run, 0, "samples", lambda row: {**row, "reward": 0.5})
    assert "has a gradient" in refused(run, "--dry-run")
    before = sorted(trained.root.rglob("*"))
    result = run_train(trained, "--iteration", "0", "--dry-run")
    assert result.exit_code == 0 and "k3 KL" in result.stdout
    assert sorted(trained.root.rglob("*")) == before


def test_an_absurd_learning_rate_says_how_to_start_afresh(run):
    result = run_train(run, "--learning-rate", "1e30")
    assert result.exit_code == 1, result.output
    assert "warehouse discard" in result.stderr and "--iteration 0 --training" in result.stderr
    assert 1 not in run.state.versions


def test_a_complete_training_that_is_asked_with_other_options_names_the_branch(trained):
    result = run_train(trained, "--iteration", "0", "--learning-rate", "1e-3")
    assert result.exit_code == 1, result.output
    branch = f"`warehouse branch {trained.root} {trained.root}-at-0 --at 0 --with-rows`"
    assert f"train the same rows again on a branch: {branch}" in result.stderr


def test_a_complete_training_that_is_asked_with_another_scorer_names_the_branch(trained):
    scorer = trained.state.life("train", iteration=0).facts["scorer"]
    same = "--iteration", "0", "--learning-rate", "1e-6", "--updates-per-batch", "1"
    for name in scorer, scorer.rpartition("-")[0]:
        assert run_train(trained, *same, "--scorer", name).exit_code == 0
    result = run_train(trained, "--iteration", "0", "--scorer", "short")
    assert result.exit_code == 1 and f'started with scorer = "{scorer}", now it is "short"' in result.stderr
    assert f"`warehouse branch {trained.root} {trained.root}-at-0 --at 0 --with-rows`" in result.stderr


def test_dr_grpo_divides_by_the_limit_of_the_rows(run, tmp_path):
    given = copy_run(run, tmp_path / "given")
    assert run_train(run, "--loss", "dr_grpo").exit_code == 0
    assert "trained already" in run_train(run, "--loss", "dr_grpo", "--iteration", "0").stdout
    assert run_train(given, "--loss", "dr_grpo", "--max-completion-length", "10").exit_code == 0
    losses = [copy.read("train_steps", iteration=0).column("loss").to_pylist() for copy in (run, given)]
    assert losses[0] == losses[1]
    assert run.policy(1)["settings"]["max_completion_length"] == 10


def test_a_policy_whose_adapter_is_gone_is_refused(next_run):
    for path in next_run.policy_dir(1).iterdir():
        if path.name != "policy.json":
            path.unlink()       # pruned: no new adapter takes its place without a word
    assert "is missing. Restore the folder" in refused(next_run)


def test_export_keeps_the_dtype_of_the_training(trained, tmp_path):
    out = str(tmp_path / "out")
    result = CliRunner().invoke(train_command, ["export", str(trained.root), "--output", out])
    assert result.exit_code == 0 and "in float32" in result.stdout
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_a_stage_that_was_stopped_lends_its_logprobs_to_no_other_rows(next_run):
    failed = run_train(next_run, "--updates-per-batch", "2", "--learning-rate", "1e300")    # saves them first
    assert failed.exit_code == 1 and "value cannot be converted" in failed.stderr, failed.output
    assert (next_run.stage("train", iteration=1).folder / "checkpoint-0").exists()
    tried = run_train(next_run, "--updates-per-batch", "2", "--replay", "1", "--dry-run")
    assert tried.exit_code == 0 and "dry run" in tried.stdout, tried.output
    assert "was started with groups_sha256" in refused(next_run, "--updates-per-batch", "2", "--replay", "1",
                                                       "--learning-rate", "1e300")


def test_a_stage_begun_with_options_that_are_gone_is_one_sentence_and_the_run_still_reads(run):
    """Of an earlier version: a loss that is a function of examples/losses.py now, an option that is gone."""
    settings = options_from(TrainOptions, train_command.make_context(
        "train", [str(run.root), *OPTIONS]).params)
    inputs = read_inputs(run, 0, SCORER, settings)
    begun = stage_settings(inputs, fill_in(settings, inputs.groups)) | {"credit": "best", "oapl_beta": None}
    inputs.stage.settle(begun, reads=inputs.reads)
    assert "was started with credit = " in refused(run)
    assert "There is no loss 'sapo'" in refused(run, "--loss", "sapo")
    for command in ("summary", "watch", "check"):
        assert CliRunner().invoke(cli, [command, str(run.root)]).exit_code == 0
