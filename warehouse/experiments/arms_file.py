"""arms.toml: a table per arm, options of `train` by name; read, checked, and put into a config file."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from warehouse.options import checked_options
from warehouse.store.config_file import HEADING, place_in, read_config
from warehouse.store.errors import StageError

PARENT = "parent"               # what the folder of the policy that all arms start from is called
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What the command decides itself, or what ends a training before it has written a policy.
TAKEN = ("iteration", "purpose", "dry-run", "follow", "time-limit", "keep-policies")


class Arm(NamedTuple):
    """A name, and the options of `train` in which it differs from the run's config.toml."""

    name: str
    settings: dict[str, Any]

    @property
    def title(self) -> str:
        """The settings in words."""
        return ", ".join(f"{key} {_text(value)}" for key, value in self.settings.items()) or "as the run"


def read_arms(path: Path, train: click.Command, config: Path) -> list[Arm]:
    """The arms of a file; StageError where one cannot be trained, or where two would be the same.

    `train` is the command whose options they are, `config` the run's config.toml.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StageError(f"{path} cannot be read: {error.strerror}. Name a file with a table for each "
                         "arm.") from error
    except (ValueError, RecursionError) as error:
        raise StageError(f"{path} is not valid TOML: {error}. Fix that line; each arm needs a name of its "
                         "own.") from error
    if not tables:
        raise StageError(f"{path} has no arms. Write a table for each, for example:\n"
                         "[high-rate]\nlearning-rate = 1e-4")
    arms = [_arm(path, name, table, train) for name, table in tables.items()]
    shared = read_config(config).get("train", {})
    seen: list[tuple[dict[str, Any], str]] = []
    for arm in arms:
        effective = in_effect(train, {**_dashed(shared), **arm.settings})
        for other, name in seen:
            if other == effective:
                raise StageError(f"{place_in(path, arm.name)}: the arms {name} and {arm.name} differ in "
                                 f"nothing, given {config}. Change or remove one.")
        seen.append((effective, arm.name))
    return arms


def _arm(path: Path, name: str, table: object, train: click.Command) -> Arm:
    """One arm, its keys with dashes."""
    if not isinstance(table, dict):
        raise StageError(f"{place_in(path, '', name)}: '{name}' is no table. Put it below the [name] of an "
                         "arm.")
    if not NAME.fullmatch(name) or name == PARENT:
        raise StageError(f"{place_in(path, name)}: an arm cannot be called '{name}'. Its folder has this "
                         f"name: take letters, digits, '.', '_' and '-', and not '{PARENT}'.")
    settings = _dashed(table)
    if "model" in settings:
        raise StageError(f"{place_in(path, name, 'model')}: [{name}] model: the stored rows are of the run's "
                         "own model. To train another one, make a run of it: warehouse init NEW --model ..")
    for key in TAKEN:
        if key in settings:
            raise StageError(f"{place_in(path, name, key)}: [{name}] {key} cannot differ between arms. "
                             "Remove that line.")
    checked_options(train, table, path, name)
    return Arm(name, settings)


def _dashed(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in table.items()}


def in_effect(command: click.Command, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of a command by name, with its value where `settings` has one, else its default."""
    values: dict[str, Any] = {}
    for parameter in command.params:
        names = {option.removeprefix("--") for option in parameter.opts}
        given = [value for key, value in settings.items() if key in names]
        values[str(parameter.name)] = given[0] if given else parameter.default
    return values


def with_settings(text: str, settings: Mapping[str, Any], table: str = "train") -> str:
    """The text of a config file in which a table has these settings; its other tables stay as they are.

    StageError where the table does not begin with a line [table].
    """
    tables, lines, current = tomllib.loads(text), list[str](), ""
    for line in text.splitlines():
        if heading := HEADING.match(line):
            current = heading[1].strip("\"' ")
        if current != table:
            lines.append(line)
    wanted = {**_dashed(tables.get(table, {})), **settings}
    lines += [f"[{table}]", *(f"{key} = {_text(value)}" for key, value in wanted.items())]
    made = "".join(f"{line}\n" for line in lines)
    try:
        same = tomllib.loads(made) == {**tables, table: wanted}
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise StageError(f"config.toml has a table [{table}] that no arm can add to. Write it below a line "
                         f"[{table}], with a value on each line.")
    return made


def _text(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, list):
        return f"[{', '.join(_text(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else f"{value!r}"
