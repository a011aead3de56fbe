"""What a train stage leaves: rows, steps, the policy with its lineage, and last the manifest."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from train.inputs.inputs import Inputs, complete_stage, finish_committed, stage_settings
from train.inputs.settings import correction_of
from train.model.saving import Whole, save_policy
from train.steps.mismatch import group_counts, mismatch_table
from train.steps.probe import PROBE
from train.steps.row import RowGroup
from train.steps.steps import Learner
from train.steps.tables import sample_table, step_table, token_table
from warehouse.maintain.prune import prune_policies
from warehouse.stages.clock import Clock
from warehouse.stages.space import check_space, checkpoint_bytes
from warehouse.store.checksums import OPTIMIZER, file_hashes, weights_sha256
from warehouse.store.errors import counted
from warehouse.store.json_files import json_bytes
from warehouse.store.run_folder import Warehouse

WAITING = "waiting"         # drop reason of rows that a later iteration trains on


def finish(warehouse: Warehouse, inputs: Inputs, learner: Learner, steps: list[dict[str, Any]], whole: Whole,
           probe: dict[str, Any] | None, clock: Clock, say: Callable[[str], None]) -> str | None:
    """Write rows, steps and policy, complete the stage and report; a policy of another process that was first
    stays, and None is returned, else the hash of the weights. The policy is written last, so if a restarted
    stage finds it, the rest exists.
    """
    batch, settings, iteration = learner.batch, learner.settings, inputs.iteration
    check_space(warehouse.root, checkpoint_bytes(learner.num_parameters()), f"Policy {iteration + 1}",
                keep_reserve=False)
    facts = {"scorer": inputs.scorer, "policy_version": iteration + 1, "num_steps": len(steps),
             "num_skipped": sum(step["skipped"] for step in steps),
             "num_processes": learner.processes.count, "groups": group_counts(batch),
             "waiting": is_waiting(batch),
             "correction": dict(zip(("name", "low", "high"), correction_of(settings), strict=True)),
             "mismatch": [line._asdict() for line in mismatch_table(batch, settings)]}
    with ThreadPoolExecutor(1) as beside:
        saved = beside.submit(save_files, warehouse, learner, iteration, whole, probe)
        warehouse.write_part("train_samples", 0, sample_table(batch, inputs), iteration=iteration)
        warehouse.write_part("train_tokens", 0, token_table(batch, inputs), iteration=iteration)
        warehouse.write_part("train_steps", 0, step_table(steps, inputs), iteration=iteration)
    written = commit_policy(warehouse, learner, inputs, facts, *saved.result())
    clock.lap("writing")
    if written:
        complete_stage(inputs, {**facts, "seconds": clock.seconds})
        say(last_line(inputs, steps, facts["mismatch"], clock))
    else:
        finish_committed(warehouse, inputs, settings)
        say(f"another process wrote policy {iteration + 1} first: it stays, and this process's is "
            "dropped")
    prune_policies(warehouse, settings.keep_policies)
    return written


def save_files(warehouse: Warehouse, learner: Learner, iteration: int, whole: Whole,
               probe: dict[str, Any] | None) -> tuple[Path, dict[str, str]]:
    """Write weights, probe and optimizer; return their scratch folder and the hash of each file."""
    scratch = warehouse.scratch(f"policy-{iteration + 1}")
    save_policy(learner.policy, scratch, base=warehouse.model, weights=whole.weights)
    if probe:
        (scratch / PROBE).write_text(json.dumps(probe) + "\n")
    torch.serialization.set_crc32_options(False)        # policy.json has a hash of the file
    torch.save(whole.optimizer, scratch / OPTIMIZER)
    return scratch, file_hashes(scratch)


def commit_policy(warehouse: Warehouse, learner: Learner, inputs: Inputs, facts: dict[str, Any],
                  scratch: Path, hashes: dict[str, str]) -> str | None:
    """Rename policy I + 1 into place. Return its hash; None if another process was first."""
    policy, settings = learner.policy, learner.settings
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")}
    lineage = {"policy_version": inputs.iteration + 1, "sha256": weights_sha256(scratch, hashes),
               "files": hashes, "kind": "lora" if policy.is_adapter else "full",
               "parent": inputs.iteration, "base": warehouse.facts["model"], "iteration": inputs.iteration,
               "global_step": inputs.parent.get("global_step", 0) + facts["num_steps"],
               "settings": stage_settings(inputs, settings), "facts": facts, "versions": versions}
    (scratch / "policy.json").write_bytes(json_bytes(lineage))
    return str(lineage["sha256"]) if warehouse.commit_policy(inputs.iteration, scratch) else None


def last_line(inputs: Inputs, steps: list[dict[str, Any]], mismatch: list[dict[str, Any]],
              clock: Clock) -> str:
    """What the stage did, in one line."""
    count = max(1, len(steps))
    loss, norm = (sum(step[key] for step in steps) / count for key in ("loss", "grad_norm"))
    far = "".join(f"{'off-policy' if line['staleness'] else 'mismatch'} k3 {line['mismatch_kl']:.1e}, "
                  for line in mismatch[:1])
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in clock.seconds.items())
    skipped = sum(step["skipped"] for step in steps)
    without = f" ({skipped} without a gradient, which changed nothing)" if skipped else ""
    return (f"iteration {inputs.iteration}: {counted(len(steps), 'step')}{without}, loss {loss:.4f}, "
            f"grad norm {norm:.4f}, {far}wrote policy {inputs.iteration + 1} "
            f"({sum(clock.seconds.values()):.1f} s: {phases})")


def is_waiting(batch: list[RowGroup]) -> bool:
    """Whether a later iteration will train on the rows."""
    return any(row.drop_reason == WAITING for group in batch for row in group.rows)
