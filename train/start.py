"""What a stage starts from: its rows split into steps, or nothing to do; the policy and the optimizer."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from train.inputs.asked import teacher_advantages
from train.inputs.groups import Group
from train.inputs.inputs import Inputs, stage_settings
from train.inputs.options import TrainOptions
from train.inputs.own_advantages import own_advantages
from train.inputs.signal import WAITING, NoGradient
from train.model.loading import load_full, load_lora
from train.model.policy import CACHED_PROMPT, Policy
from train.model.sharding import part_like
from train.steps.accelerator import Processes
from train.steps.checkpoint import Checkpoints
from train.steps.row import RowGroup, build_batch, split_into_steps
from warehouse.store.checksums import OPTIMIZER
from warehouse.store.errors import StageError, counted
from warehouse.store.run_folder import Warehouse

MOST_ROLLOUTS = 5           # with this many, --until-signal trains in any case


def open_processes(settings: TrainOptions) -> Processes:
    if settings.threads:
        torch.set_num_threads(settings.threads)
    processes = Processes(settings.device)
    if processes.sharding and settings.load_in_4bit:
        raise StageError("--load-4bit needs all weights in one process, and the config of `accelerate "
                         "launch` shares them (FSDP). Leave one out.")
    return processes


def load_policy(warehouse: Warehouse, parent: dict[str, Any], settings: TrainOptions,
                processes: Processes) -> Policy:
    """The policy `parent` on the device, or this process's part of it."""
    device, sharding = processes.device, processes.sharding
    folder, trained = warehouse.policy_dir(parent["policy_version"]), parent["kind"] != "base"
    revision = warehouse.facts.get("model_revision")
    if settings.full:
        return load_full(str(folder) if trained else warehouse.model, dtype=settings.dtype, device=device,
                         revision=None if trained else revision, sharding=sharding)
    return load_lora(warehouse.model, folder if trained else None, dtype=settings.dtype, device=device,
                     seed=settings.seed, rank=settings.lora_rank, alpha=settings.lora_alpha,
                     rslora=settings.rslora, targets=settings.lora_targets,
                     load_in_4bit=settings.load_in_4bit, revision=revision, sharding=sharding)


def sharing(policy: Policy, groups: Sequence[Group]) -> str:
    """How prompts are shared if not in the fastest way, why, and what that costs."""
    if policy.attention == CACHED_PROMPT:
        return f"prompts are shared through a cache that each row copies, because: {policy.why_not_shared}"
    completions = sum(len(rollout.completion_ids) for group in groups for rollout in group.rollouts)
    once = completions + sum(len(group.prompt_ids) for group in groups)
    whole = completions + sum(len(group.prompt_ids) * len(group.rollouts) for group in groups)
    return (f"prompts are not shared, each row is forwarded with its own: {whole / once:.1f} times as many "
            f"tokens ({policy.why_not_shared})")


def check_fits(policy: Policy, groups: Sequence[Group]) -> None:
    """StageError for rows longer than the model's context, or from another tokenizer."""
    limit, stretched = position_limit(policy.config)
    for group in groups:
        if not len(group.prompt_ids):
            raise StageError(f"Group {group.group_id} has no prompt to continue: its task has an empty "
                             "one. `warehouse discard` and `rollout` sample other tasks.")
        longest = max(len(rollout.completion_ids) for rollout in group.rollouts)
        if limit and len(group.prompt_ids) + longest > limit:
            why = (f"its {stretched} position encoding changes with the length beyond {limit}, also for the "
                   "tokens before" if stretched else f"the model has {limit} positions")
            raise StageError(f"Group {group.group_id} has {len(group.prompt_ids)} prompt and {longest} "
                             f"completion tokens, but {why}. Roll out with lower limits.")
        for ids in (group.prompt_ids, *(rollout.completion_ids for rollout in group.rollouts)):
            lowest, highest = int(ids.min(initial=0)), int(ids.max(initial=0))
            if lowest < 0 or highest >= policy.vocabulary_size:
                wrong = lowest if lowest < 0 else highest
                raise StageError(f"Group {group.group_id} has token id {wrong}, the model 0 to "
                                 f"{policy.vocabulary_size - 1}: the rows were sampled with another "
                                 "tokenizer. Roll out with this run's model.")


def position_limit(config: Any) -> tuple[int | None, str | None]:
    """The longest row with the same results whole and in pieces; and the position encoding that limits it."""
    limit, rope = getattr(config, "max_position_embeddings", None), getattr(config, "rope_parameters", None)
    kind = (rope or {}).get("rope_type")
    if kind not in ("longrope", "dynamic"):
        return limit, None
    original = (rope or {}).get("original_max_position_embeddings")
    return original or getattr(config, "original_max_position_embeddings", None) or limit, kind


