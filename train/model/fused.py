"""Layers of an adapter model in fewer kernels than PEFT and transformers launch, with equal results."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, rms_norm, silu

Gate = Callable[[Tensor, Tensor], Tensor]       # silu(a) b of a and b [.., D]


class LoraLinear(torch.autograd.Function):
    """x W^T + bias + s (x A^T) B^T for x [N, in], frozen W [out, in] and bias, A [r, in] and B [out, r].

    One product adds both summands, without rounding or storing them apart; A and B may have a higher
    precision than the rest.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
                ) -> Tensor:
        """[N, out] in the dtype of x and W."""
        low_a, low_b = a.to(x.dtype), b.to(x.dtype)
        inner = x @ low_a.t()
        ctx.save_for_backward(x, inner, weight, low_a, low_b)
        ctx.scale, ctx.dtype = scale, a.dtype
        return linear(x, weight, bias).addmm_(inner, low_b.t(), alpha=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, weight, a, b = ctx.saved_tensors
        of_inner = (gradient @ b).mul_(ctx.scale)
        of_x = (gradient @ weight).addmm_(of_inner, a) if ctx.needs_input_grad[0] else None
        of_a, of_b = of_inner.t() @ x, (gradient.t() @ inner).mul_(ctx.scale)
        return of_x, None, None, of_a.to(ctx.dtype), of_b.to(ctx.dtype), None


def fuse_adapter(model: nn.Module) -> bool:
    """Run plain LoRA over frozen linear layers as LoraLinear; return whether this covers all adapters.

    Other layers, for example 4-bit ones, and other kinds of adapters stay PEFT's.
    """
    from peft.tuners.lora.layer import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    plain = [layer for layer in layers if type(layer) is Linear and type(layer.base_layer) is nn.Linear
             and not layer.lora_variant and not layer.fan_in_fan_out and list(layer.lora_A) == ["default"]
             and not layer.base_layer.weight.requires_grad]
    for layer in plain:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    return len(plain) == len(layers)


def _forward(layer: Any, x: Tensor) -> Tensor:
    base = layer.base_layer
    if layer.disable_adapters or layer.merged:
        return base(x)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    rows = x.flatten(0, -2).to(base.weight.dtype)
    out = LoraLinear.apply(rows, base.weight, base.bias, a, b, layer.scaling["default"])
    return out.unflatten(0, x.shape[:-1])


def fuse_norms(model: nn.Module) -> None:
    """Run frozen RMS norms as one kernel, if the kernel computes the same."""
    for module in model.modules():
        eps, weight = getattr(module, "variance_epsilon", None), getattr(module, "weight", None)
        if eps is None or not isinstance(weight, nn.Parameter) or weight.requires_grad or weight.dim() != 1:
            continue
        probe = torch.linspace(-2, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype).view(2, -1)
        one_kernel = partial(rms_norm, normalized_shape=tuple(weight.shape), weight=weight, eps=eps)
        if torch.allclose(module(probe), one_kernel(probe), rtol=2e-2, atol=1e-2):
            module.forward = one_kernel  # type: ignore[method-assign, assignment]


def installed_gate() -> Gate | None:
    """silu(a) b in one kernel each way, without storing silu(a): liger-kernel's, if installed."""
    if find_spec("liger_kernel") is None:
        return None
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    return LigerSiLUMulFunction.apply


def fuse_gates(model: nn.Module, gate: Gate) -> None:
    """In layers that are down(silu(gate(x)) up(x)), compute silu(a) b by `gate`."""
    for module in model.modules():
        if _is_gated(module):
            module.forward = partial(_gated, module, gate)  # type: ignore[method-assign, assignment]


def _gated(module: Any, gate: Gate, x: Tensor) -> Tensor:
    return module.down_proj(gate(module.gate_proj(x), module.up_proj(x)))


def _is_gated(module: nn.Module) -> bool:
    """Whether the forward of a module's class is this formula, tested with stand-ins for its layers."""
    if {name for name, _ in module.named_children()} != {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        return False
    stand_in = SimpleNamespace(**{**vars(module), "act_fn": module.act_fn, "gate_proj": lambda x: x + 1,
                                  "up_proj": lambda x: x - 2, "down_proj": lambda x: 3 * x})
    x = torch.linspace(-4, 4, 9)
    forward: Any = type(module).forward
    return torch.equal(forward(stand_in, x), 3 * (silu(x + 1) * (x - 2)))
