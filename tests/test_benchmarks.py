"""Benchmarks in their smallest form: those whose names and calls no type checker sees still run."""

import json

import pytest
import torch
from click.testing import CliRunner

from benchmarks import train_gpus, train_variants
from benchmarks.against import lines_of
from benchmarks.loop import Span, covered
from benchmarks.rollout_throughput import MODEL, plan_prompts, stage_rate
from benchmarks.study.sampler import SmallSampler, load_encoder
from benchmarks.train import difference
from benchmarks.train_rows import make_model, parse_shape
from rollout.engines.engine import EngineSettings, Sampling
from train.model import loading
from train.steps import gradients, logprob_pass


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """One thread, while benchmarks put functions of their own into these modules."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for module, name in ((loading, "load_base"), (gradients, "backward_pack"), (logprob_pass, "pack_groups")):
        monkeypatch.setattr(module, name, getattr(module, name))
    yield
    torch.set_num_threads(before)


def test_a_trainer_that_cannot_take_a_shape_says_so_instead_of_measuring_a_part_of_it(tmp_path):
    for variant, shape in (("padded", "8x4x4x2"), ("flex", "8x4x4x2")):
        with pytest.raises(SystemExit, match=f"{variant} takes no shape"):
            train_variants.run(variant, "small", tmp_path, parse_shape(shape), 2, "float32", 64, 0)


@pytest.mark.parametrize("options", [(), ("--full",)], ids=["adapter", "all weights"])
def test_train_gpus_takes_steps_whose_gradients_are_not_nothing(options):
    done = CliRunner().invoke(train_gpus.main, ["--dtype", "float32", "--shape", "8x2x4", "--groups", "2",
                                                "--steps", "2", "--tokens-per-batch", "64", *options])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["full"], told["processes"], len(told["seconds"])) == (bool(options), 1, 2)
    assert min(told["grad_norms"]) > 0


def test_trainers_that_are_compared_end_with_the_same_adapter(tmp_path):
    make_model(tmp_path, "small", 8)
    for variant in ("shared", "alone-two-pass", "padded"):
        told = train_variants.run(variant, "small", tmp_path, parse_shape("8x4x4"), 2, "float32", 64, 0)
        assert told["tokens"] == 8 + 4 * 4
        assert float(difference(tmp_path, variant, "8x4x4")) < 1e-2, variant


def test_the_stage_that_is_compared_with_bare_sampling_writes_all_that_it_samples():
    engine = SmallSampler(EngineSettings(str(MODEL), None, 0, 256, dtype="float32"))
    prompts = plan_prompts(2, 3, load_encoder(str(MODEL)))
    assert [prompt["group_size"] for prompt in prompts] == [3, 3]
    assert min(stage_rate(engine, prompts, Sampling(max_tokens=8))) > 0


def test_the_time_in_which_nothing_was_done_counts_what_overlaps_once():
    spans = [Span(5, 6), Span(0, 2), Span(1, 3), Span(5.5, 9), Span(1.5, 1.75)]
    assert covered(spans, Span(1, 8)) == 5
    assert covered(spans, Span(3, 5)) == covered([], Span(0, 1)) == 0


def test_what_became_slower_is_told_from_noise():
    theirs = [{"a": 1.0, "b": 1.0, "theirs alone": 1.0}] * 4
    ours = [{"a": 2.0 + number / 10, "b": (0.5, 2.0, 0.6, 1.9)[number]} for number in range(4)]
    slower, noise = lines_of(ours, theirs)
    assert slower.endswith("slower") and not noise.rstrip().endswith(("slower", "faster"))
