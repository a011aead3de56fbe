"""Commands that move rows in and out of a run."""

from pathlib import Path

import click

import warehouse
from warehouse.ledger.state import TRAIN
from warehouse.options import open_run, run_argument, shows_errors
from warehouse.store.commit import by_address
from warehouse.store.errors import counted


@click.command("export")
@run_argument
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--iteration", multiple=True, type=click.IntRange(min=0),
              help="Iteration; repeatable. [default: all]")
@click.option("--purpose", default=None, help="One purpose, or eval for every evaluation. [default: all]")
@click.option("--where", default=None, metavar="SQL",
              help="Condition on what is written, as \"correct AND reward > .9\"; a QUALIFY may follow.")
@shows_errors
def export_command(run: Path, output: Path, iteration: tuple[int, ...], purpose: str | None,
                   where: str | None) -> None:
    """Write completions, tokens and rewards for other tools.

    With task and first training. OUTPUT ends in .jsonl, .jsonl.zst or .parquet.
    """
    from warehouse.transfer.export_rows import export_rows
    export_rows(warehouse.open(run, strict=True), output, iterations=iteration, purpose=purpose,
                chosen=where)
    click.echo(output)


@click.command("import")
@run_argument
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--iteration", type=click.IntRange(0, 2147483647), required=True, help="Iteration to write.")
@click.option("--purpose", default="train", show_default=True, help="Purpose to write.")
@click.option("--plain-sampling", is_flag=True,
              help="State that sampling had temperature 1, no truncation, no penalties.")
@shows_errors
def import_command(run: Path, source: Path, iteration: int, purpose: str, plain_sampling: bool) -> None:
    """Import rollouts that were sampled elsewhere.

    SOURCE has JSON lines (also .zst) as `warehouse export` writes them, with task_id, prompt_ids,
    completion_ids, completion, finish_reason, policy_version, behaviour_logprobs and how it was sampled.
    With --purpose distil, of other models, policy_version and behaviour_logprobs may be missing.
    """
    from warehouse.transfer.import_rollouts import import_rollouts
    was_complete = open_run(run).state.is_complete("rollout", iteration, purpose)
    count = import_rollouts(open_run(run), source, iteration=iteration, purpose=purpose,
                            plain_sampling=plain_sampling)
    state = open_run(run).state
    before = ", imported before" if was_complete else ""
    order = (f"iteration {state.train_due()} is trained before iteration {iteration}; "
             if purpose == TRAIN and state.train_due() < iteration else "")
    click.echo(by_address(f"{counted(count, 'completion')}{before}; {order}"
                          f"next: {state.again(state.due())}"))


@click.command("mirror")
@click.argument("run")
@click.argument("to")
@shows_errors
def mirror(run: str, to: str) -> None:
    """Copy a run into an object store, or back.

    RUN or TO is s3://BUCKET/RUN, gs://BUCKET/RUN or az://CONTAINER/RUN. Run again, it copies what changed.
    What is not committed is left out.
    """
    from warehouse.objects.mirror import mirror_run
    click.echo(mirror_run(run, to))
