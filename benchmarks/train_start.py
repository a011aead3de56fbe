"""Seconds that a train stage spends before its first forward: imports, model, adapter, budget.

    python -m benchmarks.train_start --model 1.5b --lora-rank 32 --dtype bfloat16          (a GPU)
    python -m benchmarks.train_start --model small --lora-rank 8 --dtype float32
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

IMPORTS = ("torch", "transformers", "transformers.modeling_utils", "transformers.models.qwen2", "accelerate",
           "peft", "train.run")


@click.command(context_settings={"show_default": True})
@click.option("--model", default="small")
@click.option("--lora-rank", default=8)
@click.option("--dtype", default="float32")
def main(model: str, lora_rank: int, dtype: str) -> None:
    """Print the seconds of each part, and the imports that take longest."""
    marks: list[tuple[str, float]] = [("began", time.perf_counter())]

    def lap(name: str) -> None:
        marks.append((name, time.perf_counter()))
        click.echo(f"{name:32s} {marks[-1][1] - marks[-2][1]:7.2f} s")

    for name in IMPORTS:
        __import__(name)
        lap(f"import {name}")
    import torch

    from benchmarks.train_rows import make_groups, make_model, new_policy, parse_shape
    from train.model import loading
    from train.steps.budget import choose_tokens
    folder = Path(tempfile.gettempdir()) / f"train-benchmark-{model}-{lora_rank}"
    folder.mkdir(exist_ok=True)
    lap("import of the benchmark")
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        lap("the GPU's context")
    make_model(folder, model, lora_rank)
    lap("writing the model, not of a stage")
    loading.load_base = _timed(loading.load_base)
    loading.fuse_adapter, loading.fuse_norms = _timed(loading.fuse_adapter), _timed(loading.fuse_norms)
    loading._choose_attention = _timed(loading._choose_attention)
    policy = new_policy(folder, folder / "adapter", dtype)
    lap("policy, all together")
    groups = make_groups(policy, parse_shape("150x16x160x2"), 1)
    lap("rows, not of a stage")
    budget = choose_tokens(policy, groups)
    lap(f"budget of {budget} tokens")
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", "import train.run, peft"],
                          capture_output=True, text=True)
    lines = [line.split("|") for line in done.stderr.splitlines() if line.count("|") == 2]
    slowest = sorted((int(total), name) for _, total, name in lines if total.strip().isdigit())[::-1]
    click.echo("\n".join(f"{total / 1e6:8.2f} s {name}" for total, name in slowest[:45]))


def _timed(function):
    def timed(*arguments, **options):
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            click.echo(f"  {function.__name__:30s} {time.perf_counter() - started:7.2f} s")
    return timed


if __name__ == "__main__":
    main()
