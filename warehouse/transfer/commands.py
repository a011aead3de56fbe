"""Commands that move rows in and out of a run."""

from __future__ import annotations

from pathlib import Path

import click

import warehouse
from warehouse.options import run_argument, shows_errors


@click.command("export")
@run_argument
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=click.Choice(["jsonl", "trl", "hf"]), required=True,
              help="jsonl: one file (.jsonl or .jsonl.zst); trl, hf: a folder.")
@click.option("--iteration", multiple=True, type=click.IntRange(min=0), help="Iterations; all by default.")
@click.option("--purpose", default=None, help="One purpose; all by default.")
@shows_errors
def export_command(run: Path, output: Path, kind: str, iteration: tuple[int, ...],
                   purpose: str | None) -> None:
    """Write completions with tokens and rewards for other tools."""
    from warehouse.transfer.export_rows import export_rows
    connection = warehouse.open(run, strict=True)
    for path in export_rows(connection, output, kind, iterations=iteration, purpose=purpose):
        click.echo(path)


@click.command("import")
@run_argument
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--iteration", type=click.IntRange(0, 2147483647), required=True,
              help="Iteration to write.")
@click.option("--purpose", default="train", show_default=True, help="Purpose to write.")
@click.option("--plain-sampling", is_flag=True,
              help="The completions were sampled at temperature 1 without truncation or penalties.")
@shows_errors
def import_command(run: Path, source: Path, iteration: int, purpose: str, plain_sampling: bool) -> None:
    """Read rollouts sampled elsewhere from SOURCE.

    JSON lines (.zst too) with token ids and logprobs.
    """
    from warehouse.store.run_folder import open_warehouse
    from warehouse.transfer.import_rollouts import import_rollouts
    count = import_rollouts(open_warehouse(run), source, iteration=iteration, purpose=purpose,
                            plain_sampling=plain_sampling)
    click.echo(f"{count} completions; next: score {run} --iteration {iteration}")
