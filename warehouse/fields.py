"""Options as dataclass fields: click's options, config.toml's keys, stored settings and help derive from it.

    @dataclass(frozen=True)
    class PackOptions:
        size: int = option(8, "Rows of a pack.", least=1, group="Set first")

    @click.command(cls=TitledCommand)
    @options_of(PackOptions)
    def pack(**values: Any) -> None:
        options = options_from(PackOptions, values)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import click

from warehouse.consent import GuardedOption
from warehouse.options import FiniteRange

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Option:
    """An option on the command line; `group` begins a group of the help."""

    help: str
    flags: tuple[str, ...]
    group: str
    choices: Sequence[str]
    least: float | None
    most: float | None
    above: bool                     # excludes `least` itself
    below: bool                     # excludes `most` itself
    stored: bool | str              # whether a stage records it, or the stored name
    parse: Callable[[Any], Any] | None      # from a text to the field's value
    guarded: str | None             # refused in an untrusted config.toml; option that replaces it
    more: Mapping[str, Any]         # click's own


def option(default: Any, help: str = "", *flags: str, group: str = "", choices: Sequence[str] = (),
           least: float | None = None, most: float | None = None, above: bool = False, below: bool = False,
           stored: bool | str = True, parse: Callable[[Any], Any] | None = None,
           guarded: str | None = None, **more: Any) -> Any:
    """A field that is an option, `--its-name` or `flags`; bool is a flag, tuple[str, ...] may be repeated."""
    kept = Option(help, flags, group, choices, least, most, above, below, stored, parse, guarded, more)
    return dataclasses.field(default=default, metadata={"option": kept})


def iteration_field(group: str, default: str = "next due") -> Any:
    return option(None, f"Iteration.  [default: {default}]", least=0, stored=False, group=group)


def options_of(options: type) -> Callable[[Any], Any]:
    """Give a command the options that a dataclass declares, nested dataclasses included."""
    def add(function: Any) -> Any:
        group, made = "Options", []
        for field, hint in _fields(options):
            kept: Option = field.metadata["option"]
            group = kept.group or group
            made.append((_click_option(field, hint, kept), group))
        for add_option, title in reversed(made):
            function = add_option(function)
            function.__click_params__[-1].title = title
        return function
    return add


def options_from(options: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass filled with click's values."""
    hints, given = get_type_hints(options), dict[str, Any]()
    for field in dataclasses.fields(options):           # type: ignore[arg-type]
        if kept := field.metadata.get("option"):
            value = values[field.name]
            given[field.name] = kept.parse(value) if kept.parse else value
        elif dataclasses.is_dataclass(hint := hints[field.name]):
            given[field.name] = options_from(hint, values)  # type: ignore[arg-type]
        else:
            given[field.name] = values[field.name]      # an argument
    return options(**given)


def stored_values(options: Any) -> dict[str, Any]:
    """The values that a stage records, by their stored names."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value, kept = getattr(options, field.name), field.metadata.get("option")
        if kept is None and dataclasses.is_dataclass(value):
            values |= stored_values(value)
        elif kept and kept.stored:
            values[kept.stored if isinstance(kept.stored, str) else field.name] = value
    return values


def _fields(options: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints, found = get_type_hints(options), []
    for field in dataclasses.fields(options):           # type: ignore[arg-type]
        hint = hints[field.name]
        if "option" in field.metadata:
            found.append((field, hint))
        elif dataclasses.is_dataclass(hint):
            found += _fields(hint)      # type: ignore[arg-type]
    return found


def _click_option(field: dataclasses.Field[Any], hint: Any, kept: Option) -> Callable[[Any], Any]:
    plain = next(part for part in get_args(hint) if part is not type(None)) if isinstance(
        hint, UnionType) else hint
    more = dict(kept.more)
    if kept.guarded is not None:
        more |= {"cls": GuardedOption, "unless": kept.guarded}
    more.setdefault("show_default", "[default:" not in kept.help)
    default = field.default
    if kept.parse:
        default = str(default) if default else None
    elif plain is bool:
        more["is_flag"] = True
    elif plain == tuple[str, ...]:
        more["multiple"] = True
    elif kept.choices:
        more["type"] = click.Choice(list(kept.choices))
    elif plain is float:
        more["type"] = FiniteRange(kept.least, kept.most, kept.above, kept.below)
    elif plain is int:
        bounded = (kept.least, kept.most) != (None, None)
        more["type"] = click.IntRange(kept.least, kept.most) if bounded else int    # type: ignore[arg-type]
    elif plain is Path:
        more["type"] = click.Path(path_type=Path)
    flags = kept.flags or (f"--{field.name.replace('_', '-')}",)
    return click.option(*flags, field.name, default=default, help=kept.help, **more)
