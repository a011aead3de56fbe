"""Mismatch of trainer and engine per staleness, before the first gradient; and the dropped rows."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from train.inputs.options import TrainOptions
from train.inputs.signal import listed
from train.objective.correction import effective_sample_size, k3
from train.steps.row import Row, RowGroup
from warehouse.store.errors import StageError

# Mean k3 KL at staleness 0. Half precision: prime-rl's limit for a new model. Float32: in iteration 0,
# what TF32 may round away; later, a margin above what iteration 0 measured. Rounding grows with the logits:
# a run of 2,000 tasks went from 2e-13 to 3e-11 in 100 iterations. At 1e-9 tokens differ by 4e-5 nats.
HALF_LIMIT, FLOAT32_LIMIT, FLOAT32_FLOOR, FLOOR_MARGIN = 0.015, 1e-4, 1e-9, 100


class MismatchError(StageError):
    """The engine sampled from another distribution than the trainer computes for the same weights."""

    exit_code = 3


Mismatch = dict[str, Any]     # log pi_old against log mu over the trainable tokens of one staleness


def mismatch_table(batch: list[RowGroup], settings: TrainOptions) -> list[Mismatch]:
    """One line per staleness, youngest first; the tokens of a completion may come from several policies.

    Empty for rows of another model: no policy of the run sampled them.
    """
    if settings.purpose != "train":
        return []
    of_tokens = [row.staleness for group in batch for row in group.rows]
    ages = sorted({group.staleness for group in batch}.union(torch.cat(of_tokens).unique().tolist()))
    return [_mismatch(age, [row for group in batch for row in group.rows
                            if row.trainable and bool((row.staleness == age).any())]) for age in ages]


def check_mismatch(table: list[Mismatch], settings: TrainOptions, *, engine_dtype: str, floor: float | None,
                   say: Callable[[str], None]) -> None:
    """MismatchError if rows of the policy being trained differ by more than rounding explains.

    `floor` is the KL that rounding alone caused in the run's first iteration, if known.
    """
    exact = settings.dtype == engine_dtype == "float32"
    sampled = f"rows sampled in {engine_dtype or 'an unknown dtype'}"
    limit, why = settings.max_mismatch, "from --max-mismatch"
    if limit is None and exact and floor is not None:
        limit = min(FLOAT32_LIMIT, max(FLOAT32_FLOOR, floor * FLOOR_MARGIN))
        why = f"{FLOOR_MARGIN} times what rounding made in iteration 0, and at least {FLOAT32_FLOOR:g}"
    elif limit is None:
        limit, why = (FLOAT32_LIMIT if exact else HALF_LIMIT), f"for {settings.dtype} and {sampled}"
    for line in table:
        if line["staleness"] == 0 and not line["mismatch_kl"] <= limit:
            raise MismatchError(
                f"Trainer and engine disagree at staleness 0: mean k3 KL {line['mismatch_kl']:.3g}, allowed "
                f"{limit:.3g} ({why}). The engine served other weights, another tokenizer or other sampling "
                "settings than the rows say: check the rollout. If you know why, as with "
                "--truncated-sampling uncorrected, pass --max-mismatch.")
    if not exact and any(line["staleness"] == 0 for line in table):
        say(f"{settings.dtype}, {sampled}: rounding hides small updates, so the table "
            "cannot tell whether the engine served this policy or the one before")


def lines_to_print(table: list[Mismatch], batch: list[RowGroup]) -> list[str]:
    """The table where there is one, the groups without a gradient, and the drops, as a person reads them."""
    lines = ["mismatch of trainer and engine, rho = pi_old / mu, before the first step:",
             "staleness completions   tokens mean|log rho|  max|log rho|    k3 KL  ESS/n   kept correlation"
             ] if table else []
    lines += ["{staleness:9d} {num_completions:11d} {num_tokens:8d} {log_ratio_abs_mean:13.1e} "
              "{log_ratio_abs_max:13.1e} {mismatch_kl:8.1e}  {ess:5.3f}  {kept_fraction:5.3f} "
              "{correlation:11.6f}".format(**line) for line in table]
    counts = group_counts(batch)
    lines.append(f"groups {counts['groups']}: {counts['mixed']} of mixed rewards, {counts['all_right']} all "
                 f"right, {counts['all_wrong']} all wrong, {counts['equal']} equal otherwise"
                 + (f", {counts['unmeasured']} not measured" if counts["unmeasured"] else ""))
    rows = [row for group in batch for row in group.rows]
    num_tokens = sum(row.num_trainable_tokens for row in rows)
    lines.append(f"completions {len(rows)}, trainable tokens {num_tokens}, "
                 f"dropped: {listed(Counter(row.drop_reason for row in rows if row.drop_reason))}")
    return lines


def group_counts(batch: list[RowGroup]) -> dict[str, int]:
    """Groups in all, of mixed rewards, all right, all wrong, equal otherwise, without any reward."""
    counts = Counter(groups=len(batch), mixed=0, all_right=0, all_wrong=0, equal=0, unmeasured=0)
    for group in batch:
        rows = [row.rollout for row in group.rows if not math.isnan(row.rollout.reward)]
        right = [row.correct for row in rows]
        mixed = len({row.reward for row in rows}) > 1
        counts["mixed" if mixed else "unmeasured" if not right else "all_right" if all(right) else
               "equal" if any(right) else "all_wrong"] += 1
    return dict(counts)


def _mismatch(staleness: int, rows: list[Row]) -> Mismatch:
    line: Mismatch = {"staleness": staleness, "num_completions": len(rows)}
    if not rows:
        return line | {"num_tokens": 0, "mismatch_kl": 0.0, "log_ratio_abs_mean": 0.0,
                       "log_ratio_abs_max": 0.0, "ess": 1.0, "kept_fraction": 1.0,
                       "importance_weight_mean": 1.0, "correlation": 1.0}
    there = torch.cat([row.staleness for row in rows]) == staleness
    old, behaviour, kept, weights = (torch.cat([getattr(row, name) for row in rows])[there].double()
                                     for name in ("old_logprobs", "behaviour_logprobs", "kept", "weights"))
    log_ratio, pairs = old - behaviour, torch.stack([old.exp(), behaviour.exp()])
    correlation = torch.corrcoef(pairs)[0, 1].item() if pairs.std(dim=1).min() > 0 else 1.0
    return line | {"num_tokens": len(old), "mismatch_kl": k3(log_ratio).mean().item(),
                   "log_ratio_abs_mean": log_ratio.abs().mean().item(),
                   "log_ratio_abs_max": log_ratio.abs().max().item(),
                   "ess": effective_sample_size(log_ratio), "kept_fraction": kept.mean().item(),
                   "importance_weight_mean": weights.mean().item(), "correlation": correlation}
