"""The policy that stays loaded between trainings, in a training process of `warehouse warm`."""

import gc
import json
import os
from typing import Any, NamedTuple

import torch

from train.inputs.options import TrainOptions
from train.model.policy import Policy
from train.model.saving import read_adapter
from train.start import load_policy
from train.steps.accelerator import Processes
from warehouse.stages import warm
from warehouse.store.run_folder import Warehouse


class Kept(NamedTuple):
    """The policy trained last, how it was loaded, and the hash of its current weights."""

    policy: Policy
    loaded: str
    sha256: str


_kept: Kept | None = None


def kept_or_loaded(warehouse: Warehouse, parent: dict[str, Any], settings: TrainOptions,
                   processes: Processes) -> Policy:
    """The policy `parent`: the kept one, with another adapter if needed, or loaded anew."""
    global _kept
    kept, _kept = _kept, None
    if kept and kept.loaded == how_loaded(warehouse, settings, processes.device):
        kept.policy.wake()
        folder = warehouse.policy_dir(parent["policy_version"])
        is_other = kept.sha256 != parent["sha256"]
        if not is_other or (parent["kind"] == "lora" and read_adapter(kept.policy, folder)):
            return kept.policy
    if kept:
        del kept
        give_back_memory()
    return load_policy(warehouse, parent, settings, processes)


def keep(policy: Policy, warehouse: Warehouse, settings: TrainOptions, sha256: str | None) -> None:
    """Keep the policy written with this hash if this process stays, in CPU memory unless it may keep its GPU.

    A sharded or 4-bit policy cannot be moved to the CPU and is loaded each time.
    """
    global _kept
    if warm.stays and sha256 and not (policy.shards or settings.load_in_4bit):
        policy.rest(stays=bool(os.environ.get(warm.AWAKE)))
        _kept = Kept(policy, how_loaded(warehouse, settings, policy.device), sha256)
    give_back_memory()


def how_loaded(warehouse: Warehouse, settings: TrainOptions, device: torch.device) -> str:
    """A key for what a policy is loaded from and how, except for the adapter."""
    base = [warehouse.facts.get(name) for name in ("model_sha256", "model_revision")]
    return json.dumps([base, settings.dtype, settings.full, settings.load_in_4bit, str(device)])


def give_back_memory() -> None:
    """Free memory that is referenced only in cycles, on a GPU for other processes, too."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
