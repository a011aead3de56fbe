"""arms.toml: a table per arm, options of `train` by name; read, checked, and put into a config file."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from warehouse.options import TitledCommand, checked_options, in_effect, names_of, room_command
from warehouse.store.config_file import dashed, place_in, read_config, read_tables
from warehouse.store.errors import StageError

PARENT = "parent"               # folder of the policy that all arms start from
BARE = re.compile(r"[A-Za-z0-9_-]+")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SAMPLING = ("rollout", "score")
UNSET = ""                      # an arm's value that leaves an option of the run out
# Options that `arms` sets itself, or that end a training before it has written a policy.
TAKEN = ("iteration", "purpose", "dry-run", "follow", "time-limit", "keep-policies", "eval", "label", "turn",
         "policy", "shard", "distil", "accept-change")


class Arm(NamedTuple):
    """A name, and the options in which it differs from the run's config.toml.

    `settings` are options of `train`, and two dicts, 'rollout' and 'score', with options of its own sampling.
    """

    name: str
    settings: dict[str, Any]

    @property
    def of_training(self) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if key not in SAMPLING}

    @property
    def title(self) -> str:
        words = [f"{key} {_text(value)}" if value != UNSET else f"without {key}"
                 for key, value in self.of_training.items()]
        words += [f"{stage} {key} {_text(value)}" for stage in SAMPLING
                  for key, value in self.settings.get(stage, {}).items()]
        return ", ".join(words) or "as the run"

    def words(self, stage: str) -> list[str]:
        """Its options of rollout or score as words of a command line."""
        words: list[str] = []
        for key, value in self.settings.get(stage, {}).items():
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{key}")
            for each in [] if isinstance(value, bool) else value if isinstance(value, list) else [value]:
                words += [f"--{key}", str(each)]
        return words


def read_arms(path: Path, train: click.Command, config: Path) -> list[Arm]:
    """The arms of a file; StageError if one cannot be trained, or if two would be equal."""
    tables = read_tables(path, "arm", "; each arm needs a name of its own")
    if not tables:
        raise StageError(f"{path} has no arms. Write a table for each, for example:\n"
                         "[high-rate]\nlearning-rate = 1e-4")
    arms = [_arm(path, name, table, train) for name, table in tables.items()]
    shared = read_config(config).get("train", {})
    seen: list[tuple[dict[str, Any], str]] = []
    for arm in arms:
        effective = in_effect(train, over(shared, arm.of_training, train))
        effective |= {stage: arm.settings.get(stage) for stage in SAMPLING}
        for other, name in seen:
            if other == effective:
                raise StageError(f"{place_in(path, arm.name)}: the arms {name} and {arm.name} have equal "
                                 f"settings, given {config}. Change or remove one.")
        seen.append((effective, arm.name))
    return arms


def _arm(path: Path, name: str, table: Mapping[str, Any], train: click.Command) -> Arm:
    if not NAME.fullmatch(name) or name == PARENT:
        raise StageError(f"{place_in(path, name)}: an arm cannot be named '{name}'. Its folder has this "
                         f"name: use letters, digits, '.', '_' and '-', and not '{PARENT}'.")
    if name in SAMPLING:
        raise StageError(f"{place_in(path, name)}: [{name}] would be an arm of this name. Options of "
                         f"`{name}` are those of an arm, as [ARM.{name}], or in the run's config.toml.")
    settings = {dashed(key): value for key, value in table.items()}
    for key, value in table.items():
        if isinstance(value, dict) and key not in SAMPLING:        # TOML nests what follows a dot
            whole = f"{name}.{key}"
            raise StageError(f"{place_in(path, whole)}: [{whole}] is not a table of the arm {name}, which "
                             f"may have [{name}.rollout] and [{name}.score]. A name with a dot needs quotes: "
                             f'["{whole}"].')
    for stage in SAMPLING:
        if isinstance(settings.get(stage), dict):
            settings[stage] = {dashed(key): value for key, value in settings[stage].items()}
            _check_options(path, f"{name}.{stage}", settings[stage], room_command(stage))
    _check_options(path, name, Arm(name, settings).of_training, train)
    return Arm(name, settings)


def _check_options(path: Path, name: str, settings: Mapping[str, Any], command: click.Command) -> None:
    """StageError for options that the command does not have, or that cannot differ between arms."""
    if "model" in settings:
        raise StageError(f"{place_in(path, name, 'model')}: [{name}] model: the stored rows are of the run's "
                         "own model. To train another one, make a run of it: warehouse init NEW --model ..")
    for key in TAKEN:
        if key in settings:
            raise StageError(f"{place_in(path, name, key)}: [{name}] {key} cannot differ between arms. "
                             "Remove that line.")
    known = names_of(command)
    checked_options(command, {key: value for key, value in settings.items()
                              if value != UNSET or key not in known}, path, name)


def check_together(path: Path, arms: Sequence[Arm], config: Path) -> None:
    """StageError for options of a trusted run and an arm that `train` refuses together."""
    train, shared = room_command("train"), read_config(config).get("train", {})
    assert isinstance(train, TitledCommand)
    for arm in arms:
        try:
            train.check(in_effect(train, over(shared, arm.of_training, train)))
        except StageError as error:
            ours = [f' In an arm {key} = "" leaves it out.' for key in shared
                    if f"--{key}" in str(error) and key not in arm.settings]
            where = place_in(path, arm.name)
            raise StageError(f"{where}: [{arm.name}] {error}{''.join(ours[:1])}") from error


def over(shared: Mapping[str, Any], settings: Mapping[str, Any], train: click.Command) -> dict[str, Any]:
    """The run's settings of [train], each replaced by the arm's under any of its names."""
    names = names_of(train)
    own = {names.get(key) for key in settings}
    kept = {key: value for key, value in shared.items() if names.get(key) not in own}
    return {**kept, **{key: value for key, value in settings.items() if value != UNSET}}


def with_settings(tables: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """The text of a config file with these tables, with these settings in [train]."""
    made = {**tables, "train": over(tables.get("train", {}), settings, room_command("train"))}
    return "\n".join("\n".join([f"[{name}]", *_lines(table), ""]) for name, table in made.items())


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_text(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else json.dumps(key)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(each) for each in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(_lines(value))}}}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else f"{value!r}"
