"""Commands that look deeper: results, one completion, alarms, gaps of tokens."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
from click.core import ParameterSource

import warehouse
from warehouse.options import (
    FiniteRange,
    as_line,
    json_option,
    open_run,
    run_argument,
    shows_errors,
    strict_option,
)
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError, printable


@click.command()
@run_argument
@click.option("--iteration", multiple=True, type=click.IntRange(min=0),
              help="Iterations to keep; all by default.")
@click.option("--purpose", multiple=True, help="Purposes to keep; eval is every evaluation.")
@click.option("--split", multiple=True, help="Splits to keep.")
@click.option("--policy", multiple=True, type=click.IntRange(min=0), help="Policy versions to keep.")
@click.option("--by", multiple=True, type=click.Choice(["iteration", "purpose", "split", "policy", "task"]),
              help="One row per value of these; iteration and purpose by default.")
@click.option("--pool", is_flag=True, help="One row: all kept completions of a task together.")
@click.option("--budget", type=click.IntRange(min=2), default=None,
              help="So many completions per task: all first turns, against equal shares of every turn.")
@click.option("--format", "style", type=click.Choice(["table", "markdown", "csv"]), default="table",
              show_default=True, help="How the rows are written.")
@click.option("--submission", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="Score this submission.json with the solutions instead.")
@shows_errors
@click.pass_context
def results(context: click.Context, run: Path, iteration: tuple[int, ...], purpose: tuple[str, ...],
            split: tuple[str, ...], policy: tuple[int, ...], by: tuple[str, ...], pool: bool,
            budget: int | None, style: str, submission: Path | None) -> None:
    """Print results in the table of published ARC runs.

    Shares per task, means over tasks.
    """
    from warehouse.inspect.render import WRITERS
    from warehouse.inspect.results import budget_table, result_table
    from warehouse.inspect.submission import submission_table
    chosen = {"iteration": iteration, "purpose": purpose, "split": split, "policy": policy}
    typed = [name for name in (*chosen, "by", "pool", "budget")     # not what config.toml says
             if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if submission is not None:
        if typed:
            raise StageError(f"--submission scores a file, of which --{typed[0]} says nothing. Leave one of "
                             "them out.")
        click.echo(WRITERS[style](*submission_table(warehouse.open(run), submission)))
        return
    if budget is not None:
        if {"by", "pool"} & {*typed}:
            raise StageError("--budget has rows of its own. Leave out --by and --pool.")
        names, rows, lines = budget_table(warehouse.open(run), budget, **chosen)
        click.echo("\n".join([WRITERS[style](names, rows), *lines]))
        return
    if {"by", "pool"} <= {*typed}:
        raise StageError("--pool is one row for everything. Leave out --by.")
    keys = () if pool and "by" not in typed else by or ("iteration", "purpose")
    names, rows = result_table(warehouse.open(run), by=keys, **chosen)
    click.echo(WRITERS[style](names, rows))


@click.command("log")
@run_argument
@click.option("--last", "-n", type=click.IntRange(min=1), default=None, help="So many entries.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON per entry.")
@shows_errors
def log_command(run: Path, last: int | None, as_json: bool) -> None:
    """Print what happened to the run, the latest first.

    When, where, by which command, and which settings changed.
    """
    from warehouse.inspect.history import history, history_lines
    rows = history(open_run(run).state)[:last]
    lines = [json.dumps(row) for row in rows] if as_json else history_lines(rows)
    click.echo(by_address(printable("\n".join(lines))))


@click.command()
@run_argument
@click.argument("completion")
@click.option("--prompt", is_flag=True, help="Show the prompt too.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the terminal has them.")
@shows_errors
def show(run: Path, completion: str, prompt: bool, color: bool | None) -> None:
    """Show a COMPLETION with its grids.

    It is named ITERATION/TASK/SAMPLE or ITERATION/PURPOSE/TASK/SAMPLE.
    """
    from warehouse.inspect.show import completion_lines
    colored = sys.stdout.isatty() if color is None else color
    lines = completion_lines(warehouse.open(run), run, completion, color=colored, prompt=prompt)
    click.echo("\n".join(lines), color=colored)


@click.command()
@run_argument
@click.option("--every", type=FiniteRange(min=1), default=None,
              help="Look again every so many seconds until an alarm fires; once by default.")
@click.option("--since", type=click.IntRange(min=0), default=None,
              help="Alarms raised at this iteration or later; since the last rollback by default.")
@click.option("--ignore", multiple=True, metavar="SIGNAL", help="Signals not to act on.")
@click.option("--raised", is_flag=True, help="Exit with 3 also for what was raised once.")
@click.option("--on-fire", metavar="COMMAND", default=None,
              help="Shell command to run when an alarm fires; it reads the alarms on its standard input.")
@json_option
@strict_option
@shows_errors
def watch(run: Path, every: float | None, since: int | None, ignore: tuple[str, ...], raised: bool,
          on_fire: str | None, as_json: bool, strict: bool) -> None:
    """Evaluate the alarms; exit code 3 when any fires."""
    from warehouse.inspect import alarms as look
    from warehouse.inspect.advice import advise, alarm_lines
    from warehouse.sql.database import connect
    from warehouse.sql.rollup import keep_rolled_up
    warehouse = open_run(run)
    look.check_signals(ignore)
    while True:
        start = look.last_rollback(warehouse) if since is None else since
        connection = connect(warehouse, strict=strict, inventory=keep_rolled_up(warehouse))
        alarms = look.raised_alarms(connection, since=start, ignored=ignore)
        firing = any(alarm.fired or raised for alarm in alarms)
        if firing or every is None:
            break
        state = f"{len(alarms)} raised once" if alarms else "nothing is raised"
        click.echo(f"{time.strftime('%H:%M:%S')}  {state}; looking again in {every:g} s", err=True)
        time.sleep(every)
    if as_json:
        advice = advise(warehouse, connection, alarms)
        text = as_line({"fired": firing, "since": start, "back": advice.back, "mend": advice.mend,
                        "alarms": [alarm._asdict() for alarm in alarms]})
    else:
        text = "\n".join(alarm_lines(warehouse, connection, alarms, start))
    click.echo(text)
    if firing and on_fire:
        code = subprocess.run(on_fire, shell=True, input=f"{text}\n", text=True, check=False).returncode
        click.echo(f"{on_fire}: exit code {code}", err=True)
    if firing:
        raise SystemExit(look.ALARM_EXIT_CODE)


@click.command()
@run_argument
@click.option("--iteration", type=click.IntRange(min=0), default=None,
              help="Training iteration; the last when left out.")
@click.option("--num", type=click.IntRange(min=1), default=15, show_default=True, help="Tokens to list.")
@shows_errors
def gaps(run: Path, iteration: int | None, num: int) -> None:
    """List the tokens on which engine and trainer disagree most."""
    from warehouse.inspect.gaps import gap_lines
    from warehouse.sql.database import connect
    warehouse = open_run(run)
    width = shutil.get_terminal_size((120, 24)).columns
    click.echo("\n".join(gap_lines(warehouse, connect(warehouse), iteration, num, width)))
