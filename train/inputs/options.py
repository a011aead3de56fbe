"""The options of `train`, for the command line, config.toml and the settings recorded with a stage."""

import os
from dataclasses import dataclass, replace
from typing import Any, Self

from train.objective.loss_table import CORRECTIONS, DEFAULT_CORRECTION, LOSSES
from warehouse.fields import iteration_field, option, stored_values
from warehouse.options import SHARD_HELP, TIME_LIMIT_HELP, TRACKERS
from warehouse.stages.shard import Shard
from warehouse.store.errors import StageError

DTYPES = ("float32", "bfloat16", "float16")
DEVICE_HELP = "cpu, cuda, cuda:1 ..  [default: a GPU if there is one]"


def chosen_turns(value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    names = [name.strip() for name in str(value).split(",")]
    if not all(name.isdecimal() and int(name) for name in names):
        raise StageError(f"--turns {value} is not a list of turns, which count from 1. Write 2, or 1,2.")
    return tuple(sorted(set(map(int, names))))


@dataclass(frozen=True)
class TrainOptions:
    """Every option of `train`; a stage records those that are stored."""

    learning_rate: float = option(1e-5, "Peak learning rate; also --lr.", "--learning-rate", "--lr", least=0,
                                  group="Set first")
    updates_per_batch: int | None = option(
        None, "Optimizer steps, at most one per group.  [default: 1]", "--updates-per-batch",
        "--updates-per-shard", least=1, stored="updates_per_shard")
    loss: str = option("dapo", f"{', '.join(LOSSES)}, or your own function of token losses.",
                       metavar="NAME|FILE.py:NAME", guarded="")
    lora_rank: int = option(16, "Rank of the adapter.", least=1)
    dry_run: bool = option(False, "Stop after the mismatch table, write nothing.", stored=False)

    iteration: int | None = iteration_field("Rows")
    purpose: str = option("train", "Rows to train on; with --loss nll also distil or distil-LABEL.",
                          stored=False)
    scorer: str | None = option(None, "Scorer of the rewards. [default: as in the view scorers]",
                                stored=False)
    turns: tuple[int, ...] | None = option(
        None, "Train on these turns of conversations alone.  [default: all]", metavar="N,N",
        parse=chosen_turns)
    replay: int = option(0, "Also train on the rows of this many iterations before.", least=0)
    truncated_sampling: str = option(
        "refuse", "Rows whose sampling distribution cannot be reconstructed (penalties, truncation).",
        choices=("refuse", "uncorrected"))
    mask_truncated: bool = option(False, "Mask truncated completions in the loss; their rewards count.",
                                  "--mask-truncated/--keep-truncated")
    until_signal: int | None = option(
        None, "With fewer groups that have reward variance, skip the update and merge the rows into the next "
        "iteration (at most 5).", least=1, metavar="GROUPS")
    keep_if_nothing: bool = option(
        False, "Without any gradient (--kl-beta makes one), write the policy unchanged instead of stopping.")

    clip_low: float | None = option(None, "Lower clip range. [default: the loss's]", least=0,
                                    group="Loss and advantages")
    clip_high: float | None = option(None, "Upper clip range; for cispo the cap. [default: the loss's]",
                                     least=0)
    delta: float | None = option(None, "Upper bound of the unclipped ratio (two-sided clipping).", least=0,
                                 above=True)
    max_completion_length: int | None = option(
        None, "Divisor of dr_grpo.  [default: max_tokens of the rows]", least=1)
    scale_rewards: str = option("group", "Divide advantages by the std of group or batch.",
                                choices=("group", "batch", "none"))
    advantages: str | None = option(
        None, "Your own function of all rows: one advantage per row or token.", metavar="FILE.py:NAME",
        guarded="")
    teacher: str | None = option(
        None, "Distil this model, a folder or hub id with the run's tokenizer: token advantages are "
        "log p_teacher - log mu.", metavar="PATH")

    kl_beta: float = option(0.0, "Weight of the KL to the base.", least=0, group="KL and entropy")
    kl_monitor: bool | None = option(
        None, "Store the KL to the base even at weight 0; costs a forward pass.", show_default=False)
    entropy_coef: float = option(0.0, "Weight of an entropy bonus.")
    entropy_quantile: float = option(1.0, "Train on this share of the highest-entropy tokens.", least=0,
                                     most=1, above=True)

    correction: str | None = option(
        None, f"Importance correction on pi_old/mu.  [default: {DEFAULT_CORRECTION} at "
        f"{CORRECTIONS[DEFAULT_CORRECTION][1]:g}]", choices=tuple(CORRECTIONS),
        group="Off-policy rows")
    correction_low: float | None = option(None, "Its lower bound.", least=0)
    correction_high: float | None = option(None, "Its upper bound.", least=0, above=True)
    veto: float | None = option(None, "Drop completions with any pi_old/mu below this, for example 1e-4.",
                                least=0)
    off_policy_threshold: float | None = option(
        None, "Drop completions with a negative advantage and a mean log mu - log pi above this.")

    schedule: str = option("constant", "Learning rate after the warmup.",
                           choices=("constant", "linear", "cosine"), group="Optimizer")
    warmup_steps: int = option(0, "Optimizer steps of linear warmup, counted over the run.", least=0)
    total_steps: int | None = option(None, "Optimizer step at which linear and cosine reach zero.", least=1)
    weight_decay: float = option(0.0, "AdamW weight decay.", least=0)
    adam_beta1: float = option(0.9, "AdamW's first beta.", least=0, most=1, below=True)
    adam_beta2: float = option(0.999, "AdamW's second beta.", least=0, most=1, below=True)
    max_grad_norm: float = option(1.0, "Clip gradients to this norm; 0 is off.", least=0)
    seed: int = option(0, "Seed of a new adapter and of the split into steps.")

    full: bool = option(False, "Train all weights instead of a LoRA adapter.", group="Weights")
    lora_alpha: float = option(32.0, "Scale the adapter by alpha / rank.", least=0, above=True)
    rslora: bool = option(False, "Scale by alpha / sqrt(rank) instead.", "--rslora/--no-rslora")
    lora_targets: str = option("all-linear", "Module names a,b,c; 'all-linear' is all but lm_head and "
                               "experts, 'experts' those.")
    load_in_4bit: bool = option(False, "Load the frozen base in 4 bits (bitsandbytes, GPU).", "--load-4bit")

    dtype: str = option("auto", "Weights and activations; logits and losses are float32. auto: as the rows "
                        "were sampled.", choices=("auto", *DTYPES), group="Devices")
    tokens_per_batch: int = option(
        0, "Tokens per forward pass.  [default: 1024 on a CPU, what fits on a GPU]", least=0, stored=False,
        show_default=False)
    threads: int | None = option(None, "CPU threads.  [default: OMP_NUM_THREADS, or all cores]", least=1,
                                 most=os.cpu_count(), stored=False)
    device: str | None = option(None, DEVICE_HELP, stored=False)

    max_mismatch: float | None = option(
        None, "Largest mean k3 KL at staleness 0.  [default: in float32 100 times that of iteration 0, at "
        "most 1e-4; else 0.015]", least=0, stored=False, group="Safeguards")

    checkpoint_seconds: float = option(120.0, "Seconds between checkpoints within a stage.", least=0,
                                       stored=False, group="Run and resume")
    time_limit: float | None = option(None, TIME_LIMIT_HELP, least=0, stored=False)
    keep_policies: int | None = option(
        None, "Keep weights of the last N policies only.  [default: all]", least=2, stored=False)
    track: str | None = option(None, "Send metrics of all stages to this tracker.", choices=TRACKERS,
                               stored=False)

    def results(self) -> dict[str, Any]:
        """The settings recorded with a stage: those that shape its results."""
        values = stored_values(self)
        return {name: value for name, value in values.items() if (name, value) != ("dtype", "auto")}

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)


@dataclass(frozen=True)
class AskOptions:
    """The options of `train logprobs` that choose no rows."""

    entropy: bool = option(False, "Store token entropies, too.")
    shard: Shard = option(Shard(), SHARD_HELP, parse=Shard.parse, metavar="INDEX/COUNT")
    dtype: str = option("auto", "Weights and activations. auto: as the rows were sampled.",
                        choices=("auto", *DTYPES))
    tokens_per_batch: int = option(
        0, "Tokens per forward pass.  [default: 1024 on a CPU, 8192 on a GPU]", least=0)
    device: str | None = option(None, DEVICE_HELP)
    time_limit: float | None = option(None, TIME_LIMIT_HELP, least=0)
