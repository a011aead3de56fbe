"""`train --teacher`: on-policy distillation, whose advantages descend the reverse KL to another model."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.building.sampled import SIZES, load_policy, run_train
from train.objective.losses import token_losses
from warehouse.store.run_folder import Warehouse, open_warehouse

LOSS = ["--loss", "reinforce"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of random weights with the tokenizer of the runs."""
    folder = tmp_path_factory.mktemp("models") / "teacher"
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_the_expected_gradient_is_that_of_the_reverse_kl() -> None:
    """Over every token of a vocabulary, each with its probability, in float64."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    log_teacher = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    log_policy = logits.log_softmax(0)
    (log_policy.exp() * (log_policy - log_teacher)).sum().backward(retain_graph=True)
    expected, logits.grad = logits.grad, None
    column, ones = log_policy[:, None], torch.ones(7, 1, dtype=torch.float64)
    advantages = (log_teacher - log_policy.detach())[:, None]
    per_token, _ = token_losses("reinforce", column, column.detach(), column.detach(), advantages, ones,
                                clip_low=0.2, clip_high=0.2)
    (log_policy.detach().exp()[:, None] * per_token).sum().backward()
    assert expected is not None and logits.grad is not None
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-14)


def log_probabilities(run: Warehouse, model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of every completion of iteration 0 its ids, and log p [n, vocabulary] in float64 before each."""
    prompts = {row["group_id"]: row["prompt_ids"]
               for row in run.read("prompts", iteration=0, purpose="train").to_pylist()}
    found = []
    for row in run.read("completions", iteration=0, purpose="train").to_pylist():
        ids = torch.tensor(row["completion_ids"])
        with torch.no_grad():
            logits = model.double()(torch.tensor([[*prompts[row["group_id"]], *ids]])).logits[0]
        found.append((ids, logits[-len(ids) - 1:-1].log_softmax(-1)))
    return found


def reverse_kl(run: Warehouse, version: int, teacher: Path) -> float:
    """Mean KL(policy, teacher) of the next token along the completions of iteration 0."""
    said = log_probabilities(run, Qwen2ForCausalLM.from_pretrained(teacher))
    own = log_probabilities(run, load_policy(run, version).model)
    return torch.cat([(p.exp() * (p - q)).sum(-1) for (_, p), (_, q) in zip(own, said, strict=True)]
                     ).mean().item()


def test_the_policy_comes_nearer_to_the_teacher(run: Warehouse, teacher: Path) -> None:
    done = run_train(run, *LOSS, "--teacher", str(teacher))
    assert done.exit_code == 0, done.output
    said = log_probabilities(run, Qwen2ForCausalLM.from_pretrained(teacher))
    completions = run.read("completions", iteration=0, purpose="train").to_pylist()
    expected = [np.mean(log_p.gather(1, ids[:, None])[:, 0].numpy() - np.array(row["behaviour_logprobs"]))
                for (ids, log_p), row in zip(said, completions, strict=True)]
    rows = run.read("train_samples", iteration=0).to_pylist()
    np.testing.assert_allclose([row["advantage"] for row in rows], expected, atol=1e-5)
    assert reverse_kl(run, 1, teacher) < 0.8 * reverse_kl(run, 0, teacher)
    state = open_warehouse(run.root).state
    [life], training = state.of_stage("logprobs"), state.life("train", 0)
    assert training and life.begun in training.reads and training.settings["teacher"] == life.scorer
    assert str(life.scorer).startswith("teacher-")
    assert "trained already" in run_train(run, *LOSS, "--teacher", str(teacher), "--iteration", "0").output
    other = run_train(run, *LOSS, "--iteration", "0")
    assert other.exit_code == 1 and "teacher" in other.output


def test_a_killed_training_asks_the_teacher_once(run: Warehouse, teacher: Path) -> None:
    dry = run_train(run, *LOSS, "--teacher", str(teacher), "--dry-run")
    assert dry.exit_code == 0, dry.output
    head = open_warehouse(run.root).state.head
    assert run_train(run, *LOSS, "--teacher", str(teacher)).exit_code == 0
    begun = [entry.what for number, entry in open_warehouse(run.root).state.entries.items() if number > head]
    assert not [what for what in begun if getattr(what, "stage", "") == "logprobs"]


@pytest.mark.parametrize(("words", "why"), [
    (["--loss", "nll"], "weighs"), ([*LOSS, "--scale-rewards", "none"], "--scale-rewards"),
    ([*LOSS, "--advantages", "somewhere.py:fine"], "Leave one of them out")])
def test_what_contradicts_a_teacher_is_refused(run: Warehouse, teacher: Path, words: list[str],
                                               why: str) -> None:
    refused = run_train(run, "--teacher", str(teacher), *words)
    assert refused.exit_code == 1 and why in refused.output


def test_a_teacher_of_another_tokenizer_is_refused(run: Warehouse, teacher: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(teacher, tmp_path / "other"))
    (other / "tokenizer.json").unlink()
    (other / "tokenizer.model").write_text("another")
    refused = run_train(run, *LOSS, "--teacher", str(other))
    assert refused.exit_code == 1 and "tokenizer" in refused.output
    assert run.state.head == open_warehouse(run.root).state.head
