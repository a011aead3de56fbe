"""TRL's GRPOTrainer with vLLM in the same process, on a run's tasks: what a user could have instead.

    python -m benchmarks.loop_trl RUN --iterations 3

Model, tasks, prompts, reward, sampling, adapter and updates per batch are those of RUN's config.toml; rewards
come from the same sandboxed lanes, inside the trainer's process, or from the function that `reward-file`
names. Prints seconds of every iteration, completions per minute, and pass@1 of the held-out splits after the
last iteration. Our side:
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
import pyarrow as pa
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from transformers import AutoConfig, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from vllm import SamplingParams

from rollout.options import RolloutOptions
from rollout.prompts.formats import find_format
from rollout.prompts.plan import PlanSettings, make_plan
from rollout.prompts.prompt_encoder import PromptEncoder
from score.judging.completions import Item
from score.judging.judge import measure, registered_terms, run_programs
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.limits import Limits
from score.sandbox.pool import usable_cores
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import load_task
from score.tasks.measures import Answer
from warehouse.stages.user_code import load_function
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.tasks.answers import first_code_block


class Grader:
    """Rewards of completions by the run's scorer."""

    __name__ = "reward"

    def __init__(self, tasks: list[dict], options: dict[str, Any]) -> None:
        limits = Limits(cpu_seconds=options.get("cpu-seconds", 1.0),
                        wall_seconds=5 * options.get("cpu-seconds", 1.0))
        self.scorer = Scorer(options.get("reward", "by-kind"), limits=limits)
        self.pool, tier = open_lanes(None, unsafe=False, limits=limits, num_lanes=usable_cores())
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
    """Tells the seconds of every iteration, and ends the training after the last that begins in time."""

    def __init__(self, updates: int, seconds: float) -> None:
        self.updates, self.began, self.marks = updates, time.perf_counter(), [0.0]
        self.seconds = seconds

    def on_step_begin(self, _args: Any, state: Any, control: Any, **__: Any) -> None:
        """Note when an iteration begins; the first begins when everything is loaded."""
        if state.global_step == 0:
            self.marks = [time.perf_counter()]

    def on_step_end(self, _args: Any, state: Any, control: Any, **__: Any) -> None:
        """Note when an iteration ends."""
        if state.global_step % self.updates == 0:
            self.marks.append(time.perf_counter())
            click.echo(f"TRL: iteration {len(self.marks) - 2}: {self.marks[-1] - self.marks[-2]:.1f} s")
            control.should_training_stop = self.marks[-1] - self.began > self.seconds


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--iterations", default=3, show_default=True)
@click.option("--seconds", default=float("inf"), help="Begin no iteration after this long.")
@click.option("--gpu-memory-utilization", default=0.3, show_default=True)
@click.option("--device-batch", default=32, show_default=True, help="Completions in a forward pass.")
@click.option("--checkpointing", is_flag=True, help="Gradient checkpointing.")
@click.option("--sleep", is_flag=True, help="The engine frees its memory while the trainer works.")
def main(run: Path, iterations: int, seconds: float, gpu_memory_utilization: float, device_batch: int,
         checkpointing: bool, sleep: bool) -> None:
    """Train with TRL, and print its speed and what it learned."""
    warehouse = open_warehouse(run)
    config = tomllib.loads((run / "config.toml").read_text())
    rows = with_messages(warehouse, config["rollout"])
    grader = Grader(rows, config["score"])
    own = config["score"].get("reward-file")
    clock = Clock(config["train"].get("updates-per-batch", 1), seconds)
    pool = [row for row in rows if not row["heldout"]]
    trainer = make_trainer(run, warehouse.facts["model"], pool, config,
                           load_function(own, "reward-file").function if own else grader, iterations,
                           gpu_memory_utilization, device_batch, checkpointing, sleep)
    trainer.add_callback(clock)
    with grader.pool:
        trainer.train()
        report(clock, config["rollout"]["num-tasks"] * config["rollout"]["group-size"], grader.seconds)
        if heldout := [row for row in rows if row["heldout"]]:
            evaluate(trainer, heldout, grader, config["rollout"]["max-tokens"])


def with_messages(warehouse: Warehouse, sampling: dict[str, Any]) -> list[dict]:
    """The tasks whose prompt is short enough, each with the messages of its prompt."""
    folder = str(warehouse.model)
    encoder = PromptEncoder(AutoTokenizer.from_pretrained(folder),
                            AutoConfig.from_pretrained(folder).to_dict())
    chosen = find_format(sampling.get("prompt-format", "chat"))
    tasks = {row["task_id"]: row for row in warehouse.read("tasks").to_pylist()}
    plan = make_plan(list(tasks.values()), PlanSettings(
        RolloutOptions(warehouse.root, group_size=1, model="trl"), iteration=0, purpose="trl",
        max_prompt_tokens=sampling["max-prompt-tokens"], format=chosen, format_options=chosen.options),
        encoder)
    return [{**tasks[row["task_id"]], "messages": row["messages"]} for row in plan.rows]


def make_trainer(run: Path, model: str, rows: list[dict], config: dict, reward: Any, iterations: int,
                 gpu_memory_utilization: float, device_batch: int, checkpointing: bool,
                 sleep: bool) -> GRPOTrainer:
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
        gradient_checkpointing=checkpointing, model_init_kwargs={"dtype": training["dtype"]}, use_vllm=True,
        vllm_mode="colocate", vllm_gpu_memory_utilization=gpu_memory_utilization,
        vllm_enable_sleep_mode=sleep,
        vllm_max_model_length=sampling["max-prompt-tokens"] + sampling["max-tokens"], report_to=[],
        logging_steps=updates, save_strategy="no", seed=0)
    table = pa.table({"prompt": [json.loads(row["messages"]) for row in rows],
                      "task_id": [row["task_id"] for row in rows]})
    dataset = Dataset(InMemoryTable(table), fingerprint="rows")          # hashing it fails in Python 3.12
    lora = LoraConfig(r=training["lora-rank"], lora_alpha=training["lora-alpha"],
                      target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(model=folder, reward_funcs=reward, args=settings, train_dataset=dataset,
                       peft_config=lora, processing_class=AutoTokenizer.from_pretrained(folder))


def report(clock: Clock, completions: int, graded: float) -> None:
    """Completions per minute, without and with the start of the trainer and its engine."""
    done, last = 60 * completions * (len(clock.marks) - 1), clock.marks[-1]
    click.echo(f"TRL: completions per minute {done / (last - clock.marks[0]):,.0f} without the start, "
               f"{done / (last - clock.began):,.0f} with it ({clock.marks[0] - clock.began:.0f} s); rewards "
               f"took {graded:.1f} s")


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
