"""Which families of models can be trained and sampled here: `python -m benchmarks.models [FAMILY ...]`.

Each gets a tiny random model and a process of its own, a minute with the engine; the table is Markdown.
"""

import json
import subprocess
import sys
import tempfile
from typing import Any

import click

from benchmarks.model_families import FAMILIES

ERRORS = "lora_error", "full_error", "saved_error"
HEAD = "family", "prompts are", "adapter", "all weights", "saved and merged", "two iterations"


def check(family: str, engine: bool) -> dict[str, Any]:
    """What benchmarks.model_checks prints of a family, or how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "benchmarks.model_checks", family, folder, *["engine"][:engine]]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"family": family, "engine": f"ended with {done.returncode}"}
    return dict(json.loads(lines[-1]))


def table_line(row: dict[str, Any]) -> str:
    """A row of the table; numbers as such, all else as the sentence that it is."""
    told = [row["family"], str(row.get("lora_way", "")).removesuffix("_prompt").removesuffix("_texts")]
    told += [f"{row[name]:.1e}" if isinstance(row.get(name), float) else str(row.get(name, ""))
             for name in ERRORS]
    engine = row.get("engine", "")
    told.append(f"{engine['dtype']}, max log rho {max(engine['log_ratio']):.1e}"
                if isinstance(engine, dict) else str(engine))
    return "| " + " | ".join(told) + " |"


@click.command()
@click.argument("families", nargs=-1)
@click.option("--engine/--no-engine", default=True, show_default=True, help="Sample with vLLM, too.")
def main(families: tuple[str, ...], engine: bool) -> None:
    """Check FAMILIES, all that are known where none is named."""
    click.echo("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for family in families or FAMILIES:
        click.echo(table_line(check(family, engine)))


if __name__ == "__main__":
    main()
