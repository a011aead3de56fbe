"""The command `train logprobs`: logprobs of stored completions under any policy or model, as rows."""

import os
import re
from typing import Any

import click

from warehouse.options import FiniteRange, RunFolder, open_run, shows_errors
from warehouse.store.errors import StageError

RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")


def chosen_iterations(_context: click.Context, _option: object, value: str | None) -> set[int] | None:
    """The iterations that --iterations names."""
    if value is None:
        return None
    ranges = [RANGE.fullmatch(piece.strip()) for piece in value.split(",")]
    if not all(ranges):
        raise click.BadParameter(f"{value} is not a list of iterations. Write 2, or 0,3..5.")
    bounds = [(int(found[1]), int(found[2] or found[1])) for found in ranges if found]
    return {number for first, last in bounds for number in range(first, last + 1)}


@click.command(context_settings={"show_default": True})
@click.argument("run", type=RunFolder())
@click.option("--policy", multiple=True, metavar="K",
              help="A policy of the run: its version, or base; may be repeated.")
@click.option("--model", multiple=True, metavar="PATH",
              help="A model folder or hub id with the run's tokenizer; may be repeated.")
@click.option("--iterations", callback=chosen_iterations, metavar="N,N..N",
              help="Iterations of the completions, for example 0,3..5.  [default: all]")
@click.option("--purpose", default="train", help="Rows of this purpose; eval is every evaluation.")
@click.option("--entropy", is_flag=True, help="Store the entropy of every token's distribution, too.")
@click.option("--shard", default="0/1", metavar="I/N", help="The parts of worker I of N, I from 0 on.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto",
              help="Weights and activations. auto: that of the sampling engine.")
@click.option("--tokens-per-batch", type=click.IntRange(min=0), default=0, show_default=False,
              help="Tokens per forward pass.  [default: 1024 on a CPU, 8192 on a GPU]")
@click.option("--device", help="cpu, cuda, cuda:1 ..  [default: a GPU if there is one]")
@click.option("--time-limit", type=FiniteRange(min=0),
              help="Stop after this many seconds and exit with 75; run it again to continue.")
@shows_errors
def logprobs(run: str, policy: tuple[str, ...], model: tuple[str, ...], iterations: set[int] | None,
             purpose: str, shard: str, device: str | None, time_limit: float | None, **options: Any) -> None:
    """Store logprobs of stored completions under policies or other models: the table policy_logprobs.

    Every model is applied to every complete rollout. Written parts are kept: run it again to continue.
    """
    wrong = [name for name in policy if name != "base" and not name.isdecimal()]
    if wrong or not (policy or model):
        raise StageError(f"--policy {wrong[0]} is not a policy: give a version, or base." if wrong else
                         "Name a model: --policy K, --policy base, or --model PATH.")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from train.inputs.asked import model_of_folder, model_of_policy, rollouts_to_ask_about
    from warehouse.stages.shard import Shard
    warehouse = open_run(run)
    rollouts = rollouts_to_ask_about(warehouse, iterations, purpose)
    models = [model_of_policy(warehouse, 0 if name == "base" else int(name)) for name in policy]
    models += [model_of_folder(warehouse, path) for path in model]
    part = Shard.parse(shard)
    from train.ask import How, Processes, write_logprobs  # which loads torch
    from warehouse.stages.stop import StopRequest
    processes = Processes(device)
    with StopRequest(time_limit) as stop, processes.missing_none(stop):
        write_logprobs(warehouse, models, rollouts, How(shard=part, **options), processes, stop,
                       click.echo if processes.first else lambda line: None)
    processes.close()
