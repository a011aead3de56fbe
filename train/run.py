"""One train stage, from stored rows to the next policy, in the order of the algorithm."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from train.accelerator import Processes
from train.checkpoint import Checkpoints
from train.inputs import Inputs, complete_stage, stage_settings
from train.mismatch import as_facts, check_mismatch, group_counts, lines_to_print, mismatch_table
from train.model import Policy, load_full, load_lora
from train.saving import OPTIMIZER, save_policy, weights_sha256
from train.settings import Settings
from train.shard import RowGroup, build_shard, split_into_steps, weigh
from train.steps import learning_rate, score_shard, take_step
from train.tables import sample_table, step_table
from warehouse.errors import StageError
from warehouse.store import Warehouse


class Interrupted(Exception):
    """The stage was asked to stop (SIGTERM); what was done is in a checkpoint."""


class Clock:
    """Seconds of the stage by phase; 'start' begins where the process did."""

    def __init__(self, started: float):
        self.seconds: dict[str, float] = {}
        self._last = started

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


def train_iteration(warehouse: Warehouse, inputs: Inputs, settings: Settings, *, started: float,
                    say: Callable[[str], None]) -> None:
    """Train on the rows of one iteration and commit the next policy; run again after a kill, it finishes."""
    clock = Clock(started)
    stop = _stop_on_sigterm()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    processes = Processes(settings.device)
    say = say if processes.first else _silence

    policy = load_policy(warehouse, inputs, settings, processes.device)
    check_fits(policy, inputs)
    shard = build_shard(inputs.groups, inputs.iteration, settings)
    clock.lap("start")

    checkpoints = Checkpoints(warehouse, inputs.stage.folder)
    scores = checkpoints.scores()
    if scores is None:
        scores = score_all(policy, shard, processes, settings)
    set_scores(shard, scores)
    weigh(shard, settings)
    clock.lap("old logprobs")

    table = mismatch_table(shard, settings)
    for line in lines_to_print(table, shard):
        say(line)
    check_mismatch(table, settings, engine_dtype=inputs.groups[0].engine_dtype)
    if settings.dry_run:
        say("dry run: nothing was written")
        return

    if processes.first:
        inputs.stage.settle(stage_settings(inputs, settings))
        checkpoints.save_scores(scores)
    processes.wait()
    optimizer = load_optimizer(policy, warehouse, inputs, settings)
    steps = take_steps(policy, optimizer, shard, checkpoints, processes, inputs, settings, stop=stop)
    clock.lap("gradients")

    if processes.first:
        warehouse.write_part("train_samples", 0, sample_table(shard, inputs, settings),
                             iteration=inputs.iteration)
        warehouse.write_part("train_steps", 0, step_table(steps, inputs), iteration=inputs.iteration)
        facts = {"scorer": inputs.scorer, "policy_version": inputs.iteration + 1, "num_steps": len(steps),
                 "num_processes": processes.count, "mismatch": as_facts(table), "groups": group_counts(shard)}
        commit_policy(warehouse, policy, optimizer, inputs, settings, facts)
        clock.lap("writing")
        complete_stage(inputs, {**facts, "seconds": clock.seconds})
        say(last_line(inputs, steps, table[0].mismatch_kl, clock))
    processes.close()


def load_policy(warehouse: Warehouse, inputs: Inputs, settings: Settings, device: torch.device) -> Policy:
    """The policy that the stage starts from, on the device."""
    folder, trained = warehouse.policy_dir(inputs.iteration), inputs.parent["kind"] != "base"
    if settings.full:
        return load_full(str(folder) if trained else warehouse.model, dtype=settings.dtype, device=device)
    return load_lora(warehouse.model, folder if trained else None, dtype=settings.dtype, device=device,
                     seed=settings.seed, rank=settings.lora_rank, alpha=settings.lora_alpha,
                     rslora=settings.rslora,
                     targets=settings.lora_targets, load_in_4bit=settings.load_in_4bit)


def check_fits(policy: Policy, inputs: Inputs) -> None:
    """StageError for rows longer than the model's context, or of another tokenizer."""
    limit = getattr(policy.config, "max_position_embeddings", None)
    for group in inputs.groups:
        longest = max(len(rollout.completion_ids) for rollout in group.rollouts)
        if limit and len(group.prompt_ids) + longest > limit:
            raise StageError(f"Group {group.group_id} has {len(group.prompt_ids)} prompt and {longest} "
                             f"completion tokens, the model has {limit} positions. Roll out with lower "
                             "limits.")
        highest = max(int(ids.max(initial=0)) for ids in
                      (group.prompt_ids, *(rollout.completion_ids for rollout in group.rollouts)))
        if highest >= policy.vocabulary_size:
            raise StageError(f"Group {group.group_id} has token id {highest}, the model only "
                             f"{policy.vocabulary_size}: the rows were sampled with another tokenizer. "
                             "Roll out with this run's model.")


