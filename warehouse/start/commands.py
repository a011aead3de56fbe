"""The commands `warehouse demo` and `warehouse doctor`."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from warehouse.options import RunFolder, as_line, json_option, shows_errors
from warehouse.stages import warm


@click.command()
@click.argument("run", type=RunFolder(path_type=Path), default="runs/demo")
@click.argument("iterations", type=click.IntRange(min=0), default=10)
@shows_errors
def demo(run: Path, iterations: int) -> None:
    """Train a tiny model on grid tasks, on a CPU, and draw a report.

    RUN is runs/demo by default, ITERATIONS 10 (three minutes on two cores); 0 only makes the run folder. Run
    it again after any end to continue.
    """
    if not os.environ.get(warm.VARIABLE):
        warm.start_server()
    from warehouse.start.demo import run_demo
    run_demo(run, iterations, click.echo)


@click.command()
@click.argument("stage", type=click.Choice(["rollout", "score", "train"]), required=False)
@click.option("--model", help="Check this model, a folder or hub id, by its config and a tiny random copy.")
@click.option("--revision", help="Commit of a hub model.")
@json_option
@shows_errors
def doctor(stage: str | None, model: str | None, revision: str | None, as_json: bool) -> None:
    """Check whether this machine can sample, score and train.

    It names the command that installs what is missing. Exit code 1 if a stage cannot work.
    """
    from warehouse.stages.base_model import download
    from warehouse.start.doctor import STAGES, doctor_of, examine_model
    if model and not Path(model).is_dir():
        download(model, revision)
    found: dict[str, Any] = {}
    findings = examine_model(model, revision) if model else (
        (name, doctor_of(name).examine()) for name in ((stage,) if stage else STAGES))
    for name, finding in findings:
        if stage not in (None, name):
            continue
        found[name] = {"able": finding.able, "lines": finding.lines, "command": finding.command,
                       **finding.facts}
        if not as_json:
            click.echo("\n".join(f"{name}: {line}" for line in finding.lines))
            if finding.command:
                click.echo(f"{name}: get it by  {finding.command}")
    if as_json:
        click.echo(as_line(found))
    able = [name for name, report in found.items() if report["able"]]
    if not as_json and not model:
        click.echo(f"able: {', '.join(able) or 'none'}")
    sys.exit(len(able) < len(found))
