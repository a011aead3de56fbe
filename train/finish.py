"""What a train stage leaves: rows, steps, the policy with its lineage, and last the manifest."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from train.inputs.inputs import Inputs, complete_stage, finish_committed, own_functions, stage_settings
from train.inputs.settings import correction_of
from train.inputs.signal import WAITING
from train.model.saving import Whole, save_policy
from train.objective.correction import k3
from train.steps.logprob_pass import PROBE
from train.steps.mismatch import group_counts, mismatch_table
from train.steps.row import Row, RowGroup
from train.steps.steps import Learner
from warehouse.maintain.prune import prune_policies
from warehouse.stages.clock import Clock
from warehouse.stages.space import check_space, checkpoint_bytes
from warehouse.store.checksums import OPTIMIZER, file_hashes, weights_sha256
from warehouse.store.errors import counted
from warehouse.store.json_files import json_bytes
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import arrow_schema

STEP_EXTRA = ("policy_k2", "policy_ess", "num_forwarded_tokens", "skipped")


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
             "waiting": any(row.drop_reason == WAITING for group in batch for row in group.rows),
             "correction": dict(zip(("name", "low", "high"), correction_of(settings), strict=True)),
             "mismatch": mismatch_table(batch, settings),
             **{f"{name}_source": user.text for name, user in own_functions(settings).items()}}
    with ThreadPoolExecutor(1) as beside:
        saved = beside.submit(save_files, warehouse, learner, iteration, whole, probe)
        for table, rows in (("train_samples", [_sample(group, row, inputs) for group in batch
                                               for row in group.rows]),
                            ("train_tokens", token_rows(batch, inputs)),
                            ("train_steps", [{
                                **step, "iteration": iteration, "policy_version": iteration,
                                "extra": json.dumps({key: step.get(key) for key in STEP_EXTRA})}
                                for step in steps])):
            columns = pa.Table.from_pylist(rows, schema=arrow_schema(table))
            warehouse.write_part(table, 0, columns, iteration=iteration)
    written = commit_policy(warehouse, learner, inputs, facts, *saved.result())
    clock.lap("writing")
    if written:
        complete_stage(inputs, {**facts, "seconds": clock.seconds})
        say(last_line(inputs, steps, facts["mismatch"], clock))
    else:
        finish_committed(warehouse, inputs, settings)
        say(f"another process wrote policy {iteration + 1} first: it stays, and this process's is dropped")
    prune_policies(warehouse, settings.keep_policies, say)
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


def token_rows(batch: list[RowGroup], inputs: Inputs) -> list[dict[str, Any]]:
    """Rows of `train_tokens`: the completions that had a gradient in a step."""
    return [{"iteration": group.stored.iteration, "purpose": group.stored.purpose,
             "task_id": row.rollout.task_id, "sample_index": row.rollout.sample_index,
             "trained_iteration": inputs.iteration,
             "optimizer_step": row.step, "log_drift": row.log_drift.numpy(),
             "clipped": row.clipped.numpy().astype("int8")}
            for group in batch for row in group.rows
            if row.step is not None and not row.drop_reason and len(row.log_drift)
            and not row.log_drift.isnan().any()]


def _sample(group: RowGroup, row: Row, inputs: Inputs) -> dict[str, Any]:
    rollout, n = row.rollout, row.num_tokens
    compared = n and bool(group.stored.policies) and None not in group.stored.policies.values()
    gap = row.log_ratio.double()
    from_base = (row.old_logprobs - row.ref_logprobs).double() if len(row.ref_logprobs) else row.ref_logprobs
    return {
        "iteration": group.stored.iteration, "purpose": group.stored.purpose, "task_id": rollout.task_id,
        "sample_index": rollout.sample_index, "group_id": group.stored.group_id, "scorer": inputs.scorer,
        "trained_iteration": inputs.iteration,
        "staleness": int(row.staleness.max()) if n else group.staleness,
        "optimizer_step": None if row.drop_reason else row.step,
        "reward": None if rollout.reward != rollout.reward else rollout.reward,
        "advantage": float(row.advantages.double().mean()) if n else 0.0,
        "num_trainable_tokens": row.num_trainable_tokens, "drop_reason": row.drop_reason,
        "old_logprobs": row.old_logprobs.numpy(),
        "log_ratio_mean": gap.mean().item() if compared else None,
        "log_ratio_abs_mean": gap.abs().mean().item() if compared else None,
        "log_ratio_abs_max": gap.abs().max().item() if compared else None,
        "mismatch_kl": k3(gap).mean().item() if compared else None,
        "importance_weight_mean": row.weights.mean().item() if n else None,
        "kept_fraction": row.kept.double().mean().item() if n else None,
        "entropy": row.entropy.mean().item() if n else None,
        "base_kl": k3(-from_base).mean().item() if len(from_base) else None,
        "base_log_ratio": from_base.mean().item() if len(from_base) else None,
    }
