"""The state that a prompt leaves in each layer for the rows behind it, as differentiable tensors.

Attention leaves keys and values; recurrent layers leave states, of a convolution and of the recurrence.
transformers' own caches overwrite these, which breaks the graph. Here nothing is overwritten, so a layer
may also be forwarded again.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    LinearAttentionCacheLayerMixin,
)

# Keys and values [rows, heads, P, head_dim], if any; then, of each recurrent state, the convolution's and the
# recurrence's [rows, ..]. Empty if a layer has none.
LayerState = tuple[Tensor, ...]
NOTHING = torch.empty(0)


class KeysAndValues(DynamicLayer):
    """Keys and values of a prompt in a layer."""

    _joined: tuple[Tensor, Tensor] | None = None
    _taken = False

    def start(self, state: LayerState) -> None:
        if state:
            self.lazy_initialization(state[0], state[1])
            self.keys, self.values = state

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append these to the prompt's; record these until `take`, so that the graph has no cycle."""
        joined = key_states, value_states
        if self.is_initialized:
            joined = (torch.cat([self.keys, key_states], dim=-2),
                      torch.cat([self.values, value_states], dim=-2))
        self._joined = None if self._taken else joined
        return joined

    def take(self) -> LayerState:
        joined, self._joined, self._taken = self._joined, None, True
        return joined or ((self.keys, self.values) if self.is_initialized else ())


class States(LinearAttentionCacheLayerMixin):
    """States of a recurrent layer behind a prompt."""

    def __init__(self, number_of_states: int = 1):
        super().__init__(number_of_states=number_of_states)
        self._left: dict[tuple[str, int], Tensor] | None = {}       # None once they are taken

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing to allocate."""

    def start(self, state: LayerState) -> None:
        for index, (conv, recurrent) in enumerate(zip(state[::2], state[1::2], strict=True)):
            self.has_previous_state[index] = bool(conv.numel() or recurrent.numel())
            self.conv_states[index], self.recurrent_states[index] = conv, recurrent

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None,
                          **_: Any) -> Tensor:
        """Append these [rows, channels, T] to the prompt's state; the last of them are the new state."""
        before = self.conv_states[state_idx]
        if self.has_previous_state[state_idx] and before is not None:
            size, joined = before.shape[-1], torch.cat([before, conv_states], dim=-1)
        else:
            size = conv_kernel_size or conv_states.shape[-1]
            joined = pad(conv_states, (max(0, size - conv_states.shape[-1]), 0))
        self._leave("conv", state_idx, joined[..., -size:])
        return joined

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        self._leave("recurrent", state_idx, recurrent_states)
        return recurrent_states

    def _leave(self, name: str, state_idx: int, state: Tensor) -> None:
        if self._left is not None:
            self._left[name, state_idx] = state

    def take(self) -> LayerState:
        left, self._left = self._left or {}, None
        return tuple(left.get((name, index), NOTHING) for index in range(self.number_of_states)
                     for name in ("conv", "recurrent"))


class KeysValuesAndStates(States, KeysAndValues):
    """Cache of a layer with attention and recurrence side by side."""

    def __init__(self, number_of_states: int = 1):
        KeysAndValues.__init__(self)
        States.__init__(self, number_of_states)

    def lazy_initialization(self, *tensors: Any, **_: Any) -> None:
        """Allocate keys and values; states need nothing."""
        if len(tensors) == 2:
            KeysAndValues.lazy_initialization(self, *tensors)

    def start(self, state: LayerState) -> None:
        if state:
            KeysAndValues.start(self, state[:2])
            States.start(self, state[2:])

    def take(self) -> LayerState:
        return KeysAndValues.take(self) + States.take(self)


class NoState:
    """State of a layer without attention or recurrence."""

    def start(self, state: LayerState) -> None:
        """There is nothing to start from."""

    def take(self) -> LayerState:
        return ()


def new_cache(config: Any, prompt: list[LayerState], num_rows: int) -> DynamicCache:
    """A cache for rows behind a prompt, which share it without a copy; [] for no prompt."""
    cache = DynamicCache()
    cache.layer_class_to_replicate = KeysAndValues
    if is_recurrent(config):
        cache.layers = [_layer_like(layer) for layer in DynamicCache(config=config).layers]
    cache.layers += [KeysAndValues() for _ in prompt[len(cache.layers):]]
    for layer, state in zip(cache.layers, prompt, strict=False):
        layer.start(tuple(tensor.expand(num_rows, *tensor.shape[1:]) if len(tensor) else tensor
                          for tensor in state))
    return cache


def is_recurrent(config: Any) -> bool:
    """Whether any layer of a model has a state."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin)
               for layer in DynamicCache(config=config).layers)


def _layer_like(layer: Any) -> KeysAndValues | States | NoState:
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return (KeysValuesAndStates if isinstance(layer, DynamicLayer) else States)(layer.number_of_states)
    if isinstance(layer, CacheLayerMixin):
        return KeysAndValues()
    return type("NoStateLike", (NoState, type(layer)), {})()    # type: ignore[no-any-return]
