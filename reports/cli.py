"""The `reports` command: pages and pictures of runs."""

from pathlib import Path

import click

import warehouse
from warehouse.options import RunFolder, as_line, json_option, run_argument, shows_errors, with_version


@with_version
@click.group()
def cli() -> None:
    """Pictures and pages of a run, made from SQL."""


@cli.command()
@run_argument
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File to write. [default: RUN/report.html]")
@shows_errors
def build(run: Path, output: Path | None) -> None:
    """Write the report of RUN: one HTML file that needs no network."""
    from reports.build import build_report
    path = build_report(run, output)
    click.echo(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")


@cli.command()
@run_argument
@click.argument("others", nargs=-1, required=True, metavar="OTHER..", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), default=Path("compare.html"),
              show_default=True, help="File to write.")
@json_option
@shows_errors
def compare(run: Path, others: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Write a page that compares RUN with each OTHER.

    It shows settings that differ, gains over RUN paired by task, and curves. With --json it writes no page.
    """
    from reports.compare import compare_runs, comparison_facts
    if as_json:
        click.echo(as_line(comparison_facts([run, *others])))
        return
    path = compare_runs([run, *others], output)
    click.echo(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")


@cli.command()
@run_argument
@click.argument("name", required=False)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File to write. [default: NAME.svg]")
@shows_errors
def figure(run: Path, name: str | None, output: Path | None) -> None:
    """Write the figure NAME as a picture.

    Without NAME, list all figures.
    """
    from reports.build import FIGURES
    from reports.export import export_figure
    connection = warehouse.open(run)
    if name is None:
        click.echo("\n".join(f"{name:<14} {figure.title}" for name, figure in FIGURES.items()))
        return
    path = output or Path(f"{name}.svg")
    export_figure(connection, name, path)
    click.echo(path)


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN..", type=RunFolder())
@click.option("--port", type=click.IntRange(0, 65535), default=0,
              help="Port. [default: a free one]")
@click.option("--at", default="", metavar="PAGE", help="Page that the printed address opens, as shown at the "
              "foot of every page.")
@shows_errors
def serve(runs: tuple[str, ...], port: int, at: str) -> None:
    """Show each RUN in the browser, on this machine only, until Ctrl-C.

    Needs pip install 'rollhouse[viewer]'.
    """
    from reports.viewer.serve import serve_runs
    serve_runs(runs, port, at)
