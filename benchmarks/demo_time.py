"""Where the time of a run's loop went, from the manifests of its stages.

    python -m benchmarks.demo_time runs/demo

Work is sampling, running programs, old logprobs and gradients. Starting (interpreter, imports, engine, lanes,
model) is counted apart. The rest is what Rollhouse adds: prompts, metrics, reading and writing.
"""

from collections import Counter
from pathlib import Path

import click

from warehouse.store.run_folder import open_warehouse

WORK = {"rollout": ("sampling",), "score": ("running",), "train": ("old logprobs", "gradients")}
START = {"rollout": ("import", "start"), "score": ("start",), "train": ("import", "start")}


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def main(run: Path) -> None:
    """Print seconds of work, of starting and of the rest, per stage and in total."""
    warehouse = open_warehouse(run)
    total: Counter[str] = Counter()
    click.echo(f"{'stage':<10}{'runs':>6}{'work':>10}{'start':>10}{'rest':>10}   seconds")
    for stage in WORK:
        manifests = stage_manifests(warehouse, stage)
        seconds: Counter[str] = Counter()
        for manifest in manifests:
            for phase, value in manifest["facts"]["seconds"].items():
                kind = "work" if phase in WORK[stage] else "start" if phase in START[stage] else "rest"
                seconds[kind] += value
        total += seconds
        click.echo(f"{stage:<10}{len(manifests):>6}" + "".join(
            f"{seconds[kind]:>10.1f}" for kind in ("work", "start", "rest")))
    share = total["rest"] / (total["work"] + total["rest"])
    click.echo(f"outside of sampling, running and gradients: {share:.1%} of "
               f"{total['work'] + total['rest']:.1f} s (starting takes {total['start']:.1f} s more)")


def stage_manifests(warehouse, stage: str) -> list[dict]:
    """Manifests of all complete stages of a kind, evaluations included; a rollback trains nothing."""
    return [warehouse.stage_of(life).manifest() for life in warehouse.state.of_stage(stage)
            if life.is_complete and "rolled_back_to" not in life.facts]


if __name__ == "__main__":
    main()
