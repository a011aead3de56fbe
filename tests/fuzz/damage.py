"""One file of a run damaged at random: by the disk, by a person, or by another program."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VALUES = (None, True, 0, -1, 2**63, 1e308, float("nan"), "", "x", "../..", "\ud800", [], {}, [[]], [None],
          {"": 0}, "0" * 300)
RAW = (b"", b"[]", b"5", b"null", b"\xff\xfe\x00", b"[" * 100_000, b"9" * 5000, b'{"a": %s}' % (b"9" * 5000),
       b"{}", b'"\\ud800"')
PLACES = ("tasks", "prompts", "completions", "samples", "train", "policies", "")


def damage_a_file(run: Path, draw: random.Random) -> str:
    """Damage one file of the run; what was done to which."""
    place = draw.choice(PLACES)
    files = sorted(path for path in (run / place).rglob("*" if place else "*.*") if path.is_file()
                   and (place or path.parent == run))
    path = draw.choice(files)
    ways = [*WAYS, *(WAYS_OF.get(path.suffix, ()) * 3)]
    way = draw.choice(ways)
    path.chmod(0o644)
    way(path, draw)
    return f"{path.relative_to(run)} {way.__name__}"


def flipped(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 3)):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def torn(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[:draw.randrange(path.stat().st_size)])


def emptied(path: Path, _draw: random.Random) -> None:
    path.write_bytes(b"")


def removed(path: Path, _draw: random.Random) -> None:
    path.unlink()


def overwritten(path: Path, draw: random.Random) -> None:
    """A stretch of the file is another file's, as after a crash of the filesystem."""
    content = bytearray(path.read_bytes())
    start = draw.randrange(len(content))
    stretch = content[start:start + draw.randint(1, 4096)]
    content[start:start + len(stretch)] = draw.choice([bytes(len(stretch)), draw.randbytes(len(stretch))])
    path.write_bytes(content)


def swapped(path: Path, draw: random.Random) -> None:
    """Exchanged with another file of its kind."""
    run = next(folder for folder in path.parents if folder.name == "run")
    others = [other for other in sorted(run.rglob(f"*{path.suffix}")) if other.is_file()
              and other.read_bytes() != path.read_bytes()]
    if not others:
        return torn(path, draw)
    other = draw.choice(others)
    mine = path.read_bytes()
    other.chmod(0o644)
    path.write_bytes(other.read_bytes())
    other.write_bytes(mine)


def turned_into_a_folder(path: Path, _draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def turned_into_a_link(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.symlink(draw.choice(["/nowhere/at/all", path.name, "/dev/null"]), path)


def filled_with(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.choice(RAW))


def mutated(path: Path, draw: random.Random) -> None:
    """One value of a JSON file is another, or gone."""
    try:
        value = json.loads(path.read_text())
    except ValueError:
        return emptied(path, draw)
    path.write_text(json.dumps(mutate(value, draw)))


def mutate(value: Any, draw: random.Random) -> Any:
    """The value with one place in it changed."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw.choice(keys)
        if draw.random() < 0.15:
            del value[key]
        else:
            value[key] = mutate(value[key], draw)
        return value
    return draw.choice(VALUES)


def rewritten(path: Path, draw: random.Random) -> None:
    """Parquet still, but with other rows or columns."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError):
        return emptied(path, draw)
    change = draw.choice(CHANGES)
    pq.write_table(change(table, draw), path)


def _without_a_column(table: pa.Table, draw: random.Random) -> pa.Table:
    return table.drop_columns([draw.choice(table.column_names)])


def _with_nothing(table: pa.Table, draw: random.Random) -> pa.Table:
    index = draw.randrange(table.num_columns)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.nulls(table.num_rows, field.type))


def _as_text(table: pa.Table, draw: random.Random) -> pa.Table:
    index = draw.randrange(table.num_columns)
    return table.set_column(index, table.column_names[index], pa.array(["?"] * table.num_rows))


def _shorter(table: pa.Table, draw: random.Random) -> pa.Table:
    return table.slice(0, draw.randrange(table.num_rows) if table.num_rows else 0)


def _twice(table: pa.Table, _draw: random.Random) -> pa.Table:
    return pa.concat_tables([table, table])


def _of_another_version(table: pa.Table, draw: random.Random) -> pa.Table:
    version = draw.choice([b"1", b"99", b"", b"two", b"\xff"])
    return table.replace_schema_metadata({**(table.schema.metadata or {}),
                                          b"rollhouse.schema_version": version})


CHANGES: tuple[Callable[[pa.Table, random.Random], pa.Table], ...] = (
    _without_a_column, _with_nothing, _as_text, _shorter, _twice, _of_another_version)
WAYS: tuple[Callable[[Path, random.Random], None], ...] = (
    flipped, flipped, torn, emptied, removed, overwritten, swapped, turned_into_a_folder, turned_into_a_link,
    filled_with)
WAYS_OF: dict[str, tuple[Callable[[Path, random.Random], None], ...]] = {
    ".json": (mutated,), ".parquet": (rewritten,)}


def copy_of(run: Path, folder: Path) -> Path:
    """A copy of the run to damage."""
    return Path(shutil.copytree(run, folder / "run", symlinks=True))
