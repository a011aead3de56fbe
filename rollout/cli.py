"""The command `rollout`."""

import functools
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from warehouse.consent import GuardedOption
from warehouse.options import (
    FiniteRange,
    TitledCommand,
    iteration_option,
    option_group,
    run_argument,
    shows_errors,
    with_version,
)
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
@option_group("Set first")
@click.option("--num-tasks", type=click.IntRange(min=1), default=None,
              help="Tasks per iteration; all when left out. An evaluation samples all unless it is typed.")
@click.option("--group-size", type=click.IntRange(min=1), default=16, help="Completions sampled per prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=1024, help="Limit on completion tokens.")
@click.option("--temperature", type=FiniteRange(min=0), default=1.0,
              help="Sampling temperature; 0 is greedy.")
@click.option("--prompt-format", cls=GuardedOption, default="chat", metavar="NAME|FILE.py:NAME",
              help="Prompt format of grid tasks, with or without '@version', or a function of your own.")
@click.option("--eval", "evaluate", is_flag=True,
              help="Evaluate: sample each of the held-out splits, not to train on.")
@option_group("Which tasks, and which policy")
@iteration_option
@click.option("--split", "splits", multiple=True, help="Split to sample; may be repeated. "
              "[default: all that are not held out; with --eval all that are]", show_default=False)
@click.option("--tasks-sql", default=None, metavar="QUERY",
              help="Sample only the tasks whose task_id this query over the warehouse gives.")
@click.option("--label", default=None, help="Name of this evaluation, whatever its splits: eval-LABEL. "
              "[default: each split is an evaluation]", show_default=False)
@click.option("--policy-version", type=int, default=None, help="Policy to sample with; the iteration's own "
              "when left out.")
@click.option("--seed", type=int, default=0, help="Seed of everything that is drawn.")
@option_group("Prompts")
@click.option("--format-option", "format_options", multiple=True, metavar="NAME=VALUE",
              help="Option of the prompt format, as encoder=digits+shape, or of the model's chat "
                   "template, as enable_thinking=false; may be repeated.")
@click.option("--augment", "augmentation", type=click.Choice(["none", "dihedral", "colors", "all"]),
              default="none", help="Augmentation of grid tasks, drawn per prompt.")
@click.option("--shuffle-pairs", is_flag=True, help="Show the train pairs in an order drawn per prompt.")
@click.option("--prompts-per-task", type=click.IntRange(min=1), default=1,
              help="Prompts per task, each with its own augmentation.")
@click.option("--max-prompt-tokens", type=click.IntRange(min=1), default=None,
              help="Leave out longer prompts. [default: what the model holds less --max-tokens]",
              show_default=False)
@option_group("Later turns")
@click.option("--turn", type=click.IntRange(min=1), default=1,
              help="Turn of the conversations; from 2 on, completions of the turn before are answered.")
@click.option("--from", "parents_sql", default=None, metavar="QUERY",
              help="Answer the completions that this query over the warehouse gives: task_id, sample_index. "
              "[default: the wrong ones of the turn before, best first]", show_default=False)
@click.option("--parents-per-task", type=click.IntRange(min=1), default=None,
              help="Completions of a task to answer, each by a group. [default: 1; with --from all it gives]",
              show_default=False)
@click.option("--feedback", cls=GuardedOption, default="tests", metavar="NAME|FILE.py:NAME",
              help="What an answer says: tests (train pairs, or the first failing test), error (no test), "
              "or a function of your own.")
@click.option("--max-turns", type=click.IntRange(min=1), default=4, help="Turns beyond this are refused.")
@option_group("Sampling")
@click.option("--top-p", type=FiniteRange(0, 1), default=1.0, help="Nucleus truncation; 1 is none.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Top-k truncation; 0 is none.")
@click.option("--min-p", type=FiniteRange(0, 1), default=0.0, help="Min-p truncation; 0 is none.")
@click.option("--repetition-penalty", type=FiniteRange(), default=1.0,
              help="1 is none; counts the prompt's tokens too.")
@click.option("--presence-penalty", type=FiniteRange(), default=0.0, help="0 is none.")
@click.option("--frequency-penalty", type=FiniteRange(), default=0.0, help="0 is none.")
@click.option("--allow-truncated-sampling", is_flag=True,
              help="Allow truncation and penalties in a training rollout.")
@click.option("--stop-loops", type=click.IntRange(min=3), default=None, metavar="TIMES",
              help="End a completion when its end is the same 1 to 64 tokens so many times; 32 spares grids "
              "written out.")
@click.option("--stop-when-code-closes", is_flag=True,
              help="End a completion with its first closed ```python block.")
@option_group("Engine")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
              help="Weights and activations.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=128,
              help="Completions sampled at a time.")
