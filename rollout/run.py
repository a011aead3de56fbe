"""The rollout stage: plan the prompts, start the engine, sample what is missing, finish."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollout.engines.engine import Engine, EngineSettings
from rollout.engines.environment import prepare_environment
from rollout.engines.merged import changes_something, merged_weights
from rollout.options import (
    RolloutOptions,
    check_options,
    engine_version,
    format_options,
    prompt_limit,
    rank_of_adapters,
    stage_settings,
)
from rollout.parts import Part, missing_parts, num_parts, rollout_facts, sample_parts
from rollout.prompts.feedback import find_feedback
from rollout.prompts.find_format import find_format
from rollout.prompts.parents import choose_parents
from rollout.prompts.plan import Plan, PlanSettings, make_plan
from rollout.prompts.plan_turn import TurnSettings, plan_turn
from rollout.prompts.selection import choose_tasks, training_visits
from warehouse.stages import warm
from warehouse.stages.base_model import check_base
from warehouse.stages.due import rollout_due, turn_due
from warehouse.stages.shard import Shard
from warehouse.stages.space import check_space, rollout_bytes
from warehouse.stages.stop import StopRequest
from warehouse.store.commit import commit_json
from warehouse.store.config_file import price_of
from warehouse.store.errors import StageError, check_addresses
from warehouse.store.json_files import read_json
from warehouse.store.names import turn_purpose
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import arrow_schema
from warehouse.store.stage import Stage

NO_POLICY = {"policy_version": None, "sha256": None, "kind": "foreign"}  # of a model behind an API
StartEngine = Callable[[EngineSettings], Engine]
LoadEncoder = Callable[[str], Any]


def run_rollout(options: RolloutOptions, start_engine: StartEngine | None = None,
                load_encoder: LoadEncoder | None = None,
                say: Callable[[str], None] = lambda _line: None) -> list[str]:
    """Complete one rollout, or this worker's share of it; the lines to print come back.

    Only what is missing is sampled. Raises StageStopped when a signal or the time limit ended it early.
    `start_engine` and `load_encoder` default to vLLM's; tests give scripted ones. `say` hears what is under
    way before there is anything to count.
    """
    clock = {"began": time.perf_counter()}
    check_options(options)
    job = find_job(open_warehouse(options.run), options)
    if job.stage.manifest():  # another engine since then changes nothing that stands
        job.stage.settle(job.settings, (*options.accept_change, "engine", "serve"))
        return [f"rollout of {job.title} is complete; next: score {options.run}"]
    job.check()
    with StopRequest(options.time_limit, options.grace) as stop, ExitStack() as stack:
        if load_encoder is None or start_engine is None:
            job, load_encoder, start_engine = stack.enter_context(engine_to_start(job, stop, say))
        encoder = load_encoder(job.model)
        plan = plan_prompts(job, encoder)
        clock["planned"] = time.perf_counter()
        engine = start(job, plan, start_engine, stop, say)
        clock["started"] = time.perf_counter()
        writing, sampled = sample(job, plan, engine, stop)
    if job.stage.settings() is None:
        raise StageError(f"rollout of {job.title} was put aside while it ran. Put the rest aside too, "
                         f"`warehouse discard {options.run} --iteration {job.keys['iteration']} "
                         f"--purpose {job.keys['purpose']}`, then run it again.")
    elsewhere = job.missing(read_prompts(job), Shard())
    if elsewhere and not job.stage.is_complete():
        return [f"shard {options.shard} of {job.title} is done; {len(elsewhere)} parts are left to the other "
                "shards"]
    seconds = {"import": clock["planned"] - clock["began"], "start": clock["started"] - clock["planned"],
               "sampling": time.perf_counter() - clock["started"] - writing, "writing": writing}
    return finish(job, seconds, sampled)


@dataclass(frozen=True)
class Job:
    """Which rollout this is: the iteration, its purpose, and the policy that is sampled."""

    warehouse: Warehouse
    options: RolloutOptions
    iteration: int
    purpose: str
    policy: dict[str, Any]
    decided: str | None = None  # how servers serve the policy, where that is theirs to say

    @property
    def keys(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "purpose": self.purpose}

    @property
    def title(self) -> str:
        return f"iteration {self.iteration} ({self.purpose})"

    @property
    def stage(self) -> Stage:
        return self.warehouse.stage("rollout", **self.keys)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return stage_settings(self.warehouse, self.options, self.purpose, self.policy)

    @property
    def serve(self) -> str | None:
        """How the adapter is served, 'adapter' or 'merged'; None where the policy is none."""
        return self.decided or self.settings["serve"]

    @property
    def model(self) -> str:
        """The weights to load: a policy whose weights were all trained, else the base."""
        full = self.policy["kind"] == "full"
        return str(self.warehouse.policy_dir(self.policy["policy_version"])) if full else self.warehouse.model

    @property
    def adapter(self) -> Path | None:
        lora = self.policy["kind"] == "lora"
        return self.warehouse.policy_dir(self.policy["policy_version"]) if lora else None

    @property
    def probe(self) -> Path | None:
        """What the trainer saw the policy say; policies of version 0.2.0 and the base have none."""
        if self.policy is NO_POLICY:
            return None
        path = self.warehouse.policy_dir(self.policy["policy_version"]) / "probe.json"
        return path if path.exists() else None

    @property
    def plan_file(self) -> Path:
        return self.warehouse.folder("prompts", **self.keys) / "plan.json"

    def check(self) -> None:
        """StageError if it was begun with other settings, or base or policy are not what they were."""
        if self.stage.settings():
            self.stage.settle(self.settings, self.options.accept_change)
        check_base(self.warehouse)
        if self.policy is not NO_POLICY:
            self.warehouse.verify_policy(self.policy["policy_version"])
        self.warehouse.sweep()

    def missing(self, prompts: list[dict[str, Any]], shard: Shard) -> list[Part]:
        """Parts of a share that do not exist yet."""
        return missing_parts(self.warehouse, prompts, self.options.part_size, shard, **self.keys)


def find_job(warehouse: Warehouse, options: RolloutOptions) -> Job:
    """The rollout that the options name: for training the next due, for an evaluation the newest policy.

    A later turn belongs to the newest iteration that has the turn before it.
    """
    base = "eval" if options.evaluate else "distil" if options.distil else "train"
    base = f"{base}-{options.label}" if options.label else base
    purpose = turn_purpose(base, options.turn)
    if options.iteration is not None:
        iteration = options.iteration
    elif options.turn > 1:
        iteration = turn_due(warehouse, base, options.turn)
    elif base != "train":
        newest = warehouse.policy_versions()[-1]
        iteration = newest if options.policy_version is None else options.policy_version
    else:
        iteration = rollout_due(warehouse)
    version = iteration if options.policy_version is None else options.policy_version
    if options.model:
        return Job(warehouse, options, iteration, purpose, NO_POLICY)
    newest = warehouse.policy_versions()[-1]
    if version not in warehouse.policy_versions():
        raise StageError(f"Iteration {iteration} samples with policy {version}, which does not exist yet; "
                         f"the newest is {newest}. Score and train iteration {newest} first, or name another "
                         "policy with --policy-version.")
    return Job(warehouse, options, iteration, purpose, warehouse.policy(version))


@contextmanager
def engine_to_start(job: Job, stop: StopRequest,
                    say: Callable[[str], None]) -> Iterator[tuple[Job, LoadEncoder, StartEngine]]:
    """What loads prompt encoder and engine: vLLM in this process, or the servers of --endpoint."""
    options, revision = job.options, job.warehouse.facts.get("model_revision")
    if options.model:
        from rollout.endpoint.foreign import ForeignEngine
        foreign = ForeignEngine(
            options.endpoint[0], options.model, base=job.warehouse.model, revision=revision,
            key_variable=options.api_key_variable, cache=options.cache,
            price=price_of(job.warehouse.root / "config.toml", options.model))
        with closing(foreign):
            yield job, lambda _model: foreign.encoder, foreign.start
        return
    if not options.endpoint:
        prepare_environment()
        say(f"rollout of {job.title}: loading {engine_version()}")
        check_addresses(2, "vLLM")
        from rollout.engines import vllm_engine
        if not keeps_engine(options):
            yield job, vllm_engine.load_encoder, vllm_engine.VllmEngine
            return
        from rollout.engines.kept import rest, start_kept
        yield job, vllm_engine.load_encoder, start_kept
        rest()
        return
    from rollout.endpoint.engine import EndpointEngine
    with stop.excusing("The connection to the servers"):
        servers = EndpointEngine(options.endpoint, job.warehouse.model, revision, say)
    with closing(servers):
        serve = servers.serving(job.policy["kind"], options.serve)
        yield replace(job, decided=serve), lambda _model: servers.encoder, servers.start


def keeps_engine(options: RolloutOptions) -> bool:
    """Whether the engine stays for the next rollout: only where its weights can be changed from here."""
    return (warm.stays and not options.endpoint and options.tensor_parallel_size == 1
            and not options.quantization)


def read_prompts(job: Job) -> list[dict[str, Any]]:
    """Rows of the plan that is stored; empty before there is one."""
    return job.warehouse.read("prompts", **job.keys).to_pylist()


def plan_prompts(job: Job, encoder: Any) -> Plan:
    """The plan that is stored, else a new one."""
    stored, options = read_prompts(job), job.options
    length = sys.maxsize if options.model and options.evaluate else encoder.model_length
    max_prompt_tokens = prompt_limit(options, length)
    if stored:
        return Plan(stored)
    if options.turn > 1:
        return plan_turn(choose_parents(job.warehouse, options, job.iteration, job.purpose), TurnSettings(
            **job.keys, turn=options.turn, group_size=options.group_size, seed=options.seed,
            feedback=find_feedback(options.feedback), max_prompt_tokens=max_prompt_tokens), encoder)
    settings = PlanSettings(
        **job.keys, visits=training_visits(job.warehouse, job.iteration), num_tasks=options.num_tasks,
        group_size=options.group_size, prompts_per_task=options.prompts_per_task,
        format=find_format(options.prompt_format), format_options=format_options(options),
        augmentation=options.augmentation, shuffle_pairs=options.shuffle_pairs,
        max_prompt_tokens=max_prompt_tokens, seed=options.seed, keeps_messages=bool(options.model))
    return make_plan(choose_tasks(job.warehouse, options), settings, encoder)


def start(job: Job, plan: Plan, start_engine: StartEngine, stop: StopRequest,
          say: Callable[[str], None]) -> Engine | None:
    """The engine; None where nothing is left to sample.

    It is started before settings and plan are stored: options that it cannot serve must not be settled.
    Half precision hides a missing adapter from the mismatch that `train` measures, so the engine is asked.
    """
    parts = job.missing(plan.rows, job.options.shard)
    if not parts:
        return None
    num_missing = sum(len(part.members) for part in parts)
    check_space(job.warehouse.root, rollout_bytes(num_missing, job.options.sampling.max_tokens),
                job.stage.title)
    longest = max(prompt["num_prompt_tokens"] for prompt in plan.rows)
    with served_weights(job) as (model, adapter):
        settings = engine_settings(job, model, adapter, longest)
        say(f"asking {job.options.model}" if job.options.model else f"starting the engine: policy "
            f"{job.policy['policy_version']}" + (f", {job.serve}" if job.adapter else ""))
        with stop.excusing("The start of the engine"):
            engine = start_engine(settings)
            if adapter and not engine.moves(plan.rows[0]["prompt_ids"]) and changes_something(adapter):
                raise StageError(f"The engine does not serve the adapter of policy "
                                 f"{job.policy['policy_version']}: with and without it, it says the same in "
                                 f"{engine.dtype}. Nothing was sampled; use --serve merged.")
            return engine


@contextmanager
def served_weights(job: Job) -> Iterator[tuple[str, Path | None]]:
    """Model and adapter as the engine gets them: apart, or merged for as long as it loads.

    An engine that stays merges them itself.
    """
    options, revision = job.options, job.warehouse.facts.get("model_revision")
    if keeps_engine(options):
        yield job.model, job.adapter if job.serve == "adapter" else None
    elif job.adapter is None or job.serve == "adapter":
        yield job.model, job.adapter
    else:
        with merged_weights(job.model, revision, job.adapter, options.dtype) as folder:
            yield folder, None


def engine_settings(job: Job, model: str, adapter: Path | None, longest: int) -> EngineSettings:
    """Room for the longest prompt there is, not for the longest the model takes: memory is for batches.

    An engine that stays has room for all prompts to come and, beside the base, for the adapters to come.
    """
    options, stays, facts = job.options, keeps_engine(job.options), job.warehouse.facts
    base = json.dumps([facts.get(name) for name in ("model_sha256", "tokenizer_sha256", "model_revision")])
    of_base = job.policy["kind"] == "base" or adapter
    rank = json.loads((adapter / "adapter_config.json").read_text())["r"] if adapter else 0
    if stays:
        rank = rank or rank_of_adapters(job.warehouse, options)
        longest = max(longest, options.max_prompt_tokens or 0)
    return EngineSettings(
        model=model, adapter=str(adapter) if adapter else None, adapter_rank=rank,
        max_model_len=longest + options.sampling.max_tokens,
        dtype=options.dtype, max_num_seqs=options.max_num_seqs,
        gpu_memory_utilization=options.gpu_memory_utilization,
        tensor_parallel_size=options.tensor_parallel_size, quantization=options.quantization,
        probe=job.probe, merge=job.adapter if stays and job.serve == "merged" else None,
        base=base, weights=base if of_base else json.dumps(job.policy),
        revision=facts.get("model_revision") if model == job.model else None)


def sample(job: Job, plan: Plan, engine: Engine | None, stop: StopRequest) -> tuple[float, int]:
    """Store settings and plan, then sample this worker's parts; seconds of writing and tokens sampled."""
    options, keys = job.options, job.keys
    job.stage.settle(job.settings, options.accept_change)
    commit_json(job.plan_file, {"prompts_too_long": plan.too_long, "tasks_sql": options.tasks_sql})
    job.warehouse.write_part("prompts", 0, pa.Table.from_pylist(plan.rows, arrow_schema("prompts")), **keys)
    parts = job.missing(read_prompts(job), options.shard)  # another worker's plan may have been first
    if not engine or not parts:
        return 0.0, 0
    return sample_parts(job.warehouse, engine, parts, options.sampling, job.policy, stop,
                        serve=job.serve, spill_seconds=options.spill_seconds, **keys)


