"""Commands of `warehouse` that train the same rows again: branches, arms."""

import fcntl
import json
import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from warehouse.consent import trust_as
from warehouse.options import RunFolder, open_run, room_command, run_argument, run_folder, shows_errors
from warehouse.stages import warm
from warehouse.stages.stop import stopping
from warehouse.store.commit import next_to
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError


@click.command()
@run_folder
@click.argument("new", type=RunFolder(path_type=Path))
@click.option("--at", type=click.IntRange(min=0), required=True, metavar="POLICY",
              help="Newest policy that both runs share.")
@click.option("--with-rows", is_flag=True,
              help="Include rows sampled from iteration POLICY on, to train on them again.")
@click.option("--copy", is_flag=True, help="Copy the files, for another filesystem.")
@shows_errors
def branch(run: Path, new: Path, at: int, with_rows: bool, copy: bool) -> None:
    """Make the run NEW, which shares RUN up to a policy.

    Its files are hard links: they take no space, and either run may be removed. Unfinished stages are left
    out.
    """
    from warehouse.experiments.branch import make_branch
    warehouse = open_run(run)
    made = make_branch(warehouse, new, at, rows=with_rows, copy=copy)
    click.echo(f"{new}: policy {at} and what led to it; {made}" if made else
               f"{new} is that branch already; nothing to do.")
    state = open_run(new).state
    click.echo(f"next: {state.again(state.due())}")


class Iterations(click.ParamType):
    """N iterations, the first with stored rows, or FIRST-LAST, all stored; (first or None, N, stored)."""

    name = "N|FIRST-LAST"

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> tuple[int | None, int, int]:
        """The named policy, the number of iterations, and the number of those with stored rows."""
        if found := re.fullmatch(r"(\d+)-(\d+)", str(value)):
            first, last = map(int, found.groups())
            if first <= last:
                return first, last - first + 1, last - first + 1
        elif str(value).isdecimal() and int(value):
            return None, int(value), 1
        self.fail(f"{value!r} is neither a number above 0 nor a range such as 0-3.", param, ctx)


@click.command()
@run_argument
@click.argument("arms_toml", metavar="ARMS.TOML", type=click.Path(path_type=Path))
@click.option("--at", type=click.IntRange(min=0), default=None, metavar="POLICY",
              help="Policy that all arms start from. [default: that of the newest scored iteration]")
@click.option("--iterations", type=Iterations(), default="1", show_default=True,
              help="Stored iterations to train, or N: one stored, then N - 1 that each arm samples.")
@click.option("--evaluate", type=click.IntRange(min=1), default=8, show_default=True, metavar="K",
              help="Completions per held-out task.")
@click.option("--stop-behind", is_flag=True,
              help="Evaluate after each iteration; stop arms clearly below the best.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True,
              help="Commands at once; one of them samples.")
@click.option("--folder", type=click.Path(path_type=Path), default=None,
              help="Folder of the arms' runs. [default: RUN-arms]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per arm.")
@shows_errors
@stopping()
def arms(run: Path, arms_toml: Path, at: int | None, iterations: tuple[int | None, int, int], evaluate: int,
         stop_behind: bool, jobs: int, folder: Path | None, as_json: bool) -> None:
    """Train the same rows with the settings of each arm, and compare.

    ARMS.TOML has a table per arm. Each arm is a branch of RUN; RUN is not changed. Run it again to continue,
    or to add arms.
    """
    warehouse = open_run(run)
    place = folder or next_to(warehouse.root, "arms")
    if not os.environ.get(warm.VARIABLE):
        trust_as(warehouse.root, place.resolve())
        warm.start_server()
    from tqdm import tqdm

    from warehouse.experiments.arms import Arms
    from warehouse.experiments.arms_file import PARENT, Arm, check_together, read_arms
    from warehouse.experiments.arms_table import arms_text, table_of
    from warehouse.experiments.plan import Plan, check_arm, check_plan, policy_to_start_from
    from warehouse.loop.driver import ENGINE_SHARE
    from warehouse.loop.jobs import Job
    first, number, stored = iterations
    if first is not None and at not in (None, first):
        raise click.UsageError(f"--iterations {first}-{first + number - 1} starts from policy {first}, --at "
                               f"from {at}. Leave --at out.")
    config = warehouse.root / "config.toml"
    listed = read_arms(arms_toml, room_command("train"), config)
    start_at = policy_to_start_from(warehouse, place, at if first is None else first, stored)
    plan = Plan(warehouse, place, start_at, number, evaluate, stored, stop_behind)
    check_plan(plan)
    check_together(arms_toml, listed, config)
    for arm in (Arm(PARENT, {}), *listed):
        check_arm(plan, arm)
    place.mkdir(parents=True, exist_ok=True)
    shares = read_config(config).get("rollout", {})
    more = (("--gpu-memory-utilization", str(ENGINE_SHARE))
            if jobs > 1 and "gpu-memory-utilization" not in shares else ())
    with (tempfile.TemporaryDirectory(prefix="rollhouse-arms-", dir=warm.folder()) as aside,
          (place / "arms.log").open("a") as log,
          tqdm(total=len(listed) + 1, desc="arms", leave=False, disable=None,
               bar_format="{desc} {n}/{total} |{bar:20}| {elapsed} {postfix}") as bar):
        _check_alone(log, place)

        def start(words: list[str]) -> Job:
            job = Job(words, Path(aside), {warm.AWAKE: "1"} if jobs > 1 else None)
            started.append(job)
            return job

        def show(done: int, doing: str) -> None:
            bar.n = done
            bar.set_postfix_str(doing)

        started: list[Job] = []
        work = Arms(plan, start, partial(bar.write, file=sys.stderr), show, more)
        try:
            work.run(listed, jobs)
        finally:
            for job in started:
                log.write(f"$ {' '.join(job.words)}\n{job.said()}")
    rows = table_of(plan, listed, work.failed, work.stopped)
    click.echo("\n".join(json.dumps(row) for row in rows) if as_json else arms_text(rows, plan))
    sys.exit(1 if work.failed else 0)


def _check_alone(log: IO[str], place: Path) -> None:
    """StageError if another command works on the same arms; else this one locks them until `log` closes."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StageError(f"Another `warehouse arms` is running in {place}. Wait for its end and run this "
                         "again, or give these arms a folder of their own with --folder.") from error
