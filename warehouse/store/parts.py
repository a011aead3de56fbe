"""Parquet parts: their encodings, and how they are written and read."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warehouse.store.commit import commit_file
from warehouse.store.errors import Damaged, StageError, first_line
from warehouse.store.schema import SCHEMA_VERSION, arrow_schema, later_columns, stored_names

# Measured on completions of 400 tokens: ids stay PLAIN (a dictionary or delta encoding makes them larger),
# float32 logprobs shrink by a tenth when byte-split, and by nothing more at any level above zstd's 3, while
# ids and text shrink by another tenth at level 6.
ENCODINGS = {"completion_ids": "PLAIN", "prompt_ids": "PLAIN", "support_ids": "PLAIN",
             "behaviour_logprobs": "BYTE_STREAM_SPLIT", "logprobs": "BYTE_STREAM_SPLIT",
             "old_logprobs": "BYTE_STREAM_SPLIT", "log_drift": "BYTE_STREAM_SPLIT"}
ZSTD_LEVEL, TEXT_LEVEL = 3, 6
TEXTS = {"completion", "prompt", "code", "outputs", "messages", "payload", "reward_parts", "extra",
         "error_message"}
NAMES = {"purpose", "task_id", "group_id", "scorer", "split", "finish_reason", "policy_sha256",
         "prompt_format", "format_options", "prefill", "logprobs_mode", "engine", "dtype", "device", "host",
         "error_class", "error_name", "sandbox_tier", "source", "drop_reason", "prompt_id", "fingerprint",
         "parent_purpose", "feedback_format", "model"}
# Small groups find one completion's lists quickly. Rows without lists are read by column: the groups of a
# thousand files would cost more to list than their columns to read.
ROW_GROUP_SIZES = {"samples": 16384}
ROW_GROUP_SIZE = 1024
UNREADABLE = (ValueError, NotImplementedError, OSError)     # what pyarrow raises for flipped bits
WORTH_THREADS = 1 << 20  # bytes of a part; for smaller ones threads do not pay


def write_part(path: Path, table_name: str, table: pa.Table, metadata: dict[str, str]) -> bool:
    """Commit `table` as the part `path`; False if the part existed already. Columns must fit the schema."""
    names = arrow_schema(table_name).names
    missing = set(names) ^ set(table.column_names)
    assert not missing, f"columns of {table_name} do not fit the schema: {sorted(missing)}"

    def write(temporary: Path) -> None:
        with part_writer(temporary, table_name, metadata) as writer:
            writer.write_table(as_stored(table.select(names), writer.schema),
                               row_group_size=row_group_size(table_name))
    return commit_file(path, write)


def as_stored(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns in the readers' schema, converted to the order, names and types of a part's own schema."""
    return rows.rename_columns(schema.names).cast(schema)


def row_group_size(table_name: str) -> int:
    return ROW_GROUP_SIZES.get(table_name, ROW_GROUP_SIZE)


def part_writer(path: Path, table_name: str, metadata: dict[str, str]) -> pq.ParquetWriter:
    """A writer with the encodings of parts; each page gets a checksum, so a flipped bit is an error."""
    schema = arrow_schema(table_name)
    schema = pa.schema([field.with_name(stored_names(table_name)[field.name]) for field in schema])
    facts = {"schema_version": str(SCHEMA_VERSION), "table": table_name, **metadata}
    leaves = {leaf: field.name for field in schema for leaf in _leaves(field.name, field.type)}
    encodings = {leaf: ENCODINGS[name] for leaf, name in leaves.items() if name in ENCODINGS}
    dense = {*TEXTS, "completion_ids", "prompt_ids", "support_ids"}
    levels = {leaf: TEXT_LEVEL if name in dense else ZSTD_LEVEL for leaf, name in leaves.items()}
    return pq.ParquetWriter(
        path, schema.with_metadata({f"rollhouse.{key}": value for key, value in facts.items()}),
        compression="zstd", compression_level=levels, write_page_index=True, write_page_checksum=True,
        column_encoding=encodings or None, use_dictionary=[name for name in schema.names if name in NAMES],
        # Statistics of long texts are useless, and would be written in full.
        write_statistics=[leaf for leaf, name in leaves.items() if name not in TEXTS])


def _leaves(name: str, kind: pa.DataType) -> list[str]:
    """The columns of primitive values that Parquet stores for a column."""
    if pa.types.is_list(kind):
        return _leaves(f"{name}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{name}.{field.name}", field.type)]
    return [name]


