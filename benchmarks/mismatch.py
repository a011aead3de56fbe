"""Mismatch of trainer and engine by dtype and by how the policy is served, all at one policy of one run.

    python -m benchmarks.mismatch RUN [--dtype bfloat16 --dtype float16 --dtype float32] [--quantization fp8]

For each dtype and form the due iteration of a copy of the run is sampled, scored and put through
`train --dry-run`, with trainer and engine in that dtype; `--quantization` adds lines whose base is quantized
in the engine. The run itself is not touched. Where a form cannot be served, the reason stands in its line.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from benchmarks.demo_time import stage_manifests
from warehouse.store.run_folder import open_warehouse

COLUMNS = {"tokens": 8, "mean|log rho|": 15, "k3 KL": 9, "ESS/n": 8, "tokens/s": 10}


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--dtype", "dtypes", multiple=True, default=("bfloat16", "float16", "float32"),
              show_default=True)
@click.option("--serve", "forms", type=click.Choice(["merged", "adapter"]), multiple=True,
              default=("merged", "adapter"), show_default=True)
@click.option("--quantization", "quantizations", multiple=True, help="Of the first dtype; as vLLM names it.")
@click.option("--num-tasks", default="32", show_default=True)
@click.option("--group-size", default="8", show_default=True)
def main(run: Path, dtypes: tuple[str, ...], forms: tuple[str, ...], quantizations: tuple[str, ...],
         num_tasks: str, group_size: str) -> None:
    """Measure every form and print a line of each."""
    heads = "".join(f"{name:>{width}}" for name, width in COLUMNS.items())
    click.echo(f"{'dtype':<10}{'served':<10}{heads}")
    cells: list[tuple[str, str, tuple[str, ...]]] = [
        (dtype, form, ("--serve", form)) for dtype in dtypes for form in forms]
    cells += [(dtypes[0], name, ("--serve", "auto", "--quantization", name)) for name in quantizations]
    for dtype, name, options in cells:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "run"
            shutil.copytree(run, copy)
            told = measure(copy, dtype, "--num-tasks", num_tasks, "--group-size", group_size, *options)
        click.echo(f"{dtype:<10}{name:<10}{told}")


def measure(run: Path, dtype: str, *options: str) -> str:
    """The columns of trainer and engine in `dtype`, the engine with `options`; or why there are none."""
    for words in (["rollout", str(run), "--dtype", dtype, *options], ["score", str(run)],
                  ["train", str(run), "--dtype", dtype, "--dry-run", "--max-mismatch", "1e9"]):
        done = subprocess.run(words, capture_output=True, text=True, check=False,
                              env=os.environ | {"ROLLHOUSE_WARM": "off"})
        if done.returncode:
            return "  " + "".join(line for line in done.stderr.splitlines() if line.startswith("Error"))
    _, _, num_tokens, mean_abs, _, k3, ess, *_ = done.stdout.split("kept correlation", 1)[1].split()
    manifest = max(stage_manifests(open_warehouse(run), "rollout"), key=lambda each: each["finished_at"])
    rate = manifest["facts"]["num_tokens"] / manifest["facts"]["seconds"]["sampling"]
    return "".join(f"{value:>{width}}" for value, width in zip(
        (num_tokens, mean_abs, k3, ess, f"{rate:,.0f}"), COLUMNS.values(), strict=True))


if __name__ == "__main__":
    main()
