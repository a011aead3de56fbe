"""The `train export` command, and how it stands beside `train`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from warehouse.options import HELP, RunFolder, TitledCommand, open_run, shows_errors
from warehouse.store.errors import StageError


@click.command(context_settings={"show_default": True} | HELP)
@click.argument("run", type=RunFolder())
@click.option("--version", type=click.IntRange(min=1), help="Policy to export.  [default: the latest]")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder to write.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
              help="Of the weights written; the merge itself is in float32.  [default: as it was trained]")
@shows_errors
def export(run: str, version: int | None, output: Path, dtype: str | None) -> None:
    """Merge the adapter of a policy into the base and write a plain model."""
    warehouse = open_run(run)
    version = version or max(warehouse.policy_versions())
    if version == 0:
        raise StageError(f"{run} has no policy but the base. Train one with `train {run}`.")
    from train.export import export_policy
    click.echo(export_policy(warehouse, version, output, dtype=dtype))


class TrainCommand(TitledCommand):
    """`train RUN ..`, and `train export RUN ..` beside it."""

    def main(self, args: Sequence[str] | None = None,  # type: ignore[override]
             prog_name: str | None = None, **options: Any) -> Any:
        """Hand the arguments of `train export` to that command."""
        arguments = list(sys.argv[1:] if args is None else args)
        if arguments[:1] == ["export"]:
            return export.main(arguments[1:], "train export", **options)
        return super().main(arguments, prog_name, **options)
