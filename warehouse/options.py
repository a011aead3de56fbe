"""Command-line pieces that all rooms share: the RUN argument, its config file, and how errors are shown."""

from __future__ import annotations

import functools
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from warehouse.stages.stop import STOPPED_EXIT_CODE, StageStopped
from warehouse.store.errors import StageError

# Tables that RUN/config.toml may hold: the stages, commands of `warehouse` and `reports` by their names, and
# for all of them [warehouse] (which scorer to show) and [queries] (saved queries of the run).
TABLES = ("rollout", "score", "train", "warehouse", "queries", "summary", "sql", "watch", "check", "results",
          "build", "compare")


def _load_config(context: click.Context, _parameter: click.Parameter, value: str) -> Path:
    """Fill the command's defaults from RUN/config.toml: one table per command, flags win."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "30")  # a log file wants a line now and then, not a film
    path = Path(value) / "config.toml"
    if not path.exists():
        return Path(value)
    try:
        tables = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise click.ClickException(f"{path} is not valid TOML: {error}.") from error
    unknown = sorted(tables.keys() - set(TABLES))
    if unknown:
        raise click.ClickException(f"{path} has a table [{unknown[0]}]. The tables are named after the "
                                   f"commands: {', '.join(TABLES)}.")
    context.default_map = _defaults(context.command, tables, path)
    return Path(value)


def _defaults(command: click.Command, tables: dict[str, Any], path: Path) -> dict[str, Any]:
    """Values of the command's table by parameter name; the keys are the long options without dashes."""
    known = {option.removeprefix("--"): parameter for parameter in command.params for option in parameter.opts
             if option.startswith("--")}
    defaults = {}
    for key, setting in tables.get(command.name or "", {}).items():
        parameter = known.get(key.replace("_", "-"))
        if parameter is None:
            raise click.ClickException(f"{path}: [{command.name}] has no option '{key}'. "
                                       f"Known: {', '.join(sorted(known))}.")
        many = isinstance(parameter, click.Option) and parameter.multiple and not isinstance(setting, list)
        defaults[str(parameter.name)] = [setting] if many else setting
    return defaults


run_argument = click.argument("run", type=click.Path(), is_eager=True, callback=_load_config)
iteration_option = click.option("--iteration", type=click.IntRange(min=0), default=None,
                                help="Iteration to work on; the next one due when left out.")
purpose_option = click.option("--purpose", default=None, help="'train', 'eval' or 'eval-<label>'.")


def shows_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """A StageError becomes one line and exit code 1, a stop exit code 75; a bug keeps its traceback."""
    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except StageError as error:
            raise click.ClickException(str(error)) from error
        except StageStopped as stopped:
            click.echo(str(stopped), err=True)
            sys.exit(STOPPED_EXIT_CODE)
    return guarded
