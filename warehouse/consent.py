"""Options that run code, lower a guard or send a key: only a trusted run's config.toml may set them.

A run folder and its config.toml may come from another person, so trust is declared outside of the folder.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from warehouse.store.commit import by_address
from warehouse.store.errors import shell_quote

VARIABLE = "ROLLHOUSE_TRUST"       # comma-separated folders or addresses: of runs, or above them


class GuardedOption(click.Option):
    """An option that is refused from the config.toml of an untrusted run.

    `unless` names another option that replaces this one when it is typed.
    """

    def __init__(self, *arguments: Any, unless: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.unless = unless

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """The value and its source; an error if the source is an untrusted config.toml."""
        value, source = super().consume_value(ctx, opts)
        run = ctx.params.get("run") or ctx.params.get("where", "")     # `where` may also be a file with tasks
        said = self.refusal(value, run, str(ctx.info_name)) if source is ParameterSource.DEFAULT_MAP else ""
        if said and self.unless in opts:
            return None, ParameterSource.DEFAULT
        if said:
            raise click.ClickException(said)
        return value, source

    def refusal(self, value: Any, run: str | Path, command: str) -> str:
        """Why a value of a run's config.toml is refused, and the way out; "" if it is not."""
        is_name = "|FILE.py" in str(self.metavar) and ".py:" not in str(value)
        if not value or is_name or not Path(run).is_dir() or is_trusted(run):
            return ""
        place = by_address(str(Path(run).resolve()))
        return (f"{place}/config.toml sets {self.opts[0]}, which could harm you if another person wrote it. "
                f"If you have read that file, trust it: export {VARIABLE}={shell_quote(place)} (the folder "
                "above it also holds its arms and branches). Without "
                f"`warehouse loop` or `arms` you can also leave {self.opts[0]} out of it and type it with "
                f"`{command}`.")


def is_trusted(run: str | Path) -> bool:
    """True if the user named the run's folder or address, or one above it, in ROLLHOUSE_TRUST."""
    folder = Path(run).resolve()
    address = by_address(str(folder))
    return any(f"{address}/".startswith(f"{entry.rstrip('/')}/")
               or folder.is_relative_to(Path(entry).resolve())
               for entry in filter(None, os.environ.get(VARIABLE, "").split(",")))


def trust_as(run: str | Path, made_of_it: str | Path) -> None:
    """Let the commands of this process trust what is made of a run with its config.toml, if it is trusted."""
    if is_trusted(run):
        os.environ[VARIABLE] = ",".join(filter(None, (os.environ.get(VARIABLE), str(made_of_it))))
