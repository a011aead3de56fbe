"""The commands of `score` that look at verdicts and at single programs."""

import sys
from pathlib import Path
from typing import Any

import click

from score.options import LaneOptions, LimitOptions, RewardOptions, TierOptions, settled_reward
from warehouse.fields import options_from, options_of
from warehouse.options import RunFolder, TitledCommand, config_defaults, run_folder, shows_errors


def limits_of_score(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Fill the defaults of a command from the table [score] of a config file, else of the run's."""
    from warehouse.objects.bucket import is_address
    from warehouse.objects.place import sync_copy
    from warehouse.store.errors import StageError
    if value is not None and (is_address(value) or parameter.name == "config" or Path(value).is_dir()):
        try:
            path = value if parameter.name == "config" else sync_copy(value, config_only=True) / "config.toml"
            defaults = config_defaults(context.command, path, "score",
                                       others=True) if path.parent.is_dir() else {}
        except StageError as error:
            raise click.ClickException(str(error)) from error
        context.default_map = {**(context.default_map or {}), **defaults}
    return value


@click.command("diff")
@run_folder
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--examples", type=click.IntRange(min=0), default=3, show_default=True,
              help="Completions to show per kind of change.")
@click.option("--purpose", default=None, help="Rows of this purpose, as train or eval. [default: all]")
@shows_errors
def diff(run: Path, first: str, second: str, examples: int, purpose: str | None) -> None:
    """Compare what scorers A and B say about the same completions of RUN.

    A and B are scorers as in the view scorers; a name without its hash means the newest in each iteration.
    """
    from score.inspect.diff import diff_lines
    for line in diff_lines(run, first, second, examples, purpose):
        click.echo(line)


@click.command("explain")
@run_folder
@click.argument("completion", metavar="ITERATION/[PURPOSE/]TASK/INDEX")
@click.option("--scorer", default=None,
              help="Scorer. [default: as in the view scorers]")
@shows_errors
def explain(run: Path, completion: str, scorer: str | None) -> None:
    """Show one completion: prompt, program, outputs, expected outputs, verdict and reward."""
    from score.inspect.explain import explain_completion
    click.echo(explain_completion(run, completion, scorer, colors=sys.stdout.isatty()))


@click.command("try", cls=TitledCommand)
@click.argument("run", type=RunFolder(path_type=Path), is_eager=True, callback=limits_of_score)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--task", "task_id", required=True, help="Id of the task.")
@options_of(RewardOptions)
@options_of(LimitOptions)
@options_of(LaneOptions)
@options_of(TierOptions)
@shows_errors
def try_program(run: Path, file: Path, task_id: str, **values: Any) -> None:
    """Run the program in FILE on one task of RUN in the sandbox and show its reward.

    FILE may be a whole answer with a code block. A reward file sees it as the completion, without tokens.
    """
    from score.inspect.explain import try_file
    click.echo(try_file(run, file, task_id, settled_reward(options_from(RewardOptions, values)),
                        options_from(LimitOptions, values), options_from(LaneOptions, values),
                        options_from(TierOptions, values), colors=sys.stdout.isatty()))
