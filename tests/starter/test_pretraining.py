"""Making the starter: what counts in the loss, noise as announced, and equal seeds giving equal weights."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from examples.starter.batches import (
    encode_examples,
    labelled_answer,
    output_weights,
    padded,
    split_by_tokens,
    training_batches,
)
from examples.starter.network import load_model, make_optimizers, make_schedules, weighted_loss
from examples.starter.noise import noised_answers
from examples.starter.pretrain import pretrain
from examples.starter.programs import code_of
from examples.starter.tokenizer import ANSWER_TAIL, build_tokenizer
from warehouse.tasks.synthetic import synthetic_tasks

STARTER = Path(__file__).parents[2] / "examples" / "starter"
TOKENIZER = build_tokenizer()
SHORT_RUN = {"steps": 24, "tokens_per_step": 1024, "threads": 1,
             "muon_learning_rate": 4e-3, "learning_rate": 3e-3}


@pytest.mark.slow("trains the starter's network twice, on one thread")
def test_a_few_steps_lower_the_loss_and_equal_seeds_give_equal_weights():
    first, losses = pretrain(TOKENIZER, seed=5, **SHORT_RUN)
    again, losses_again = pretrain(TOKENIZER, seed=5, **SHORT_RUN)
    other, _ = pretrain(TOKENIZER, seed=6, **SHORT_RUN)
    assert losses == losses_again and np.mean(losses[-4:]) < losses[0] - 0.2
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.get_input_embeddings().weight, other.get_input_embeddings().weight)


def test_loss_counts_output_cells_and_the_answer_only():
    task = next(synthetic_tasks(1, seed=2))
    example = encode_examples(TOKENIZER, [task], [labelled_answer(task)])[0]
    weight_of = {"In\n": [], "Out\n": []}
    section = None
    for token, weight in zip(TOKENIZER.convert_ids_to_tokens(example.ids), example.weights, strict=True):
        if token in weight_of:
            section = token
            assert weight == 0
        elif token == "<|im_end|>" and section:
            assert weight == 0
            break
        elif section:
            weight_of[section].append(round(float(weight), 3))
    assert set(weight_of["In\n"]) == {0.0} and set(weight_of["Out\n"]) == {0.15, 0.3}
    num_answer_tokens = len(TOKENIZER.encode(labelled_answer(task), add_special_tokens=False)) + 1
    assert (example.weights[-num_answer_tokens:] == 1).all()
    assert (example.weights == 1).sum() == num_answer_tokens


def test_output_weights_of_two_pairs():
    in_id, out_id, end_id = 90, 91, 92
    ids = np.array([80, in_id, 1, 1, out_id, 2, 2, in_id, 3, out_id, 4, 5, end_id, 80])
    expected = [0, 0, 0, 0, 0, .15, .15, 0, 0, 0, .3, .3, 0, 0]
    assert output_weights(ids, in_id, out_id, end_id).tolist() == expected


def test_padding_changes_no_loss():
    tasks = sorted(synthetic_tasks(6, seed=4), key=lambda task: len(str(task.payload["train"])))
    examples = encode_examples(TOKENIZER, tasks, [labelled_answer(task) for task in tasks])
    model = load_model(STARTER / "model")
    with torch.no_grad():
        together = weighted_loss(model, *padded(examples, TOKENIZER.pad_token_id))
        alone = [weighted_loss(model, *padded([example], TOKENIZER.pad_token_id)) for example in examples]
    weights = torch.tensor([example.weights[1:].sum() for example in examples])
    expected = (torch.stack(alone) * weights).sum() / weights.sum()
    assert together.item() == pytest.approx(expected.item(), abs=1e-5)


def test_batches_stay_below_their_tokens_and_use_every_task():
    batches = training_batches(TOKENIZER, seed=1, tokens_per_step=4096)
    shapes = [next(batches)[0].shape for _ in range(30)]
    assert all(rows * length <= 4096 for rows, length in shapes)
    examples = encode_examples(TOKENIZER, tasks := list(synthetic_tasks(50, seed=1)), [""] * len(tasks))
    examples.sort(key=lambda example: len(example.ids))
    assert [example for batch in split_by_tokens(examples, 2000) for example in batch] == examples


def test_noise_spoils_the_announced_shares():
    tasks = list(synthetic_tasks(1500, seed=11))
    answer = noised_answers([labelled_answer(task) for task in synthetic_tasks(500, seed=12)])
    answers = [answer(task, Random(f"draw {index}")) for index, task in enumerate(tasks)]
    kept = np.mean([answer == labelled_answer(task) for answer, task in zip(answers, tasks, strict=True)])
    assert 0.22 < kept < 0.30          # one in four, and the few wrong programs that happen to be right
    assert 0.08 < np.mean([code_of(answer) is None for answer in answers]) < 0.22
    assert 0.02 < np.mean([not answer.endswith(ANSWER_TAIL) for answer in answers]) < 0.13


def test_learning_rate_warms_up_stays_and_falls():
    optimizers = make_optimizers(load_model(STARTER / "model"), muon_learning_rate=4e-3, learning_rate=3e-3)
    schedule = make_schedules(optimizers, 1000)[0].lr_lambdas[0]
    assert schedule(0) == pytest.approx(1 / 60) and schedule(60) == schedule(300) == 1
    assert schedule(650) == pytest.approx(0.525) and schedule(1000) == pytest.approx(0.05)


def answer_loss(path: Path) -> float:
    """Mean cross entropy in nats per answer token on held-out tasks."""
    tasks = list(synthetic_tasks(50, seed=7))
    model = load_model(path)
    examples = encode_examples(TOKENIZER, tasks, [labelled_answer(task) for task in tasks])
    ids, weights = padded(examples, TOKENIZER.pad_token_id)
    with torch.no_grad():
        return weighted_loss(model, ids, (weights == 1).float()).item()


def test_committed_weights_know_the_tasks_and_the_noised_ones_less():
    starter, noised = answer_loss(STARTER / "model"), answer_loss(STARTER / "model-noised")
    assert starter < 0.35 < noised < 0.5


@pytest.mark.parametrize("name", ["model", "model-noised"])
def test_committed_weights_are_small_and_load_in_float32(name):
    from transformers import AutoModelForCausalLM

    assert (STARTER / name / "model.safetensors").stat().st_size < 3_000_000
    model = AutoModelForCausalLM.from_pretrained(STARTER / name)
    assert model.dtype == torch.float32 and model.config.max_position_embeddings == 1024
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
