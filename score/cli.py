"""The command `score`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from warehouse.options import iteration_option, purpose_option, run_argument, shows_errors

OTHER_LIMITS = ("memory_mib", "open_files", "output_kib", "source_kib", "threads")
REWARDS = ("arc-v1", "arc-v2-no-pixel-score", "arc-exact-shaped", "arc-v0", "arc-v0.5")


class WithDefault(click.Group):
    """A group with a default command: `score RUN` beside `score diff RUN A B`."""

    default: click.Command

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        import sys
        arguments = list(sys.argv[1:] if args is None else args)
        if arguments and arguments[0] in self.commands:
            return super().main(arguments, *rest, **options)
        return self.default.main(arguments, *rest, **options)


@click.group(cls=WithDefault)
def score() -> None:
    """Run the programs of completions and write their rewards."""


def limit_options(command: Any) -> Any:
    """The options that bound one program."""
    for name, kind, default, words in reversed((
            ("--cpu-seconds", float, 1.0, "CPU time of a program, all inputs together."),
            ("--wall-seconds", float, None, "Wall time of a program. [default: 5 x CPU]"),
            ("--memory-mib", int, 512, "Memory of a program above that of an empty process."),
            ("--open-files", int, 32, "Open files of a program."),
            ("--output-kib", int, 64, "Size of a program's answer."),
            ("--source-kib", int, 64, "Size of a program."))):
        command = click.option(name, type=kind, default=default, help=words,
                               show_default=default is not None)(command)
    threads = click.option("--threads", is_flag=True, help="Let programs start threads; processes never.")
    return threads(command)


@click.command("score", context_settings={"show_default": True}, epilog="""
Other commands: `score diff RUN A B` compares two scorers, `score explain RUN COMPLETION` shows one verdict,
`score try FILE --task ID RUN` runs a program from a file, `score doctor` shows what isolation there is.
""")
@run_argument
@iteration_option
@purpose_option
@click.option("--reward", type=click.Choice(REWARDS), default="arc-v1", help="How measures become a reward.")
@click.option("--parameter", "parameters", multiple=True, metavar="NAME=VALUE",
              help="Parameter of the reward, for example shaping=0.2; may be repeated.")
@limit_options
@click.option("--allow-import", "imports", multiple=True, metavar="MODULE",
              help="Further module that programs may import, for example scipy; may be repeated.")
@click.option("--import-path", "import_paths", multiple=True, type=click.Path(exists=True, file_okay=False),
              help="Folder with modules of your own named by --allow-import.")
@click.option("--preload", multiple=True, metavar="MODULE",
              help="Import once per lane instead of once per program that mentions it.")
@click.option("--lanes", type=click.IntRange(min=1), default=None, show_default=False,
              help="Programs running at a time. [default: one per usable core]")
@click.option("--tier", type=click.Choice(["A", "B", "C"]), default=None, show_default=False,
              help="Isolation to insist on. [default: the best there is]")
@click.option("--unsafe-no-sandbox", "unsafe", is_flag=True,
              help="Run foreign programs without isolation; every row then says so.")
@shows_errors
def score_rollouts(run: Path, **values: Any) -> None:
    """Run the programs in the completions of run folder RUN and write their rewards.

    Scores every complete rollout that this scorer has not scored, or the one named. Run again after a
    kill, it scores what is missing; with another reward or other limits it is another scorer, whose rows
    stand beside the former ones.
    """
    from score.run import ScoreOptions, run_score

    scorer = scorer_of(values)
    run_score(ScoreOptions(run=run, scorer=scorer, **values), click.echo)


def scorer_of(values: dict[str, Any]) -> Any:
    """The scorer that the options describe; they are taken out of `values`."""
    from score.limits import Limits
    from score.scorer import Scorer

    cpu_seconds, wall_seconds = values.pop("cpu_seconds"), values.pop("wall_seconds")
    limits = Limits(cpu_seconds=cpu_seconds, wall_seconds=wall_seconds or 5 * cpu_seconds,
                    **{name: values.pop(name) for name in OTHER_LIMITS})
    return Scorer(values.pop("reward"), parameters_of(values.pop("parameters")), limits,
                  tuple(sorted(values.pop("imports"))))


def parameters_of(texts: tuple[str, ...]) -> dict[str, float]:
    """NAME=VALUE texts as numbers; StageError for anything else."""
    from warehouse.errors import StageError

    parameters = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            parameters[name] = float(value)
        except ValueError:
            raise StageError(f"--parameter {text} is not NAME=NUMBER, for example shaping=0.2.") from None
    return parameters


WithDefault.default = score_rollouts
