"""Run studies side by side within a time limit.

    python -m benchmarks.study long drill --processes 32 --seconds 540 --output FOLDER

Every run is a process of its own, and adds a line of JSON to FOLDER/results.jsonl when it ends. Runs that are
there already are not made again, so the same command goes on where the last one stopped.
"""

import os
import time
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import click

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(variable, "1")       # before any of them is imported here or in a process of a run
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1", "OMP_WAIT_POLICY": "passive"}
SECONDS_OVER, SECONDS_TO_BEGIN = 25.0, 30.0


@click.command(context_settings={"show_default": True})
@click.argument("studies", nargs=-1, required=True)
@click.option("--processes", type=int, default=os.cpu_count())
@click.option("--seconds", type=float, default=540, help="No iteration is begun that would end later.")
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--only", multiple=True, help="Runs whose name STUDY/KIND/SEED holds this text.")
@click.option("--keep", is_flag=True, help="Keep the run folders, as OUTPUT/runs/STUDY/KIND/SEED.")
@click.option("--score", "score_options", multiple=True, help="More options of `score`, as --score=--tier=C.")
def main(studies: tuple[str, ...], processes: int, seconds: float, output: Path, only: tuple[str, ...],
         keep: bool, score_options: tuple[str, ...]) -> None:
    """Make the runs of STUDIES: long, drill, drill-1024, claims, recipe, turns,
    regime, regime-2000, smoke."""
    from benchmarks.study.plans import STUDIES
    from benchmarks.study.results import name_of, read_results
    from benchmarks.study.run import OUT_OF_TIME
    from benchmarks.study.work import work
    from train.cli import LOADS
    deadline = time.time() + seconds
    output.mkdir(parents=True, exist_ok=True)
    done = {name_of(result) for result in read_results(output) if result["ended"] != OUT_OF_TIME}
    plans = [plan for study in studies for plan in STUDIES[study]()
             if not only or any(text in plan.name for text in only)]
    waiting = [plan for plan in plans if plan.name not in done]
    click.echo(f"{len(waiting)} runs to make, {len(plans) - len(waiting)} made")
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.study.work", *LOADS])
    running: list[ForkServerProcess] = []
    while waiting or running:
        while waiting and len(running) < processes and time.time() < deadline - SECONDS_TO_BEGIN:
            process = context.Process(
                target=work, args=(waiting.pop(0), output, deadline, score_options, keep))
            process.start()
            running.append(process)
        if time.time() > deadline - SECONDS_TO_BEGIN and waiting:
            click.echo(f"no time for {len(waiting)} runs: {waiting[0].name} ..")
            waiting.clear()
        if time.time() > deadline + SECONDS_OVER:
            click.echo(f"{len(running)} runs that did not end in time are given up")
            for process in running:
                process.kill()
        running = [process for process in running if process.is_alive()]
        time.sleep(0.1)
    click.echo(f"{len(read_results(output))} runs in {output / 'results.jsonl'}")


if __name__ == "__main__":
    main()
