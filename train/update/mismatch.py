"""Mismatch of the trainer against the engine, per staleness, before the first gradient; and the drops."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from train.objective.correction import clamp_log_ratio, effective_sample_size, k3
from train.rows.settings import Settings, correction_of
from train.update.batch import Row, RowGroup
from warehouse.store.errors import StageError

FLOAT32_LIMIT, HALF_LIMIT = 1e-4, 0.015


class MismatchError(StageError):
    """The engine sampled from another distribution than the trainer computes for the same weights."""


class Mismatch(NamedTuple):
    """How far log pi_old and log mu are apart over the tokens of one staleness, nats."""

    staleness: int
    num_completions: int
    num_tokens: int
    log_ratio_abs_mean: float
    log_ratio_abs_max: float
    mismatch_kl: float
    ess: float
    kept_fraction: float
    correlation: float


def mismatch_table(shard: list[RowGroup], settings: Settings) -> list[Mismatch]:
    """One line per staleness, youngest first."""
    ages = sorted({one.staleness for one in shard})
    rows = {age: [row for one in shard if one.staleness == age for row in one.forwardable] for age in ages}
    return [_mismatch(age, rows[age], settings) for age in ages]


def capped_tokens(row: Row, settings: Settings) -> Tensor:
    """True for tokens whose weight is 0 or was changed by a bound, [n]."""
    correction, _, _ = correction_of(settings)
    if correction in ("none", "bypass"):
        return row.weights == 0
    ratio = row.log_ratio.sum().exp() if correction.startswith("sequence") else row.log_ratio.exp()
    return (row.weights == 0) | ((row.weights / ratio - 1).abs() > 1e-4)


def check_mismatch(table: list[Mismatch], settings: Settings, *, engine_dtype: str) -> None:
    """MismatchError if rows of the very policy that is trained are further off than rounding explains."""
    limit = settings.max_mismatch
    limit = default_limit(settings, engine_dtype) if limit is None else limit
    for line in table:
        if line.staleness == 0 and not line.mismatch_kl <= limit:
            raise MismatchError(
                f"Trainer and engine disagree at staleness 0: mean k3 KL {line.mismatch_kl:.3g}, allowed "
                f"{limit:.3g}. The engine served other weights, another tokenizer or other sampling settings "
                "than the rows say: check the rollout. If you know why they differ, pass --max-mismatch.")


def default_limit(settings: Settings, engine_dtype: str) -> float:
    """Float32 on both sides leaves 1e-10; half precision up to 0.015, prime-rl's bar for a new model."""
    return FLOAT32_LIMIT if settings.dtype == engine_dtype == "float32" else HALF_LIMIT


def lines_to_print(table: list[Mismatch], shard: list[RowGroup]) -> list[str]:
    """The table, the groups without signal, and the drops, as a person reads them."""
    lines = ["mismatch of trainer and engine, rho = pi_old / mu, before the first step:",
             "staleness completions   tokens mean|log rho|  max|log rho|   k3 KL  ESS/n   kept correlation"]
    lines += [f"{one.staleness:9d} {one.num_completions:11d} {one.num_tokens:8d} "
              f"{one.log_ratio_abs_mean:13.1e} {one.log_ratio_abs_max:13.1e} {one.mismatch_kl:7.0e}  "
              f"{one.ess:5.3f}  {one.kept_fraction:5.3f} {one.correlation:11.6f}" for one in table]
    counts = group_counts(shard)
    lines.append(f"groups {counts['groups']}: {counts['mixed']} with signal, "
                 f"{counts['all_right']} all right, {counts['all_wrong']} all wrong, "
                 f"{counts['equal']} equal otherwise")
    rows = [row for one in shard for row in one.rows]
    num_tokens = sum(row.num_trainable_tokens for row in rows)
    lines.append(f"completions {len(rows)}, trainable tokens {num_tokens}, dropped: {drops(shard)}")
    return lines


def drops(shard: list[RowGroup]) -> str:
    """How many completions give no gradient, by reason."""
    counts = Counter(row.drop_reason for one in shard for row in one.rows if row.drop_reason)
    return ", ".join(f"{number} {reason}" for reason, number in counts.most_common()) or "none"


def group_counts(shard: list[RowGroup]) -> dict[str, int]:
    """Groups in all, with signal, and without: all right, all wrong, or of equal rewards otherwise."""
    counts = Counter(groups=len(shard), mixed=0, all_right=0, all_wrong=0, equal=0)
    for one in shard:
        if any(row.advantage for row in one.rows):
            counts["mixed"] += 1
        elif all(row.rollout.correct for row in one.rows):
            counts["all_right"] += 1
        else:
            counts["equal" if any(row.rollout.correct for row in one.rows) else "all_wrong"] += 1
    return dict(counts)


def as_facts(table: list[Mismatch]) -> list[dict[str, Any]]:
    """The table for the manifest."""
    return [line._asdict() for line in table]


def _mismatch(staleness: int, rows: list[Row], settings: Settings) -> Mismatch:
    if not rows:
        return Mismatch(staleness, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    old = torch.cat([row.old_logprobs for row in rows]).double()
    behaviour = torch.cat([row.behaviour_logprobs for row in rows]).double()
    log_ratio = old - behaviour
    kept = ~torch.cat([capped_tokens(row, settings) for row in rows])
    pairs = torch.stack([old.exp(), behaviour.exp()])
    correlation = torch.corrcoef(pairs)[0, 1].item() if pairs.std(dim=1).min() > 0 else 1.0
    ess = effective_sample_size(clamp_log_ratio(log_ratio).exp())
    return Mismatch(staleness, len(rows), len(old), log_ratio.abs().mean().item(),
                    log_ratio.abs().max().item(), k3(log_ratio).mean().item(), ess,
                    kept.double().mean().item(), correlation)
