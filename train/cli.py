"""The `train` command: scored groups become the next policy."""

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from train.objective.credit import CREDITS
from train.objective.loss_table import LOSSES
from warehouse.consent import GuardedOption
from warehouse.options import (
    FiniteRange,
    RunFolder,
    TitledCommand,
    iteration_option,
    open_run,
    option_group,
    run_argument,
    shows_errors,
    with_version,
)
from warehouse.sql.corrections import CORRECTIONS, DEFAULT_CORRECTION
from warehouse.stages import warm
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError, shell_quote

POSITIVE, NOT_NEGATIVE = FiniteRange(min=0, min_open=True), FiniteRange(min=0)
SHARE = FiniteRange(min=0, max=1, max_open=True)

# What `warehouse warm` imports beforehand; its processes for trainings keep the policy.
LOADS, STAYS = ("train.run",), True


def chosen_turns(_context: click.Context, _option: click.Parameter, value: str | None) -> list[int] | None:
    """The turns that --turns names, in order."""
    if value is None:
        return None
    names = [name.strip() for name in str(value).split(",")]
    if not all(name.isdecimal() and int(name) for name in names):
        raise click.BadParameter(f"{value} is no list of turns, which count from 1. Say 2, or 1,2.")
    return sorted(set(map(int, names)))


def refuse_adapter_options(options: dict[str, Any]) -> None:
    """StageError for options of an adapter beside --full; config.toml may have some where --full is typed."""
    source, typed = click.get_current_context().get_parameter_source, ParameterSource.COMMANDLINE
    chosen = {typed} if source("full") == typed else {typed, ParameterSource.DEFAULT_MAP}
    names = ("lora_rank", "lora_alpha", "rslora", "lora_targets")
    given = [name for name in names if source(name) in chosen]
    if options["full"] and given:
        raise StageError(f"--full trains all weights, no adapter: leave --{given[0].replace('_', '-')} out.")


@click.command(context_settings={"show_default": True})
@click.argument("run", type=RunFolder())
@click.option("--version", type=click.IntRange(min=1), help="Policy to export.  [default: the latest]")
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder to write.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
              help="Of the weights written; the merge itself is in float32.  [default: as it was trained]")
@shows_errors
def export(run: str, version: int | None, output: Path, dtype: str | None) -> None:
    """Merge the adapter of a policy into the base and write a plain model."""
    warehouse = open_run(run)
    version = version or warehouse.state.newest
    if version == 0:
        raise StageError(f"{run} has no policy but the base. Train one with `train {shell_quote(run)}`.")
    from train.export import export_policy
    click.echo(export_policy(warehouse, version, output, dtype=dtype))


@with_version
@click.command(cls=TitledCommand, beside=(export,), context_settings={"show_default": True},
               epilog="`train export RUN --output FOLDER` writes the policy as one plain model; `warehouse "
                      "doctor --model MODEL` says what can be trained of a model.")
@run_argument
@option_group("Set first")
@click.option("--learning-rate", "--lr", "learning_rate", type=NOT_NEGATIVE, default=1e-5,
              help="Peak learning rate of AdamW; --lr for short.")
@click.option("--updates-per-batch", "--updates-per-shard", type=click.IntRange(min=1),
              help="Optimizer steps, at most one per group.  [default: 1]")
@click.option("--loss", default="dapo", help=f"{', '.join(LOSSES)}.")
@click.option("--lora-rank", type=click.IntRange(min=1), default=16, help="Rank of the adapter.")
@click.option("--dry-run", is_flag=True, help="Stop after the mismatch table, write nothing.")
@click.option("--explain", type=click.IntRange(min=1), metavar="K",
              help="With --dry-run: the K completions with the largest gradients, and their shares.")
@option_group("Which rows")
@iteration_option
@click.option("--purpose", default="train", help="Rows to train on; with --loss nll also 'distil' or "
              "'distil-<label>', which another model wrote.")
@click.option("--scorer", help="Whose rewards to train on; as the view scorers says when left out.")
@click.option("--turns", callback=chosen_turns, metavar="N,N",
              help="Train on these turns of conversations alone, for example 2.  [default: all]")
@click.option("--replay", type=click.IntRange(min=0), default=0,
              help="Also train on rows up to this many versions old.")
@click.option("--replay-select", metavar="SQL",
              help="Replay only these groups: a query of the warehouse that returns iteration and group_id.")
@click.option("--truncated-sampling", type=click.Choice(["refuse", "uncorrected"]), default="refuse",
              help="Rows drawn with penalties, or truncated without a record of what was left to draw from.")
@click.option("--mask-truncated/--keep-truncated", default=False,
              help="Leave completions cut off by the length limit out of the loss; their rewards count.")
@click.option("--until-signal", type=click.IntRange(min=1), metavar="GROUPS",
              help="With fewer groups of unequal rewards, pass the policy on unchanged and train on the rows "
                   "together with the next iteration's, of five rollouts at most.")
