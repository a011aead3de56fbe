"""A policy: forward with shared or separate prompts, logits, precision, loss scale and backward."""

import contextlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface

from train.model.attention import Packed, PromptKV, attend
from train.model.prompt_cache import is_recurrent, new_cache
from train.model.sharding import Sharding, Shards

SHARED_PROMPT, CACHED_PROMPT, WHOLE_TEXTS = "shared_prompt", "cached_prompt", "whole_texts"
FLOAT16_LOSS_SCALE = 2.0**14
SOFT_CAPS = "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"
AttentionInterface.register(SHARED_PROMPT, attend)


def decoder_of(model: Any) -> nn.Module:
    """The layers that process text, with the embedding and without the head."""
    decoder = model.get_decoder()
    return decoder.model if decoder.get_output_embeddings() else decoder     # some return a whole model


def text_parameters(model: Any) -> set[nn.Parameter]:
    """Parameters that process text; the others belong to an image encoder."""
    return {*decoder_of(model).parameters(), *model.get_output_embeddings().parameters()}


class Policy:
    """A causal language model. Its trainable parameters are the policy: an adapter, or all weights."""

    def __init__(self, model: nn.Module, *, is_adapter: bool, device: torch.device,
                 autocast: torch.dtype | None = None, sharding: Sharding | None = None):
        self.model = model.eval() if sharding else model.to(device).eval()
        self.is_adapter, self.device = is_adapter, device
        inner: Any = model.get_base_model() if is_adapter else model  # type: ignore[operator]
        self._decoder, self._head = decoder_of(inner), inner.get_output_embeddings()
        self.config = inner.config.get_text_config()
        self.vocabulary_size = self._head.weight.shape[0]
        self._autocast = autocast
        self.compute_dtype: torch.dtype = autocast or inner.dtype
        self.shards: Shards | None = None
        self._trunk = self._decoder
        self.head_is_frozen = not any(parameter.requires_grad for parameter in self._head.parameters())
        self.attention, self._plain_attention = CACHED_PROMPT, inner.config._attn_implementation
        self.why_not_shared = ""    # by merged attention; to be printed
        self._gives_logits = False  # whole texts, by its own forward only
        # Float16 gradients below 6e-8 vanish: a power of two moves them up and divides out exactly.
        self._first_loss_scale = FLOAT16_LOSS_SCALE if self.compute_dtype == torch.float16 else 1.0
        self.loss_scale = self._first_loss_scale
        self._aside: dict[nn.Parameter, Tensor] = {}    # CPU copies, after the first `rest`
        # Logit transforms of some architectures; `loading` refuses models with others.
        self._softcap = next(filter(None, (getattr(self.config, name, None) for name in SOFT_CAPS)), None)
        self._logit_scale = ((getattr(self.config, "logit_scale", None) or 1.0)
                             * (getattr(self.config, "lm_head_multiplier", None) or 1.0)
                             / (getattr(self.config, "logits_scaling", None) or 1.0))
        if sharding:
            # Weights are gathered in the dtype they are computed in: autocast is not needed.
            gathered, self._autocast = (None, autocast) if is_adapter else (autocast, None)
            self.shards = Shards(inner, self._decoder, self._head, sharding, device, gathered)
            self._trunk = self.shards.trunk

    def rest(self, *, stays: bool = False) -> None:
        """Free the gradients and, unless it `stays`, the GPU until `wake`; frozen weights are copied once."""
        self.loss_scale = self._first_loss_scale
        for parameter in self.model.parameters():
            parameter.grad = None
            if stays or self.device.type == "cpu":
                continue
            if is_first := parameter not in self._aside:
                self._aside[parameter] = torch.empty_like(parameter.data, device="cpu", pin_memory=True)
            if is_first or parameter.requires_grad:
                self._aside[parameter].copy_(parameter.data)
            parameter.data = self._aside[parameter]
        if not stays and self.device.type != "cpu":
            self.model.to("cpu")        # the buffers

    def wake(self) -> None:
        self.model.to(self.device)

    def prompt_kv(self, prompt_ids: Tensor, before: PromptKV) -> PromptKV:
        """Layer states of `before` and the ids: keys and values [1, heads, P, head_dim] come first."""
        if not len(prompt_ids):
            return before
        if self.attention == CACHED_PROMPT:
            hidden, prompt_kv = self._forward_cached(prompt_ids[None], before)
        else:
            packed = Packed([len(prompt_ids)], [None], before)
            hidden, own_kv = self._forward_packed([prompt_ids], packed)
            if len(own_kv) != self.config.num_hidden_layers:
                raise NotImplementedError("its layers do not hand the prompt on to their attention")
            prompt_kv = packed.join(own_kv)
        if self.shards and torch.is_grad_enabled():
            # Backward has to pass through all of the last layer, as it does in every other process.
            last = max(place for place, state in enumerate(prompt_kv) if any(map(len, state)))
            nothing = 0 * hidden.sum(dtype=torch.float32)
            prompt_kv[last] = tuple(tensor + nothing for tensor in prompt_kv[last])
        return prompt_kv

    @property
    def can_pack(self) -> bool:
        """Whether texts that continue each other can be forwarded as one row."""
        return self.attention == SHARED_PROMPT

    @property
    def can_split(self) -> bool:
        """Whether a prompt can be forwarded in pieces: recurrent states exist only for its end."""
        return self.attention != CACHED_PROMPT or not is_recurrent(self.config)

    def hidden(self, texts: list[Tensor], parents: list[int | None], prompt_kv: PromptKV) -> Tensor:
        """Last hidden states [T, D] of concatenated texts.

        Each continues the text with the index in `parents`, or else the prompt of `prompt_kv`.
        """
        if not self.can_pack:
            assert all(parent is None for parent in parents), "only packed texts continue each other"
            # With a single token, a recurrent layer would overwrite its state.
            longest = max(2, *map(len, texts))
            padded = torch.stack([pad(text, (0, longest - len(text))) for text in texts])
            real = torch.arange(longest) < torch.tensor([len(text) for text in texts])[:, None]
            if self.attention == CACHED_PROMPT:
                hidden = self._forward_cached(padded, prompt_kv)[0]
            elif self._gives_logits:
                hidden = self._run(self.model, padded).logits
            else:
                hidden = self._run(self._trunk, padded).last_hidden_state
            return hidden[real.to(self.device)]
        packed = Packed([len(text) for text in texts], parents, prompt_kv, self.device)
        return self._forward_packed(texts, packed)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [.., vocabulary] of last hidden states [.., D]."""
        if self._gives_logits:
            return hidden
        with self._precision():
            logits = self._head(hidden)
            logits = logits if self._logit_scale == 1 else logits * self._logit_scale
        return logits if self._softcap is None else (logits / self._softcap).tanh() * self._softcap

    def full_logits(self, input_ids: Tensor) -> Tensor:
        """Logits [B, T, vocabulary] by the model's own forward, for checks."""
        if self.shards:
            self.shards.gather()
        with self._precision():
            return self.model(input_ids=input_ids, use_cache=False).logits

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`, times the loss scale, to the parameters."""
        # FSDP takes the mean over processes, but these losses add up.
        scale = self.loss_scale * (self.shards.sharding.num_processes if self.shards else 1)
        (loss * scale if scale != 1 else loss).backward()

    def lower_loss_scale(self) -> bool:
        """Halve the loss scale after an overflow; False if there is none to lower."""
        if self.loss_scale <= 1:
            return False
        self.loss_scale /= 2
        return True

    def trainable(self) -> dict[str, nn.Parameter]:
        """Trainable parameters by name, in a fixed order; of sharded ones this process's part."""
        if self.shards:
            self.shards.reshard()
        return {name: parameter for name, parameter in self.model.named_parameters()
                if parameter.requires_grad}

    def use_attention(self, name: str, *, gives_logits: bool = False) -> None:
        """Share prompts by merged attention, SHARED_PROMPT, by copied caches, CACHED_PROMPT, or not at all.

        WHOLE_TEXTS only requires that the model runs. It returns hidden states, or logits with `gives_logits`
        if the model computes these from hidden states in an unknown way.
        """
        inner: Any = self.model.get_base_model() if self.is_adapter else self.model  # type: ignore[operator]
        inner.set_attn_implementation(name if name == SHARED_PROMPT else self._plain_attention)
        self.attention, self._gives_logits = name, gives_logits

    def without_adapter(self) -> contextlib.AbstractContextManager[None]:
        return self.model.disable_adapter()  # type: ignore[operator]

    def _forward_packed(self, texts: list[Tensor], packed: Packed) -> tuple[Tensor, PromptKV]:
        """Last hidden states [T, D] of texts forwarded as one long row; and their keys and values."""
        output = self._run(self._trunk, torch.cat(texts)[None], packed=packed,
                           position_ids=packed.positions.to(self.device)[None])
        return output.last_hidden_state[0], packed.take_own_kv()

    def _forward_cached(self, input_ids: Tensor, prompt_kv: PromptKV) -> tuple[Tensor, PromptKV]:
        """Last hidden states [B, T, D] of rows that each copy the prompt's keys, values; and all of these."""
        cache = new_cache(self.config, prompt_kv, len(input_ids))
        new = "cache" in inspect.signature(self._trunk.forward).parameters     # since transformers 5.24
        output = self._run(self._trunk, input_ids, **{"cache" if new else "past_key_values": cache},
                           use_cache=True)
        return output.last_hidden_state, [layer.take() for layer in cache.layers]

    def _run(self, module: nn.Module, input_ids: Tensor, *, use_cache: bool = False, **more: Any) -> Any:
        if self.shards:
            self.shards.turn()
        with self._precision():
            return module(input_ids=input_ids.to(self.device), use_cache=use_cache, **more)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)
