"""Fused layers compute what PEFT and transformers compute."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import silu
from transformers import Gemma2Config, Qwen2Config
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP, Qwen2RMSNorm

from train.model.fused import fuse_adapter, fuse_gates, fuse_norms
from train.model.token_logprobs import token_logprobs


def adapted(dtype=torch.float32, **options):
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 9, bias=False)).to(dtype)
    model = get_peft_model(network, LoraConfig(r=3, lora_alpha=7, target_modules=["0", "2"], **options))
    torch.manual_seed(4)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data.normal_(std=0.3)
    return model


def results(model, x):
    out = model(x)
    (out.float() ** 2).sum().backward()
    return [out.detach(), *(parameter.grad for parameter in model.parameters() if parameter.requires_grad)]


@pytest.mark.parametrize("shape", [(5, 12), (2, 4, 12)])
def test_a_fused_adapter_gives_the_outputs_and_gradients_of_peft(shape):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    expected, fused = results(adapted(), x), adapted()
    assert fuse_adapter(fused)
    actual = results(fused, x)
    assert len(actual) == 5
    for tensor, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-5, atol=1e-5)
    plain = adapted()
    with fused.disable_adapter(), plain.disable_adapter():
        torch.testing.assert_close(fused(x), plain(x))
    assert (plain(x) - plain.unload()(x)).abs().max() > 0.1


def test_a_fused_adapter_of_float32_runs_over_a_base_of_bfloat16():
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
    fused = adapted(torch.bfloat16)
    fuse_adapter(fused)
    actual, expected = results(fused, x.bfloat16()), results(adapted(), x)
    assert actual[0].dtype == torch.bfloat16 and {tensor.dtype for tensor in actual[1:]} == {torch.float32}
    for tensor, other in zip(actual, expected, strict=True):
        assert (tensor.float() - other).norm() < 2e-2 * other.norm()


def test_other_kinds_of_adapters_stay_as_peft_made_them():
    dora = adapted(use_dora=True)
    assert not fuse_adapter(dora)
    assert "forward" not in vars(dora.base_model.model[0])


@pytest.mark.parametrize(("norm", "fused"), [(Qwen2RMSNorm, True), (GemmaRMSNorm, False)])
def test_only_norms_that_are_what_the_kernel_computes_are_fused(norm, fused):
    layer = norm(16, eps=1e-5)
    layer.weight.data.normal_()
    layer.requires_grad_(False)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    expected = layer(x)
    fuse_norms(nn.ModuleList([layer]))
    assert ("forward" in vars(layer)) == fused
    torch.testing.assert_close(layer(x), expected)


class OtherMLP(Qwen2MLP):
    """The same layers, another formula."""

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) + 1)


@pytest.mark.parametrize(("mlp", "config", "fused"), [
    (Qwen2MLP, Qwen2Config, True), (OtherMLP, Qwen2Config, False), (Gemma2MLP, Gemma2Config, False)])
def test_only_layers_that_are_gated_by_silu_are_fused(mlp, config, fused):
    layer, calls = mlp(config(hidden_size=16, intermediate_size=24)), []
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    expected = layer(x)
    def gate(a, b):
        calls.append(a.shape)
        return silu(a) * b
    fuse_gates(nn.ModuleList([layer]), gate)
    torch.testing.assert_close(layer(x), expected)
    assert calls == ([(3, 24)] if fused else [])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behind_a_frozen_head_logits_are_computed_once_and_gradients_stay_the_same(temperature):
    generator = torch.Generator().manual_seed(2)
    head, calls = torch.randn(50, 8, generator=generator), []
    hidden, targets = torch.randn(11, 8, generator=generator), torch.arange(11)
    weights = torch.randn(11, generator=generator)
    gradients = []
    for frozen in (True, False):
        leaf = hidden.clone().requires_grad_()
        calls.clear()
        logprobs, _ = token_logprobs(leaf, lambda states: calls.append(1) or states @ head.t(), targets,
                                     temperature=temperature, vocabulary_size=50, head_is_frozen=frozen)
        (logprobs * weights).sum().backward()
        assert len(calls) == (1 if frozen else 2)
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)
