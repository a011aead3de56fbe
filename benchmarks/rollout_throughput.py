"""Rollout stage against a bare `LLM.generate` over the same prompts and settings, alternating in one process.

    python -m benchmarks.rollout_throughput [--rounds 3]

Prints tokens/s of both, engine start apart, and their ratio, by the wall clock and by CPU seconds of the
process (other work on the machine disturbs those less). The stage's side includes turning results into rows
and writing parts.
"""

import statistics
import tempfile
import time
from pathlib import Path

import click

from rollout.engines.engine import EngineSettings, Sampling
from rollout.engines.environment import prepare_environment
from rollout.job import find_job
from rollout.options import RolloutOptions
from rollout.sample import sample_parts
from warehouse.init import init_run
from warehouse.stages.shard import Shard
from warehouse.stages.stop import StopRequest
from warehouse.store.run_folder import open_warehouse

MODEL = Path(__file__).parents[1] / "examples" / "starter" / "model"


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Runs of each side; medians are compared.")
@click.option("--num-tasks", default=100, show_default=True, help="Synthetic tasks.")
@click.option("--group-size", default=16, show_default=True, help="Completions per task.")
def main(rounds: int, num_tasks: int, group_size: int) -> None:
    """Measure both sides and print the ratio."""
    prepare_environment()
    from rollout.engines import vllm_engine
    sampling = Sampling(max_tokens=56)
    engine = vllm_engine.VllmEngine(EngineSettings(str(MODEL), None, 0, max_model_len=756, dtype="float32"))
    prompts = plan_prompts(num_tasks, group_size, vllm_engine.load_encoder(str(MODEL)))
    stage_rates: list[tuple[float, float]] = []
    bare_rates: list[tuple[float, float]] = []
    for index in range(rounds):
        for measure, rates in ((stage_rate, stage_rates), (bare_rate, bare_rates))[:: 1 if index % 2 else -1]:
            engine.llm.reset_prefix_cache()
            rates.append(measure(engine, prompts, sampling))
    click.echo(f"{len(prompts) * group_size} completions, medians of {rounds} rounds")
    for clock, name in enumerate(("wall", "CPU")):
        stage = statistics.median(rate[clock] for rate in stage_rates)
        bare = statistics.median(rate[clock] for rate in bare_rates)
        click.echo(f"tokens per {name} second: stage {stage:,.0f}, bare LLM.generate {bare:,.0f}, "
                   f"ratio {stage / bare:.3f}")


def plan_prompts(num_tasks: int, group_size: int, encoder) -> list[dict]:
    """Rows of the prompts table for synthetic tasks in the compact format."""
    from rollout.prompts.formats import find_format
    from rollout.prompts.plan import PlanSettings, make_plan
    from warehouse.sources.named import parse_source, read_source
    tasks = [{"task_id": task.task_id, "split": "train", "messages": None, "payload": task.payload}
             for task in read_source(parse_source(f"synthetic:{num_tasks}:1", heldout=False))]
    compact = find_format("compact")
    settings = PlanSettings(RolloutOptions(Path(), group_size=group_size), iteration=0, purpose="train",
                            max_prompt_tokens=700, format=compact, format_options=compact.options)
    return make_plan(tasks, settings, encoder).rows


def stage_rate(engine, prompts: list[dict], sampling: Sampling) -> tuple[float, float]:
    """Tokens per wall and per CPU second of the stage's own code, writing into a fresh run."""
    with tempfile.TemporaryDirectory() as folder:
        init_run(Path(folder) / "run", str(MODEL), ("synthetic:2:1",))
        warehouse = open_warehouse(Path(folder) / "run")
        job = find_job(warehouse, RolloutOptions(warehouse.root, sampling=sampling))
        job.stage.settle({})
        began, keys = clocks(), job.keys
        sample_parts(job, engine, job.missing(prompts, Shard()), StopRequest(), begun={})
        ended = clocks()
        tokens = sum(warehouse.read("completions", ["num_completion_tokens"], **keys)[0].to_pylist())
    return per_second(tokens, began, ended)


def bare_rate(engine, prompts: list[dict], sampling: Sampling) -> tuple[float, float]:
    """The same of `LLM.generate` over the same prompts, seeds and settings, kept in memory."""
    from rollout.engines.vllm_engine import parameters
    from rollout.prompts.plan import seed_of
    inputs, settings = [], []
    for prompt in prompts:
        for sample in range(prompt["group_size"]):
            inputs.append({"prompt_token_ids": prompt["prompt_ids"]})
            settings.append(parameters(sampling, seed_of(prompt["seed"], "completion", sample),
                                       sampling.max_tokens))
    began = clocks()
    outputs = engine.llm.generate(inputs, settings, use_tqdm=False)
    ended = clocks()
    return per_second(sum(len(output.outputs[0].token_ids) for output in outputs), began, ended)


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds of this process."""
    return time.perf_counter(), time.process_time()


def per_second(tokens: int, began: tuple[float, float], ended: tuple[float, float]) -> tuple[float, float]:
    """Tokens per wall and per CPU second between two readings of the clocks."""
    return tokens / (ended[0] - began[0]), tokens / (ended[1] - began[1])


if __name__ == "__main__":
    main()