def new_optimizer(policy: Policy, settings: TrainOptions) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters, or over this process's part of them."""
    offloaded = policy.shards is not None and policy.shards.sharding.offload
    return torch.optim.AdamW(policy.trainable().values(), lr=settings.learning_rate,
                             betas=(settings.adam_beta1, settings.adam_beta2),
                             weight_decay=settings.weight_decay, fused=offloaded or None)


def load_optimizer(policy: Policy, warehouse: Warehouse, inputs: Inputs, settings: TrainOptions,
                   say: Callable[[str], None]) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters, with the moments of the parent policy if it has any."""
    optimizer = new_optimizer(policy, settings)
    stored = warehouse.policy_dir(inputs.iteration) / OPTIMIZER
    if stored.exists():
        fresh = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        moments = torch.load(stored, weights_only=True, map_location="cpu", mmap=True)
        for place, parameter in enumerate(policy.trainable().values()):
            moments["state"][place] = {key: part_like(value, parameter)
                                       for key, value in moments["state"].get(place, {}).items()}
        optimizer.load_state_dict(moments)
        optimizer.param_groups[0].update(fresh)     # moments carry over; betas and decay are this stage's
    elif inputs.parent["kind"] != "base":
        say(f"{stored} is missing: AdamW starts with fresh moments")
    return optimizer


def plan_batch(inputs: Inputs, settings: TrainOptions, checkpoints: Checkpoints, processes: Processes,
               say: Callable[[str], None]) -> tuple[list[RowGroup], list[list[int]]]:
    """The rows and their split into steps; NoGradient, before a model is loaded, if none has a gradient."""
    batch = build_batch(inputs.groups, inputs.iteration, settings,
                        advantages_given(inputs, settings, checkpoints, processes))
    wait_for_signal(inputs, batch, settings, say)
    nothing = has_nothing(inputs, batch, settings)
    plan = [] if nothing else split_into_steps(batch, settings, seed=f"{settings.seed}:{inputs.iteration}")
    if plan and settings.updates_per_batch and settings.updates_per_batch > len(plan):
        say(f"{counted(len(plan), 'optimizer step')} of {counted(len(batch), 'group')}, fewer than "
            f"--updates-per-batch {settings.updates_per_batch}: a step takes whole groups")
    return batch, plan


def advantages_given(inputs: Inputs, settings: TrainOptions, checkpoints: Checkpoints,
                     processes: Processes) -> list[torch.Tensor] | None:
    """The advantages from --teacher or --advantages; those of --advantages are saved for a resumed stage."""
    if settings.teacher:
        said = teacher_advantages(checkpoints.warehouse, inputs.groups, settings.teacher)
        return [torch.tensor(value, dtype=torch.float32) for value in said]
    name = settings.advantages
    if name is None:
        return None
    stored = stored_logprobs(inputs, settings, checkpoints) or {}
    if "advantages" in stored:
        lengths = [len(rollout.completion_ids) for group in inputs.groups for rollout in group.rollouts]
        return list(stored["advantages"].split(lengths))
    ages = [inputs.iteration - group.policy_version for group in inputs.groups]
    given = processes.by_first(lambda: own_advantages(name, inputs.groups, ages))
    return [torch.tensor(value, dtype=torch.float32) for value in given]


def stored_logprobs(inputs: Inputs, settings: TrainOptions,
                    checkpoints: Checkpoints) -> dict[str, torch.Tensor] | None:
    """The logprobs of all rows in the stage's first checkpoint; None if there is none.

    A dry run may have other settings than the stage; then the checkpoint has other rows or another dtype.
    """
    now, before = stage_settings(inputs, settings), inputs.stage.settings() or {}
    other = settings.dry_run and json.loads(json.dumps(now)) != before
    return None if other else checkpoints.logprobs()


def wait_for_signal(inputs: Inputs, batch: list[RowGroup], settings: TrainOptions,
                    say: Callable[[str], None]) -> None:
    """Postpone the rows if too few groups have a gradient and fewer than MOST_ROLLOUTS wait already.

    The unchanged policy then samples the next iteration: DAPO's dynamic sampling (arXiv 2503.14476), one
    rollout at a time.
    """
    wanted = settings.until_signal or 0
    learned = sum(any(row.advantages.any() for row in group.rows) for group in batch)
    if learned >= wanted or len(inputs.waiting) + 1 >= MOST_ROLLOUTS:
        return
    for row in (row for group in batch for row in group.rows):
        row.drop_reason = WAITING
    say(f"{learned} of {len(batch)} groups have a gradient, fewer than --until-signal {wanted}: no update; "
        f"iteration {inputs.iteration + 1} samples with the same policy")


def has_nothing(inputs: Inputs, batch: list[RowGroup], settings: TrainOptions) -> bool:
    """Whether every completion is known to give no gradient; NoGradient unless the stage may go on so."""
    reasons = [row.drop_reason for group in batch for row in group.rows]
    if all(reasons) and not (settings.keep_if_nothing or settings.dry_run or WAITING in reasons):
        raise NoGradient(inputs, reasons, settings.purpose)
    return all(reasons)
