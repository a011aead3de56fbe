"""Options of `train` that contradict each other: one sentence, before anything is read."""

from pathlib import Path

import pytest

from train.cli import train
from train.inputs.options import TrainOptions
from train.inputs.settings import check_settings
from warehouse.fields import options_from
from warehouse.store.errors import StageError


@pytest.mark.parametrize(("options", "sentence"), [
    ("--loss nll --advantages a.py:f", "The loss nll gives every right completion the same weight; "),
    ("--purpose eval --loss nll", "--purpose eval is not possible: train on 'train', or on "),
    ("--purpose distil-b", "Rows of purpose distil-b have no logprobs, which the loss "),
    ("--schedule linear", "--schedule linear needs --total-steps, the optimizer step at "),
    ("--load-4bit --full", "--load-4bit freezes the base, so it cannot be trained with --full. "),
    ("--lora-rank 513", "--lora-rank 513 is above 512, the highest that vLLM serves: "),
    ("--correction-low 2 --correction-high 1", "--correction-low 2.0 must be below --correction-high 1.0."),
    (f"--seed {2**64}", f"--seed {2**64} has more than 64 bits."),
    (f"--tokens-per-batch {2**64}", f"--tokens-per-batch {2**64} is more than any forward takes."),
    ("--total-steps 9", "--total-steps is where a schedule ends: choose --schedule linear or "),
    ("--advantages nowhere.py:f", "--advantages")])
def test_what_contradicts_itself_is_refused_in_a_sentence(tmp_path: Path, options: str,
                                                          sentence: str) -> None:
    values = train.make_context("train", [str(tmp_path), *options.split()]).params
    with pytest.raises(StageError) as refused:
        check_settings(options_from(TrainOptions, values))
    assert str(refused.value).startswith(sentence)


def test_the_defaults_contradict_nothing(tmp_path: Path) -> None:
    check_settings(options_from(TrainOptions, train.make_context("train", [str(tmp_path)]).params))
