"""Attention of rows to a prompt they share, without a copy of it for each row, for any number of prompts.

Prompts and rows lie one after the other as one long row without padding. A first call of a flash kernel lets
each of them attend causally to itself, a second one the rows to the prompt of their group; both are merged by
their log-normalizers. Backward hands the kernels the merged output and normalizer, which gives the exact
gradients of either part, as ring attention does (Liu et al., 2310.01889).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from train.model.flash import Spans, flash, flash_backward

PromptKV = list[tuple[Tensor, Tensor]]
# What a layer may ask of its attention that is not computed here; not None means unsupported.
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "cache", "indices", "block_indices")


@dataclass
class Packed:
    """What lies in a long row: the prompts of groups, then the rows of the first group, of the second, ..

    With `prompt_kv`, per layer [1, heads, P, head_dim], the prompt of the only group is not in the row but
    given by its keys and values. Without any prompt, rows attend to themselves alone.
    """

    prompts: list[int]              # tokens of each
    rows: list[list[int]]           # tokens of each, by group
    prompt_kv: PromptKV = field(default_factory=list)
    own_kv: PromptKV = field(default_factory=list)      # of all that lies here, noted layer by layer

    def __post_init__(self) -> None:
        inside = [] if self.prompt_kv else self.prompts
        self.start = sum(inside)        # where the rows begin
        self.sequences = Spans(inside + [length for group in self.rows for length in group])
        self.group_rows = Spans([sum(group) for group in self.rows])
        self.group_prompts = Spans(self.prompts)

    @property
    def positions(self) -> Tensor:
        """The position of each token in its own text, [T]."""
        before = [prompt for prompt, group in zip(self.prompts or [0], self.rows, strict=True) for _ in group]
        lengths = torch.tensor(self.sequences.lengths)
        first = torch.tensor([0] * (len(lengths) - len(before)) + before)
        starts = lengths.cumsum(0) - lengths
        return torch.arange(self.sequences.total) + (first - starts).repeat_interleave(lengths)

    @property
    def reach(self) -> int:
        """The most tokens that any token attends to."""
        return self.group_prompts.longest + max(max(group) for group in self.rows)

    def join(self) -> PromptKV:
        """Keys and values of a prompt and the only row behind it, per layer."""
        if not self.prompt_kv:
            return self.own_kv
        return [(torch.cat([before[0], own[0]], dim=2), torch.cat([before[1], own[1]], dim=2))
                for before, own in zip(self.prompt_kv, self.own_kv, strict=True)]


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
           scaling: float | None = None, packed: Packed | None = None, **options: Any) -> tuple[Tensor, None]:
    """The attention function that transformers calls: [B, H, T, D] queries, [B, T, H, D] out."""
    reach = packed.reach if packed else query.shape[2]
    asked = [name for name in UNSUPPORTED if options.get(name) is not None]
    asked += ["a mask"] if attention_mask is not None else []
    asked += ["a window"] if (options.get("sliding_window") or math.inf) < reach else []
    asked += ["two head widths"] if query.shape[-1] != value.shape[-1] else []
    if asked or options.get("is_causal") is False:
        raise NotImplementedError(f"shared prompts with {', '.join(asked) or 'attention to what follows'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if packed is None:
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale,
                                                enable_gqa=True)
        return attended.transpose(1, 2), None
    prompt = packed.prompt_kv[len(packed.own_kv)] if packed.prompt_kv else ()
    packed.own_kv.append((key, value))
    tensors = [_tokens_first(tensor.to(value.dtype)) for tensor in (query, key, value, *prompt)]
    attended = PackedAttention.apply(packed, scale, *tensors)
    return attended[None], None


class PackedAttention(torch.autograd.Function):
    """Softmax attention of what a long row holds: queries [T, H, D], keys and values [T, Hk, D].

    Behind them, where the prompt is not in the row, its keys and values [P, Hk, D].
    """

    @staticmethod
    def forward(ctx: Any, packed: Packed, scale: float, query: Tensor, key: Tensor, value: Tensor,
                *prompt: Tensor) -> Tensor:
        """The attended values, [T, H, D]."""
        # Not the whole of `packed`: its noted keys lead back to this graph, and a cycle is freed late.
        ctx.layout = packed.sequences, packed.group_rows, packed.group_prompts, packed.start
        sequences, group_rows, group_prompts, start = ctx.layout
        attended, normalizer, own_state = flash(query, key, value, sequences, sequences, True, scale)
        prompt_state = None
        if group_prompts.total:
            keys, values = prompt or (key[:start], value[:start])
            over_prompt, prompt_normalizer, prompt_state = flash(
                query[start:], keys, values, group_rows, group_prompts, False, scale)
            own, own_normalizer = attended[start:], normalizer[:, start:]
            share = (prompt_normalizer - own_normalizer).sigmoid().t()[..., None]
            own.copy_(torch.lerp(own.float(), over_prompt.float(), share))
            own_normalizer.copy_(torch.logaddexp(own_normalizer, prompt_normalizer))
        ctx.save_for_backward(query, key, value, attended, normalizer, *prompt)
        ctx.scale, ctx.states = scale, (own_state, prompt_state)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the queries, keys and values, and of the prompt's."""
        query, key, value, attended, normalizer, *prompt = ctx.saved_tensors
        sequences, group_rows, group_prompts, start = ctx.layout
        gradient = gradient.contiguous()
        of_query, of_key, of_value = flash_backward(
            gradient, query, key, value, attended, normalizer, sequences, sequences, True, ctx.scale,
            ctx.states[0])
        if not group_prompts.total:
            return None, None, of_query, of_key, of_value
        keys, values = prompt or (key[:start], value[:start])
        over_prompt = flash_backward(
            gradient[start:], query[start:], keys, values, attended[start:], normalizer[:, start:],
            group_rows, group_prompts, False, ctx.scale, ctx.states[1])
        of_query[start:] += over_prompt[0]
        if prompt:
            return None, None, of_query, of_key, of_value, *over_prompt[1:]
        of_key[:start] += over_prompt[1]
        of_value[:start] += over_prompt[2]
        return None, None, of_query, of_key, of_value


def _tokens_first(tensor: Tensor) -> Tensor:
    """[1, H, T, D] as [T, H, D], as projections leave it in memory."""
    return tensor[0].transpose(0, 1)