def score_all(policy: Policy, shard: list[RowGroup], processes: Processes, settings: Settings) -> dict[str,
                                                                                                       Tensor]:
    """Old logprobs, entropies and, for a KL term, reference logprobs of all tokens, in shard order."""
    with tqdm(total=len(shard), desc="old logprobs", unit="group", disable=not processes.first,
              leave=False) as bar:
        found = score_shard(policy, shard, processes, settings, progress=bar.update)
    found.sort(key=lambda one: one[0])
    empty = torch.empty(0)
    scores = {"old_logprobs": torch.cat([empty, *(values for one in found for values in one[1])]),
              "entropy": torch.cat([empty, *(values for one in found for values in one[2])])}
    if settings.kl_beta:
        with policy.without_adapter():
            reference = score_shard(policy, shard, processes, settings, progress=lambda _: None)
        reference.sort(key=lambda one: one[0])
        scores["ref_logprobs"] = torch.cat([empty, *(values for one in reference for values in one[1])])
    return scores


def set_scores(shard: list[RowGroup], scores: dict[str, Tensor]) -> None:
    """Hand the flat scores back to their rows."""
    rows = [row for one in shard for row in one.forwardable]
    lengths = [len(row.completion_ids) for row in rows]
    for name, values in scores.items():
        for row, row_values in zip(rows, values.split(lengths), strict=True):
            setattr(row, name, row_values)


def load_optimizer(policy: Policy, warehouse: Warehouse, inputs: Inputs,
                   settings: Settings) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters, with the moments of the parent policy if it has any."""
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=settings.learning_rate,
                                  betas=(settings.adam_beta1, settings.adam_beta2),
                                  weight_decay=settings.weight_decay)
    stored = warehouse.policy_dir(inputs.iteration) / OPTIMIZER
    if stored.exists():
        fresh = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        optimizer.load_state_dict(torch.load(stored, weights_only=True, map_location="cpu"))
        optimizer.param_groups[0].update(fresh)     # moments carry over; betas and decay are this stage's
    return optimizer


def take_steps(policy: Policy, optimizer: torch.optim.Optimizer, shard: list[RowGroup],
               checkpoints: Checkpoints,
               processes: Processes, inputs: Inputs, settings: Settings, *,
               stop: Callable[[], bool]) -> list[dict[str, Any]]:
    """Every optimizer step from the latest checkpoint on; Interrupted, one more saved, after SIGTERM."""
    plan = split_into_steps(len(shard), settings, seed=f"{settings.seed}:{inputs.iteration}")
    before = inputs.parent.get("global_step", 0)
    steps = checkpoints.restore(policy, optimizer)
    saved, saved_at = len(steps), time.monotonic()
    replan(shard, plan[:saved], settings)
    for step in tqdm(range(saved, len(plan)), desc="steps", unit="step", disable=not processes.first,
                     leave=False):
        metrics = take_step(policy, optimizer, shard, plan[step], step, processes, settings,
                            learning_rate=learning_rate(before + step, settings), interrupted=stop)
        if metrics is not None:
            steps.append(metrics)
        stopping = bool(processes.max(torch.tensor([float(stop())])))
        due = time.monotonic() - saved_at >= settings.checkpoint_seconds and len(steps) < len(plan)
        if processes.first and len(steps) > saved and (due or stopping):
            checkpoints.save(len(steps), policy, optimizer, steps)
            saved, saved_at = len(steps), time.monotonic()
        if stopping:
            raise Interrupted(f"stopped after step {len(steps)} of {len(plan)}; "
                              "run the same command again to go on")
    return steps


def replan(shard: list[RowGroup], done: list[list[int]], settings: Settings) -> None:
    """Mark the rows of the steps that a checkpoint holds already."""
    for step, groups in enumerate(done):
        for index in groups:
            for row in shard[index].rows:
                row.step = step


def commit_policy(warehouse: Warehouse, policy: Policy, optimizer: torch.optim.Optimizer, inputs: Inputs,
                  settings: Settings, facts: dict[str, Any]) -> None:
    """Write policy I + 1 beside its place and rename it there; one that a twin wrote first is kept."""
    scratch = warehouse.scratch(f"policy-{inputs.iteration + 1}")
    save_policy(policy, scratch, base=warehouse.model)
    torch.save(optimizer.state_dict(), scratch / OPTIMIZER)
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "accelerate")}
    lineage = {"policy_version": inputs.iteration + 1, "sha256": weights_sha256(scratch), "kind": policy.kind,
               "parent": inputs.iteration, "base": warehouse.facts["model"], "iteration": inputs.iteration,
               "global_step": inputs.parent.get("global_step", 0) + facts["num_steps"],
               "settings": stage_settings(inputs, settings), "facts": facts, "versions": versions}
    (scratch / "policy.json").write_text(json.dumps(lineage, indent=2, sort_keys=True) + "\n")
    warehouse.commit_policy(inputs.iteration + 1, scratch)


def last_line(inputs: Inputs, steps: list[dict[str, Any]], mismatch_kl: float, clock: Clock) -> str:
    """What the stage did, in one line."""
    count = max(1, len(steps))
    loss, norm = (sum(step[key] for step in steps) / count for key in ("loss", "grad_norm"))
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in clock.seconds.items())
    return (f"iteration {inputs.iteration}: {len(steps)} steps, loss {loss:.4f}, grad norm {norm:.4f}, "
            f"mismatch k3 {mismatch_kl:.1e}, wrote policy {inputs.iteration + 1} "
            f"({sum(clock.seconds.values()):.1f} s: {phases})")


def _silence(line: str) -> None:
    """What processes other than the first say."""


def _stop_on_sigterm() -> Callable[[], bool]:
    """Remember SIGTERM instead of dying of it; what comes back says whether it came."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    return lambda: bool(received)
