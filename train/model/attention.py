"""Attention of rows to their shared prompt, without a copy of the prompt per row.

Prompts, and rows behind their prompts, form one long row without padding. A first call of a flash kernel lets
each text attend causally to itself. A second lets all rows attend to their prompt. Their outputs are merged
by log-normalizers. Backward hands the kernels the merged output and normalizer, which gives the exact
gradients of every part, as in ring attention (Liu et al., 2310.01889).
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from train.model.flash import Spans, flash, flash_backward

PromptKV = list[tuple[Tensor, ...]]      # per layer; keys and values first
Tokens = slice | Tensor       # where tokens lie in a row
# Attention features that are not implemented here; a value other than None means unsupported.
UNSUPPORTED = ("softcap", "s_aux", "position_bias", "cache", "indices", "block_indices")


class Level(NamedTuple):
    """Prompts, and all tokens behind them: where both lie, and how many follow each prompt."""

    behind: Tokens
    num_behind: Spans
    texts: Tokens | None        # None: the prompt that is not in the row
    lengths: Spans


class Packed:
    """Texts in a long row, given by their lengths: each continues its parent prompt, or is a prompt.

    With `prompt_kv`, per layer [1, heads, P, head_dim], a text without a parent continues a prompt that
    is given by its keys and values.
    """

    def __init__(self, lengths: Sequence[int], parents: Sequence[int | None],
                 prompt_kv: PromptKV | None = None, device: torch.device | None = None):
        self.prompt_kv, self.device = prompt_kv or [], device
        self.own_kv: PromptKV | None = []       # of the whole row, recorded layer by layer
        self.sequences = Spans(lengths)
        self.num_before = [self.prompt_kv[0][0].shape[2] if self.prompt_kv else 0]
        self.num_before *= len(lengths)
        behind: dict[int, list[int]] = {}       # texts, by the prompt they continue
        for text, parent in enumerate(parents):
            if parent is not None:
                behind.setdefault(parent, []).append(text)
                self.num_before[text] += lengths[parent]
        self.levels = [Level(slice(None), Spans([sum(lengths)]), None, Spans(self.num_before[:1]))
                       ] if self.prompt_kv else []
        if prompts := sorted(behind):
            of_all = [text for prompt in prompts for text in behind[prompt]]
            self.levels.append(Level(
                tokens_of(lengths, of_all, device),
                Spans([sum(lengths[text] for text in behind[prompt]) for prompt in prompts]),
                tokens_of(lengths, prompts, device), Spans([lengths[prompt] for prompt in prompts])))

    @property
    def positions(self) -> Tensor:
        """The position of each token in its whole text, [T]."""
        lengths = torch.tensor(self.sequences.lengths)
        starts = lengths.cumsum(0) - lengths
        return (torch.arange(self.sequences.total)
                + (torch.tensor(self.num_before) - starts).repeat_interleave(lengths))

    @property
    def reach(self) -> int:
        """The most tokens that any token attends to."""
        return max(map(sum, zip(self.num_before, self.sequences.lengths, strict=True)))

    def take_own_kv(self) -> PromptKV:
        """The recorded keys and values. Recording stops: layers forwarded again would make a cycle."""
        own_kv, self.own_kv = self.own_kv, None
        assert own_kv is not None
        return own_kv

    def join(self, own_kv: PromptKV) -> PromptKV:
        """Keys and values of a prompt and the only text behind it, per layer."""
        if not self.prompt_kv:
            return own_kv
        return [(torch.cat([before[0], own[0]], dim=2), torch.cat([before[1], own[1]], dim=2))
                for before, own in zip(self.prompt_kv, own_kv, strict=True)]


def tokens_of(lengths: Sequence[int], texts: Sequence[int], device: torch.device | None = None) -> Tokens:
    """Where the tokens of some texts lie: a slice if the texts are adjacent, else indices."""
    ends = [0, *accumulate(lengths)]
    if list(texts) == list(range(texts[0], texts[-1] + 1)):
        return slice(ends[texts[0]], ends[texts[-1] + 1])
    return torch.cat([torch.arange(ends[text], ends[text + 1]) for text in texts]).to(device)


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
    unsupported = [name for name in UNSUPPORTED if options.get(name) is not None]
    unsupported += ["a mask"] if attention_mask is not None else []
    unsupported += ["a window"] if (options.get("sliding_window") or math.inf) < reach else []
    unsupported += ["two head widths"] if query.shape[-1] != value.shape[-1] else []
    if unsupported or options.get("is_causal") is False:
        raise NotImplementedError(f"shared prompts with {', '.join(unsupported) or 'non-causal attention'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if packed is None:
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale,
                                                enable_gqa=True)
        return attended.transpose(1, 2), None
    layer: Any = module.layer_idx
    prompt = packed.prompt_kv[layer] if packed.prompt_kv else ()
    if packed.own_kv is not None:
        packed.own_kv.append((key, value))
    # [1, H, T, D] as [T, H, D], as projections leave it in memory.
    tensors = [tensor.to(value.dtype)[0].transpose(0, 1) for tensor in (query, key, value, *prompt)]
    attended = PackedAttention.apply(packed, scale, *tensors)
    return attended[None], None


class PackedAttention(torch.autograd.Function):
    """Softmax attention within a long row: queries [T, H, D], keys and values [T, Hk, D].

    A prompt outside of the row adds its keys and values [P, Hk, D] behind them.
    """

    @staticmethod
    def forward(ctx: Any, packed: Packed, scale: float, query: Tensor, key: Tensor, value: Tensor,
                *prompt: Tensor) -> Tensor:
        """The attended values, [T, H, D]."""
        # Not all of `packed`: its recorded keys refer back to this graph, and a cycle is freed late.
        ctx.sequences, ctx.levels, ctx.scale = packed.sequences, packed.levels, scale
        attended, normalizer, state = flash(query, key, value, ctx.sequences, ctx.sequences, True, scale)
        ctx.states = [state]
        for behind, num_behind, texts, lengths in ctx.levels:
            keys, values = prompt if texts is None else (key[texts], value[texts])
            more, more_normalizer, state = flash(query[behind], keys, values, num_behind, lengths, False,
                                                 scale)
            so_far, so_far_normalizer = attended[behind], normalizer[:, behind]
            share = (more_normalizer - so_far_normalizer).sigmoid().t()[..., None]
            attended[behind] = torch.lerp(so_far.float(), more.float(), share).to(attended.dtype)
            normalizer[:, behind] = torch.logaddexp(so_far_normalizer, more_normalizer)
            ctx.states.append(state)
        ctx.save_for_backward(query, key, value, attended, normalizer, *prompt)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the queries, keys and values, and of the prompt's."""
        query, key, value, attended, normalizer, *prompt = ctx.saved_tensors
        gradient, of_prompt = gradient.contiguous(), []
        of_query, of_key, of_value = flash_backward(
            gradient, query, key, value, attended, normalizer, ctx.sequences, ctx.sequences, True, ctx.scale,
            ctx.states[0])
        for (behind, num_behind, texts, lengths), state in zip(ctx.levels, ctx.states[1:], strict=True):
            keys, values = prompt if texts is None else (key[texts], value[texts])
            more = flash_backward(gradient[behind], query[behind], keys, values, attended[behind],
                                  normalizer[:, behind], num_behind, lengths, False, ctx.scale, state)
            of_query[behind] += more[0]
            if texts is None:
                of_prompt = list(more[1:])
            else:
                of_key[texts] += more[1]
                of_value[texts] += more[2]
        return None, None, of_query, of_key, of_value, *of_prompt
