"""The three stages without engine, sandbox or model: as the commands do them, in milliseconds."""

import json
from pathlib import Path
from typing import Any

from rollout.engines.engine import Sampling
from score.run import what_is_read
from tests.building import scripted
from tests.building.runs import sample_row, table
from train.inputs.inputs import due_iteration, scorer_to_train
from warehouse.stages.due import rollouts_to_score
from warehouse.store.checksums import file_hashes, weights_sha256
from warehouse.store.errors import StageError
from warehouse.store.json_files import json_bytes
from warehouse.store.parts import part_number, read_parts
from warehouse.store.run_folder import Warehouse

SCORER = "exact-1"


def sample(warehouse: Warehouse, **options: Any) -> None:
    scripted.sample(warehouse, sampling=Sampling(max_tokens=6), group_size=2, part_size=2, spill_seconds=0.0,
                    serve="adapter", **options)


def score(warehouse: Warehouse) -> None:
    """As score/run.py does it, with a reward that needs no program."""
    for iteration, purpose in rollouts_to_score(warehouse, SCORER)[0]:
        keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
        stage, read = warehouse.stage("score", **keys, scorer=SCORER), what_is_read(warehouse, keys)
        complete = warehouse.stage("rollout", **keys).is_complete()
        parts = warehouse.parts("completions", **keys)
        warehouse.verify("completions", **keys)
        for part in parts:
            stage.settle({"reward": "exact"}, **read)
            rewarded = [sample_row(row, SCORER, float(len(row["completion_ids"] or []) % 2))
                        for row in _read(part)]
            warehouse.write_part("samples", part_number(part), table("samples", rewarded), **keys,
                                 scorer=SCORER)
        if complete:
            stage.settle({"reward": "exact"}, **what_is_read(warehouse, keys))
            stage.complete({"completions": len(parts)}, map(part_number, parts))


def logprobs(warehouse: Warehouse, version: int, iteration: int, purpose: str, drift: float) -> None:
    """As train/ask.py does it: a policy that is so many nats of each token away from the sampler."""
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    name, trained = f"policy-{version}", warehouse.state.policies[version].trained
    stage, read = warehouse.stage("logprobs", **keys, scorer=name), what_is_read(warehouse, keys)
    read["reads"] += [] if trained is None else [trained]
    stage.settle({"policy_version": version}, **read)
    for part in warehouse.parts("completions", **keys):
        rows = [{**{key: row[key] for key in ("iteration", "purpose", "task_id", "sample_index")},
                 "model": name, "policy_version": version,
                 "logprobs": [each - drift for each in row["behaviour_logprobs"]]} for row in _read(part)]
        warehouse.write_part("policy_logprobs", part_number(part), table("policy_logprobs", rows), **keys,
                             scorer=name)
    stage.complete({"seconds": 1.0})


def train(warehouse: Warehouse) -> None:
    """As train/run.py and train/finish.py do it, without a model."""
    iteration = due_iteration(warehouse)
    if iteration is None:
        raise StageError("nothing to train")
    scorer, state = scorer_to_train(warehouse, iteration, None), warehouse.state
    lives = [state.life("rollout", iteration, "train"), state.life("score", iteration, "train", scorer)]
    trained, parent = state.policies[iteration].trained, warehouse.policy(iteration)
    reads = [*([] if trained is None else [trained]), *(life.begun for life in lives if life)]
    rows = warehouse.read("samples", iteration=iteration, purpose="train", scorer=scorer).to_pylist()
    stage = warehouse.stage("train", iteration=iteration)
    stage.settle({"scorer": scorer, "parent_sha256": parent["sha256"]}, reads=reads)
    for name, content in _training_rows(rows, iteration).items():
        warehouse.write_part(name, 0, table(name, content), iteration=iteration)
    folder = warehouse.scratch(f"policy-{iteration + 1}")
    (folder / "adapter_model.safetensors").write_text(f"{parent['sha256']} {len(rows)}")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 1}))
    (folder / "policy.json").write_bytes(json_bytes({
        "policy_version": iteration + 1, "parent": iteration, "kind": "lora",
        "base": warehouse.facts["model"],
        "sha256": weights_sha256(folder), "files": file_hashes(folder), "global_step": iteration + 1}))
    warehouse.commit_policy(iteration, folder)
    stage.complete({"scorer": scorer, "policy_version": iteration + 1, "waiting": False,
                    "seconds": {"gradients": 1.0}})


def _read(part: Path) -> list[dict[str, Any]]:
    return read_parts([part], "completions").to_pylist()


def _training_rows(rows: list[dict[str, Any]], iteration: int) -> dict[str, list[dict[str, Any]]]:
    keys = ("iteration", "purpose", "task_id", "sample_index", "group_id", "scorer", "reward")
    return {"train_samples": [{**{key: row[key] for key in keys}, "trained_iteration": iteration,
                               "staleness": 0, "drop_reason": "zero_variance", "advantage": 0.0}
                              for row in rows],
            "train_tokens": [],
            "train_steps": [{"iteration": iteration, "optimizer_step": 0, "global_step": iteration + 1,
                             "policy_version": iteration, "loss": 0.0, "num_completions": len(rows)}]}
