"""Write puzzles as a task file: python -m examples.puzzles mysteries 1000 --output mysteries.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import click
from tqdm import tqdm

KINDS = ("mysteries", "zebras", "connections")


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("count", type=click.IntRange(min=1))
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File of tasks for `warehouse init --tasks`, .jsonl.",
)
@click.option(
    "--size",
    type=click.IntRange(3, 6),
    default=None,
    help="Suspects, rooms, hours and objects; or houses and attributes. [default: 4]",
)
@click.option(
    "--level",
    type=click.Choice(["easy", "medium", "hard"]),
    default="medium",
    help="How much the clues say outright, or how many words fit several groups.",
)
@click.option("--seed", default=0, help="Other puzzles.")
def write_puzzles(kind: str, count: int, output: Path, size: int | None, level: str, seed: int) -> None:
    """Write COUNT puzzles, each with exactly one solution; the first of a seed are the same of any COUNT."""
    if kind == "connections" and size:
        raise click.ClickException("Groups of words are always four of four: leave --size out.")
    from examples.puzzles.connections import connections

    try:
        from examples.puzzles.mysteries import mystery
        from examples.puzzles.zebras import zebra
    except ModuleNotFoundError as error:
        raise click.ClickException(
            "The puzzles are made with OR-Tools: pip install 'rollhouse[puzzles]'"
        ) from error
    size = size or 4
    if not output.name.endswith(".jsonl"):
        raise click.ClickException(f"{output}: `warehouse init --tasks` wants a name that ends in .jsonl.")
    if not output.parent.is_dir():
        raise click.ClickException(f"There is no folder {output.parent}. Make it first.")
    make = {"mysteries": mystery, "zebras": zebra, "connections": connections}[kind]
    num_clues = 0
    with output.open("w") as stream:
        for number in tqdm(range(count), unit="puzzle", disable=None):
            puzzle = make(Random(f"{kind} {seed} {size} {level} {number}"), size, level)
            num_clues += puzzle["num_clues"]
            stream.write(
                json.dumps(
                    {
                        "task_id": f"{kind}-{level}-{size}-{seed}-{number:05d}",
                        "kind": "graded",
                        "messages": [{"role": "user", "content": puzzle["question"]}],
                        "payload": {"grader": "puzzle_grader", **puzzle["payload"]},
                        "solution": puzzle["solution"],
                    }
                )
                + "\n"
            )
    what = "words that fit two groups" if kind == "connections" else "clues"
    click.echo(f"{output}: {count} puzzles with {num_clues / count:.1f} {what} each")


if __name__ == "__main__":
    write_puzzles()
