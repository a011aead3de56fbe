"""Flash attention of concatenated sequences of any lengths: torch's own kernels.

A GPU has kernels for this; on a CPU, adjacent sequences of equal lengths share a kernel call.
"""

import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention

from warehouse.store.errors import StageError

ON_CPU = ("cpu",)       # devices without kernels for sequences of different lengths


def use_flash_attention_3(device: torch.device) -> None:
    """Let torch's operators use flash-attention 3, if it is installed, from here on on a Hopper GPU."""
    if (find_spec("flash_attn_interface") is None or attention.current_flash_attention_impl()
            or torch.cuda.get_device_capability(device) != (9, 0)):
        return
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            attention.activate_flash_attention_impl("FA3")
    except (ImportError, OSError, RuntimeError) as error:
        why = (str(error).splitlines() or ["no reason"])[0].rstrip(".")
        raise StageError(f"flash_attn_interface is installed and cannot be loaded: {why}. Install "
                         "flash-attention 3 for this torch, or uninstall it: it makes training faster, "
                         "nothing else.") from error


class Spans:
    """Concatenated sequences, given by their lengths; none is empty."""

    def __init__(self, lengths: Sequence[int]):
        self.lengths, self.total, self.longest = list(lengths), sum(lengths), max(lengths, default=0)
        self._ends: Tensor | None = None

    def ends(self, device: torch.device) -> Tensor:
        """0 and the end of each sequence, int32, as the kernels of a GPU take it."""
        if self._ends is None:
            ends = torch.tensor([0, *self.lengths]).cumsum(0, dtype=torch.int32)
            self._ends = ends.to(device)
        return self._ends


def flash(query: Tensor, key: Tensor, value: Tensor, queries: Spans, keys: Spans, causal: bool, scale: float
          ) -> tuple[Tensor, Tensor, Any]:
    """Each sequence of queries [T, H, D] attends to its own keys and values [S, Hk, D].

    Returns attended values [T, H, D], log-normalizers [H, T] in float32, and what backward also needs.
    """
    if query.device.type in ON_CPU:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        parts, normalizers = [], []
        for count, at, over in _runs(queries, keys):
            values, normalizer = kernel(_batch(query[at], count), _batch(key[over], count),
                                        _batch(value[over], count), 0.0, causal, scale=scale)
            parts.append(_one_row(values))
            normalizers.append(normalizer.transpose(0, 1).flatten(1))
        return torch.cat(parts), torch.cat(normalizers, dim=1), None
    attended, normalizer, seed, unused, _ = torch.ops.aten._flash_attention_forward(
        query, key, value, queries.ends(query.device), keys.ends(query.device), queries.longest, keys.longest,
        0.0, causal, False, scale=scale)
    return attended, normalizer, (seed, unused)


def flash_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Tensor,
                   normalizer: Tensor, queries: Spans, keys: Spans, causal: bool, scale: float, state: Any
                   ) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, given the attended values and log-normalizers of all parts."""
    if query.device.type in ON_CPU:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for count, at, over in _runs(queries, keys):
            normalizers = normalizer[:, at].unflatten(1, (count, -1)).transpose(0, 1)
            gradients = kernel(_batch(gradient[at], count), _batch(query[at], count),
                               _batch(key[over], count), _batch(value[over], count),
                               _batch(attended[at], count), normalizers, 0.0, causal, scale=scale)
            for part, tensor in zip(parts, gradients, strict=True):
                part.append(_one_row(tensor))
        return torch.cat(parts[0]), torch.cat(parts[1]), torch.cat(parts[2])
    return torch.ops.aten._flash_attention_backward(
        gradient, query, key, value, attended, normalizer.contiguous(), queries.ends(query.device),
        keys.ends(query.device), queries.longest, keys.longest, 0.0, causal, *state, scale=scale)


def _runs(queries: Spans, keys: Spans) -> Iterator[tuple[int, slice, slice]]:
    """Runs of adjacent sequences of equal lengths: their number, and where queries and keys lie."""
    at = over = 0
    for (length, reach), run in groupby(zip(queries.lengths, keys.lengths, strict=True)):
        count = len(list(run))
        yield count, slice(at, at + count * length), slice(over, over + count * reach)
        at, over = at + count * length, over + count * reach


def _batch(tensor: Tensor, count: int) -> Tensor:
    """[B * T, H, D] as [B, H, T, D]."""
    return tensor.unflatten(0, (count, -1)).transpose(1, 2)


def _one_row(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).flatten(0, 1)
