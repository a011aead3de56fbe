"""RUN/config.toml, the only file of a run that users edit: its tables and their allowed content."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError

# Tables: the stages, commands of `warehouse` and `reports` by name, and for all of them [warehouse] (which
# scorer to show, what an hour costs) and [links] (saved pages of the viewer).
TABLES = ("rollout", "eval", "score", "train", "warehouse", "summary", "sql", "watch", "check", "loop",
          "arms", "build", "compare", "links")
GONE = ("results", "queries", "prices")         # commands of earlier versions
PRICE = "price-per-hour"
HEADING = re.compile(r"\s*\[([^\[\]]+)\]")


def named_scorer(root: Path) -> str | None:
    """The scorer named in [warehouse] of RUN/config.toml, if any."""
    return read_config(root / "config.toml").get("warehouse", {}).get("scorer")


def price_per_hour(root: Path) -> float | None:
    """The price in dollars of an hour of the run's machine, from [warehouse]; None if not given."""
    return read_config(root / "config.toml").get("warehouse", {}).get(PRICE)


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a config file, none without a file; StageError naming invalid content.

    Options are named with dashes, as on the command line; of two spellings in a table both are kept.
    """
    try:
        tables = read_tables(path, "command")
    except StageError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return {}
        raise
    for name in tables:
        if name not in (*TABLES, *GONE):
            raise StageError(f"{place_in(path, name)} has a table [{name}]. The tables are named after the "
                             f"commands: {', '.join(TABLES)}.")
    for key in tables.get("warehouse", {}).keys() - {"scorer", PRICE}:
        where = place_in(path, "warehouse", key)
        raise StageError(f"{where}: [warehouse] has no key '{key}'. Known: scorer, {PRICE}.")
    price = tables.get("warehouse", {}).get(PRICE, 0)
    if type(price) not in (int, float) or not 0 <= price < math.inf:
        where = place_in(path, "warehouse", PRICE)
        raise StageError(f"{where}: [warehouse] {PRICE} = {price} is not a price. Write what an hour of the "
                         "machine costs in dollars, as 2.5.")
    for name in ("warehouse", "links"):
        for key, value in tables.get(name, {}).items():
            if not isinstance(value, str) and (name, key) != ("warehouse", PRICE):
                where = place_in(path, name, key)
                raise StageError(f"{where}: [{name}] {key} = {value} is not text. Put it in quotes.")
    return {name: table if name == "links" else {
        key if dashed(key) in table else dashed(key): value for key, value in table.items()}
        for name, table in tables.items()}


def read_tables(path: Path, named_after: str, hint: str = "") -> dict[str, dict[str, Any]]:
    """The tables of a TOML file; StageError if it is damaged or has a key outside of a table."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StageError(f"{path} is not valid TOML: {error}. Fix that line{hint}.") from error
    except OSError as error:
        raise StageError(f"{path} cannot be read: {error.strerror}. Fix that.") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            where = place_in(path, "", name)
            raise StageError(f"{where}: '{name}' is not a table. Put it below the [{named_after}] it is for.")
    return tables


def dashed(key: str) -> str:
    """An option's name as on the command line."""
    return key.replace("_", "-")


def place_in(path: Path, table: str, key: str = "") -> str:
    """The file and line of a table, or of a key in it, in words; only the file if neither is found."""
    current = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if heading := HEADING.match(line):
            current = heading[1].strip("\"' ")
        name = line.partition("=")[0].strip(" \t\"'")
        if current == table and (key in (name, dashed(name)) if key else heading):
            return f"{path}, line {number}"
    return str(path)
