"""Sharded weights (FSDP2): what is gathered when, and passes that all processes make together.

Every process has to gather the same layers in the same order, but has other rows. Before a step, each
announces its passes: N, forward without a graph, and G, forward and backward. All follow the shortest order
that contains everyone's passes. Where another process makes a pass, one without rows forwards a single
token with zero gradients.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

FORWARD, GRADIENT = "N", "G"


class Sharding(NamedTuple):
    """How the weights are sharded, according to the config of `accelerate launch`."""

    num_processes: int
    by_layer: bool          # gather a layer for each pass through it; else all layers once per step
    offload: bool           # weights, gradients and moments are in CPU memory between steps
    checkpoint: bool        # keep only a layer's input and recompute it in backward


class Trunk(nn.Module):
    """Decoder and head as one module: parameters outside of layers stay gathered for a whole step."""

    def __init__(self, decoder: nn.Module, head: nn.Module):
        super().__init__()
        self.decoder, self.head = decoder, head

    def forward(self, **inputs: Any) -> Any:
        return self.decoder(**inputs)


class Shards:
    """A model of which each process holds a part, and the order of passes in the current step."""

    def __init__(self, model: nn.Module, decoder: nn.Module, head: nn.Module, sharding: Sharding,
                 device: torch.device, dtype: torch.dtype | None):
        """`dtype` is that of gathered weights, None as stored."""
        self.trunk, self.sharding, self._device = Trunk(decoder, head), sharding, device
        mesh = init_device_mesh(device.type, (sharding.num_processes,))
        options: dict[str, Any] = {
            "mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
            "offload_policy": (CPUOffloadPolicy(pin_memory=device.type == "cuda") if sharding.offload
                               else OffloadPolicy())}
        kinds = getattr(model, "_no_split_modules", None) or ()
        self._sharded: list[Any] = [module for module in decoder.modules() if type(module).__name__ in kinds]
        for layer in self._sharded:
            if sharding.checkpoint:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False,
                                        preserve_rng_state=False)
            fully_shard(layer, reshard_after_forward=sharding.by_layer, **options)
        self._sharded.append(fully_shard(self.trunk, reshard_after_forward=False, **options))
        self._ticks: str | None = None
        self._at = 0

    @contextlib.contextmanager
    def in_step(self, programs: Sequence[str]) -> Iterator[None]:
        """Make the passes of all processes together; afterwards gradients are complete and summed."""
        self._ticks, self._at = merge_programs(programs), 0
        yield
        while self._at < len(self._ticks):
            self._idle()
        self._ticks = None
        self.reshard()

    def turn(self) -> None:
        """Wait until the next pass is of the kind that this process needs."""
        if self._ticks is None:     # all processes make the same passes
            return
        kind = GRADIENT if torch.is_grad_enabled() else FORWARD
        while self._ticks[self._at] != kind:
            self._idle()
        self._next()

    def gather(self) -> None:
        """Gather parameters outside of layers, for a forward that does not start at the trunk."""
        self._pass(FORWARD)

    def reshard(self) -> None:
        """Free all gathered weights but this process's part."""
        for module in self._sharded:
            module.reshard()

    def _next(self) -> None:
        assert self._ticks is not None
        self._at += 1
        last = self._at == len(self._ticks)
        recurse = not self.sharding.by_layer
        self._sharded[-1].set_requires_gradient_sync(last, recurse=recurse)
        self._sharded[-1].set_reshard_after_backward(last, recurse=recurse)

    def _idle(self) -> None:
        assert self._ticks is not None
        kind = self._ticks[self._at]
        self._next()
        self._pass(kind)

    def _pass(self, kind: str) -> None:
        token = torch.zeros(1, 1, dtype=torch.long, device=self._device)
        with torch.set_grad_enabled(kind == GRADIENT):
            hidden = self.trunk(input_ids=token, use_cache=False).last_hidden_state
            if kind == GRADIENT:
                (self.trunk.head(hidden).sum() * 0).backward()


def merge_programs(programs: Sequence[str]) -> str:
    """An order of passes that contains that of every process: 'NGG' and 'GNG' make 'NGNG'."""
    ticks, places = "", [0] * len(programs)
    while any(place < len(program) for place, program in zip(places, programs, strict=True)):
        due = [program[place:place + 1] for place, program in zip(places, programs, strict=True)]
        ticks += FORWARD if FORWARD in due else GRADIENT
        places = [place + (kind == ticks[-1]) for place, kind in zip(places, due, strict=True)]
    return ticks


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on the CPU; if it is sharded, all processes have to call this."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        shared: Any = tensor.to(tensor.device_mesh.device_type)
        tensor = shared.full_tensor()
    return tensor.cpu().contiguous()


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process has of `like`."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    part = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return part.to(like.device)
