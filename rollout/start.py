"""The engine of a rollout: which one, with which weights, and whether it really serves them."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from rollout.engines.engine import Engine, EngineSettings
from rollout.engines.environment import engine_version, prepare_environment
from rollout.engines.factors import changes_something
from rollout.engines.merged import base_folder, kept_by_rounding, merged_weights
from rollout.job import Job
from rollout.options import RolloutOptions
from rollout.prompts.plan import Plan
from rollout.prompts.prompt_encoder import PromptEncoder
from rollout.settings import engine_dtype, prompt_limit, rank_of_adapters
from warehouse.stages import warm
from warehouse.stages.space import check_space, rollout_bytes
from warehouse.stages.stop import StageStopped, StopRequest
from warehouse.store.errors import StageError, check_addresses
from warehouse.store.run_folder import Warehouse

LITTLE_KEPT = 0.8       # share of an adapter's change; report smaller ones


class Sampler(NamedTuple):
    """What samples: the prompt encoder, how the engine starts, and how servers serve, if they decide it."""

    encoder: PromptEncoder
    start: Callable[[EngineSettings], Engine]
    decided: str | None = None


@contextmanager
def sampler_of(job: Job, stop: StopRequest, say: Callable[[str], None]) -> Iterator[Sampler]:
    """vLLM in this process, the servers of --endpoint, or a model behind an API; no engine is started yet."""
    options, revision = job.options, job.warehouse.facts.get("model_revision")
    if options.model:
        from rollout.endpoint.api_model import ApiEngine
        api = ApiEngine(
            options.endpoint[0], options.model, base=job.warehouse.model, revision=revision,
            key_variable=options.api_key_variable)
        with closing(api):
            yield Sampler(api.encoder, api.start)
        return
    if not options.endpoint:
        prepare_environment()
        if "rollout.engines.vllm_engine" not in sys.modules:    # a warm process has it loaded
            say(f"rollout of {job.title}: loading {engine_version()}")
        check_addresses(2, "vLLM")
        check_semaphores()
        with stop.at_once("before the engine was started"):
            from rollout.engines import vllm_engine
        from rollout.engines.resident_engine import keep_encoder, rest, start_alone, start_cold, start_kept
        if not warm.stays:
            yield Sampler(vllm_engine.load_encoder(job.model, revision), start_cold)
            return
        yield Sampler(keep_encoder(job.model, revision, name_base(job.warehouse)),
                      start_kept if keeps_engine(options) else start_alone)
        rest()
        return
    from rollout.endpoint.engine import EndpointEngine
    from rollout.endpoint.gate import KEY_VARIABLE
    key = os.environ.get(KEY_VARIABLE, "")
    with closing(EndpointEngine(options.endpoint, job.warehouse.model, revision, key, say)) as servers:
        with stop.excusing("The connection to the servers"):
            servers.meet()
        yield Sampler(servers.encoder, servers.start, servers.serving(job.policy["kind"], options.serve))


def check_semaphores() -> None:
    """StageError if no semaphore can be created: vLLM needs some, also in a process of its own."""
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise StageError(f"vLLM needs semaphores, which this machine refuses ({error.strerror}): usually "
                         "/dev/shm is read-only, full or missing. Run it on another machine, or make it "
                         "writable, as root by `mount -o remount,rw /dev/shm`.") from error


def keeps_engine(options: RolloutOptions) -> bool:
    """Whether the engine stays for the next rollout: only if its weights can be changed from here."""
    return (warm.stays and not options.endpoint and options.tensor_parallel_size == 1
            and not options.quantization)


def start(plans: list[tuple[Job, Plan]], sampler: Sampler, stop: StopRequest,
          say: Callable[[str], None]) -> Engine | None:
    """The engine for rollouts of one policy; None where nothing is left to sample.

    It starts before settings and plan are stored: options that it cannot serve must not be recorded.
    Half precision hides a missing adapter from the mismatch in `train`, so the engine is checked here.
    """
    job = plans[0][0]
    parts = [part for job, plan in plans for part in job.missing(plan.rows, job.options.shard)]
    if not parts:
        return None
    if stop.asked():
        raise StageStopped(f"Stopped because {stop.reason}, before the engine was started. Run the same "
                           "command again to continue.")
    num_missing = sum(len(part.members) for part in parts)
    check_space(job.warehouse.root, rollout_bytes(num_missing, job.options.sampling.max_tokens),
                job.stage.title)
    prompts = [prompt for _, plan in plans for prompt in plan.rows]
    longest = max(prompt["num_prompt_tokens"] for prompt in prompts)
    if keeps_engine(job.options):
        longest = max(longest, room_to_come(job.options, longest, sampler.encoder.model_length))
    with served_weights(job) as (model, adapter):
        settings = engine_settings(job, model, adapter, longest)
        if warm.stays and not job.options.endpoint:
            from rollout.engines.resident_engine import check_fits
            check_fits(settings, keeps=keeps_engine(job.options))
        warm.sound = False
        say(f"asking {job.options.model}" if job.options.model else f"starting the engine: policy "
            f"{job.policy['policy_version']}" + (f", {job.serve}" if job.adapter else ""))
        with stop.excusing("The start of the engine"):
            engine = sampler.start(settings)
            if adapter and not engine.moves(prompts[0]["prompt_ids"]) and changes_something(adapter):
                raise StageError(f"The engine does not serve the adapter of policy "
                                 f"{job.policy['policy_version']}: without it, the logprobs are the same in "
                                 f"{engine.dtype}. Nothing was sampled; use --serve merged.")
        if (job.serve == "merged" and job.adapter and engine.dtype in ("bfloat16", "float16")
                and not job.options.endpoint):
            report_rounding(plans, job.adapter, engine.dtype, say)
        for _, plan in plans if getattr(engine, "probe_gap", None) is not None else ():
            plan.facts["probe_gap"] = round(engine.probe_gap, 9)    # type: ignore[attr-defined]
        return engine


def report_rounding(plans: list[tuple[Job, Plan]], adapter: Path, dtype: str,
                  say: Callable[[str], None]) -> None:
    """Record how much of the adapter's change a merged policy keeps, and report it if that is little."""
    job = plans[0][0]
    base = base_folder(job.model, job.warehouse.facts.get("model_revision"))
    kept = kept_by_rounding(base, adapter, dtype)
    for _, plan in plans:
        plan.facts["adapter_kept"] = round(kept, 4)
    if kept < LITTLE_KEPT:
        say(f"merged in {dtype}, {kept:.0%} of the change by training is left, the rest is lost to rounding: "
            "--serve adapter keeps all of it" + (", --dtype float16 more" if dtype == "bfloat16" else ""))


