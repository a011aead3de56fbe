"""What a train stage writes to the warehouse: one row per completion, one row per optimizer step."""

import json
from typing import Any

import pyarrow as pa

from train.inputs.inputs import Inputs
from train.objective.correction import k3
from train.steps.row import Row, RowGroup
from warehouse.store.schema import arrow_schema

STEP_EXTRA = ("policy_k2", "policy_ess", "num_forwarded_tokens", "skipped")


def sample_table(batch: list[RowGroup], inputs: Inputs) -> pa.Table:
    """Rows of `train_samples`, in the order the groups were read."""
    rows = [_sample(group, row, inputs) for group in batch for row in group.rows]
    return pa.Table.from_pylist(rows, schema=arrow_schema("train_samples"))


def token_table(batch: list[RowGroup], inputs: Inputs) -> pa.Table:
    """Rows of `train_tokens`: the completions that had a gradient in a step."""
    rows = [{"iteration": group.stored.iteration, "purpose": group.stored.purpose,
             "task_id": row.rollout.task_id, "sample_index": row.rollout.sample_index,
             "trained_iteration": inputs.iteration,
             "optimizer_step": row.step, "log_drift": row.log_drift.numpy(),
             "clipped": row.clipped.numpy().astype("int8")}
            for group in batch for row in group.rows
            if row.step is not None and not row.drop_reason and len(row.log_drift)
            and not row.log_drift.isnan().any()]
    return pa.Table.from_pylist(rows, schema=arrow_schema("train_tokens"))


def step_table(steps: list[dict[str, Any]], inputs: Inputs) -> pa.Table:
    """Rows of `train_steps`; metrics without a column go into `extra`."""
    schema = arrow_schema("train_steps")
    rows = []
    for step in steps:
        extra = json.dumps({key: step.get(key) for key in STEP_EXTRA})
        rows.append({**{key: value for key, value in step.items() if key in schema.names},
                     "iteration": inputs.iteration, "policy_version": inputs.iteration, "extra": extra})
    return pa.Table.from_pylist(rows, schema=schema)


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
        "reward": None if rollout.reward != rollout.reward else rollout.reward, "advantage": row.advantage,
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
