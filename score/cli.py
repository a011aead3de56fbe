"""The command `score`."""

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from score.inspect.commands import (
    diff,
    explain,
    lane_options,
    limit_options,
    limits_of_score,
    tier_options,
    try_program,
)
from warehouse.consent import GuardedOption
from warehouse.options import (
    FiniteRange,
    TitledCommand,
    iteration_option,
    open_run,
    option_group,
    purpose_option,
    run_argument,
    shows_errors,
    with_version,
)

LOADS = ("score.run",)               # what `warehouse warm` imports beforehand
REWARDS = ("arc-v1", "arc-v2-no-pixel-score", "arc-exact-shaped", "arc-v0", "arc-v0.5", "exact",
           "tests-share", "graded")


@click.command("gold", cls=TitledCommand)
@click.argument("where", metavar="RUN|SOURCE", is_eager=True, callback=limits_of_score)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
              callback=limits_of_score, expose_value=False, help="Limits as its table [score] has them.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File for a line of JSON about each solution.")
@limit_options
@lane_options
@tier_options
@shows_errors
def gold(where: str, file: Path | None, output: Path | None, **values: Any) -> None:
    """Judge canonical solutions: all of them should be right.

    SOURCE is what --tasks of `warehouse init` takes, and may bring solutions. Those in FILE go before them:
    it has lines of JSON with task_id and code, or text for a whole answer. Tasks whose tests are passed
    by a program that solves nothing (a constant, its argument, an object equal to everything, exit code 0)
    are named, too.
    """
    from score.gold import score_gold
    from score.sandbox.limits import Limits
    for line in score_gold(where, file, output, Limits.of(values), **values):
        click.echo(line)


@with_version
@click.command(cls=TitledCommand, beside=(diff, explain, gold, try_program),
               context_settings={"show_default": True}, epilog="""
Other commands, each with --help: `score diff RUN A B` compares two scorers, `score explain RUN COMPLETION`
shows one verdict, `score try RUN FILE --task ID` runs a program from a file, `score gold RUN FILE`
judges canonical solutions; `warehouse doctor score` says what isolation this machine offers.
""")
@run_argument
@option_group("Reward")
@click.option("--reward", type=click.Choice(REWARDS), default=None, show_default=False,
              help="How measures become a reward. [default: that of each kind of task]")
@click.option("--parameter", multiple=True, metavar="NAME=VALUE",
              help="Parameter of the reward, for example shaping=0.2; may be repeated.")
@click.option("--reward-file", cls=GuardedOption, unless="reward", default=None, metavar="FILE.py:NAME",
              help="A reward function of your own, with TRL's signature, instead of --reward.")
@click.option("--scorer", cls=GuardedOption, unless="reward", default=None, hidden=True)   # now --reward-file
@click.option("--weight", multiple=True, metavar="TERM=FACTOR",
              help="Factor of a term of the reward, for example pixel_score=0; may be repeated.")
@click.option("--truncated-zero", is_flag=True, help="Reward 0 for completions that were cut off.")
@click.option("--ngram-penalty", type=FiniteRange(min=0), default=0.0,
              help="Take off this much times the share of 4-grams that repeat an earlier one.")
@click.option("--length-tie-break", type=FiniteRange(min=0), default=0.0,
              help="Add up to this much to the shortest of a group's right answers.")
@option_group("Which rollouts")
@iteration_option
@purpose_option
@limit_options
@lane_options
@tier_options
@option_group("Run, stop and resume")
@click.option("--shard", default="0/1", metavar="INDEX/COUNT",
              help="Score this share of the parts; the others belong to other workers.")
@click.option("--time-limit", type=FiniteRange(min=0), default=None,
              help="Seconds after which to stop and exit with 75, to be run again.")
@click.option("--grace", type=FiniteRange(min=0), default=30.0,
              help="Seconds to finish the part in hand after SIGTERM or SIGINT before it is dropped.")
@shows_errors
def score(run: Path, **values: Any) -> None:
    """Run the programs in the completions of run folder RUN and write their rewards.

    Scores every complete rollout that this scorer has not scored, or the iteration named. Run again after a
    kill, it scores what is missing; of a rollout that is still under way it scores the complete parts and
    exits with 75, as it does on SIGTERM and at the time limit. With another reward or other limits it is
    another scorer, whose rows stand beside those of the former.
    """
    from score.rewards.named import default_reward
    from score.run import ScoreOptions, run_score
    from score.tasks.kinds import graders_of
    from warehouse.stages.shard import Shard
    warehouse = open_run(run)
    kinds = set(warehouse.read("tasks", columns=["kind"]).column("kind").to_pylist())
    told = ["kind", "payload"] if "verifiers" in kinds else ["kind"]           # payloads may be gigabytes
    graders = graders_of(((row["kind"], row.get("payload")) for row in
                          warehouse.read("tasks", columns=told).to_pylist()), values["import_path"])
    _settle_reward(values)
    values["reward"] = values["reward"] or default_reward(kinds)
    scorer = scorer_of(values, graders.versions, warehouse.state.replaced_payloads)
    values["preload"] = (*values["preload"], *graders.modules)
    values["shard"] = Shard.parse(values["shard"])
    run_score(ScoreOptions(run=run, scorer=scorer, **values), click.echo)


def _settle_reward(values: dict[str, Any]) -> None:
    """A --reward that was typed takes the place of a reward file that config.toml names."""
    from warehouse.store.errors import StageError
    source = click.get_current_context().get_parameter_source
    if source("reward") is ParameterSource.COMMANDLINE:
        if ParameterSource.COMMANDLINE in (source("reward_file"), source("scorer")):
            raise StageError("--reward and --reward-file are two rewards. Leave one of them out.")
        values |= {"reward_file": None, "scorer": None}


def scorer_of(values: dict[str, Any], graders: dict[str, str], replaced: dict[str, str]) -> Any:
    """The scorer that the options describe for the run's tasks; they are taken out of `values`."""
    from score.rewards.scorer import Scorer
    from score.rewards.shaping import Shaping
    from score.sandbox.limits import Limits
    from warehouse.stages.user_code import load_function
    limits = Limits.of(values)
    shaping = Shaping(numbers_of(values.pop("weight"), "--weight", "pixel_score=0"),
                      **{name: values.pop(name) for name in ("truncated_zero", "ngram_penalty",
                                                             "length_tie_break")})
    former_option = values.pop("scorer")
    reward_file = values.pop("reward_file") or former_option
    return Scorer(values.pop("reward"), numbers_of(values.pop("parameter"), "--parameter", "shaping=0.2"),
                  limits, tuple(sorted(values.pop("allow_import"))), shaping,
                  load_function(reward_file, "--reward-file") if reward_file else None, graders, replaced)


def numbers_of(texts: tuple[str, ...], option: str, example: str) -> dict[str, float]:
    """NAME=VALUE texts as numbers; StageError for anything else."""
    from warehouse.store.errors import StageError
    numbers = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            numbers[name] = math.nan
        if not math.isfinite(numbers[name]):
            raise StageError(f"{option} {text} is not NAME=NUMBER, for example {example}.")
    return numbers