@click.option("--keep-if-nothing", is_flag=True,
              help="Write the policy unchanged when no completion has a gradient, instead of stopping.")
@option_group("Loss and advantages")
@click.option("--clip-low", type=NOT_NEGATIVE, help="Lower clip range; the loss's own default when left out.")
@click.option("--clip-high", type=NOT_NEGATIVE, help="Upper clip range; for cispo the cap itself.")
@click.option("--delta", type=POSITIVE, help="Upper bound of the unclipped ratio (two-sided clipping).")
@click.option("--max-completion-length", type=click.IntRange(min=1),
              help="Divisor of dr_grpo.  [default: max_tokens of the rows]")
@click.option("--oapl-beta", type=POSITIVE,
              help="Reward that oapl takes for one nat of log ratio to the sampling policy.  [default: 1]")
@click.option("--scale-rewards", type=click.Choice(["group", "batch", "none"]), default="group",
              help="Divide advantages by the std of the group, of the batch, or not.")
@click.option("--advantages", cls=GuardedOption, metavar="FILE.py:NAME",
              help="Your own advantages: a function of all rows that gives each a number, or one per token.")
@click.option("--credit", type=click.Choice(CREDITS),
              help="Reward of a turn: its own, the best of that and of the turns that follow from it, or "
                   "that of the last of these.  [default: own]")
@click.option("--discount", type=FiniteRange(min=0, max=1, min_open=True),
              help="Factor of a credited reward for every turn that it came later.  [default: 0.4]")
@option_group("KL to the base and entropy")
@click.option("--kl-beta", type=NOT_NEGATIVE, default=0.0, help="Weight of the KL to the base model.")
@click.option("--kl-monitor", is_flag=True, default=None, show_default=False,
              help="Compute and store the KL to the base model also without a weight; it costs a forward.")
@click.option("--kl-ratio/--no-kl-ratio", default=True,
              help="Multiply the KL by pi/pi_old, which keeps it unbiased.")
@click.option("--entropy-coef", type=FiniteRange(), default=0.0, help="Weight of an entropy bonus.")
@click.option("--entropy-quantile", type=FiniteRange(min=0, max=1, min_open=True), default=1.0,
              help="Train on this share of the highest-entropy tokens.")
@option_group("Correction of off-policy rows")
@click.option("--correction", type=click.Choice([*CORRECTIONS]),
              help=f"Importance correction on pi_old/mu.  [default: {DEFAULT_CORRECTION} at "
                   f"{CORRECTIONS[DEFAULT_CORRECTION].high:g}]")
@click.option("--correction-low", type=NOT_NEGATIVE, help="Lower bound of the correction.")
@click.option("--correction-high", type=POSITIVE, help="Upper bound of the correction.")
@click.option("--veto", type=NOT_NEGATIVE,
              help="Drop a completion with any pi_old/mu below this, for example 1e-4.")
@click.option("--off-policy-threshold", type=FiniteRange(),
              help="Drop a completion with a negative advantage and a mean log mu - log pi above this.")
@option_group("Optimizer and steps")
@click.option("--tasks-per-step", type=click.IntRange(min=1),
              help="Groups per optimizer step, instead of --updates-per-batch.")
@click.option("--schedule", type=click.Choice(["constant", "linear", "cosine"]), default="constant",
              help="How the learning rate goes on after the warmup.")
@click.option("--warmup-steps", type=click.IntRange(min=0), default=0,
              help="Steps in which the learning rate rises, counted over the whole run.")
@click.option("--total-steps", type=click.IntRange(min=1), help="Where linear and cosine reach zero.")
@click.option("--lr-after-rollback", type=FiniteRange(min=0, max=1, min_open=True),
              help="Scale the learning rate by this once for every rollback of the run so far.")
@click.option("--weight-decay", type=NOT_NEGATIVE, default=0.0, help="Of AdamW, as are the betas.")
@click.option("--adam-beta1", type=SHARE, default=0.9)
@click.option("--adam-beta2", type=SHARE, default=0.999)
@click.option("--max-grad-norm", type=NOT_NEGATIVE, default=1.0,
              help="Gradients with a larger norm are scaled down to it; 0 does not clip.")
@click.option("--seed", type=int, default=0, help="Of a new adapter and of the split into steps.")
@option_group("Adapter or all weights")
@click.option("--full", is_flag=True, help="Train all weights instead of a LoRA adapter.")
@click.option("--lora-alpha", type=POSITIVE, default=32.0, help="The adapter is scaled by alpha / rank.")
@click.option("--rslora/--no-rslora", default=False,
              help="Scale by alpha / sqrt(rank) instead of alpha / rank.")
