"""TRL's GRPOTrainer replaying stored rows, its importance sampling on; needs trl installed."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.train_rows import LEARNING_RATE, Shape, peak_mb
from train.inputs.groups import Group
from train.model.loading import DTYPES

TOKENIZER = Path(__file__).parents[1] / "examples" / "starter" / "model"


class StepClock(TrainerCallback):
    """CPU and wall seconds from the beginning of one optimizer step to that of the next."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note the time; batch preparation and the old logprobs of a step fall between two marks."""
        self.marks.append((time.process_time(), time.perf_counter()))

    on_train_end = on_step_begin


def measure_trl(folder: Path, groups: list[Group], shape: Shape, *, dtype: str, batch: int,
                checkpointing: bool) -> dict[str, float]:
    """Train on the groups in device batches of `batch` completions, and save the adapter."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])
    model = PeftModel.from_pretrained(model, str(folder / "adapter"), is_trainable=True)
    trainer = _trainer(model, groups, shape, dtype=dtype, batch=batch, checkpointing=checkpointing)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    clock = StepClock()
    trainer.add_callback(clock)
    trainer.train()
    name = "trl-checkpointing" if checkpointing else "trl"
    model.save_pretrained(folder / f"after-{name}-{shape.name}")
    pairs = list(zip(clock.marks[1:-1], clock.marks[2:], strict=True))
    return {"cpu_seconds": statistics.median(after[0] - before[0] for before, after in pairs),
            "wall_seconds": statistics.median(after[1] - before[1] for before, after in pairs),
            "pass_seconds": 0.0, "peak_mb": peak_mb()}


def _trainer(model: Any, groups: list[Group], shape: Shape, *, dtype: str, batch: int, checkpointing: bool
             ) -> GRPOTrainer:
    def replay(prompts: list[str], trainer: Any) -> dict[str, Any]:
        seen: dict[str, int] = {}
        rows = []
        for prompt in prompts:
            index = seen[prompt] = seen.get(prompt, -1) + 1
            rows.append((groups[int(prompt)], groups[int(prompt)].rollouts[index % shape.group]))
        return {"prompt_ids": [group.prompt_ids.tolist() for group, _ in rows],
                "completion_ids": [rollout.completion_ids.tolist() for _, rollout in rows],
                "logprobs": [rollout.behaviour_logprobs.tolist() for _, rollout in rows],
                "stored_reward": [rollout.reward for _, rollout in rows]}

    def stored(completions: Any, stored_reward: list[float], **_: Any) -> list[float]:
        return stored_reward

    config = GRPOConfig(
        output_dir="/tmp/train-trl", per_device_train_batch_size=batch,
        gradient_accumulation_steps=shape.groups * shape.group // batch, num_generations=shape.group,
        max_completion_length=2 * shape.completion,
        max_steps=len(groups) // shape.groups, learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant", epsilon=0.2, epsilon_high=0.28, beta=0.0, max_grad_norm=1.0,
        bf16=dtype == "bfloat16", use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=checkpointing, shuffle_dataset=False, report_to="none",
        save_strategy="no", logging_steps=10**6, disable_tqdm=True, optim="adamw_torch", weight_decay=0.0,
        vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=3.0)
    table = pa.table({"prompt": [str(number) for number in range(len(groups))]})
    trainer = GRPOTrainer(
        model=model, reward_funcs=stored, args=config, rollout_func=replay,
        processing_class=AutoTokenizer.from_pretrained(TOKENIZER),
        train_dataset=Dataset(InMemoryTable(table), fingerprint="rows"))     # hashing it fails in Python 3.12
    # The rows bring the engine's logprobs; a stub in place of the engine switches the correction on.
    trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "stub", -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    return trainer
