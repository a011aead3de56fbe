"""The command `rollout`."""

import functools
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rollout.options import RolloutOptions
from warehouse.fields import options_from, options_of
from warehouse.options import TitledCommand, run_argument, shows_errors, with_version
from warehouse.store.commit import by_address

# Modules that `warehouse warm` imports in advance; its one process for rollouts keeps the engine.
LOADS, STAYS = ("rollout.run",), True


def prepare_to_load() -> None:
    """Set what must be set before torch is imported, also by others."""
    from rollout.engines.environment import prepare_environment
    prepare_environment()


def check_values(values: dict[str, Any]) -> None:
    """StageError for options that contradict each other."""
    from rollout.settings import check_options
    check_options(options_from(RolloutOptions, values))


@with_version
@click.command(cls=TitledCommand, check=check_values, context_settings={"show_default": True})
@run_argument
@options_of(RolloutOptions)
@shows_errors
@click.pass_context
def rollout(context: click.Context, run: Path, **values: Any) -> None:
    """Sample completions for the tasks of run folder RUN with its current policy.

    Run it again after a kill to sample what is missing. Exit codes: 0 done, 1 error, 75 stopped by a signal
    or the time limit (run it again).
    """
    from rollout.run import run_rollout
    typed = [name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    options = options_from(RolloutOptions, {"run": run, **values})
    if (options.distil or options.turn > 1) and "carry_over" not in typed:
        options = options.replace(carry_over=None)     # config.toml says this for training iterations
    for line in run_rollout(options, say=functools.partial(click.echo, err=True), typed=typed):
        click.echo(by_address(line))


def default_options(run: Path) -> RolloutOptions:
    """The options of `rollout RUN`: those in config.toml, else the defaults."""
    return options_from(RolloutOptions, rollout.make_context("rollout", [str(run)]).params)
