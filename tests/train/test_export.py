"""`train export` writes a plain model with the logprobs of base and adapter."""

import json
import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from tests.building.sampled import OPTIONS, load_policy, sample_rows, tiny_run
from train.cli import train as train_command
from train.export import logprobs_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    warehouse = tiny_run(tmp_path_factory.mktemp("runs") / "demo")
    sample_rows(warehouse, 0, num_groups=4)
    assert CliRunner().invoke(train_command, [str(warehouse.root), *OPTIONS]).exit_code == 0
    return warehouse


def test_the_exported_model_is_base_and_adapter_in_one(run, tmp_path):
    result = CliRunner().invoke(train_command, ["export", str(run.root), "--output", str(tmp_path / "merged"),
                                                "--dtype", "float32"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"policy 1 written to {tmp_path / 'merged'} in float32; its logprobs")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32)
    ids = torch.arange(30)[None]
    with torch.no_grad():
        expected, actual, before = load_policy(run, 1).full_logits(ids), merged(ids).logits, base(ids).logits
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert (before - expected).abs().max() > 1e-2
    probe = json.loads((run.policy_dir(1) / "probe.json").read_text())
    row = torch.tensor(probe["prompt_ids"] + probe["completion_ids"])
    said = [torch.gather(model(row[None]).logits.log_softmax(-1)[0, :-1], 1, row[1:, None])
            for model in (merged, base)]
    assert f"where the adapter moved them by {(said[0] - said[1]).abs().mean():.1e} on" in result.stdout
    umask = os.umask(0o022)
    os.umask(umask)
    files = [*(tmp_path / "merged").glob("*.safetensors"), *run.policy_dir(1).glob("*.safetensors")]
    assert {path.stat().st_mode & 0o444 for path in files} == {0o444 & ~umask}


@pytest.mark.parametrize(("num_off", "written"), [(1, True), (1000, False)])
def test_a_merged_model_may_be_off_in_a_token_but_not_on_average(
        run, tmp_path, monkeypatch, num_off, written):
    """As where rounding sends a token of a mixture to another expert."""
    def off(logits, ids):
        logprobs = logprobs_of(logits, ids)
        if logits.dtype == torch.bfloat16:      # merged
            logprobs[:num_off] -= 1.5
        return logprobs
    monkeypatch.setattr("train.export.logprobs_of", off)
    result = CliRunner().invoke(train_command, ["export", str(run.root), "--output", str(tmp_path / "merged"),
                                                "--dtype", "bfloat16"])
    assert (result.exit_code == 0) == written == (tmp_path / "merged").exists()
    assert written or "nats on average, more than bfloat16 explains" in result.output


def test_a_killed_export_leaves_nothing_that_a_second_one_trips_over(run, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(base, folder):
        raise Killed

    arguments = ["export", str(run.root), "--output", str(tmp_path / "merged")]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("train.export.copy_tokenizer", kill)
        CliRunner().invoke(train_command, arguments, catch_exceptions=False)
    assert not (tmp_path / "merged").exists()
    assert CliRunner().invoke(train_command, arguments).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    again = CliRunner().invoke(train_command, arguments)
    said = f"{tmp_path / 'merged'} holds policy 1 in float32 already\n"
    assert (again.exit_code, again.stdout) == (0, said)
    assert CliRunner().invoke(train_command, [*arguments, "--dtype", "bfloat16"]).exit_code == 1


def test_what_cannot_be_exported_is_one_sentence(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    fresh = tiny_run(tmp_path / "fresh")
    for arguments, message in (([str(run.root), "--output", str(tmp_path / "full")], "is not empty"),
                               ([str(run.root), "--policy", "9", "--output", str(tmp_path / "x")],
                                "no policy 9"),
                               ([str(fresh.root), "--output", str(tmp_path / "x")],
                                "has only the base policy")):
        result = CliRunner().invoke(train_command, ["export", *arguments])
        assert result.exit_code == 1, result.output
        assert message in result.stderr and result.stderr.count("\n") == 1


def test_another_base_than_that_of_the_run_is_not_exported(run, tmp_path):
    tokenizer = Path(run.model, "tokenizer.json")
    before = tokenizer.read_text()
    tokenizer.write_text(before[:-9])
    arguments = ["export", str(run.root), "--output", str(tmp_path / "merged")]
    result = CliRunner().invoke(train_command, arguments)
    tokenizer.write_text(before)
    assert result.exit_code == 1 and "The tokenizer in" in result.stderr, result.output
    assert not (tmp_path / "merged").exists()
