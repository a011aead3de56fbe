"""RUN/config.toml, the one file of a run that is meant to be edited: its tables, and what they may hold."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError

# The stages, commands of `warehouse` and `reports` by their names, and for all of them [warehouse] (which
# scorer to show) and [queries] (saved queries of the run).
TABLES = ("rollout", "score", "train", "warehouse", "queries", "summary", "sql", "watch", "check", "results",
          "build", "compare")


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a config file, none without one; StageError naming what it may not hold."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise StageError(f"{path} is not valid TOML: {error}. Mend that line.") from error
    except OSError as error:
        raise StageError(f"{path} cannot be read: {error.strerror}. Mend that or remove it.") from error
    for name, table in tables.items():
        if name not in TABLES:
            raise StageError(f"{path} has a table [{name}]. The tables are named after the commands: "
                             f"{', '.join(TABLES)}.")
        if not isinstance(table, dict):
            raise StageError(f"{path}: '{name}' is no table. Write [{name}] and its keys below.")
    for key in tables.get("warehouse", {}).keys() - {"scorer"}:
        raise StageError(f"{path}: [warehouse] has no key '{key}'. Known: scorer.")
    for name in ("warehouse", "queries"):
        for key, value in tables.get(name, {}).items():
            if not isinstance(value, str):
                raise StageError(f"{path}: [{name}] {key} = {value} is no text. Put it in quotes.")
    return tables
