"""The commands of `score` that look at verdicts and at single programs."""

import sys
from pathlib import Path
from typing import Any

import click

from warehouse.consent import GuardedOption
from warehouse.options import (
    RunFolder,
    TitledCommand,
    config_defaults,
    option_group,
    run_folder,
    shows_errors,
)

limit_options = option_group(
    "Limits of a program",
    click.option("--cpu-seconds", type=float, default=1.0, show_default=True,
                 help="CPU time of a program, all inputs together."),
    click.option("--wall-seconds", type=float, default=None, show_default=False,
                 help="Wall time of a program. [default: 5 x CPU]"),
    click.option("--memory-mib", default=512, show_default=True,
                 help="Memory of a program above that of an empty process."),
    click.option("--open-files", default=32, show_default=True, help="Open files of a program."),
    click.option("--output-kib", default=64, show_default=True, help="Size of a program's answer."),
    click.option("--source-kib", default=64, show_default=True, help="Size of a program."),
    click.option("--threads", is_flag=True, help="Let programs start threads; processes never."))
lane_options = option_group(
    "What programs may import, and lanes that run them",
    click.option("--allow-import", multiple=True, metavar="MODULE",
                 help="Further module that programs may import, for example scipy; may be repeated."),
    click.option("--import-path", cls=GuardedOption, multiple=True,
                 type=click.Path(exists=True, file_okay=False),
                 help="Folder with modules of your own named by --allow-import."),
    click.option("--preload", cls=GuardedOption, multiple=True, metavar="MODULE",
                 help="Import once per lane instead of once per program that mentions it."),
    click.option("--lanes", type=click.IntRange(min=1), default=None, show_default=False,
                 help="Programs running at a time. [default: one per usable core]"))
tier_options = option_group(
    "Isolation",
    click.option("--tier", type=click.Choice(["A", "B", "C"]), default=None, show_default=False,
                 help="Isolation to insist on. [default: the best there is]"),
    click.option("--unsafe-no-sandbox", cls=GuardedOption, is_flag=True,
                 help="Run foreign programs without isolation; every row then says so."))


def limits_of_score(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Fill the defaults of a command from the table [score] of a config file, else of the run's."""
    from warehouse.objects.place import sync_copy
    from warehouse.store.errors import StageError
    if value is not None and Path(value).exists():
        try:
            path = value if parameter.name == "config" else sync_copy(value, config_only=True) / "config.toml"
            defaults = config_defaults(context.command, path, "score") if path.parent.is_dir() else {}
        except StageError as error:
            raise click.ClickException(str(error)) from error
        context.default_map = {**(context.default_map or {}), **defaults}
    return value


@click.command("diff")
@run_folder
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--examples", type=click.IntRange(min=0), default=3, show_default=True,
              help="Completions to show of each kind of change.")
@shows_errors
def diff(run: Path, first: str, second: str, examples: int) -> None:
    """Compare what scorers A and B say about the same completions of RUN.

    A and B are identities, or names without the hash: then the newest of that name in each iteration.
    """
    from score.inspect.diff import diff_lines
    for line in diff_lines(run, first, second, examples):
        click.echo(line)


@click.command("explain")
@run_folder
@click.argument("completion", metavar="ITERATION/[PURPOSE/]TASK/INDEX")
@click.option("--scorer", default=None, help="Whose verdict; as the view scorers says when left out.")
@shows_errors
def explain(run: Path, completion: str, scorer: str | None) -> None:
    """Show one completion: prompt, program, outputs beside what was expected, verdict and reward."""
    from score.inspect.explain import explain_completion
    click.echo(explain_completion(run, completion, scorer, colors=sys.stdout.isatty()))


@click.command("try", cls=TitledCommand)
@click.argument("run", type=RunFolder(path_type=Path), is_eager=True, callback=limits_of_score)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--task", "task_id", required=True, help="Task of the run to try it on.")
@click.option("--reward", default=None,
              help="Reward to compute; as `score` would when left out, but for a reward file.")
@limit_options
@lane_options
@tier_options
@shows_errors
def try_program(run: Path, file: Path, task_id: str, **values: Any) -> None:
    """Run the program in FILE on one task of RUN, in the sandbox, and show what a completion would get."""
    from score.inspect.try_file import try_file
    click.echo(try_file(run, file, task_id, colors=sys.stdout.isatty(), **values))
