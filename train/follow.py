"""`train --follow`: what can be loaded is, while other processes still work on the rows to train on."""

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from train.inputs.settings import Settings
from train.model.loading import load_base
from train.model.policy import Policy
from train.model.saving import read_adapter
from train.start import load_policy, open_processes
from train.steps.accelerator import Processes
from warehouse.stages.children import Followed
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.parts import read_parts
from warehouse.store.run_folder import Warehouse

LOOK_SECONDS = 0.1          # between looks at what can be loaded
ROOM = 3                    # times the weights: a GPU has to have that free before others are done with it


class Ahead:
    """What of the policy is loaded before its rows are there: the base, or a new policy.

    Nothing is said or written. What fails is left to the stage itself, which tries again and says why.
    """

    def __init__(self, warehouse: Warehouse, iteration: int, settings: Settings) -> None:
        self.warehouse, self.iteration, self.settings = warehouse, iteration, settings
        self.base: nn.Module | None = None
        self.policy: Policy | None = None
        alone = "WORLD_SIZE" not in os.environ
        self._steps = self._load() if alone and not (settings.full or settings.load_in_4bit) else iter(())

    def wait_for(self, processes: Sequence[Followed], stop: StopRequest) -> None:
        """Load until all these processes have ended; StageStopped by a signal."""
        for process in processes:
            while not (stop.asked() or process.has_ended(LOOK_SECONDS)):
                self.go_on()
        if stop.asked():
            raise StageStopped(f"Stopped because {stop.reason}, before the rows of iteration "
                               f"{self.iteration} were there to train on; nothing was written. Run the "
                               "same command again.")

    def go_on(self) -> None:
        """Load what can be loaded by now."""
        with contextlib.suppress(Exception):
            next(self._steps, None)
            return
        give_back_memory()      # here, where no error holds it any more

    def take(self, parent: dict[str, Any], settings: Settings, processes: Processes) -> Policy | None:
        """The policy `parent`, if what was loaded is what the rows are trained in; it is given away once."""
        base, policy, self.base, self.policy = self.base, self.policy, None, None
        fits = settings.dtype == self.settings.dtype
        folder = self.warehouse.policy_dir(parent["policy_version"])
        if fits and base:
            return load_policy(self.warehouse, parent, settings, processes, base)
        if fits and policy and (parent["kind"] == "base" or read_adapter(policy, folder)):
            return policy
        del base, policy
        give_back_memory()
        return None

    def _load(self) -> Iterator[None]:
        """Load in the order in which it becomes possible; nothing lies on the GPU while the rows are sampled.

        From then on it does where others leave room: a policy that has not learned anything yet, since the
        one to train may still be under way.
        """
        keys: dict[str, Any] = {"iteration": self.iteration, "purpose": self.settings.purpose}
        while self.settings.dtype == "auto":
            if parts := sorted(self.warehouse.folder("completions", **keys).glob("part-*.parquet")):
                [*_, dtype] = read_parts(parts[:1], "completions", ["dtype"])["dtype"].to_pylist()
                self.settings = self.settings.replace(dtype=dtype)
            yield
        base = self.base = load_base(self.warehouse.model, self.warehouse.facts.get("model_revision"),
                                     dtype=self.settings.dtype)
        while not self.warehouse.stage("rollout", **keys).is_complete():
            yield
        processes = open_processes(self.settings)
        while not has_room(processes.device, base, bool(self.settings.tokens_per_batch)
                           or self.iteration in self.warehouse.policy_versions()):
            yield
        self.base = None        # it becomes part of the policy
        self.policy = load_policy(self.warehouse, self.warehouse.policy(0), self.settings, processes, base)


def give_back_memory() -> None:
    """Free what a policy took that nobody holds any more but its own layers, on a GPU for others, too."""
    gc.collect()
    torch.cuda.empty_cache()


def has_room(device: torch.device, base: nn.Module, is_shared: bool) -> bool:
    """Whether a GPU has several times the bytes of the weights left beside what others have on it.

    Where it is not shared by agreement, a training under way has counted on all that it found free.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in base.parameters())
    return device.type != "cuda" or (is_shared and torch.cuda.mem_get_info(device)[0] > ROOM * weights)