@click.option("--lora-targets", default="all-linear",
              help="Names of modules, a,b,c; 'all-linear' is all but lm_head and experts, 'experts' those.")
@click.option("--load-4bit", "load_in_4bit", is_flag=True,
              help="Load the frozen base in 4 bits (bitsandbytes, GPU).")
@option_group("Memory and devices")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
              help="Weights and activations; logits and losses are float32 always. auto: as the engine that "
              "sampled the rows.")
@click.option("--tokens-per-batch", type=click.IntRange(min=0), default=0, show_default=False,
              help="Tokens that go through the model together: whole groups, rows of a larger one, or a "
                   "piece of its prompt.  [default: 1024 on a CPU, what fits the memory on a GPU]")
@click.option("--threads", type=click.IntRange(min=1, max=os.cpu_count()),
              help="CPU threads.  [default: OMP_NUM_THREADS, or all cores]")
@click.option("--device", help="cpu, cuda, cuda:1 ..  [default: a GPU if there is one]")
@option_group("Safeguards")
@click.option("--max-mismatch", type=NOT_NEGATIVE,
              help="Largest mean k3 KL at staleness 0.  [default: in float32 100 times that of iteration 0, "
                   "at most 1e-4; else 0.015]")
@click.option("--max-drift", type=NOT_NEGATIVE,
              help="Stop before a step whose mean (log pi/pi_old)^2 / 2 is above this.")
@click.option("--min-ess", type=FiniteRange(min=0, max=1),
              help="Stop before a step whose ESS / n of pi/mu is below this.")
@option_group("Run, stop and resume")
@click.option("--checkpoint-seconds", type=NOT_NEGATIVE, default=120.0,
              help="Save a checkpoint in the stage this often.")
@click.option("--time-limit", type=NOT_NEGATIVE,
              help="Seconds after which to stop, save and exit with 75, to be run again.")
@click.option("--keep-policies", type=click.IntRange(min=2),
              help="Remove the weights of all but the last policies when done.  [default: all are kept]")
@click.option("--track", help="Send the numbers of rollout, score and train to tensorboard, "
              "wandb, trackio or mlflow.")
@shows_errors
def train(run: Any, iteration: int | None, scorer: str | None, **options: Any) -> None:
    """Train on the scored rows of one iteration and write the next policy.

    RUN is the run folder. Without --iteration the next one due is taken. A stage that was killed is finished
    by running it again. Exit codes: 0 done, 1 cannot be done, 3 mismatch above the limit, 75 stopped early
    with all saved (signal or time limit): run it again.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads crawl on a shared machine
    # Packs differ in length: memory of a GPU in fixed pieces would fall apart over them.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    from train.inputs.inputs import (
        change_of_scorer,
        due_iteration,
        finish_committed,
        nothing_due,
        read_inputs,
        scorer_to_train,
    )
    from train.inputs.settings import Settings, check_settings
    from warehouse.maintain.prune import prune_policies
    from warehouse.stages.space import saying_the_disk_is_full
    refuse_adapter_options(options)
    settings = Settings(**options)
    check_settings(settings)
    warehouse = open_run(run)
    if iteration is None:
        if (iteration := due_iteration(warehouse, settings.purpose)) is None:
            click.echo(by_address(nothing_due(warehouse, settings.purpose)))
            return
        if os.environ.get("RANK", "0") == "0":
            click.echo(f"iteration {iteration} is due")
    stage = warehouse.stage("train", iteration=iteration)
    if warehouse.state.is_trained(iteration) and not settings.dry_run:
        if before := stage.settings():      # other options are not passed over
            limit = settings.max_completion_length or before.get("max_completion_length")
            stage.settle(before | settings.replace(max_completion_length=limit).results())
        left_out = iteration in warehouse.state.left_out
        click.echo(f"iteration {iteration} " + ("was left out of training by a rollback" if left_out else
                                                f"is trained already: policy {iteration + 1}"))
        prune_policies(warehouse, settings.keep_policies)  # which a kill may have kept it from
        return
    scorer = scorer_to_train(warehouse, iteration, scorer, settings.purpose)
    if os.environ.get("RANK", "0") == "0" and (said := change_of_scorer(warehouse, iteration, scorer)):
        click.echo(said)
    inputs = read_inputs(warehouse, iteration, scorer, settings)
    settings = settings.fill_in(inputs.groups)
    if not settings.dry_run and finish_committed(warehouse, inputs, settings):
        click.echo(f"iteration {iteration} had written policy {iteration + 1} already; its manifest is "
                   "complete now")
        prune_policies(warehouse, settings.keep_policies)
        return
    from train.run import train_iteration  # torch loads once rows and options are known to be good
    with saying_the_disk_is_full(warehouse.root):
        train_iteration(warehouse, inputs, settings, started=warm.started, say=click.echo)


if __name__ == "__main__":
    train()     # `accelerate launch -m train.cli RUN`
