"""Time and memory of a training step: shared prompts against padded rows and, where it is installed, TRL.

python -m benchmarks.train_shared_prompt [--shape 1024x16x128] [--trl-python /path/to/python/with/trl]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]


@click.command(context_settings={"show_default": True})
@click.option("--shape", "shapes", multiple=True, default=["1024x16x128", "256x8x256"],
              help="Prompt tokens x completions x completion tokens.")
@click.option("--model", default="small", help="small, 0.5b or 7b; random weights.")
@click.option("--steps", default=4, help="Optimizer steps, the first of which warms up.")
@click.option("--threads", default=1)
@click.option("--dtype", default="float32")
@click.option("--tokens-per-batch", default=4096)
@click.option("--variant", "variants", multiple=True,
              default=["shared", "shared-two-pass", "padded", "padded-checkpointing"])
@click.option("--trl-python", help="A Python in which trl is installed; adds TRL with and without "
                                   "checkpointing.")
def main(shapes: tuple[str, ...], model: str, steps: int, threads: int, dtype: str, tokens_per_batch: int,
         variants: tuple[str, ...], trl_python: str | None) -> None:
    """Print one line per shape and variant."""
    folder = Path(tempfile.gettempdir()) / f"train-shared-prompt-{model}"
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive",
                   "PYTHONPATH": str(ROOT)}
    code = f"from pathlib import Path; from benchmarks.train_rows import make_model; " \
           f"make_model(Path({str(folder)!r}), {model!r})"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    all_variants = [*variants, *(["trl", "trl-checkpointing"] if trl_python else [])]
    click.echo(f"{'shape':>14s}  {'variant':21s} {'CPU s':>8s} {'wall s':>8s} {'peak MB':>8s}  difference of "
               "adapters")
    for shape in shapes:
        for variant in all_variants:
            python = trl_python if variant.startswith("trl") and trl_python else sys.executable
            command = [python, "-m", "benchmarks.train_variants", variant, str(folder), shape, str(steps),
                       dtype,
                       str(tokens_per_batch)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                click.echo(f"{shape:>14s}  {variant:21s} failed: {done.stderr.strip().splitlines()[-1]}")
                continue
            result = json.loads(done.stdout.strip().splitlines()[-1])
            click.echo(f"{shape:>14s}  {variant:21s} {result['cpu_seconds']:8.2f} "
                       f"{result['wall_seconds']:8.2f} {result['peak_mb']:8.0f}  "
                       f"{difference(folder, variants[0], variant, shape):.1e}")


def difference(folder: Path, reference: str, variant: str, shape: str) -> float:
    """Distance of two final adapters, relative to how far training moved them."""
    start, expected, found = (load_file(str(folder / name / "adapter_model.safetensors"))
                              for name in ("adapter", f"after-{reference}-{shape}",
                                           f"after-{variant}-{shape}"))
    moved = sum(float((expected[name] - start[name]).square().sum()) for name in start)
    apart = sum(float((expected[name] - found[name]).square().sum()) for name in start)
    return (apart / moved) ** 0.5


if __name__ == "__main__":
    main()
