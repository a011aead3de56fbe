"""Commands of `warehouse` that look after the stored files: compact, repair."""

from __future__ import annotations

from pathlib import Path

import click

from warehouse.options import run_argument, shows_errors

one_iteration = click.option("--iteration", type=click.IntRange(min=0), default=None,
                             help="Only this iteration.")


@click.command()
@run_argument
@one_iteration
@click.option("--part-mib", type=click.IntRange(min=1), default=256, show_default=True,
              help="Size up to which parts are merged, in MiB.")
@shows_errors
def compact(run: Path, iteration: int | None, part_mib: int) -> None:
    """Merge the parts of finished iterations into a few: fewer files, the same rows in the same order."""
    from warehouse.compact import compact_run
    from warehouse.store import open_warehouse
    click.echo("\n".join(compact_run(open_warehouse(run), iteration, part_mib)))
