"""Checkpoints inside a stage: what a killed stage continues from, each a folder renamed into place."""

import contextlib
import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from tqdm import tqdm

from train.model.policy import Policy
from train.steps.accelerator import Processes
from warehouse.stages.space import check_space, checkpoint_bytes
from warehouse.store.checksums import part_damage, part_facts
from warehouse.store.commit import commit_directory, ensure_local, file_names, remove_folder
from warehouse.store.errors import Damaged
from warehouse.store.json_files import json_bytes, read_json
from warehouse.store.run_folder import Stage, Warehouse

LOGPROBS, WEIGHTS, METADATA = "logprobs.safetensors", "weights", ".metadata"
STATE = "checkpoint.json"       # written last, with hashes: in an object store it makes a checkpoint
TOKENS = "tokens.safetensors"

warnings.filterwarnings("ignore", "torch.distributed is disabled")      # a single process is meant
Restored = tuple[list[dict[str, Any]], dict[str, Tensor]]


class Checkpoints:
    """The checkpoint folders of one train stage: number 0 holds logprobs, the last one the latest step."""

    def __init__(self, warehouse: Warehouse, stage: Stage, processes: Processes):
        self.warehouse, self._stage, self._processes = warehouse, stage, processes

    def save_logprobs(self, logprobs: dict[str, Tensor]) -> None:
        """Save logprobs under the stage's first policy: they cannot be computed later.

        Steps that were taken with others, which are damaged, are removed.
        """
        if self._numbers() and (file := self._damage(0)):
            self._remove_damaged(0, file)
        scratch = self.warehouse.scratch("checkpoint-0")
        save_file(logprobs, str(scratch / LOGPROBS))
        (scratch / STATE).write_bytes(json_bytes({"step": 0, "files": _facts(scratch, [scratch / LOGPROBS])}))
        commit_directory(scratch, self._path(0))

    def logprobs(self) -> dict[str, Tensor] | None:
        """The saved logprobs, or None if they are damaged or the stage did not get that far."""
        path = self._path(0) / LOGPROBS
        damaged = self._processes.by_first(lambda: self._damage(0))
        return load_file(str(path)) if not damaged and path.exists() else None

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
            files = shards + _facts(scratch, [scratch / WEIGHTS / METADATA, scratch / TOKENS])
            state = {"step": step, "steps": steps, "loss_scale": policy.loss_scale, "files": files}
            (scratch / STATE).write_bytes(json_bytes(state))
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
        own = (scratch / WEIGHTS).glob(f"__{self._processes.index}_*")     # each process hashes its part
        shards = self._processes.gather(_facts(scratch, own))
        self._processes.by_first(commit)

    def restore(self, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
        """Load the latest whole checkpoint: metrics of its steps, values per token; none if there is none."""
        while latest := self._processes.by_first(self._latest):
            try:
                return self._restore(latest, policy, optimizer)
            except FileNotFoundError:
                if self._path(latest).exists():
                    raise       # else another process has just replaced it
        return [], {}

    def _restore(self, latest: int, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
        trained = policy.trainable()
        fill_moments(optimizer)
        tensors = _tensors(trained, optimizer)
        with _errors_as_they_are():
            dcp.load(tensors, checkpoint_id=self._path(latest) / WEIGHTS, no_dist=not policy.shards)
        state = json.loads((self._path(latest) / STATE).read_text(encoding="utf-8"))
        policy.loss_scale = state["loss_scale"]
        tokens = self._path(latest) / TOKENS
        return state["steps"], load_file(str(tokens)) if tokens.exists() else {}

    def _latest(self) -> int:
        """The latest whole checkpoint of a step, 0 if there is none; damaged ones are removed."""
        numbers = self._numbers()
        for number in filter(None, reversed(numbers)):
            if not (file := self._damage(number)):
                return number
            if not {*self._numbers()} <= {*numbers}:
                return self._latest()       # another process has just replaced it
            self._remove_damaged(number, file)
        return 0

    def _damage(self, number: int) -> str:
        """The first file of a checkpoint that is not what its hash says; '' if it is whole.

        One of an earlier version has no hashes.
        """
        folder = self._path(number)
        ensure_local([folder])
        try:
            state = read_json(folder / STATE)
        except Damaged:
            state = None
        if state is None:
            return STATE
        files = state.get("files", [])
        with ThreadPoolExecutor(4) as pool:
            damages = list(pool.map(lambda facts: part_damage(folder / facts["name"], facts), files))
        return next((facts["name"] for facts, damage in zip(files, damages, strict=True) if damage), "")

    def _remove_damaged(self, number: int, file: str) -> None:
        """Remove a damaged checkpoint, that of the logprobs with all steps taken with them, and say so."""
        numbers = self._numbers()
        start = "the one before" if any(0 < other < number for other in numbers) else "the beginning"
        tqdm.write(f"checkpoint of step {number} is damaged ({file}): training starts from {start}",
                   file=sys.stderr)
        for gone in reversed(numbers):
            if number in (gone, 0):
                remove_folder(self._path(gone))

    def _path(self, number: int) -> Path:
        return self._stage.folder / f"checkpoint-{number}"

    def _numbers(self) -> list[int]:
        folder = self._stage.folder
        names = {name.partition("/")[0] for name in file_names(folder, "checkpoint-*")}
        return sorted(int(name.removeprefix("checkpoint-")) for name in names if (folder / name).is_dir())


def _facts(scratch: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Size and hash of files of a checkpoint, with their names in it."""
    return [{**part_facts(path), "name": path.relative_to(scratch).as_posix()} for path in paths]


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
