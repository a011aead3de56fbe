"""Checkpoints inside a stage: what a killed stage continues from, each a folder renamed into place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from train.model.policy import Policy
from train.model.saving import OPTIMIZER
from warehouse.stages.space import check_space, checkpoint_bytes
from warehouse.store.commit import commit_directory
from warehouse.store.run_folder import Warehouse

LOGPROBS, PARAMETERS, STATE = "logprobs.safetensors", "parameters.safetensors", "state.json"
TOKENS = "tokens.safetensors"


Restored = tuple[list[dict[str, Any]], dict[str, Tensor]]


class Checkpoints:
    """The checkpoint folders of one train stage: number 0 holds logprobs, the last one the latest step."""

    def __init__(self, warehouse: Warehouse, folder: Path):
        self._warehouse, self._folder = warehouse, folder

    def save_logprobs(self, logprobs: dict[str, Tensor]) -> None:
        """Keep what was computed under the first policy of the stage: later it cannot be had again."""
        scratch = self._warehouse.scratch("checkpoint-0")
        save_file(logprobs, str(scratch / LOGPROBS))
        commit_directory(scratch, self._path(0))

    def logprobs(self) -> dict[str, Tensor] | None:
        """The logprobs kept, or None if the stage did not get that far."""
        path = self._path(0) / LOGPROBS
        return load_file(str(path)) if path.exists() else None

    def holds_steps(self) -> bool:
        """True if the stage got past its first step."""
        return max(self._numbers(), default=0) > 0

    def save(self, step: int, policy: Policy, optimizer: torch.optim.Optimizer,
             steps: list[dict[str, Any]], tokens: dict[str, Tensor]) -> None:
        """Keep policy, optimizer and what is known per token after `step` steps; older steps are removed.

        StageError before it if the disk has no room for it, and after it if there is none for the next.
        """
        num_bytes = checkpoint_bytes(sum(value.numel() for value in policy.trainable().values()))
        check_space(self._warehouse.root, num_bytes, f"The checkpoint after step {step}", keep_reserve=False)
        scratch = self._warehouse.scratch(f"checkpoint-{step}")
        parameters = {name: value.detach().cpu().contiguous() for name, value in policy.trainable().items()}
        save_file(parameters, str(scratch / PARAMETERS))
        save_file(tokens, str(scratch / TOKENS))
        torch.save(optimizer.state_dict(), scratch / OPTIMIZER)
        state = {"step": step, "steps": steps, "loss_scale": policy.loss_scale}
        (scratch / STATE).write_text(json.dumps(state))
        commit_directory(scratch, self._path(step))
        for older in self._numbers():
            if 0 < older < step:
                # Half of an older one is harmless: the newest is read. A twin may be removing it too.
                shutil.rmtree(self._path(older), ignore_errors=True)
        check_space(self._warehouse.root, num_bytes, f"What follows step {step}, which is saved,")

    def restore(self, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
        """Load the latest checkpoint: metrics of its steps, and values per token; none if there is none."""
        while latest := max(self._numbers(), default=0):
            try:
                return self._restore(latest, policy, optimizer)
            except FileNotFoundError:
                if self._path(latest).exists():
                    raise       # else a twin that is further on has just removed it for a newer one
        return [], {}

    def _restore(self, latest: int, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
        stored = load_file(str(self._path(latest) / PARAMETERS))
        with torch.no_grad():
            for name, parameter in policy.trainable().items():
                parameter.copy_(stored[name])
        optimizer.load_state_dict(torch.load(self._path(latest) / OPTIMIZER, weights_only=True,
                                             map_location="cpu"))
        state = json.loads((self._path(latest) / STATE).read_text())
        policy.loss_scale = state["loss_scale"]
        tokens = self._path(latest) / TOKENS
        return state["steps"], load_file(str(tokens)) if tokens.exists() else {}

    def _path(self, number: int) -> Path:
        return self._folder / f"checkpoint-{number}"

    def _numbers(self) -> list[int]:
        return sorted(int(path.name.removeprefix("checkpoint-")) for path in self._folder.glob("checkpoint-*")
                      if path.name.removeprefix("checkpoint-").isdigit())
