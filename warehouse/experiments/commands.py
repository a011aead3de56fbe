"""Commands of `warehouse` that ask the same rows again: branches, arms."""

from pathlib import Path

import click

from warehouse.options import RunFolder, open_run, run_folder, shows_errors
from warehouse.store.errors import counted, shell_quote


@click.command()
@run_folder
@click.argument("new", type=RunFolder(path_type=Path))
@click.option("--at", type=click.IntRange(min=0), required=True, metavar="POLICY",
              help="The newest policy that both runs have.")
@click.option("--with-rows", is_flag=True,
              help="Take along what the policies sampled from iteration POLICY on, to train on it again.")
@click.option("--copy", is_flag=True, help="Copy the files, for another filesystem.")
@shows_errors
def branch(run: Path, new: Path, at: int, with_rows: bool, copy: bool) -> None:
    """Make the run NEW, which shares what RUN has up to a policy.

    Its files are hard links: they take no room, and removing either run leaves the other whole. What is under
    way in RUN is not taken along.
    """
    from warehouse.experiments.branch import make_branch
    warehouse = open_run(run)
    made = make_branch(warehouse, new, at, rows=with_rows, copy=copy)
    verb = "copied" if copy else "shared"
    click.echo(f"{new}: policy {at} and what led to it; {counted(made.num_files, 'file')} {verb}, "
               f"{made.num_bytes / 1e6:.1f} MB")
    state = open_run(new).state
    click.echo(f"next: {state.next_stage()} {shell_quote(new)} --iteration {at}")