def part_number(path: Path) -> int:
    """The number in `part-00007.parquet`."""
    number = re.search(r"-(\d+)\.parquet$", path.name)
    assert number, path
    return int(number[1])


def spills_of(part: Path) -> list[Path]:
    """The spills of a part of completions that is still open."""
    # Exactly so many digits: a file that another worker is writing has a longer name.
    return sorted(part.parent.glob(f"{part.name}.spill-{'[0-9a-f]' * 12}"))


def read_parts(paths: list[Path], table_name: str, columns: Sequence[str] | None = None,
               task_ids: set[str] | None = None) -> pa.Table:
    """All rows of the parts, in order; an empty table of the right schema when there is none."""
    names = columns or arrow_schema(table_name).names
    if task_ids is None:
        tables = [_as_known(read_part(path, _stored_columns(table_name, names)), path, table_name, names)
                  for path in paths]
    else:
        wanted = pc.field("task_id").isin(pa.array(list(task_ids), pa.string()))
        tables = [group.filter(wanted) for path in paths for group in read_groups(path, table_name, names)]
    return pa.concat_tables(tables) if tables else _schema(table_name, names).empty_table()


def read_groups(path: Path, table_name: str, names: Sequence[str]) -> Iterator[pa.Table]:
    with _open(path) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, columns=_stored_columns(table_name, names))
            yield _as_known(group.replace_schema_metadata(None), path, table_name, names)


def _stored_columns(table_name: str, names: Sequence[str]) -> list[str]:
    stored = stored_names(table_name)
    return [stored[name] for name in names]


def _schema(table_name: str, names: Sequence[str]) -> pa.Schema:
    schema = arrow_schema(table_name)
    return pa.schema([schema.field(name) for name in names])


def _as_known(part: pa.Table, path: Path, table_name: str, names: Sequence[str]) -> pa.Table:
    """Columns of a part in the readers' schema; null if a part of an older version lacks one."""
    stored, later = stored_names(table_name), None
    columns = []
    for field in (schema := _schema(table_name, names)):
        if stored[field.name] in part.column_names:
            columns.append(part[stored[field.name]])
            continue
        if later is None:
            version = part_metadata(path).get("schema_version", "")
            later = later_columns(table_name, int(version) if version.isdigit() else SCHEMA_VERSION)
        if field.name not in later:
            raise damaged_part(path, f"it has no column '{stored[field.name]}'")
        columns.append(pa.nulls(part.num_rows, field.type))
    try:
        return pa.table(columns, names=schema.names).cast(schema)
    except UNREADABLE as error:
        raise damaged_part(path, error) from error


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """One part, its page checksums verified; StageError if it is missing, torn or changed."""
    with _open(path) as file:
        rows = file.read(columns=columns, use_threads=path.stat().st_size > WORTH_THREADS)
        return rows.replace_schema_metadata(None)


@contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    if path.is_fifo():
        raise damaged_part(path, "it is a pipe")        # reading it would wait
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError as error:
        raise missing_part(path) from error
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StageError(f"{path} cannot be opened: {os.strerror(error.errno)}. Fix that, then run the "
                             "same command again.") from error
        raise damaged_part(path, error) from error


def stored_bytes(paths: Iterable[Path]) -> int:
    """Size of the parts together; StageError if a part is missing."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except FileNotFoundError as error:
            raise missing_part(path) from error
    return total


def part_metadata(path: Path) -> dict[str, str]:
    """The metadata in the footer: run_id, table, part_uuid, schema_version; StageError if unreadable."""
    try:
        return footer_facts(pq.read_schema(path).metadata)
    except UNREADABLE as error:
        raise damaged_part(path, error) from error


def footer_facts(pairs: dict[bytes, bytes] | None) -> dict[str, str]:
    """Rollhouse's own metadata in a footer."""
    return {key.decode(errors="replace").removeprefix("rollhouse."): value.decode(errors="replace")
            for key, value in (pairs or {}).items() if key.startswith(b"rollhouse.")}


def missing_part(path: Path) -> StageError:
    return StageError(f"{path} is missing. Restore it from a copy, or let `warehouse check --fix` open its "
                      "stage again.")


def damaged_part(path: Path, error: Exception | str) -> Damaged:
    why = first_line(error) if isinstance(error, Exception) else error
    return Damaged(path, why, f"cannot be read ({why}). Run `warehouse check` to see what is damaged, "
                              "and `warehouse check --fix` to open its stage again.")
