"""The `train` command: scored groups become the next policy."""

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from train.inputs.options import DTYPES, AskOptions, TrainOptions
from warehouse.fields import options_from, options_of
from warehouse.options import (
    TRACKERS,
    RunFolder,
    TitledCommand,
    open_run,
    run_argument,
    shows_errors,
    with_version,
)
from warehouse.stages import warm
from warehouse.store.commit import by_address
from warehouse.store.errors import SettingChanged, StageError, shell_quote

# Modules that `warehouse warm` imports in advance; its training processes keep the policy loaded.
LOADS, STAYS = ("train.run",), True


def refuse_adapter_options() -> None:
    """StageError for adapter options together with --full; if --full is typed, config.toml may have them."""
    source, typed = click.get_current_context().get_parameter_source, ParameterSource.COMMANDLINE
    chosen = {typed} if source("full") == typed else {typed, ParameterSource.DEFAULT_MAP}
    names = ("lora_rank", "lora_alpha", "rslora", "lora_targets")
    given = [name for name in names if source(name) in chosen]
    if given:
        raise StageError(f"--full trains all weights, no adapter: leave --{given[0].replace('_', '-')} out.")


@click.command(context_settings={"show_default": True})
@click.argument("run", type=RunFolder())
@click.option("--policy", "--version", type=click.IntRange(min=1),
              help="Policy to export.  [default: the latest]")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder to write.")
@click.option("--dtype", type=click.Choice(DTYPES),
              help="dtype of the written weights.  [default: that of training]")
@shows_errors
def export(run: str, policy: int | None, output: Path, dtype: str | None) -> None:
    """Write a policy as a plain model; an adapter is merged into the base."""
    warehouse = open_run(run)
    version = policy or warehouse.state.newest
    if version == 0:
        raise StageError(f"{run} has only the base policy. Train one with `train {shell_quote(run)}`.")
    from train.export import export_policy
    click.echo(export_policy(warehouse, version, output, dtype=dtype))


@click.command(context_settings={"show_default": True})
@click.argument("run", type=RunFolder())
@click.option("--policy", multiple=True, type=click.IntRange(min=0), metavar="K",
              help="Policy of the run, 0 for the base; repeatable.")
@click.option("--model", multiple=True, metavar="PATH",
              help="Model folder or hub id with the run's tokenizer; repeatable.")
@click.option("--iteration", multiple=True, type=click.IntRange(min=0),
              help="Iteration; repeatable.  [default: all]")
@click.option("--purpose", default="train", help="Purpose; eval is every evaluation.")
@options_of(AskOptions)
@shows_errors
def logprobs(run: str, policy: tuple[int, ...], model: tuple[str, ...], iteration: tuple[int, ...],
             purpose: str, **values: Any) -> None:
    """Store logprobs of completions under policies or other models, in the table policy_logprobs.

    Every model is applied to every complete rollout. Run it again to continue.
    """
    if not (policy or model):
        raise StageError("Name a model: --policy K, or --model PATH.")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads crawl on a shared machine
    from train.inputs.asked import model_of_folder, model_of_policy, rollouts_to_ask_about
    warehouse = open_run(run)
    rollouts = rollouts_to_ask_about(warehouse, iteration, purpose)
    models = [model_of_policy(warehouse, version) for version in policy]
    models += [model_of_folder(warehouse, path) for path in model]
    how = options_from(AskOptions, values)
    from train.ask import Processes, write_logprobs  # which loads torch
    from warehouse.stages.stop import StopRequest
    processes = Processes(how.device)
    with StopRequest(how.time_limit) as stop, processes.missing_none(stop):
        write_logprobs(warehouse, models, rollouts, how, processes, stop,
                       click.echo if processes.first else lambda line: None)
    processes.close()


@click.command()
@click.argument("run", type=RunFolder())
@click.argument("name", type=click.Choice(TRACKERS))
@shows_errors
def track(run: str, name: str) -> None:
    """Send the evaluations of the latest policy to a tracker.

    `train --track` sends those of earlier policies, `warehouse loop --track` both.
    """
    from train.inputs.settings import check_tracker
    warehouse = open_run(run)
    check_tracker(name)
    from train.steps.accelerator import tracker
    version = warehouse.state.newest
    with tracker(name, warehouse, version, warehouse.policy(version).get("global_step", 0) + 1):
        click.echo(f"policy {version}: its evaluations were sent to {name}")


