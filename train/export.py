"""A policy as one plain model: an adapter is merged into the base in float32; checked by its logprobs."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.model.loading import DTYPES, load_full, load_lora
from train.model.saving import copy_tokenizer, set_modes
from train.steps.logprob_pass import PROBE
from warehouse.stages.base_model import check_base
from warehouse.store.checksums import OPTIMIZER
from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes, read_json
from warehouse.store.run_folder import Warehouse

ORIGIN = "rollhouse.json"       # of which policy and dtype an exported folder is
# Mean nats. Not the largest difference: rounding sends single tokens of a mixture to other experts.
LIMITS = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}


def export_policy(warehouse: Warehouse, version: int, folder: Path, *, dtype: str | None) -> str:
    """Write policy `version` to `folder` as a model that needs no PEFT; dtype None: as it was trained.

    It starts from the stored weights in float32, of an adapter from the pristine base: merging into rounded
    weights drifts. StageError if the written logprobs of the policy's probe are off by more than rounding to
    `dtype` explains.
    """
    policy_json, place = warehouse.policy(version), warehouse.policy_dir(version)
    dtype = dtype or policy_json.get("settings", {}).get("dtype", "bfloat16")
    origin = {"policy": policy_json["sha256"], "dtype": dtype}
    if folder.exists() and any(folder.iterdir()):
        if read_json(folder / ORIGIN) == origin:
            return f"{folder} holds policy {version} in {dtype} already"
        raise StageError(f"{folder} is not empty. Name a new folder with --output.")
    check_base(warehouse)
    warehouse.verify_policy(version, unread=[OPTIMIZER])
    is_adapter = policy_json["kind"] == "lora"
    source, revision = ((str(place), None) if policy_json["kind"] == "full" else
                        (warehouse.model, warehouse.facts.get("model_revision")))
    policy = (load_lora(source, place, dtype="float32", device=torch.device("cpu"), revision=revision)
              if is_adapter else
              load_full(source, dtype="float32", device=torch.device("cpu"), revision=revision))
    probe = read_json(place / PROBE)
    ids = torch.tensor(probe["prompt_ids"] + probe["completion_ids"]) if probe else (
        torch.arange(64) * 7 % policy.vocabulary_size)
    with torch.no_grad():
        expected, moved = logprobs_of(policy.full_logits(ids[None])[0], ids), ""
        if is_adapter:
            with policy.without_adapter():
                of_base = logprobs_of(policy.full_logits(ids[None])[0], ids)
            moved = f", where the adapter moved them by {(expected - of_base).abs().mean():.1e} on average"
        model: Any = policy.model
        if is_adapter:
            model = model.merge_and_unload()
        model.to(DTYPES[dtype])
        merged = logprobs_of(model(input_ids=ids[None]).logits[0], ids)
    differences = (expected - merged).abs()
    if not differences.mean() <= LIMITS[dtype]:
        raise StageError(f"The written model is off by {differences.mean():.3g} nats on average, more than "
                         f"{dtype} explains. Nothing was written; export in --dtype float32.")
    unfinished = folder.with_name(f".{folder.name}-unfinished")     # left by a kill and never read
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(str(unfinished))
    copy_tokenizer(source, unfinished)
    (unfinished / ORIGIN).write_bytes(json_bytes(origin))
    set_modes(unfinished)
    unfinished.replace(folder)
    trained = "base and adapter" if is_adapter else "the trained weights"
    return (f"policy {version} written to {folder} in {dtype}; its logprobs differ from {trained} by "
            f"{differences.mean():.1e} nats on average, {differences.max():.1e} at most{moved}")


def logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Logprobs of the tokens after the first, from logits [T, V] over the row [T]."""
    return logits[:-1].float().log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
