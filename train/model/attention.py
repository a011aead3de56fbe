"""Attention of rows to a prompt they share, without a copy of it for each row.

A row attends to the prompt's keys and values and, causally, to its own. Both parts go through a flash kernel
and are merged by their log-normalizers; backward hands the kernels the merged output and normalizer, which
gives the exact gradients of either part, as ring attention does (Liu et al., 2310.01889).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

PromptKV = list[tuple[Tensor, Tensor]]
# What a layer may ask of its attention that is not computed here; not None means unsupported.
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "cache", "indices", "block_indices")


@dataclass
class Prefix:
    """Keys and values that rows continue, per layer [1, heads, P, head_dim] or none; and their own, noted."""

    prompt_kv: PromptKV
    own_kv: PromptKV = field(default_factory=list)

    def reach(self, num_queries: int) -> int:
        """Tokens that the last of the queries attends to."""
        return (self.prompt_kv[0][0].shape[2] if self.prompt_kv else 0) + num_queries

    def join(self) -> PromptKV:
        """Keys and values of prefix and row of a single row, per layer."""
        if not self.prompt_kv:
            return self.own_kv
        return [(torch.cat([before[0], own[0]], dim=2), torch.cat([before[1], own[1]], dim=2))
                for before, own in zip(self.prompt_kv, self.own_kv, strict=True)]


@dataclass(frozen=True)
class Packed:
    """One row that holds a prompt of `start` tokens and behind it `count` rows of the same length."""

    start: int
    count: int

    def reach(self, num_queries: int) -> int:
        """Tokens that the last of the queries attends to."""
        return self.start + (num_queries - self.start) // self.count


def is_supported(config: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether all layers attend to everything before them, in a dtype and width that a flash kernel takes."""
    longest = getattr(config, "max_position_embeddings", None) or 0
    window = getattr(config, "sliding_window", None)
    if (window and window < longest) or any(getattr(config, name, None) for name in
                                            ("attention_chunk_size", "attn_logit_softcapping")):
        return False
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return False
    if device.type != "cuda":
        return device.type == "cpu"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= 256
            and torch.cuda.get_device_capability(device) >= (8, 0))


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
           scaling: float | None = None, prefix: Prefix | Packed | None = None,
           **options: Any) -> tuple[Tensor, None]:
    """The attention function that transformers calls: [B, H, T, D] queries, [B, T, H, D] out."""
    reach = prefix.reach(query.shape[2]) if prefix else query.shape[2]
    asked = [name for name in UNSUPPORTED if options.get(name) is not None]
    asked += ["a mask"] if attention_mask is not None else []
    asked += ["a window"] if (options.get("sliding_window") or math.inf) < reach else []
    asked += ["two head widths"] if query.shape[-1] != value.shape[-1] else []
    if asked or options.get("is_causal") is False:
        raise NotImplementedError(f"shared prompts with {', '.join(asked) or 'attention to what follows'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(prefix, Packed):
        tensors = [tensor.to(value.dtype) for tensor in (query, key, value)]
        return _attend_packed(tensors, prefix, scale), None
    before = prefix.prompt_kv[len(prefix.own_kv)] if prefix and prefix.prompt_kv else None
    if prefix:
        prefix.own_kv.append((key, value))
    if before is None:
        return _causal(query, key, value, scale), None
    tensors = [tensor.to(value.dtype) for tensor in (query, key, value, *before)]
    return MergedAttention.apply(*tensors, scale).transpose(1, 2), None


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    return attended.transpose(1, 2)


def _attend_packed(tensors: list[Tensor], packed: Packed, scale: float) -> Tensor:
    """[1, T, H, D]: the prompt attends causally to itself, the rows to the prompt and to themselves."""
    prompt = [tensor[:, :, :packed.start] for tensor in tensors]
    length = packed.reach(tensors[0].shape[2]) - packed.start
    rows = [_as_rows(tensor[:, :, packed.start:], packed.count, length) for tensor in tensors]
    attended = _causal(prompt[0], prompt[1], prompt[2], scale)
    merged = MergedAttention.apply(*rows, prompt[1], prompt[2], scale)
    return torch.cat([attended, merged.transpose(1, 2).flatten(0, 1)[None]], dim=1)


class MergedAttention(torch.autograd.Function):
    """Softmax attention of rows [B, H, T, D] over a prompt [1, Hk, P, D] and causally over themselves."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, prompt_keys: Tensor,
                prompt_values: Tensor, scale: float) -> Tensor:
        """The attended values, [B, H, T, D]."""
        one_row = _as_one_row(query)
        own, own_normalizer, own_state = _flash(query, key, value, True, scale)
        prompt, prompt_normalizer, prompt_state = _flash(one_row, prompt_keys, prompt_values, False, scale)
        count, length = query.shape[0], query.shape[2]
        prompt = _as_rows(prompt, count, length)
        prompt_normalizer = _as_rows(prompt_normalizer, count, length)
        normalizer = torch.logaddexp(own_normalizer, prompt_normalizer)
        merged = own * (own_normalizer - normalizer).exp()[..., None]
        merged += prompt * (prompt_normalizer - normalizer).exp()[..., None]
        merged = merged.to(query.dtype)
        ctx.save_for_backward(query, key, value, prompt_keys, prompt_values, merged, normalizer)
        ctx.scale, ctx.states = scale, (own_state, prompt_state)
        return merged

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries, keys and values of the rows, and of the prompt's keys and values."""
        query, key, value, prompt_keys, prompt_values, merged, normalizer = ctx.saved_tensors
        own_state, prompt_state = ctx.states
        own = _flash_backward(gradient, query, key, value, merged, normalizer, True, ctx.scale, own_state)
        prompt = _flash_backward(_as_one_row(gradient), _as_one_row(query), prompt_keys, prompt_values,
                                 _as_one_row(merged), _as_one_row(normalizer), False, ctx.scale,
                                 prompt_state)
        of_query = own[0] + _as_rows(prompt[0], query.shape[0], query.shape[2])
        return of_query, own[1], own[2], prompt[1], prompt[2], None


def _as_one_row(rows: Tensor) -> Tensor:
    """[B, H, T, ..] as [1, H, B * T, ..]: without causality the rows' queries are as good as one row's."""
    return rows.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)


def _as_rows(one_row: Tensor, count: int, length: int) -> Tensor:
    """The inverse of `_as_one_row`: [1, H, B * T, ..] as [B, H, T, ..]."""
    return one_row.transpose(1, 2)[0].unflatten(0, (count, length)).transpose(1, 2)


def _flash(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
           ) -> tuple[Tensor, Tensor, Any]:
    """Attended values, log-normalizers [B, H, T] in float32, and what the backward kernel needs besides."""
    if query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return *kernel(query, key, value, 0.0, causal, scale=scale), None
    attended, normalizer, *state = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, causal, scale=scale)
    return attended, normalizer, state[:6]


def _flash_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Tensor,
                    normalizer: Tensor, causal: bool, scale: float, state: Any) -> tuple[Tensor, ...]:
    if query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return kernel(gradient, query, key, value, attended, normalizer, 0.0, causal, scale=scale)
    cumulative_q, cumulative_k, max_q, max_k, seed, offset = state
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        gradient, query, key, value, attended, normalizer.contiguous(), cumulative_q, cumulative_k, max_q,
        max_k, 0.0, causal, seed, offset, scale=scale)
