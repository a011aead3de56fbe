"""One measurement of `train` on several GPUs: seconds per step, useful MFU and memory, as a line of JSON.

    accelerate launch --num_processes 2 --multi_gpu -m benchmarks.train_gpus --model 7b
    accelerate launch --num_processes 2 --config_file examples/many-gpus/by-layer.yaml \
        -m benchmarks.train_gpus --model 7b --full

The model has random weights, made in memory; every step trains `--groups` groups of the shape, so that the
seconds on one and on two GPUs tell the scaling.
"""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.train import PEAK_FLOPS
from benchmarks.train_rows import MODELS, make_groups, parse_shape, peak_mb, useful_flops
from benchmarks.train_rows import settings as settings_of
from train.model import loading
from train.start import new_optimizer
from train.steps.accelerator import Processes
from train.steps.budget import choose_tokens
from train.steps.checkpoint import Checkpoints
from train.steps.row import build_batch
from train.steps.steps import Learner, take_step
from warehouse.stages.stop import StopRequest
from warehouse.store.run_folder import Stage, Warehouse


@click.command(context_settings={"show_default": True})
@click.option("--model", default="small", help=f"{', '.join(MODELS)}; random weights.")
@click.option("--full", is_flag=True)
@click.option("--dtype", default="bfloat16")
@click.option("--shape", default="4096x32x400", help="Prompt tokens x completions x completion tokens.")
@click.option("--groups", default=2, help="Of every optimizer step, over all processes.")
@click.option("--steps", default=3, help="Optimizer steps, the first of which warms up.")
@click.option("--tokens-per-batch", default=0, help="0: what `train` chooses.")
def main(model: str, full: bool, dtype: str, shape: str, groups: int, steps: int, tokens_per_batch: int
         ) -> None:
    """Print one line of JSON."""
    began, processes = time.perf_counter(), Processes()
    device = processes.device
    loading.load_base = lambda *_, dtype, **__: random_model(model, loading.DTYPES[dtype], device)
    options: dict[str, Any] = {"dtype": dtype, "device": device, "sharding": processes.sharding}
    policy = loading.load_full("", **options) if full else loading.load_lora(
        "", None, seed=0, rank=16, alpha=32, rslora=False, targets="all-linear", **options)
    rows = make_groups(policy, parse_shape(shape), groups * steps, 4096)
    budget = tokens_per_batch or min(processes.gather([choose_tokens(policy, rows)]))
    settings = settings_of("--dtype", dtype, "--tokens-per-batch", str(budget), "--learning-rate", "1e-6")
    plan = [list(range(first, first + groups)) for first in range(0, len(rows), groups)]
    nowhere = Warehouse(Path("nowhere"), {})
    stage = Stage("train", {"iteration": 0}, nowhere)
    learner = Learner(policy, new_optimizer(policy, settings), build_batch(rows, 0, settings), plan,
                      Checkpoints(nowhere, stage, processes), processes, settings,
                      stage, 0, 1.0, True)
    loaded, seconds, norms = time.perf_counter() - began, [], []
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for index in range(steps):
        started = time.perf_counter()
        metrics = take_step(learner, index, StopRequest(), lambda: None)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        assert metrics, "nothing stops it"
        norms.append(metrics["grad_norm"])
    step = statistics.median(seconds[1:])
    flops = useful_flops(model, rows[-groups:], passes=3 if full else 2)
    peaks = processes.gather([peak_mb()])
    if processes.first:
        click.echo(json.dumps({
            "model": model, "full": full, "dtype": dtype, "shape": shape, "groups": groups,
            "processes": processes.count,
            "sharding": processes.sharding and processes.sharding._asdict(),
            "tokens_per_batch": budget, "seconds_per_step": step, "seconds": seconds,
            "loading_seconds": loaded,
            "useful_mfu": flops / step / PEAK_FLOPS / processes.count, "peak_mb": max(peaks),
            "grad_norms": norms, "attention": policy.attention}))
    processes.close()


def random_model(name: str, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """A Qwen2 of this size, the same in every process."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(0)
    config = Qwen2Config(**MODELS[name], max_position_embeddings=32768, tie_word_embeddings=name != "7b",
                         dtype=dtype, attn_implementation="sdpa")
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(former)


if __name__ == "__main__":
    main()
