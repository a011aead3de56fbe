"""Logprobs of stored completions under policies or other models, written as rows, part by part."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from train.inputs.asked import Model
from train.inputs.groups import PROMPT_COLUMNS, groups_of_part
from train.inputs.options import DTYPES, AskOptions
from train.model.loading import load_frozen, load_full, load_lora
from train.model.policy import Policy
from train.start import check_fits
from train.steps.accelerator import Processes
from train.steps.budget import ON_CPU
from train.steps.logprob_pass import fill_logprobs
from train.steps.row import Row, RowGroup
from warehouse.ledger.state import Life
from warehouse.stages.base_model import check_base
from warehouse.stages.space import check_space
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError, counted
from warehouse.store.parts import part_number, read_parts, stored_bytes
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import arrow_schema

ON_GPU = 8192       # tokens per forward: nothing is kept for a backward pass


def write_logprobs(warehouse: Warehouse, models: Iterable[Model], rollouts: list[Life], how: AskOptions,
                   processes: Processes, stop: StopRequest, say: Callable[[str], None]) -> None:
    """Write the logprobs of every model for every rollout; parts that exist are kept, also after a stop."""
    check_base(warehouse)
    for model in models:
        loaded = dict[str, Policy]()
        for rollout in rollouts:
            _ask_about(warehouse, model, loaded, rollout, how, processes, stop, say)


def _ask_about(warehouse: Warehouse, model: Model, loaded: dict[str, Policy], rollout: Life, how: AskOptions,
               processes: Processes, stop: StopRequest, say: Callable[[str], None]) -> None:
    """Write the missing parts of one rollout; `loaded` caches the model by dtype."""
    began, keys = time.perf_counter(), rollout.identity
    stage = warehouse.stage("logprobs", **keys, scorer=model.name)
    trained = None if model.policy_version is None else warehouse.state.policies[model.policy_version].trained
    parts = {part_number(path): path for path in warehouse.parts("completions", **keys)}
    dtype = how.dtype if how.dtype != "auto" else dtype_of(next(iter(parts.values())))
    if dtype is None or dtype not in DTYPES:
        raise StageError(f"The rows of {rollout.title} do not say in which dtype they were sampled. "
                         f"Choose one with --dtype: {', '.join(DTYPES)}.")
    settings = {"policy_version": model.policy_version, "model": model.source or None,
                "weights_sha256": model.sha256, "dtype": dtype, "entropy": how.entropy}
    reads = [rollout.begun, *([] if trained is None else [trained])]
    processes.by_first(lambda: stage.settle(settings, reads=reads, rows=rollout.folder))
    if stage.is_complete():
        say(f"{stage.title} is complete already")
        return

    def written() -> set[int]:
        return {part_number(path) for path in warehouse.parts("policy_logprobs", **stage.identity)}

    done = processes.by_first(written)
    due = [number for number in parts if number not in done and how.shard.holds(number)]
    warehouse.verify("completions", only=[parts[number] for number in due], **keys)
    prompts = warehouse.read("prompts", PROMPT_COLUMNS, **keys)
    for number in due:
        check_space(warehouse.root, stored_bytes([parts[number]]), stage.title)
        if dtype not in loaded:
            loaded.clear()
            loaded[dtype] = _load(warehouse, model, dtype, processes)
        rows = _rows(loaded[dtype], model, parts[number], prompts, how, processes, **keys)
        processes.by_first(lambda number=number, rows=rows: warehouse.write_part(  # type: ignore[misc]
            "policy_logprobs", number, rows, **stage.identity))
        if any(processes.gather([stop.due()])):
            raise StageStopped(f"Stopped because {stop.reason}; finished parts are kept. Run the same "
                               "command again to continue.")
    seconds = round(time.perf_counter() - began, 3)
    if missing := len(parts) - len(written()):
        say(f"shard {how.shard} of {stage.title} is done; left to the others: {counted(missing, 'part')}")
        return
    processes.by_first(lambda: stage.complete({"seconds": seconds}, parts))
    say(f"{stage.title}: {counted(len(parts), 'part')} written")


def dtype_of(part: Path) -> str | None:
    """The stored dtype in which the engine sampled a part of completions."""
    return read_parts([part], "completions", ["dtype"])["dtype"][0].as_py()


def _load(warehouse: Warehouse, model: Model, dtype: str, processes: Processes) -> Policy:
    version, shared = model.policy_version, dict[str, Any](dtype=dtype, device=processes.device,
                                                           sharding=processes.sharding)
    if version is None:
        return load_frozen(model.source, revision=model.revision, **shared)
    kind, revision = warehouse.policy(version).get("kind", "base"), warehouse.facts.get("model_revision")
    if kind == "base":
        return load_frozen(warehouse.model, revision=revision, **shared)
    folder = warehouse.policy_dir(version)
    if kind == "full":
        return load_full(str(folder), **shared)
    return load_lora(warehouse.model, folder, revision=revision, **shared)


def _rows(policy: Policy, model: Model, part: Path, prompts: pa.Table, how: AskOptions,
          processes: Processes, *, iteration: int, purpose: str) -> pa.Table:
    groups = groups_of_part(part, prompts, iteration, purpose)
    check_fits(policy, groups)
    batch = [RowGroup(group, [Row(rollout, iteration) for rollout in group.rollouts], 0) for group in groups]
    tokens = how.tokens_per_batch or (ON_GPU if policy.device.type == "cuda" else ON_CPU)
    with torch.no_grad():
        fill_logprobs(policy, batch, processes, tokens, "old_logprobs")
    named = {"iteration": iteration, "purpose": purpose, "model": model.name,
             "policy_version": model.policy_version}
    rows = [{**named, "task_id": row.rollout.task_id, "sample_index": row.rollout.sample_index,
             "logprobs": row.old_logprobs.numpy(), "entropies": row.entropy.numpy() if how.entropy else None}
            for group in batch for row in group.rows]
    return pa.Table.from_pylist(rows, schema=arrow_schema("policy_logprobs"))
