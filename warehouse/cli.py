"""The `warehouse` command: make a run, ask it questions, look after it."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from warehouse.experiments.commands import arms, branch
from warehouse.inspect.commands import log_command, watch
from warehouse.loop.command import loop
from warehouse.maintain.commands import check, compact, discard, prune, rollback, tasks
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
from warehouse.stages.stop import stopping
from warehouse.start.commands import demo, doctor
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError
from warehouse.transfer.commands import export_command, import_command, mirror

# Modules that `warehouse warm` imports in advance.
LOADS = ("warehouse.inspect.alarms", "warehouse.inspect.summary", "warehouse.sql.rollup")


@with_version
@click.group()
def cli() -> None:
    """Query and maintain runs: Parquet files with SQL over them."""


@cli.command()
@run_folder
@click.option("--model", required=True, help="Base model: folder or hub id.")
@click.option("--adapter", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None,
              help="LoRA adapter that becomes policy 0: a PEFT folder, or RUN/policies/N.")
@click.option("--tasks", multiple=True, metavar="[NAME=]SOURCE",
              help="Tasks to train on, as mbpp, FILE.jsonl or 'hf:TABLE?prompt=COLUMN&answer=COLUMN'; "
                   "repeatable.")
@click.option("--heldout", multiple=True, metavar="[NAME=]SOURCE",
              help="Tasks that are only evaluated; repeatable.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="Options of every stage, copied to RUN/config.toml.")
@shows_errors
def init(run: Path, model: str, adapter: Path | None, tasks: tuple[str, ...], heldout: tuple[str, ...],
         config: Path | None) -> None:
    """Create the run folder RUN with its tasks and base model."""
    from warehouse.init import init_run
    from warehouse.start.doctor import check_new_model
    for line in init_run(run, model, tasks, heldout, config, adapter=adapter, check_model=check_new_model):
        click.echo(by_address(line))


@cli.command()
@runs_argument
@click.option("--command", "-c", "query", default=None, metavar="QUERY",
              help="The query, if it is not the last argument.")
@click.option("--file", "-f", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="File with the query.")
@click.option("--format", "style", default=None,
              type=click.Choice(["table", "csv", "json", "jsonl", "parquet", "markdown"]),
              help="[default: by suffix of --output, else table]")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File to write; required for parquet.")
@click.option("--limit", type=click.IntRange(min=0), default=None,
              help="Most rows; 0 for all. [default: 200 on the terminal, else all]")
@click.option("--full", is_flag=True, help="Do not shorten lists and long text.")
@click.option("--partial", is_flag=True, help="Include parts of unfinished stages.")
@strict_option
@at_option
@shows_errors
def sql(runs: tuple[str, ...], query: str | None, file: Path | None, partial: bool,
        strict: bool, at: int | None, **options: Any) -> None:
    """Run QUERY over the tables and views of one run, or of several.

    With several runs every table has a first column `run`: warehouse sql A B -c "FROM iteration_stats". QUERY
    may be `-` (standard input), and may hold several statements.
    """
    from warehouse.inspect.queries import read_script, write_answers
    from warehouse.sql.many import connect_runs, open_runs
    if query is None and file is None and len(runs) > 1 and not os.path.isdir(runs[-1]):
        *runs, query = runs     # type: ignore[assignment]
    if (query is None) == (file is None):
        raise click.UsageError("Give one of QUERY, -c and --file.")
    if at is not None and len(runs) > 1:
        raise StageError("--at reads one run as it was, and logs have different entries. Name one run.")
    warehouses = open_runs(runs) if at is None else [open_run(runs[0], at)]
    terminal = sys.stdout.isatty() and options["output"] is None
    script = query if query not in (None, "-") else read_script(file)
    connection = connect_runs(warehouses, partial=partial, strict=strict)
    write_answers(connection, script, **options,
                  width=shutil.get_terminal_size().columns if terminal else None)


@cli.command()
@run_argument
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="Iterations to list.")
@click.option("--iteration", type=click.IntRange(min=0), default=None,
              help="Print only this iteration, as one line.")
@click.option("--purpose", default="train", show_default=True,
              help="Purpose of the one line; eval prints a line per evaluation.")
@click.option("--line", is_flag=True, help="Print the latest iteration as one line.")
@json_option
@strict_option
@at_option
@shows_errors
def summary(run: Path, last: int, iteration: int | None, purpose: str, line: bool, as_json: bool,
            strict: bool, at: int | None) -> None:
    """Summarize the run on one screen."""
    from warehouse.inspect.summary import (
        iteration_rows,
        latest_iteration,
        line_of,
        summary_facts,
        summary_lines,
    )
    from warehouse.sql.database import compute_once, connect
    from warehouse.sql.rollup import keep_rolled_up
    warehouse = open_run(run, at)
    inventory = keep_rolled_up(warehouse)
    connection = connect(warehouse, strict=strict, inventory=inventory)
    if line or iteration is not None:
        chosen = latest_iteration(connection, purpose) if iteration is None else iteration
        rows = iteration_rows(connection, chosen, purpose)
        click.echo("\n".join(map(as_line if as_json else line_of, rows)))
    elif as_json:
        click.echo(as_line(summary_facts(warehouse, compute_once(connection))))
    else:
        click.echo(by_address("\n".join(summary_lines(warehouse, compute_once(connection), inventory, last))))


@cli.command()
@click.argument("name", required=False)
@shows_errors
def schema(name: str | None) -> None:
    """Describe every table, view, column and macro, or only NAME."""
    from warehouse.sql.dictionary import dictionary_lines
    click.echo("\n".join(dictionary_lines(name)))


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@shows_errors
@stopping()
def warm(command: tuple[str, ...]) -> None:
    """Run COMMAND with imports and engine kept loaded.

    Commands of Rollhouse inside COMMAND start without importing; the engine sleeps while other stages use the
    GPU. Results are the same. Everything ends with COMMAND.
    """
    from warehouse.stages.warm_server import run_warm
    sys.exit(run_warm(command))


for command in (arms, branch, check, compact, demo, discard, doctor, export_command, import_command,
                log_command, loop, mirror, prune, rollback, tasks, watch):
    cli.add_command(command)
