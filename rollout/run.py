"""The rollout stage: plan the prompts, sample every completion that is missing, close parts as they fill."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollout.engine import Engine, EngineSettings
from rollout.environment import prepare_environment
from rollout.formats import find_format
from rollout.options import (
    RolloutOptions,
    check_options,
    format_options,
    prompt_limit,
    stage_settings,
)
from rollout.parts import missing_parts, num_parts, rollout_facts, sample_parts
from rollout.plan import PlanSettings, make_plan
from rollout.selection import choose_tasks, training_visits
from warehouse.stages.due import rollout_due
from warehouse.stages.shard import Shard
from warehouse.stages.space import check_space, rollout_bytes
from warehouse.stages.stop import StopRequest
from warehouse.store.base_model import check_base
from warehouse.store.commit import commit_json
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import arrow_schema

StartEngine = Callable[[EngineSettings], Engine]
LoadEncoder = Callable[[str], Any]


def run_rollout(options: RolloutOptions, start_engine: StartEngine | None = None,
                load_encoder: LoadEncoder | None = None) -> list[str]:
    """Complete one rollout, or this worker's share of it; the lines to print come back.

    Only what is missing is sampled. Raises StageStopped when a signal or the time limit ended it early.
    `start_engine` and `load_encoder` default to vLLM's; tests give scripted ones.
    """
    began = time.perf_counter()
    check_options(options)
    warehouse = open_warehouse(options.run)
    purpose, iteration = _which(warehouse, options)
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    policy = _find_policy(warehouse, iteration, options.policy_version)
    stage = warehouse.stage("rollout", **keys)
    settings = stage_settings(warehouse, options, purpose, policy)
    if stage.manifest():  # another engine since then changes nothing that stands
        stage.settle(settings, (*options.accept_change, "engine"))
        return [f"rollout of iteration {iteration} ({purpose}) is complete; next: score {options.run}"]
    if stage.settings():
        stage.settle(settings, options.accept_change)
    check_base(warehouse)
    warehouse.verify_policy(policy["policy_version"])
    warehouse.sweep()
    prompts = warehouse.read("prompts", **keys).to_pylist()
    tasks = [] if prompts else choose_tasks(warehouse, options)

    with StopRequest(options.time_limit, options.grace) as stop:
        if load_encoder is None or start_engine is None:
            prepare_environment()
            from rollout import vllm_engine
            load_encoder, start_engine = vllm_engine.PromptEncoder, vllm_engine.VllmEngine
        model = str(warehouse.policy_dir(policy["policy_version"])) if policy["kind"] == "full" \
            else warehouse.model
        encoder = load_encoder(model)
        max_prompt_tokens = prompt_limit(options, encoder.model_length)
        plan_file = warehouse.folder("prompts", **keys) / "plan.json"
        too_long = 0
        if not prompts:
            visits = training_visits(warehouse, iteration)
            plan = make_plan(tasks, _plan_settings(options, keys, max_prompt_tokens, visits), encoder)
            prompts, too_long = plan.rows, plan.too_long
        planned = time.perf_counter()

        engine = None
        missing = missing_parts(warehouse, prompts, options.part_size, options.shard, **keys)
        if missing:
            num_missing = sum(len(part.members) for part in missing)
            check_space(warehouse.root, rollout_bytes(num_missing, options.sampling.max_tokens), stage.title)
            # Before anything is written: options that the engine cannot serve must not be settled.
            adapter = warehouse.policy_dir(policy["policy_version"]) if policy["kind"] == "lora" else None
            longest = max(prompt["num_prompt_tokens"] for prompt in prompts)
            engine_settings = _engine_settings(options, model, adapter, longest, encoder.model_length,
                                               warehouse.facts.get("model_revision"))
            with stop.excusing("The start of the engine"):
                engine = start_engine(engine_settings)
        started, writing, sampled = time.perf_counter(), 0.0, 0
        stage.settle(settings, options.accept_change)
        commit_json(plan_file, {"prompts_too_long": too_long, "tasks_sql": options.tasks_sql})
        warehouse.write_part("prompts", 0, pa.Table.from_pylist(prompts, arrow_schema("prompts")), **keys)
        prompts = warehouse.read("prompts", **keys).to_pylist()  # another worker's plan may have been first
        parts = missing_parts(warehouse, prompts, options.part_size, options.shard, **keys)
        if engine and parts:
            writing, sampled = sample_parts(warehouse, engine, parts, options.sampling, policy, stop,
                                            spill_seconds=options.spill_seconds, **keys)
    elsewhere = missing_parts(warehouse, prompts, options.part_size, Shard(), **keys)
    if elsewhere and not stage.is_complete():
        return [f"shard {options.shard} of iteration {iteration} ({purpose}) is "
                f"done; {len(elsewhere)} parts are left to the other shards"]
    seconds = {"import": planned - began, "start": started - planned,
               "sampling": time.perf_counter() - started - writing, "writing": writing}
    facts = {**rollout_facts(warehouse, **keys), **json.loads(plan_file.read_text()),
             "num_tokens_sampled_last": sampled,
             "seconds": {name: round(value, 3) for name, value in seconds.items()}}
    stage.complete(facts, range(num_parts(prompts, options.part_size)))
    return _report(options, facts, iteration, purpose, policy["policy_version"])


def _plan_settings(options: RolloutOptions, keys: dict[str, Any], max_prompt_tokens: int,
                   visits: Mapping[str, int]) -> PlanSettings:
    return PlanSettings(
        **keys, visits=visits, num_tasks=options.num_tasks, group_size=options.group_size,
        prompts_per_task=options.prompts_per_task, format=find_format(options.prompt_format),
        format_options=format_options(options), augmentation=options.augmentation,
        shuffle_pairs=options.shuffle_pairs, max_prompt_tokens=max_prompt_tokens, seed=options.seed)


def _engine_settings(options: RolloutOptions, model: str, adapter: Path | None, longest: int,
                     model_length: int, revision: str | None) -> EngineSettings:
    """Room for the longest prompt there is, not for the longest the model takes: memory is for batches."""
    rank = json.loads((adapter / "adapter_config.json").read_text())["r"] if adapter else 0
    return EngineSettings(
        model=model, adapter=str(adapter) if adapter else None, adapter_rank=rank,
        max_model_len=min(-(-(longest + options.sampling.max_tokens) // 256) * 256, model_length),
        dtype=options.dtype,
        max_num_seqs=options.max_num_seqs, gpu_memory_utilization=options.gpu_memory_utilization,
        tensor_parallel_size=options.tensor_parallel_size, quantization=options.quantization,
        revision=revision)


def _which(warehouse: Warehouse, options: RolloutOptions) -> tuple[str, int]:
    """Purpose and iteration: the next due for training, the newest policy for an evaluation."""
    if options.evaluate:
        purpose = f"eval-{options.label}" if options.label else "eval"
        versions = (options.iteration, options.policy_version, warehouse.policy_versions()[-1])
        return purpose, next(version for version in versions if version is not None)
    return "train", rollout_due(warehouse) if options.iteration is None else options.iteration


def _find_policy(warehouse: Warehouse, iteration: int, version: int | None) -> dict[str, Any]:
    """The policy named, or the iteration's own."""
    version = iteration if version is None else version
    newest = warehouse.policy_versions()[-1]
    if version not in warehouse.policy_versions():
        raise StageError(f"Iteration {iteration} samples with policy {version}, which does not exist yet; "
                         f"the newest is {newest}. Score and train iteration {newest} first, or name another "
                         "policy with --policy-version.")
    return warehouse.policy(version)


def _report(options: RolloutOptions, facts: dict[str, Any], iteration: int, purpose: str,
            policy_version: int) -> list[str]:
    seconds, too_long = facts["seconds"], facts["prompts_too_long"]
    left_out = f"; {too_long} tasks left out, their prompt is too long" if too_long else ""
    rate = facts["num_tokens_sampled_last"] / max(seconds["sampling"], 1e-9)
    return [
        f"rollout of iteration {iteration} ({purpose}): {facts['num_completions']} completions of "
        f"{facts['num_tasks']} tasks by policy {policy_version}, {facts['num_tokens']} tokens, "
        f"{facts['num_truncated'] / facts['num_completions']:.1%} truncated{left_out}",
        f"  {seconds['sampling']:.1f} s sampling ({rate:,.0f} tokens/s), {seconds['import']:.1f} s import "
        f"and prompts, {seconds['start']:.1f} s engine start; next: score {options.run}",
    ]
