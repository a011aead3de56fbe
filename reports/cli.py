"""The `reports` command: pages and pictures of runs."""

from __future__ import annotations

from pathlib import Path

import click

from warehouse.options import run_argument, shows_errors


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Pictures and pages of a run, made from SQL; nothing in the run is changed."""


@cli.command()
@run_argument
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File to write; RUN/report.html by default.")
@shows_errors
def build(run: Path, output: Path | None) -> None:
    """Write the report of RUN: one HTML file that needs no network."""
    from reports.build import build_report
    path = build_report(run, output)
    click.echo(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
