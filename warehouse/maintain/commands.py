"""Commands of `warehouse` that look after the stored files."""

from pathlib import Path

import click

from warehouse.options import as_line, json_option, open_run, run_argument, run_folder, shows_errors
from warehouse.store.commit import by_address
from warehouse.store.errors import StageError, counted

only_iteration = click.option("--iteration", type=click.IntRange(min=0), default=None,
                              help="Only this iteration.")


@click.command()
@run_argument
@only_iteration
@click.option("--part-mib", type=click.IntRange(min=1), default=256, show_default=True,
              help="Size up to which parts are merged.")
@shows_errors
def compact(run: Path, iteration: int | None, part_mib: int) -> None:
    """Merge the parts of finished iterations into fewer files."""
    from warehouse.maintain.compact import compact_run
    click.echo("\n".join(compact_run(open_run(run), iteration, part_mib)))


@click.command()
@run_argument
@click.option("--iteration", type=click.IntRange(min=0), required=True, help="Iteration to discard.")
@click.option("--purpose", default=None, help="Discard prompts, completions and samples of this purpose.")
@click.option("--scorer", default=None, help="Only samples of this scorer.")
@click.option("--training", is_flag=True, help="Discard the unfinished training.")
@shows_errors
def discard(run: Path, iteration: int, purpose: str | None, scorer: str | None, training: bool) -> None:
    """Discard rows of an iteration so that it can be made again.

    The files stay: `warehouse sql --at` reads them, `warehouse prune --ended` removes them.
    """
    from warehouse.maintain.discard import discard as end
    if training == bool(purpose) or (scorer and training):
        raise StageError("Say what to discard: --purpose NAME (and --scorer), or --training.")
    ended = end(open_run(run), iteration, purpose, scorer)
    click.echo("\n".join(f"discarded: {title}" for title in ended)
               or "That was discarded already; nothing to do.")


@click.command()
@run_argument
@only_iteration
@click.option("--quick", is_flag=True, help="Skip checksums: only names, manifests and footers.")
@click.option("--fix", "fixes", is_flag=True,
              help="Continue without damaged files; reopen the stages that can make them again.")
@json_option
@shows_errors
def check(run: Path, iteration: int | None, quick: bool, fixes: bool, as_json: bool) -> None:
    """Check every invariant of the stored files.

    Exit code 1 if any is broken; with --fix only for damage that needs a copy. --fix deletes no file: damaged
    files and what was made from them no longer count. `warehouse prune --ended` removes them.
    """
    from warehouse.maintain.check import check_run
    from warehouse.maintain.fix import fix
    if fixes and quick:
        raise StageError("A repair needs checksums: leave out --quick.")
    warehouse = open_run(run)
    report = check_run(warehouse, iteration, quick=quick)
    left, to_do, opened = report.problems, list[str](), list[str]()
    if fixes:
        after = check_run(warehouse, iteration, quick=quick) if fix(warehouse, report.changes) else report
        opened = [f"note: {note}" for note in after.notes if note not in report.notes]
        to_do = [problem for problem in after.problems
                 if problem in after.unfinished or problem not in report.problems]
        left = [problem for problem in after.problems if problem not in to_do]
    if as_json:
        click.echo(as_line({**report._asdict(), "changes": [str(change) for change in report.changes],
                            "left": left}))
        raise SystemExit(bool(left))
    would = "Fixed:" if fixes else "`warehouse check --fix` would go on without:"
    lines = [*(f"note: {note}" for note in report.notes), *report.problems,
             *([would, *map(str, report.changes)] if report.changes else []),
             *opened, *(problem for problem in to_do if problem not in report.problems)]
    click.echo(by_address("".join(f"{line}\n" for line in lines)), nl=False)
    click.echo(f"{counted(report.num_parts, 'part')}, {counted(report.num_rows, 'row', ',')}, "
               f"{counted(len(report.problems), 'problem')}" + (f", {len(left)} left" if fixes else "")
               + (f", {counted(len(to_do) + len(opened), 'stage')} to run" if to_do or opened else ""))
    if left:
        raise SystemExit(1)


@click.command()
@run_argument
@click.option("--to", type=click.IntRange(min=0), required=True, help="Policy to go back to.")
@click.option("--why", default="", metavar="TEXT", help="Reason, for `warehouse log` and the summary.")
@shows_errors
def rollback(run: Path, to: int, why: str) -> None:
    """Continue from an earlier policy; nothing is deleted.

    The newest policy gets its weights and optimizer state; if that has sampled, the next one does. Iterations
    go on counting. To train an iteration again, use `warehouse branch`.
    """
    from warehouse.maintain.rollback import alarms_behind, roll_back
    warehouse = open_run(run)
    for line in roll_back(warehouse, to, why or alarms_behind(warehouse, to)):
        click.echo(by_address(line))


@click.command()
@run_argument
@click.option("--before", type=click.IntRange(min=1), default=None, help="Iterations before this one.")
@click.option("--ended", is_flag=True,
              help="Remove files of stages discarded, rolled back or rewritten, once an hour old.")
@click.option("--keep-policies", type=click.IntRange(min=1), default=None, metavar="N",
              help="Remove the weights of all policies but the last N and the base.")
@click.option("--yes", is_flag=True, help="Remove; otherwise only print what would be removed.")
@shows_errors
def prune(run: Path, before: int | None, ended: bool, keep_policies: int | None, yes: bool) -> None:
    """Remove old tokens, old weights, or files that no longer count.

    Scalars, texts and scores of old iterations stay.
    """
    from warehouse.maintain import prune as pruning
    if (before is not None) + ended + (keep_policies is not None) != 1:
        raise StageError("Name just one thing to prune: --before ITERATION, --keep-policies N, or --ended.")
    warehouse = open_run(run)
    if keep_policies is not None:
        gone = pruning.unkept(warehouse.state, keep_policies)
        size, shared = pruning.policy_bytes(warehouse, gone)
        if yes:
            pruning.prune_policies(warehouse, keep_policies)
        names = ", ".join(map(str, gone)) or "none"
        click.echo(f"weights of policies {names}, {size / 1e6:.1f} MB: " + (
            "removed" if yes else "would be removed; they could not sample again. Run it with --yes to do it")
            + pruning.staying(shared))
    elif before is not None:
        click.echo(pruning.prune_run(warehouse, before, dry_run=not yes))
    else:
        click.echo(pruning.prune_ended(warehouse, dry_run=not yes))


@click.group()
def tasks() -> None:
    """Add or replace tasks of a run."""


@tasks.command("add")
@run_folder
@click.option("--tasks", "trained", multiple=True, metavar="[NAME=]SOURCE", help="As in `warehouse init`.")
@click.option("--heldout", multiple=True, metavar="[NAME=]SOURCE", help="As in `warehouse init`.")
@shows_errors
def add_command(run: Path, trained: tuple[str, ...], heldout: tuple[str, ...]) -> None:
    """Add the tasks of sources to RUN.

    An unfinished rollout continues with `--accept-change tasks_sha256`.
    """
    from warehouse.maintain.tasks import add_tasks
    click.echo("\n".join(add_tasks(open_run(run), trained, heldout)))


@tasks.command("replace")
@run_folder
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE..")
@shows_errors
def replace_command(run: Path, sources: tuple[str, ...]) -> None:
    """Correct tasks of RUN: SOURCE has the same ids.

    The log keeps the earlier tasks. No row changes: `score` judges the completions again as another scorer.
    """
    from warehouse.maintain.tasks import replace_tasks
    click.echo("\n".join(replace_tasks(open_run(run), sources)))
