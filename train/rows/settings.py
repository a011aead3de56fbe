"""What a train stage is run with: one record, made by the command line, checked before anything loads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from warehouse.store.errors import StageError

DTYPES = ("float32", "bfloat16", "float16")
LOSS_NAMES = ("dapo", "grpo", "bnpo", "dr_grpo", "gspo", "luspo", "cispo", "sapo", "vespo", "dppo", "topr",
              "m2po",
              "soft_clip")
CORRECTION_NAMES = ("none", "token-truncate", "token-mask", "sequence-truncate", "sequence-mask",
                    "geometric-mask",
                    "bypass")
SELF_CORRECTING = ("vespo", "dppo", "topr", "m2po")
NOT_RESULTS = ("threads", "checkpoint_seconds", "track", "device", "dry_run", "time_limit", "max_mismatch",
               "keep_policies", "tokens_per_batch")
DEFAULT_TOKENS_PER_BATCH = {"cpu": 1024, "cuda": 4096}
ENGINE_RANK_LIMIT = 512     # the largest max_lora_rank that vLLM takes


@dataclass(frozen=True)
class Settings:
    """Every option that shapes the result, and the few that only shape the run (NOT_RESULTS)."""

    loss: str
    clip_low: float | None
    clip_high: float | None
    delta: float | None
    scale_rewards: str
    mask_truncated: bool
    correction: str | None
    correction_low: float | None
    correction_high: float | None
    veto: float | None
    off_policy_threshold: float | None
    kl_beta: float
    kl_ratio: bool
    entropy_coef: float
    entropy_quantile: float
    max_completion_length: int | None
    truncated_sampling: str
    replay: int
    replay_select: str | None
    keep_if_nothing: bool
    updates_per_shard: int | None
    tasks_per_step: int | None
    learning_rate: float
    schedule: str
    warmup_steps: int
    total_steps: int | None
    lr_sequences: int | None
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    max_grad_norm: float
    full: bool
    lora_rank: int
    lora_alpha: float
    rslora: bool
    lora_targets: str
    load_in_4bit: bool
    dtype: str
    tokens_per_batch: int
    seed: int
    max_mismatch: float | None
    max_drift: float | None
    min_ess: float | None
    threads: int | None
    checkpoint_seconds: float
    track: str | None
    device: str | None
    dry_run: bool
    time_limit: float | None
    keep_policies: int | None

    def results(self) -> dict[str, Any]:
        """The settings that a stage is tied to: those that shape what it writes."""
        return {key: value for key, value in asdict(self).items()
                if key not in NOT_RESULTS and not (key == "dtype" and value == "auto")}

    def with_dtype_of(self, engine_dtype: str) -> Settings:
        """The same with dtype 'auto' settled: what the engine that sampled the rows used."""
        if self.dtype != "auto":
            return self
        if engine_dtype not in DTYPES:
            raise StageError(f"The rows were sampled in {engine_dtype}, which is no dtype to train in. "
                             f"Choose one with --dtype: {', '.join(DTYPES)}.")
        return replace(self, dtype=engine_dtype)


def check_settings(settings: Settings) -> None:
    """StageError for options that contradict each other; everything here is known without reading a file."""
    if settings.loss not in LOSS_NAMES:
        raise StageError(f"There is no loss '{settings.loss}'. Known: {', '.join(LOSS_NAMES)}.")
    if settings.loss in SELF_CORRECTING and settings.correction not in (None, "none"):
        raise StageError(f"The loss {settings.loss} takes its ratio against the sampling engine already; "
                         f"--correction {settings.correction} would correct twice. Leave --correction out.")
    if settings.updates_per_shard and settings.tasks_per_step:
        raise StageError("--updates-per-shard and --tasks-per-step both say how the groups are split. "
                         "Give one of them.")
    if settings.schedule != "constant" and not settings.total_steps:
        raise StageError(f"--schedule {settings.schedule} needs --total-steps, the optimizer step at which "
                         "the learning rate reaches zero, counted over the whole run.")
    if settings.load_in_4bit and settings.full:
        raise StageError("--load-4bit freezes the base, so it cannot be trained with --full. Leave one out.")
    if settings.lora_rank > ENGINE_RANK_LIMIT and not settings.full:
        raise StageError(f"--lora-rank {settings.lora_rank} is above {ENGINE_RANK_LIMIT}, the highest that "
                         "vLLM serves: the next rollout could not load the adapter. Lower it.")
    if settings.replay_select is not None and not settings.replay:
        raise StageError("--replay-select chooses among earlier rows; say how old they may be with --replay.")
    if not 0 < settings.entropy_quantile <= 1:
        raise StageError(f"--entropy-quantile {settings.entropy_quantile} must be above 0 and at most 1.")
    low, high = settings.correction_low, settings.correction_high
    if low is not None and high is not None and low >= high:
        raise StageError(f"--correction-low {low} must be below --correction-high {high}.")


def correction_of(settings: Settings) -> tuple[str, float | None, float | None]:
    """The correction and its bounds, defaults filled in: their usual values in formulas of the field."""
    name = settings.correction or ("none" if settings.loss in SELF_CORRECTING else "token-truncate")
    bounds: dict[str, tuple[float | None, float | None]] = {
        "token-truncate": (None, 3.0), "token-mask": (0.5, 5.0), "sequence-truncate": (None, 3.0),
        "sequence-mask": (0.5, 5.0), "geometric-mask": (0.99, 1.01)}
    low, high = bounds.get(name, (None, None))
    given_low, given_high = settings.correction_low, settings.correction_high
    if given_low is not None or given_high is not None:
        low, high = given_low, given_high
    return name, low, high