def check_values(values: dict[str, Any]) -> None:
    """StageError for options that contradict each other, or the `group_size` of rows still to be sampled."""
    from train.inputs.settings import check_settings, needs_groups
    settings = options_from(TrainOptions, values)
    check_settings(settings)
    if values.get("group_size") == 1 and needs_groups(settings):
        raise StageError("With group-size = 1 below [rollout] every advantage is 0 whatever the reward. "
                         "Raise it, or set advantages of your own below [train].")


@with_version
@click.command(cls=TitledCommand, beside=(export, logprobs, track), check=check_values,
               context_settings={"show_default": True},
               epilog="`train export` writes a policy as a plain model, `train logprobs` stores logprobs "
                      "under any policy, `train track` sends the last evaluations to a tracker; `warehouse "
                      "doctor --model MODEL` says how a model can be trained.")
@run_argument
@options_of(TrainOptions)
@shows_errors
def train(run: Path, **values: Any) -> None:
    """Train on the scored rows of one iteration and write the next policy.

    Run it again after a kill to finish the stage. Exit codes: 0 done, 1 error, 3 mismatch above the limit, 75
    stopped by a signal or the time limit (run it again).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads crawl on a shared machine
    # Packs differ in length, which would fragment GPU memory in fixed segments.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    from train.inputs.asked import model_of_folder
    from train.inputs.inputs import due_iteration, finish_committed, nothing_due, read_inputs, scorer_to_train
    from train.inputs.settings import check_settings, fill_in
    from train.inputs.signal import check_signal
    from warehouse.maintain.prune import prune_policies
    from warehouse.stages.space import saying_the_disk_is_full
    say = click.echo if os.environ.get("RANK", "0") == "0" else lambda _line: None
    settings = options_from(TrainOptions, values)
    if settings.full:
        refuse_adapter_options()
    check_settings(settings)
    warehouse, iteration = open_run(run), settings.iteration
    teacher = model_of_folder(warehouse, settings.teacher) if settings.teacher else None
    settings = settings.replace(teacher=teacher and teacher.name)
    if iteration is None:
        if (iteration := due_iteration(warehouse, settings.purpose)) is None:
            say(by_address(nothing_due(warehouse, settings.purpose)))
            return
        say(f"iteration {iteration} is due")
    stage = warehouse.stage("train", iteration=iteration)
    if warehouse.state.is_trained(iteration) and not settings.dry_run:
        trained = str(stage.life.facts.get("scorer", "")) if stage.life else ""
        if settings.scorer and trained and settings.scorer not in (trained, trained.rpartition("-")[0]):
            raise SettingChanged(stage.title, "scorer", trained, settings.scorer,
                                 f"To use that, {stage.way_to_discard()}.")
        if before := stage.settings():      # refuse other options
            limit = settings.max_completion_length or before.get("max_completion_length")
            stage.settle(before | settings.replace(max_completion_length=limit).results())
        left_out = iteration in warehouse.state.left_out
        say(f"iteration {iteration} " + ("was left out of training by a rollback" if left_out else
                                         f"is trained already: policy {iteration + 1}"))
        prune_policies(warehouse, settings.keep_policies, say)  # a kill may have prevented it
        return
    scorer = scorer_to_train(warehouse, iteration, settings.scorer, settings.purpose)
    said, tasks = warehouse.state.change_of_scorer(iteration, scorer)
    if said:
        say(f"{said}: {tasks}" if tasks else said)
    elif len(warehouse.state.scorers(iteration, settings.purpose)) > 1:
        say(f"rewards of {scorer}")
    inputs = read_inputs(warehouse, iteration, scorer, settings)
    settings = fill_in(settings, inputs.groups)
    if not settings.dry_run and finish_committed(warehouse, inputs, settings):
        say(f"iteration {iteration} had written policy {iteration + 1} already; its manifest is complete now")
        prune_policies(warehouse, settings.keep_policies, say)
        return
    check_signal(inputs, settings)
    from train.run import train_iteration  # torch loads once rows and options are known to be good
    with saying_the_disk_is_full(warehouse.root):
        train_iteration(warehouse, inputs, settings, started=warm.started, say=click.echo, teacher=teacher)
