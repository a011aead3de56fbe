"""TRL's GRPOTrainer with vLLM in the same process, on a run's tasks: what a user could have instead.

    python -m benchmarks.loop_trl RUN --iterations 3

Model, tasks, prompts, reward, sampling, adapter and updates per batch are those of RUN's config.toml; rewards
come from the same sandboxed lanes, inside the trainer's process. Prints seconds of every iteration,
completions per minute, and pass@1 of the held-out splits after the last iteration. Our side:
`python -m benchmarks.demo_time RUN` and `warehouse summary RUN`. Needs trl, and a GPU.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from vllm import SamplingParams

from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import usable_cores
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import load_task
from score.tasks.measures import Answer, first_code_block
from score.verdicts.completions import Item
from score.verdicts.judge import measure, registered_terms, run_programs
from warehouse.store.run_folder import open_warehouse


class Grader:
    """Rewards of completions by the run's scorer."""

    __name__ = "reward"

    def __init__(self, tasks: list[dict], options: dict[str, Any]) -> None:
        limits = Limits(cpu_seconds=options.get("cpu-seconds", 1.0),
                        wall_seconds=5 * options.get("cpu-seconds", 1.0))
        self.scorer = Scorer(options["reward"], limits=limits)
        self.pool, tier = open_lanes(None, unsafe=False, limits=limits, num_lanes=usable_cores(),
                                     config=LaneConfig)
        self.executor = Executor(self.pool, isolated=tier.isolated)
        self.tasks = {row["task_id"]: load_task(row["task_id"], row["kind"], json.loads(row["payload"]))
                      for row in tasks}
        self.seconds = 0.0

    def __call__(self, completions: list, task_id: list[str], **_: Any) -> list[float]:
        began = time.perf_counter()
        texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        items = [Item(self.tasks[name], Answer(text, first_code_block(text)))
                 for name, text in zip(task_id, texts, strict=True)]
        judgements = measure(items, run_programs(self.executor, items))
        terms = registered_terms(items, judgements, self.scorer)
        self.seconds += time.perf_counter() - began
        return [sum((each or {}).values()) for each in terms]


class Clock(TrainerCallback):
    """Wall time at every optimizer step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.marks.append(time.perf_counter())

    on_train_end = on_step_begin


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--iterations", default=3, show_default=True)
@click.option("--gpu-memory-utilization", default=0.3, show_default=True)
@click.option("--device-batch", default=32, show_default=True, help="Completions in a forward pass.")
def main(run: Path, iterations: int, gpu_memory_utilization: float, device_batch: int) -> None:
    """Train with TRL, and print its speed and what it learned."""
    began = time.perf_counter()
    warehouse = open_warehouse(run)
    config = tomllib.loads((run / "config.toml").read_text())
    rows = warehouse.read("tasks").to_pylist()
    grader = Grader(rows, config["score"])
    clock = Clock()
    pool = [row for row in rows if not row["heldout"]]
    trainer = make_trainer(run, warehouse.facts["model"], pool, config, grader, iterations,
                           gpu_memory_utilization, device_batch)
    trainer.add_callback(clock)
    with grader.pool:
        trainer.train()
        report(clock, config, iterations, time.perf_counter() - began, grader.seconds)
        evaluate(trainer, [row for row in rows if row["heldout"]], grader, config["rollout"]["max-tokens"])


def make_trainer(run: Path, model: str, rows: list[dict], config: dict, grader: Grader, iterations: int,
                 gpu_memory_utilization: float, device_batch: int) -> GRPOTrainer:
    """A trainer of TRL set up as the run's config says."""
    sampling, training = config["rollout"], config["train"]
    folder = model if Path(model).is_absolute() else str(run / model)
    updates = training.get("updates-per-batch", 1)
    completions = sampling["num-tasks"] * sampling["group-size"]
    micro_steps = completions // device_batch
    settings = GRPOConfig(
        output_dir=os.environ.get("TMPDIR", "/tmp") + "/trl", max_steps=updates * iterations,
        per_device_train_batch_size=device_batch, gradient_accumulation_steps=micro_steps // updates,
        steps_per_generation=micro_steps, num_generations=sampling["group-size"],
        max_completion_length=sampling["max-tokens"], temperature=1.0, loss_type="dapo", beta=0.0,
        learning_rate=training["learning-rate"], lr_scheduler_type="constant", max_grad_norm=1.0,
        bf16=True, use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False, model_init_kwargs={"dtype": training["dtype"]}, use_vllm=True,
        vllm_mode="colocate", vllm_gpu_memory_utilization=gpu_memory_utilization,
        vllm_max_model_length=2048, report_to=[], logging_steps=updates, save_strategy="no", seed=0)
    dataset = Dataset.from_list([{"prompt": json.loads(row["messages"]), "task_id": row["task_id"]}
                                 for row in rows])
    lora = LoraConfig(r=training["lora-rank"], lora_alpha=training["lora-alpha"],
                      target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(model=folder, reward_funcs=grader, args=settings, train_dataset=dataset,
                       peft_config=lora, processing_class=AutoTokenizer.from_pretrained(folder))


def report(clock: Clock, config: dict, iterations: int, total: float, graded: float) -> None:
    """Seconds per iteration and completions per minute."""
    updates = config["train"].get("updates-per-batch", 1)
    completions = config["rollout"]["num-tasks"] * config["rollout"]["group-size"]
    edges = clock.marks[::updates]
    ends = [*edges[1:], clock.marks[-1]]
    seconds = [after - before for before, after in zip(edges, ends, strict=True)][:iterations]
    done = 60 * completions * len(seconds)
    click.echo(f"TRL: seconds per iteration {', '.join(f'{value:.1f}' for value in seconds)}; completions "
               f"per minute {done / sum(seconds):,.0f} without the start, {done / total:,.0f} with it "
               f"({total:.0f} s); rewards took {graded:.1f} s")


def evaluate(trainer: GRPOTrainer, rows: list[dict], grader: Grader, max_tokens: int) -> None:
    """Mean reward of eight completions of every held-out task, per split, with the trained weights."""
    trainer.vllm_generation.sync_weights()
    splits: dict[str, list[float]] = {}
    sampling = SamplingParams(n=8, temperature=1.0, max_tokens=max_tokens)
    outputs = trainer.vllm_generation.llm.chat([json.loads(row["messages"]) for row in rows], sampling)
    for row, output in zip(rows, outputs, strict=True):
        texts = [choice.text for choice in output.outputs]
        splits.setdefault(row["split"], []).extend(grader(texts, [row["task_id"]] * len(texts)))
    for split, rewards in splits.items():
        click.echo(f"TRL: {split} pass@1 {sum(rewards) / len(rewards):.3f} ({len(rewards)} completions)")


if __name__ == "__main__":
    main()
