"""Commands of `warehouse` that ask the same rows again: branches, arms."""

import json
import os
import sys
import tempfile
from pathlib import Path

import click

from warehouse.options import RunFolder, open_run, room_command, run_argument, run_folder, shows_errors
from warehouse.stages import warm
from warehouse.stages.stop import stopping
from warehouse.store.config_file import read_config
from warehouse.store.errors import counted, shell_quote


@click.command()
@run_folder
@click.argument("new", type=RunFolder(path_type=Path))
@click.option("--at", type=click.IntRange(min=0), required=True, metavar="POLICY",
              help="The newest policy that both runs share.")
@click.option("--with-rows", is_flag=True,
              help="Include the rows sampled from iteration POLICY on, to train on them again.")
@click.option("--copy", is_flag=True, help="Copy the files, for another filesystem.")
@shows_errors
def branch(run: Path, new: Path, at: int, with_rows: bool, copy: bool) -> None:
    """Make the run NEW, which shares RUN up to a policy.

    Its files are hard links: they take no room, and removing either run leaves the other whole. What is under
    way in RUN is not taken along.
    """
    from warehouse.experiments.branch import make_branch
    warehouse = open_run(run)
    made = make_branch(warehouse, new, at, rows=with_rows, copy=copy)
    verb = "copied" if copy else "shared"
    click.echo(f"{new}: policy {at} and what led to it; {counted(made.num_files, 'file')} {verb}, "
               f"{made.num_bytes / 1e6:.1f} MB" if made else f"{new} is that branch already; nothing to do.")
    due = open_run(new).state.due()
    click.echo(f"next: {due.stage} {shell_quote(new)} --iteration {due.iteration}")


@click.command()
@run_argument
@click.argument("arms_toml", metavar="ARMS.TOML", type=click.Path(path_type=Path))
@click.option("--at", type=click.IntRange(min=0), default=None, metavar="POLICY",
              help="The policy that all arms start from. [default: that of the newest scored iteration]")
@click.option("--iterations", type=click.IntRange(min=1), default=1, show_default=True,
              help="Iterations that each arm trains: stored rows first, then rows it samples itself.")
@click.option("--evaluate", type=click.IntRange(min=1), default=8, show_default=True, metavar="K",
              help="Completions of each held-out task.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True,
              help="Commands that run at the same time; one of them samples.")
@click.option("--folder", type=click.Path(path_type=Path), default=None,
              help="Folder of the arms' runs. [default: RUN-arms]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per arm.")
@shows_errors
@stopping()
def arms(run: Path, arms_toml: Path, at: int | None, iterations: int, evaluate: int, jobs: int,
         folder: Path | None, as_json: bool) -> None:
    """Train the same rows with the settings of each arm, and compare.

    ARMS.TOML has a table per arm. Each is a branch of RUN with a config.toml of its own; RUN is not changed.
    Run it again after any end: it goes on where it stopped, and makes the arms that are new in the file.
    """
    if not os.environ.get(warm.VARIABLE):
        from warehouse.stages.warm_server import run_warm
        sys.exit(run_warm([sys.executable, "-P", *sys.argv]))
    from tqdm import tqdm

    from warehouse.experiments.arms import Plan, check_arm, check_plan, policy_to_start_from, run_arms
    from warehouse.experiments.arms_file import PARENT, Arm, read_arms
    from warehouse.experiments.arms_table import arms_text, table_of
    from warehouse.loop.driver import ENGINE_SHARE
    from warehouse.loop.jobs import Job
    warehouse = open_run(run)
    config = warehouse.root / "config.toml"
    told = read_arms(arms_toml, room_command("train"), config)
    place = folder or warehouse.root.with_name(f"{warehouse.root.name}-arms")
    plan = Plan(warehouse, place, policy_to_start_from(warehouse, place, at), iterations, evaluate)
    check_plan(plan)
    for arm in (Arm(PARENT, {}), *told):
        check_arm(plan, arm)
    place.mkdir(parents=True, exist_ok=True)
    shares = {key.replace("_", "-") for key in read_config(config).get("rollout", {})}
    more = (("--gpu-memory-utilization", str(ENGINE_SHARE))
            if jobs > 1 and "gpu-memory-utilization" not in shares else ())
    with (tempfile.TemporaryDirectory(prefix="rollhouse-arms-", dir=warm.folder()) as aside,
          (place / "arms.log").open("a") as log,
          tqdm(total=len(told) + 1, desc="arms", leave=False, disable=None,
               bar_format="{desc} {n}/{total} |{bar:20}| {elapsed} {postfix}") as bar):
        def start(words: list[str]) -> Job:
            job = Job(words, Path(aside))
            started.append(job)
            return job

        def tell(_arm: str, line: str) -> None:
            bar.write(line, file=sys.stderr)

        def show(done: int, doing: str) -> None:
            bar.n = done
            bar.set_postfix_str(doing)

        started: list[Job] = []
        try:
            failed = run_arms(plan, told, jobs, start, tell, show, more)
        finally:
            for job in started:
                log.write(f"$ {' '.join(job.words)}\n{job.said()}")
    rows = table_of(plan, told, failed)
    click.echo("\n".join(json.dumps(row) for row in rows) if as_json else arms_text(rows, plan))
    sys.exit(1 if failed else 0)