@click.option("--gpu-memory-utilization", type=FiniteRange(0, 1, min_open=True), default=0.9,
              help="Share of the GPU's memory the engine takes.")
@click.option("--tensor-parallel-size", type=click.IntRange(min=1), default=1, help="GPUs the engine spans.")
@click.option("--quantization", default=None, help="vLLM's quantization, for example fp8 or bitsandbytes.")
@click.option("--serve", type=click.Choice(["auto", "adapter", "merged"]), default="auto",
              help="Serve the adapter beside the base, or added into it. auto: merged in float32 and on a "
              "CPU, else beside it.")
@option_group("Running servers, and models of other makers")
@click.option("--endpoint", default=None, metavar="URL[,URL..]", envvar="ROLLOUT_ENDPOINT",
              help="Sample from these running vLLM servers instead of starting an engine. The variable "
              "ROLLOUT_ENDPOINT says it too.")
@click.option("--model", cls=GuardedOption, default=None, metavar="NAME",
              help="Ask this model of another maker, through the OpenAI-compatible API at --endpoint; needs "
              "--eval or --distil.")
@click.option("--distil", is_flag=True,
              help="Gather what --model says to the training tasks, for `train --loss nll`.")
@click.option("--api-key-variable", cls=GuardedOption, default="OPENAI_API_KEY", metavar="NAME",
              help="Environment variable that holds the API's key.")
@click.option("--cache", type=click.Path(path_type=Path), default=None,
              help="Folder that keeps the answers of --model: nothing is asked twice, in any run.")
@option_group("Run, stop and resume")
@click.option("--carry-over", default=None, metavar="SHARE|Ngroups|SECONDSs",
              help="End when this share of the completions (0.9), so many groups (24groups) or seconds "
              "(600s) are done; the next iteration goes on with the others.")
@click.option("--shard", default="0/1", metavar="INDEX/COUNT",
              help="Sample this share of the parts, as one of several workers.")
@click.option("--part-size", type=click.IntRange(min=1), default=2048, help="Completions per part.")
@click.option("--spill-seconds", type=FiniteRange(min=0), default=60.0,
              help="Save what is finished of unfinished parts this often.")
@click.option("--time-limit", type=FiniteRange(min=0), default=None,
              help="Seconds after which to stop and exit with 75, to be run again.")
@click.option("--grace", type=FiniteRange(min=0), default=0.0,
              help="Seconds to go on sampling after SIGTERM or SIGINT before stopping with 75.")
@click.option("--accept-change", multiple=True, metavar="SETTING",
              help="Go on although this setting differs from the earlier run's; recorded. May be repeated.")
@click.option("--accept-drift", multiple=True, hidden=True)  # its name in version 0.2.0
@shows_errors
@click.pass_context
def rollout(context: click.Context, run: Path, **values: Any) -> None:
    """Sample completions for the tasks of run folder RUN with its current policy.

    Takes the next iteration due unless --iteration names one. Run again after a kill, it samples what is
    missing; run again after it is complete, it does nothing. Exit codes: 0 done, 1 cannot be done, 75
    stopped by a signal or the time limit: run it again.
    """
    from rollout.options import RolloutOptions
    from rollout.run import run_rollout
    others = values["evaluate"] or values["distil"] or values["turn"] > 1
    for name, left_out in (("num_tasks", values["evaluate"]), ("carry_over", others)):
        if left_out and context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            values[name] = None     # what config.toml says of the training's iterations
    options = RolloutOptions.parse({"run": run, **values})
    for line in run_rollout(options, say=functools.partial(click.echo, err=True)):
        click.echo(by_address(line))


def default_options(run: Path) -> Any:
    """The RolloutOptions of `rollout RUN`: what config.toml says, else the defaults."""
    from rollout.options import RolloutOptions
    return RolloutOptions.parse(rollout.make_context("rollout", [str(run)]).params)
