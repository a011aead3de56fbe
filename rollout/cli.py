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

# What `warehouse warm` imports beforehand; its one process for rollouts keeps the engine.
LOADS, STAYS = ("rollout.run",), True


def prepare_to_load() -> None:
    """What has to be set before torch is imported, also where others import it first."""
    from rollout.engines.environment import prepare_environment
    prepare_environment()


@with_version
@click.command(cls=TitledCommand, context_settings={"show_default": True})
@run_argument
@options_of(RolloutOptions)
@shows_errors
@click.pass_context
def rollout(context: click.Context, run: Path, **values: Any) -> None:
    """Sample completions for the tasks of run folder RUN with its current policy.

    Takes the next iteration due unless --iteration names one. Run again after a kill, it samples what is
    missing; run again after it is complete, it does nothing. Exit codes: 0 done, 1 cannot be done, 75
    stopped by a signal or the time limit: run it again.
    """
    from rollout.run import run_rollout
    options = options_from(RolloutOptions, {"run": run, **values})
    others = options.evaluate or options.distil or options.turn > 1
    for name, left_out in (("num_tasks", options.evaluate), ("carry_over", others)):
        if left_out and context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            options = options.replace(**{name: None})     # what config.toml says of the training's iterations
    for line in run_rollout(options, say=functools.partial(click.echo, err=True)):
        click.echo(by_address(line))


def default_options(run: Path) -> RolloutOptions:
    """The options of `rollout RUN`: what config.toml says, else the defaults."""
    return options_from(RolloutOptions, rollout.make_context("rollout", [str(run)]).params)
