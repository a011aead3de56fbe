"""The command `warehouse loop`."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from warehouse.options import (
    TRACKERS,
    TitledCommand,
    check_stages,
    open_run,
    run_argument,
    shows_errors,
    untrusted,
)
from warehouse.stages import warm
from warehouse.stages.stop import stopping
from warehouse.store.commit import by_address
from warehouse.store.config_file import read_config
from warehouse.store.errors import StageError, printable

LOG = "loop.log"


def _number_or_adapt(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """The number in `--split`; 0 for adapt."""
    if text is None or text == "adapt":
        return None if text is None else 0
    if not text.isdecimal() or not int(text):
        raise click.BadParameter(f"{text} is neither a number of GPUs, from 1 on, nor adapt.")
    return int(text)


@click.command(cls=TitledCommand)
@run_argument
@click.argument("iterations", type=click.IntRange(min=1))
@click.option("--ahead", is_flag=True,
              help="Sample the next iteration while one trains; rows are one policy old.")
@click.option("--ahead-by", type=click.IntRange(min=1), default=None, metavar="N",
              help="Like --ahead, by N iterations; rows are N policies old.")
@click.option("--rescue", is_flag=True, help="After an alarm go back to the last sound policy and continue "
                                             "with half the learning rate, three times at most.")
@click.option("--eval-every", type=click.IntRange(min=1), default=None, metavar="K",
              help="Evaluate policy 0, every Kth policy and the last on the held-out tasks.")
@click.option("--ignore", multiple=True, metavar="SIGNAL", help="Signal to ignore; repeatable.")
@click.option("--track", type=click.Choice(TRACKERS), default=None,
              help="Send metrics of all stages to this tracker.")
@click.option("--gpus", default="all", show_default=True, metavar="all|N,N..",
              help="GPUs, numbered as in torch: an engine on each, a training by all.")
@click.option("--split", default=None, metavar="N|adapt", callback=_number_or_adapt,
              help="With --ahead: N GPUs sample while the others train; adapt follows the measured times. "
                   "Without it every GPU does both.")
@click.option("--accelerate-config", default=None, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Shard the weights over the training GPUs, as in examples/many-gpus.")
@click.option("--devices", type=click.IntRange(min=1), default=None, hidden=True)   # on a CPU, for tests
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per event.")
@shows_errors
@stopping()
def loop(run: Path, gpus: str, split: int | None, accelerate_config: Path | None, devices: int | None,
         as_json: bool, **options: Any) -> None:
    """Run rollout, score and train until ITERATIONS are trained.

    Run it again after any end to continue. An alarm ends it with exit code 3. What the stages print is in
    RUN/loop.log.
    """
    from tqdm import tqdm

    from warehouse.inspect.alarms import check_signals
    from warehouse.loop.devices import Crew, chosen_devices, sharing_of
    from warehouse.loop.driver import Loop, LoopOptions, check_options
    from warehouse.loop.jobs import Job
    settings = LoopOptions(**options)
    if split is not None and not settings.depth:
        raise StageError("--split has some GPUs sample while the others train, which needs --ahead. Add it.")
    check_signals(settings.ignore)
    warehouse = open_run(run)
    if said := untrusted(warehouse.root):
        raise StageError(said)
    check_options(warehouse, settings)
    check_stages(run, train=["--track", settings.track] if settings.track else [])
    if not os.environ.get(warm.VARIABLE):
        warm.start_server()
    sampling = read_config(warehouse.root / "config.toml").get("rollout", {})
    span = sampling.get("tensor-parallel-size", 1)
    crew = Crew(chosen_devices(gpus, devices), span=span, split=split, awake=settings.depth > 0,
                sharing=sharing_of(accelerate_config))
    with (tempfile.TemporaryDirectory(prefix="rollhouse-loop-", dir=warm.folder()) as folder,
          (warehouse.root / LOG).open("a") as log,
          tqdm(total=settings.iterations, desc="policy", leave=False, disable=None,
               bar_format="{desc} {n}/{total} |{bar:20}| {elapsed} {postfix}") as bar):
        def tell(kind: str, facts: dict[str, Any], line: str) -> None:
            text = json.dumps({"event": kind, "at": time.time(), **facts}, default=str) if as_json else line
            bar.write(by_address(printable(text)), file=sys.stdout)
            sys.stdout.flush()

        def keep(ended: Callable[[Job], bool]) -> None:
            for job in [job for job in jobs if ended(job)]:
                jobs.remove(job)
                log.write(f"$ {' '.join(job.words)}\n{job.said()}")
            log.flush()

        def show(done: int, doing: str) -> None:
            keep(lambda job: job.poll() is not None)
            bar.n = min(done, settings.iterations)
            bar.set_postfix_str(doing)

        def start(words: list[str], place: Mapping[str, str]) -> Job:
            job = Job(words, Path(folder), place)
            jobs.append(job)
            return job

        jobs: list[Job] = []
        try:
            code = Loop(warehouse, settings, crew, start, tell, show).go()
        finally:
            keep(lambda _job: True)
    sys.exit(code)
