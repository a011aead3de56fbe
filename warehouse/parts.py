"""Parquet parts: how they are encoded, written and read."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from warehouse.commit import commit_file
from warehouse.errors import StageError
from warehouse.schema import SCHEMA_VERSION, arrow_schema

# Measured on 40,000 completions of 400 tokens: zstd 3 is the knee of size against speed, ids stay PLAIN
# (a dictionary or delta encoding makes them larger), float32 logprobs shrink by a tenth when byte-split.
ENCODINGS = {"completion_ids": "PLAIN", "prompt_ids": "PLAIN", "behaviour_logprobs": "BYTE_STREAM_SPLIT",
             "old_logprobs": "BYTE_STREAM_SPLIT"}
NAMES = {"purpose", "task_id", "group_id", "scorer", "split", "finish_reason", "policy_sha256",
         "prompt_format", "format_options", "prefill", "logprobs_mode", "engine", "dtype", "device", "host",
         "error_class", "error_name", "sandbox_tier", "source", "drop_reason", "prompt_id", "fingerprint"}
ROW_GROUP_SIZE = 1024


def write_part(path: Path, table_name: str, table: pa.Table, metadata: dict[str, str]) -> bool:
    """Commit `table` as the part `path`; False if that part stood already. Columns must fit the schema."""
    schema = arrow_schema(table_name)
    missing = set(schema.names) ^ set(table.column_names)
    assert not missing, f"columns of {table_name} do not fit the schema: {sorted(missing)}"
    table = table.select(schema.names).cast(schema)
    facts = {"schema_version": str(SCHEMA_VERSION), "table": table_name, **metadata}
    table = table.replace_schema_metadata({f"rollhouse.{key}": value for key, value in facts.items()})
    return commit_file(path, lambda temporary: _write(temporary, table))


def _write(path: Path, table: pa.Table) -> None:
    encodings = {f"{name}.list.element": encoding for name, encoding in ENCODINGS.items()
                 if name in table.column_names}
    pq.write_table(table, path, compression="zstd", compression_level=3, row_group_size=ROW_GROUP_SIZE,
                   write_page_index=True, column_encoding=encodings or None,
                   use_dictionary=[name for name in table.column_names if name in NAMES])


def part_number(path: Path) -> int:
    """The number in `part-00007.parquet`."""
    found = re.search(r"-(\d+)\.parquet$", path.name)
    assert found, path
    return int(found[1])


def read_parts(paths: list[Path], table_name: str, columns: list[str] | None = None) -> pa.Table:
    """All rows of the parts, in order; an empty table of the right schema when there is none."""
    schema = arrow_schema(table_name)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    tables = [read_part(path, columns).cast(schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """One part; StageError if it is torn or not Parquet."""
    try:
        return pq.ParquetFile(path).read(columns=columns).replace_schema_metadata(None)
    except (pa.ArrowInvalid, OSError) as error:
        raise StageError(f"{path} cannot be read ({error}). Run `warehouse check` to see what is damaged; "
                         "remove the damaged part and run its stage again.") from error
