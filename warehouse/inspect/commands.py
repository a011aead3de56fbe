"""Commands for a closer look: history and alarms."""

import json
from pathlib import Path

import click

from warehouse.options import as_line, json_option, open_run, run_argument, shows_errors, strict_option
from warehouse.store.commit import by_address
from warehouse.store.errors import printable


@click.command("log")
@run_argument
@click.option("--last", "-n", type=click.IntRange(min=1), default=None, help="Print only this many entries.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per entry.")
@shows_errors
def log_command(run: Path, last: int | None, as_json: bool) -> None:
    """Print the history of the run, latest first."""
    from warehouse.inspect.history import history, history_lines
    rows = history(open_run(run).state)[:last]
    lines = [json.dumps(row) for row in rows] if as_json else history_lines(rows)
    click.echo(by_address(printable("\n".join(lines))))


@click.command()
@run_argument
@click.option("--since", type=click.IntRange(min=0), default=None,
              help="First iteration to judge. [default: after the last rollback]")
@click.option("--ignore", multiple=True, metavar="SIGNAL", help="Signal to ignore; repeatable.")
@click.option("--raised", is_flag=True, help="Exit with 3 also for signals raised once.")
@json_option
@strict_option
@shows_errors
def watch(run: Path, since: int | None, ignore: tuple[str, ...], raised: bool, as_json: bool,
          strict: bool) -> None:
    """Evaluate the alarms; exit code 3 when any fires."""
    from warehouse.inspect import alarms as look
    from warehouse.inspect.advice import advise, alarm_lines
    from warehouse.sql.database import compute_once, connect
    from warehouse.sql.rollup import keep_rolled_up
    warehouse = open_run(run)
    look.check_signals(ignore)
    start = look.last_rollback(warehouse) if since is None else since
    connection = compute_once(connect(warehouse, strict=strict, inventory=keep_rolled_up(warehouse)))
    alarms = look.raised_alarms(connection, since=start, ignored=ignore)
    firing = any(alarm.fired or (raised and not alarm.over) for alarm in alarms)
    if as_json:
        advice = advise(warehouse, connection, alarms)
        click.echo(as_line({"fired": firing, "since": start, "back": advice.back, "mend": advice.mend,
                            "alarms": [alarm._asdict() for alarm in alarms]}))
    else:
        click.echo("\n".join(alarm_lines(warehouse, connection, alarms, start)))
    if firing:
        raise SystemExit(look.ALARM_EXIT_CODE)
