"""Time and memory of a training step on stored rows: this project, plain loops and, where installed, TRL.

    python -m benchmarks.train --trl-python PYTHON_WITH_TRL
    python -m benchmarks.train --model 7b --dtype bfloat16 --shape 4096x32x400 --steps 3        (a GPU)
    python -m benchmarks.train --model 1.5b --lora-rank 32 --dtype bfloat16 --shape 150x16x160x64 --steps 3 \
        --tokens-per-batch 16384 --variant shared-two-pass --variant alone-two-pass

Useful tokens are a group's prompt, once, and its completions; useful FLOPs are what they cost with a frozen
base, forward and back to the activations, so that every trainer is charged for the same work; a pass for the
old logprobs adds one forward.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch
from safetensors.torch import load_file

from benchmarks.train_rows import make_model, parse_shape

ROOT = Path(__file__).parents[1]
PEAK_FLOPS = 989e12     # dense bfloat16 of an H100 or H200, by the vendor's data sheet
VARIANTS = ["shared", "shared-two-pass", "padded", "padded-checkpointing"]
GPU_VARIANTS = ["shared", "shared-cache", "shared-two-pass", "flex", "padded", "padded-checkpointing"]
COLUMNS = (f"{'shape':>14s}  {'variant':21s} {'CPU s':>8s} {'wall s':>8s} {'old lp s':>8s} {'peak MB':>8s} "
           f"{'tokens/s':>9s}")


@click.command(context_settings={"show_default": True})
@click.option("--shape", "shapes", multiple=True, default=["1024x16x128", "256x8x256"],
              help="Prompt tokens x completions x completion tokens, and x groups per step: ragged ones.")
@click.option("--model", default="small", help="small, 0.5b, 1.5b or 7b; random weights.")
@click.option("--lora-rank", default=8)
@click.option("--steps", default=4, help="Optimizer steps, the first of which warms up.")
@click.option("--threads", default=1)
@click.option("--dtype", default="float32")
@click.option("--tokens-per-batch", default=4096, help="0: what `train` chooses.")
@click.option("--variant", "variants", multiple=True, help=f"Default: {', '.join(VARIANTS)}.")
@click.option("--trl-python", help="A Python in which trl is installed; adds TRL with and without "
                                   "checkpointing.")
@click.option("--trl-batch", type=int, help="Completions per device batch in TRL; default: the group.")
def main(shapes: tuple[str, ...], model: str, lora_rank: int, steps: int, threads: int, dtype: str,
         tokens_per_batch: int, variants: tuple[str, ...], trl_python: str | None, trl_batch: int | None
         ) -> None:
    """Print one line per shape and variant."""
    folder = Path(tempfile.gettempdir()) / f"train-benchmark-{model}-{lora_rank}"
    folder.mkdir(exist_ok=True)
    make_model(folder, model, lora_rank)
    chosen = list(variants) or (GPU_VARIANTS if torch.cuda.is_available() else VARIANTS)
    chosen += ["trl", "trl-checkpointing"] if trl_python else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive",
                   "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
                   "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    click.echo(COLUMNS + (f" {'useful MFU':>10s}" if torch.cuda.is_available() else "") + "  adapters apart")
    for shape in shapes:
        for variant in chosen:
            python = trl_python if variant.startswith("trl") and trl_python else sys.executable
            arguments = [variant, model, folder, shape, steps, dtype, tokens_per_batch,
                         trl_batch or parse_shape(shape).group]
            command = [python, "-m", "benchmarks.train_variants", *map(str, arguments)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                click.echo(f"{shape:>14s}  {variant:21s} failed: {done.stderr.strip().splitlines()[-1][:90]}")
                continue
            click.echo(line(folder, shape, variant, json.loads(done.stdout.strip().splitlines()[-1])))


def line(folder: Path, name: str, variant: str, result: dict[str, float]) -> str:
    """One line of the table."""
    wall = result["wall_seconds"]
    share = f" {result['flops'] / wall / PEAK_FLOPS:10.1%}" if torch.cuda.is_available() else ""
    return (f"{name:>14s}  {variant:21s} {result['cpu_seconds']:8.2f} {wall:8.2f} "
            f"{result['pass_seconds']:8.2f} {result['peak_mb']:8.0f} {result['tokens'] / wall:9.0f}{share}  "
            f"{difference(folder, variant, name)}")


def difference(folder: Path, variant: str, shape: str) -> str:
    """Distance of the final adapter from that of `shared`, relative to how far training moved it."""
    if not (folder / f"after-shared-{shape}").exists():
        return "-"
    start, expected, actual = (load_file(str(folder / name / "adapter_model.safetensors"))
                              for name in ("adapter", f"after-shared-{shape}", f"after-{variant}-{shape}"))
    moved = sum(float((expected[name] - start[name]).square().sum()) for name in start)
    apart = sum(float((expected[name] - actual[name]).square().sum()) for name in start)
    return f"{(apart / moved) ** 0.5:.1e}"


if __name__ == "__main__":
    main()
