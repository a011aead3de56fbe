"""The `warehouse` command: make a run, ask it questions, look after it."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from warehouse.experiments.commands import arms, branch
from warehouse.inspect.commands import gaps, log_command, results, show, watch
from warehouse.loop.command import loop
from warehouse.maintain.commands import check, compact, discard, prune, repair, rollback, tasks
from warehouse.options import (
    as_line,
    at_option,
    json_option,
    open_run,
    run_argument,
    run_folder,
    runs_argument,
    shows_errors,
    strict_option,
    with_version,
)
from warehouse.start.commands import demo, doctor
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError
from warehouse.transfer.commands import export_command, import_command, mirror

# What `warehouse warm` imports beforehand.
LOADS = ("warehouse.inspect.alarms", "warehouse.inspect.summary", "warehouse.sql.rollup")


@with_version
@click.group()
def cli() -> None:
    """Every completion of a run as Parquet that anyone queries with SQL."""


@cli.command()
@run_folder
@click.option("--model", required=True, help="Folder or hub id of the base model.")
@click.option("--adapter", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None,
              help="LoRA adapter on --model to start from: it becomes policy 0.")
@click.option("--tasks", multiple=True, metavar="[NAME=]SOURCE",
              help="Tasks to train on; give it several times for several sources.")
@click.option("--heldout", multiple=True, metavar="[NAME=]SOURCE",
              help="Tasks that are only evaluated, never trained on unless asked by name.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="TOML file to copy to RUN/config.toml: options of every stage.")
@shows_errors
def init(run: Path, model: str, adapter: Path | None, tasks: tuple[str, ...], heldout: tuple[str, ...],
         config: Path | None) -> None:
    """Make the run folder RUN: import tasks, fix the base model."""
    from warehouse.init import init_run
    from warehouse.start.doctor import check_new_model
    for line in init_run(run, model, tasks, heldout, config, adapter=adapter, check_model=check_new_model):
        click.echo(by_address(line))


class SqlCommand(click.Command):
    """A query may begin with a comment, which click would take for an option."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """`-- note` and what has a blank before any = is SQL, as no option does."""
        return super().parse_args(context, [re.sub(r"^(?=--[^\s=]*\s)", " ", each) for each in args])


@cli.command(cls=SqlCommand)
@runs_argument
@click.option("--command", "-c", "query", default=None, metavar="QUERY",
              help="QUERY, where it does not stand behind the runs.")
@click.option("--file", "-f", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="File of SQL to run in the place of QUERY.")
@click.option("--format", "style", type=click.Choice(["table", "csv", "json", "parquet", "markdown"]),
              default=None, help="How rows are written. Default: as --output's suffix says, else a table.")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File to write instead of the terminal; parquet needs one.")
@click.option("--limit", type=click.IntRange(min=0), default=None,
              help="Most rows; 0 for all. Default: 200 of a table or Markdown on the terminal, else all.")
@click.option("--full", is_flag=True, help="Show lists and long text whole.")
@click.option("--partial", is_flag=True, help="Show the parts of unfinished stages too.")
@click.option("--in-place", is_flag=True,
              help="Read columns out of the object store: parts are neither brought nor verified.")
@strict_option
@at_option
@shows_errors
def sql(runs: tuple[str, ...], query: str | None, file: Path | None, partial: bool, in_place: bool,
        strict: bool, at: int | None, **options: Any) -> None:
    """Run QUERY over the tables and views of one run, or of several.

    Of several each table and view has a first column `run`: warehouse sql A B -c "FROM iteration_stats". `-`
    reads QUERY from the input, `@name` is one of the (first) run's config.toml; several statements may follow
    one another.
    """
    from warehouse.inspect.queries import read_script, write_answers
    from warehouse.sql.many import connect_runs, open_runs
    if query is None and file is None and len(runs) > 1 and not os.path.isdir(runs[-1]):
        *runs, query = runs     # type: ignore[assignment]
    if (query is None) == (file is None):
        raise click.UsageError("Give one of QUERY, -c and --file.")
    if at is not None and len(runs) > 1:
        raise StageError("--at reads one run as it was, as entries of other logs are others. Name one run.")
    warehouses = open_runs(runs) if at is None else [open_run(runs[0], at)]
    terminal = sys.stdout.isatty() and options["output"] is None
    script = query if query not in (None, "-") else read_script(file)
    connection = connect_runs(warehouses, partial=partial, strict=strict, in_place=in_place)
    write_answers(warehouses[0], connection, script, **options,
                  width=shutil.get_terminal_size().columns if terminal else None)


@cli.command()
@run_argument
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="Iterations to list.")
@click.option("--iteration", type=click.IntRange(min=0), default=None, help="Print this one as one line.")
@click.option("--purpose", default="train", show_default=True,
              help="Of the one line: which purpose; eval is a line for every evaluation.")
@click.option("--line", is_flag=True, help="Print one iteration as one line, for loops.")
@json_option
@strict_option
@at_option
@shows_errors
def summary(run: Path, last: int, iteration: int | None, purpose: str, line: bool, as_json: bool,
            strict: bool, at: int | None) -> None:
    """Print one screen about the run."""
    from warehouse.inspect.summary import (
        iteration_rows,
        latest_iteration,
        line_of,
        summary_facts,
        summary_lines,
    )
    from warehouse.sql.database import connect
    from warehouse.sql.rollup import keep_rolled_up
    warehouse = open_run(run, at)
    inventory = keep_rolled_up(warehouse)
    connection = connect(warehouse, strict=strict, inventory=inventory)
    if line or iteration is not None:
        chosen = latest_iteration(connection, purpose) if iteration is None else iteration
        rows = iteration_rows(connection, inventory, chosen, purpose)
        click.echo("\n".join(map(as_line if as_json else line_of, rows)))
    elif as_json:
        click.echo(as_line(summary_facts(warehouse, connection, inventory)))
    else:
        click.echo(by_address("\n".join(summary_lines(warehouse, connection, inventory, last))))


@cli.command()
@click.argument("name", required=False)
@shows_errors
def schema(name: str | None) -> None:
    """Print what every table, view, column and macro means.

    Or NAME alone.
    """
    from warehouse.sql.dictionary import dictionary_lines
    click.echo("\n".join(dictionary_lines(name)))


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@shows_errors
def warm(command: tuple[str, ...]) -> None:
    """Run a loop and keep loaded what its commands load.

    Those of Rollhouse that it calls start without importing, and `rollout` keeps its engine, which sleeps
    while others have the GPU. They do what they do without this, and all ends with COMMAND.
    """
    from warehouse.stages.warm_server import run_warm
    sys.exit(run_warm(command))


for command in (arms, branch, check, compact, demo, discard, doctor, export_command, gaps, import_command,
                log_command, loop, mirror, prune, repair, results, rollback, show, tasks, watch):
    cli.add_command(command)
