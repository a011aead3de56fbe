"""Tiny random models of today's families: gradients of plain forwards, adapters that are read and merged.

`python -m benchmarks.models` does this for all of them, and samples with vLLM.
"""

import math

import pytest
import torch
from transformers import AutoConfig

from benchmarks.model_checks import CPU, gradient_error, make_model, open_policy, saved_error
from benchmarks.model_families import FAMILIES
from rollout.engines.merged import kept_by_rounding
from train.model.loading import load_full
from train.model.policy import CACHED_PROMPT, SHARED_PROMPT, WHOLE_TEXTS, text_parameters
from train.model.prompt_cache import is_recurrent
from train.model.tiny_copy import tiny_copy
from warehouse.store.errors import StageError

torch.set_num_threads(1)
WAYS = {"llama": SHARED_PROMPT, "qwen3_moe": SHARED_PROMPT, "gemma3_text": CACHED_PROMPT,
        "llama4_text": CACHED_PROMPT, "qwen3_5_text": CACHED_PROMPT, "olmo_hybrid": CACHED_PROMPT,
        "nemotron_h": CACHED_PROMPT, "lfm2": CACHED_PROMPT, "falcon_h1": CACHED_PROMPT, "zaya": CACHED_PROMPT,
        "falcon_mamba": WHOLE_TEXTS, "minimax": WHOLE_TEXTS, "recurrent_gemma": WHOLE_TEXTS}


USUAL = ("llama", "gemma3_text", "qwen3_moe", "qwen3_5_text", "nemotron_h", "falcon_mamba")
FEWER = pytest.mark.slow("families whose layers the usual ones have too")


@pytest.fixture(params=[name if name in USUAL else pytest.param(name, marks=FEWER) for name in WAYS],
                scope="module")
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "model"
    make_model(request.param, folder)
    return request.param, folder


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_gradients_are_those_of_plain_forwards_row_by_row(family, kind):
    name, folder = family
    policy = open_policy(folder, kind)
    assert policy.attention == WAYS[name] and bool(policy.why_not_shared) == (WAYS[name] != SHARED_PROMPT)
    assert gradient_error(policy) < 1e-5


def test_an_adapter_is_the_same_read_again_and_merged(family, tmp_path):
    assert saved_error(family[1], tmp_path / "saved") < 1e-4


# Files have an expert's matrices each by itself (mixtral's under other names), all of them in one, or that
# turned; those of nemotron_h have no gate.
@pytest.mark.parametrize("name", ["mixtral", "nemotron_h", "gpt_oss", *(
    pytest.param(name, marks=FEWER) for name in ("olmoe", "granitemoe", "llama4_text", "qwen3_next"))])
def test_adapters_on_experts_are_trained_and_merged_and_all_linear_leaves_experts_alone(name, tmp_path):
    assert make_model(name, tmp_path / "model")
    without = {key.split(".lora_")[0] for key in open_policy(tmp_path / "model", "lora").trainable()}
    policy = open_policy(tmp_path / "model", "lora", "all-linear,experts")
    more = {key.split(".lora_")[0] for key in policy.trainable()} - without
    assert more and all(".experts" in key for key in more) and not any(".experts" in key for key in without)
    assert gradient_error(policy) < 1e-5
    assert saved_error(tmp_path / "model", tmp_path / "saved", "all-linear,experts") < 1e-4
    assert kept_by_rounding(tmp_path / "model", tmp_path / "saved", "float32") == pytest.approx(1, abs=1e-3)


def test_an_adapter_on_a_router_is_trained_and_merged(tmp_path):
    make_model("qwen3_moe", tmp_path / "model")
    policy = open_policy(tmp_path / "model", "lora", "gate.weight")
    assert all(".mlp.gate.lora_" in name for name in policy.trainable()) and gradient_error(policy) < 1e-5
    assert saved_error(tmp_path / "model", tmp_path / "saved", "gate.weight") < 1e-4
    assert kept_by_rounding(tmp_path / "model", tmp_path / "saved", "float32") == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(("name", "targets", "sentence"), [
    ("llama", "all-linear,experts", "targets all-linear,experts: It has no experts"),
    ("recurrent_gemma", "all-linear,experts", "It has no experts"),    # but other weights of three dimensions
    ("deepseek_v3", "q_b_proj,gate_proj,up_proj,down_proj", "PEFT takes (down|gate|up)_proj for the experts"),
    ("deepseek_v3", "q_b_proj,down_projection", "It has no down_projection")])
def test_targets_that_would_be_others_are_refused(name, targets, sentence, tmp_path):
    make_model(name, tmp_path)
    with pytest.raises(StageError, match=sentence):
        open_policy(tmp_path, "lora", targets)


@pytest.mark.parametrize(("name", "way"), [("qwen3_5_text", CACHED_PROMPT), ("falcon_mamba", WHOLE_TEXTS)])
def test_half_precision_hides_no_state_that_is_forgotten(name, way, tmp_path):
    make_model(name, tmp_path)
    assert load_full(str(tmp_path), dtype="bfloat16", device=CPU).attention == way


def test_adapters_leave_out_what_a_kernel_reads_itself_and_what_chooses_experts(tmp_path):
    for name, without in (("nemotron_h", "mixer.out_proj"), ("llama4_text", "router"), ("jamba", "dt_proj")):
        make_model(name, tmp_path / name)
        trained = open_policy(tmp_path / name, "lora").trainable()
        assert len(trained) > 4 and not any(without in parameter for parameter in trained)


@pytest.mark.parametrize("name", ["nemotron_h", "zamba2", "falcon_h1"])
def test_no_time_step_is_bounded_that_engines_do_not_bound(name, tmp_path):
    make_model(name, tmp_path)
    modules = load_full(str(tmp_path), dtype="float32", device=CPU).model.modules()
    assert {(*module.time_step_limit,) for module in modules if hasattr(module, "time_step_limit")} == {
        (0.0, math.inf)}


@pytest.mark.parametrize("name", ["lfm2", "gpt_oss", "deepseek_v3", "gemma3_text"])
def test_a_copy_has_widths_for_which_engines_have_kernels(name):
    config = tiny_copy(AutoConfig.for_model(name, **FAMILIES[name]), 50).config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert head in (32, 64, 80) and config.hidden_size % 32 == config.intermediate_size % 32 == 0
    if hasattr(config, "kv_lora_rank"):
        assert config.kv_lora_rank + config.qk_rope_head_dim == 576


def test_a_copy_is_small_and_has_a_layer_of_each_kind():
    config = AutoConfig.for_model("qwen3_5")        # text and images
    copy = tiny_copy(config, 50)
    assert sum(parameter.numel() for parameter in text_parameters(copy)) < 10_000_000
    layers = copy.config.get_text_config().layer_types
    assert layers == ["linear_attention", "full_attention"] and is_recurrent(copy.config)
    with pytest.raises(StageError, match="No tiny copy can be made of a t5 model"):
        tiny_copy(AutoConfig.for_model("t5"))