def finish(job: Job, seconds: dict[str, float], sampled: int) -> list[str]:
    """Write the manifest; the lines that say what was done."""
    facts = {**rollout_facts(job.warehouse, **job.keys), **(read_json(job.plan_file) or {}),
             "num_tokens_sampled_last": sampled,
             "seconds": {name: round(value, 3) for name, value in seconds.items()}}
    job.stage.complete(facts, range(num_parts(read_prompts(job), job.options.part_size)))
    too_long = facts["prompts_too_long"]
    tasks = "1 task" if too_long == 1 else f"{too_long} tasks"
    left_out = f"; {tasks} left out: too long a prompt" if too_long else ""
    loops = f" ({facts['num_loops']} as loops)" if facts["num_loops"] else ""
    rate = sampled / max(facts["seconds"]["sampling"], 1e-9)
    sampler = job.options.model or f"policy {job.policy['policy_version']}"
    return [
        f"rollout of {job.title}: {facts['num_completions']} completions of {facts['num_tasks']} tasks by "
        f"{sampler}, {facts['num_tokens']} tokens, "
        f"{facts['num_truncated'] / facts['num_completions']:.1%} truncated{loops}{left_out}",
        f"  {seconds['sampling']:.1f} s sampling ({rate:,.0f} tokens/s), {seconds['import']:.1f} s import "
        f"and prompts, {seconds['start']:.1f} s engine start; next: score {job.options.run}",
    ]
