"""The command `score`."""

from pathlib import Path
from typing import Any

import click

from score.inspect.commands import diff, explain, limits_of_score, try_program
from score.options import REWARDS, LaneOptions, LimitOptions, ScoreOptions, TierOptions, settled_reward
from warehouse.fields import options_from, options_of
from warehouse.options import TitledCommand, open_run, run_argument, shows_errors, with_version
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError

LOADS, STAYS = ("score.run",), True  # what `warehouse warm` imports beforehand; lanes are kept


@click.command("gold", cls=TitledCommand)
@click.argument("where", metavar="RUN|SOURCE", is_eager=True, callback=limits_of_score)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), is_eager=True,
              callback=limits_of_score, expose_value=False,
              help="Config file with limits below [score].")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=None,
              help="File for one line of JSON per solution.")
@options_of(LimitOptions)
@options_of(LaneOptions)
@options_of(TierOptions)
@shows_errors
def gold(where: str, file: Path | None, output: Path | None, **values: Any) -> None:
    """Judge canonical solutions, which should all be right; exit code 1 if they are not.

    SOURCE is as in `warehouse init --tasks`. Its solutions count unless FILE has others: lines of JSON with
    task_id and code, or text for a whole answer. Tasks that a program passes without solving anything (a
    constant, its argument, an object equal to everything, exit code 0) are named, too.
    """
    from score.gold import score_gold
    lines, are_right = score_gold(where, file, output, options_from(LimitOptions, values).limits,
                                  options_from(LaneOptions, values), options_from(TierOptions, values))
    click.echo("\n".join(lines))
    raise SystemExit(0 if are_right else 1)


def check_reward(values: dict[str, Any]) -> None:
    """StageError for a reward without its function or tasks, or of another `scorer` than `train` wants."""
    from score.rewards.named import BY_KIND, check_kinds
    from warehouse.ledger.state import is_named
    from warehouse.stages.user_code import load_function
    file, reward, wanted = values["reward_file"], values["reward"], values.get("scorer")
    named = load_function(file, "--reward-file").name if file else reward
    kinds = values.get("kinds") or (kinds_in(values["run"]) if isinstance(values["run"], Path) else ())
    if not file and kinds:                      # `init` asks before it has read tasks, too
        check_kinds(reward, kinds)
    made = [named] if named else [*REWARDS, BY_KIND]
    if wanted and not any(is_named(wanted, name) for name in made):
        raise StageError(f"[score] of config.toml makes the scorer {named or 'of the default reward'}, and "
                         f"[train] wants the rewards of {wanted}. Put its reward or reward-file into "
                         "[score], or take scorer out of [train].")


def kinds_in(run: Path) -> set[str]:
    return set(open_run(run).read("tasks", columns=["kind"]).column("kind").to_pylist())


@with_version
@click.command(cls=TitledCommand, beside=(diff, explain, gold, try_program), check=check_reward,
               context_settings={"show_default": True}, epilog="""
`score diff` compares two scorers, `score explain` shows one verdict, `score try` runs a program from a file,
`score gold` judges canonical solutions; `warehouse doctor score` says what isolation this machine offers.
""")
@run_argument
@options_of(ScoreOptions)
@shows_errors
def score(run: Path, **values: Any) -> None:
    """Run the programs in the completions of run folder RUN and write their rewards.

    Run it again after a kill to score what is missing. Exit code 75: the rollout is unfinished, or a signal
    or the time limit stopped it (run it again). Another reward or other limits make another scorer; its rows
    are stored next to the earlier ones.
    """
    from score.checks import scorer_of
    from score.run import run_score
    options = options_from(ScoreOptions, {"run": run, **values})
    warehouse = open_run(run)
    told = ["kind", "payload"] if "graded" in kinds_in(run) else ["kind"]         # payloads may be gigabytes
    tasks = [(row["kind"], row.get("payload")) for row in warehouse.read("tasks", columns=told).to_pylist()]
    scorer, modules = scorer_of(settled_reward(options.reward), options.limits, options.lanes, tasks,
                                warehouse.state.replaced_payloads)
    run_score(options, scorer, lambda line: click.echo(by_address(line)), modules)
