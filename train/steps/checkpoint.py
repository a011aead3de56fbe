"""Checkpoints inside a stage: what a killed stage continues from, each a folder renamed into place."""

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from train.model.policy import Policy
from train.steps.accelerator import Processes
from warehouse.stages.space import check_space, checkpoint_bytes
from warehouse.store.commit import commit_directory, ensure_local, file_names, remove_folder
from warehouse.store.run_folder import Stage, Warehouse

LOGPROBS, WEIGHTS = "logprobs.safetensors", "weights"
STATE = "checkpoint.json"       # written last: in an object store it makes the folder a checkpoint
TOKENS = "tokens.safetensors"

warnings.filterwarnings("ignore", "torch.distributed is disabled")      # a single process is meant
Restored = tuple[list[dict[str, Any]], dict[str, Tensor]]


class Checkpoints:
    """The checkpoint folders of one train stage: number 0 holds logprobs, the last one the latest step."""

    def __init__(self, warehouse: Warehouse, stage: Stage, processes: Processes):
        self.warehouse, self._stage, self._processes = warehouse, stage, processes

    def save_logprobs(self, logprobs: dict[str, Tensor]) -> None:
        """Save logprobs under the stage's first policy: they cannot be computed later."""
        scratch = self.warehouse.scratch("checkpoint-0")
        save_file(logprobs, str(scratch / LOGPROBS))
        (scratch / STATE).write_text(json.dumps({"step": 0}))
        commit_directory(scratch, self._path(0))

    def logprobs(self) -> dict[str, Tensor] | None:
        """The saved logprobs, or None if the stage did not get that far."""
        path = self._path(0) / LOGPROBS
        self._processes.by_first(lambda: ensure_local([self._path(0)]))
        return load_file(str(path)) if path.exists() else None

    def save(self, step: int, policy: Policy, optimizer: torch.optim.Optimizer,
             steps: list[dict[str, Any]], tokens: dict[str, Tensor]) -> None:
        """Save policy, optimizer and per-token values after `step` steps; remove older steps.

        All processes call it. Of a sharded policy, each writes its part, and any number of processes can read
        them. StageError before saving if the disk has no room, after saving if none is left for the next.
        """
        root, trained = self.warehouse.root, policy.trainable()
        num_bytes = checkpoint_bytes(sum(value.numel() for value in trained.values()))

        def begin() -> Path:
            self.warehouse.check_live("train", **self._stage.identity)
            check_space(root, num_bytes, f"The checkpoint after step {step}", keep_reserve=False)
            return self.warehouse.scratch(f"checkpoint-{step}")

        def commit() -> None:
            save_file(tokens, str(scratch / TOKENS))
            state = {"step": step, "steps": steps, "loss_scale": policy.loss_scale}
            (scratch / STATE).write_text(json.dumps(state))
            commit_directory(scratch, self._path(step))
            for older in self._numbers():
                if 0 < older < step:    # a partly removed one is harmless: the newest is read
                    remove_folder(self._path(older))
            check_space(root, num_bytes, f"What follows step {step}, which is saved,")

        scratch = self._processes.by_first(begin)
        if policy.shards or self._processes.first:
            with _errors_as_they_are():
                dcp.save(_tensors(trained, optimizer), checkpoint_id=scratch / WEIGHTS,
                         no_dist=not policy.shards)
        self._processes.by_first(commit)

    def restore(self, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
        """Load the latest checkpoint: metrics of its steps, and values per token; none if there is none."""
        while latest := self._processes.by_first(lambda: max(self._numbers(), default=0)):
            try:
                return self._restore(latest, policy, optimizer)
            except FileNotFoundError:
                if self._path(latest).exists():
                    raise       # else another process has just replaced it
        return [], {}

    def _restore(self, latest: int, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
        self._processes.by_first(lambda: ensure_local([self._path(latest)]))
        trained = policy.trainable()
        fill_moments(optimizer)
        tensors = _tensors(trained, optimizer)
        with _errors_as_they_are():
            dcp.load(tensors, checkpoint_id=self._path(latest) / WEIGHTS, no_dist=not policy.shards)
        state = json.loads((self._path(latest) / STATE).read_text(encoding="utf-8"))
        policy.loss_scale = state["loss_scale"]
        tokens = self._path(latest) / TOKENS
        return state["steps"], load_file(str(tokens)) if tokens.exists() else {}

    def _path(self, number: int) -> Path:
        return self._stage.folder / f"checkpoint-{number}"

    def _numbers(self) -> list[int]:
        folder = self._stage.folder
        names = {name.partition("/")[0] for name in file_names(folder, "checkpoint-*")}
        return sorted(int(name.removeprefix("checkpoint-")) for name in names
                      if (folder / name / STATE).exists())


@contextlib.contextmanager
def _errors_as_they_are() -> Iterator[None]:
    """Raise the original error, for example a full disk: torch wraps it in something not an Exception."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def fill_moments(optimizer: torch.optim.Optimizer) -> None:
    """Give AdamW zero moments if it has none, to read stored ones into."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                on = parameter.device if group["fused"] else "cpu"
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device=on), "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter)}


def _tensors(trained: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    weights = {f"weight.{name}": parameter.detach() for name, parameter in trained.items()}
    return weights | {f"{key}.{name}": value for name, parameter in trained.items()
                      for key, value in optimizer.state[parameter].items()}