@contextmanager
def served_weights(job: Job) -> Iterator[tuple[str, Path | None]]:
    """Model and adapter as the engine gets them: apart or merged; a resident engine merges them itself."""
    options, revision = job.options, job.warehouse.facts.get("model_revision")
    if job.adapter is None or job.serve == "adapter" or keeps_engine(options):
        yield job.model, job.adapter if job.serve == "adapter" else None
    else:
        with merged_weights(job.model, revision, job.adapter, engine_dtype(options)) as folder:
            yield folder, None


def room_to_come(options: RolloutOptions, longest: int, model_length: int) -> int:
    """The longest prompt, in tokens, that a resident engine has room for: `max-prompt-tokens` if set.

    Otherwise the next power of two above the longest so far, so that restarts are rare.
    """
    room = options.max_prompt_tokens or 1 << (longest - 1).bit_length()
    return min(prompt_limit(options, model_length), room)


def engine_settings(job: Job, model: str, adapter: Path | None, longest: int) -> EngineSettings:
    """Room for the longest prompt of the plan, not for the model's context: memory is for batches.

    A resident engine has room for the base and for later adapters.
    """
    options, stays, base = job.options, keeps_engine(job.options), name_base(job.warehouse)
    of_base = job.policy["kind"] == "base" or adapter
    rank = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"] if adapter else 0
    if stays:
        rank = rank or rank_of_adapters(job.warehouse, options)
    return EngineSettings(
        model=model, adapter=str(adapter) if adapter else None, adapter_rank=rank,
        max_model_len=longest + options.sampling.max_tokens,
        dtype=engine_dtype(options), max_num_seqs=options.max_num_seqs,
        gpu_memory_utilization=options.gpu_memory_utilization,
        tensor_parallel_size=options.tensor_parallel_size, quantization=options.quantization,
        probe=job.probe, merge=job.adapter if stays and job.serve == "merged" else None,
        base=base, weights=base if of_base else json.dumps(job.policy),
        revision=job.warehouse.facts.get("model_revision") if model == job.model else None)


def name_base(warehouse: Warehouse) -> str:
    return json.dumps([warehouse.facts.get(name)
                       for name in ("model_sha256", "tokenizer_sha256", "model_revision")])
