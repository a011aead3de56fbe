"""The text that turns stored parts into SQL tables: file lists with absolute paths, and types."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from warehouse.sql.inventory import Inventory
from warehouse.sql.rollup_files import ROLLED
from warehouse.store.schema import SEGMENTS, SUPPORT, TABLES, VERSION_SEGMENTS, Column

SQL_TYPES = {pa.string(): "VARCHAR", pa.bool_(): "BOOLEAN", pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
             pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.timestamp("ms", tz="UTC"): "TIMESTAMP",
             pa.list_(pa.int32()): "INTEGER[]", pa.list_(pa.float32()): "FLOAT[]",
             pa.list_(pa.int8()): "TINYINT[]",
             SUPPORT: "INTEGER[][]", SEGMENTS: "STRUCT(start INTEGER, length INTEGER, kind VARCHAR)[]",
             VERSION_SEGMENTS: "STRUCT(start INTEGER, length INTEGER, policy_version INTEGER)[]"}
FOLDER_KEYS = {"prompts": ("iteration", "purpose"), "completions": ("iteration", "purpose"),
               "samples": ("iteration", "purpose", "scorer"),
               "policy_logprobs": ("iteration", "purpose", "model"), "train_samples": ("trained_iteration",),
               "train_tokens": ("trained_iteration",), "train_steps": ("iteration",)}
STORED_AS = {"carried": "completions", "all_samples": "samples", "fresh_samples": "samples",
             "fresh_train_samples": "train_samples"}
DOCUMENTS = {"path": "VARCHAR", "document": "VARCHAR"}
# Tables that are not parts, with their columns' types.
OTHERS = {"scorers": {"iteration": "INTEGER", "purpose": "VARCHAR", "scorer": "VARCHAR", "chosen": "BOOLEAN",
                      "reason": "VARCHAR"},
          "vocabulary": {"token_id": "INTEGER", "token": "VARCHAR"},
          "stage_manifests": DOCUMENTS, "policy_documents": DOCUMENTS}


def table_views() -> str:
    """CREATE VIEW statements of the physical tables and of other known facts, without rows.

    DuckDB checks every view and all views below it when it is made: a tenth of a second over tables without
    files, several seconds over a thousand files. `stored_rows` adds the files afterwards.
    """
    tables = {name: {column.name: SQL_TYPES[column.type] for column in TABLES[STORED_AS.get(name, name)]}
              for name in TABLES | STORED_AS} | OTHERS
    return "\n".join(_stored_view(name, f"SELECT {_nulls(kinds)} WHERE false")
                     for name, kinds in tables.items())


def stored_rows(inventory: Inventory) -> str:
    """The files of every table that has any, of the documents and of the rollup; which scorer counts."""
    bodies = {name: _table_rows(name, paths, inventory.schema_version)
              for name, paths in inventory.parts.items() if paths}
    if inventory.choices:
        rows = [{**choice._asdict(), "reason": choice.reason or None} for choice in inventory.choices]
        bodies["scorers"] = literal_rows(rows, OTHERS["scorers"])
    if inventory.manifests:
        bodies["stage_manifests"] = ("SELECT filename AS path, content AS document FROM "
                                     f"read_text({_file_list(inventory.manifests)})")
    if inventory.policies:
        rows = [{"path": str(path), "document": json.dumps(policy)} for path, policy in inventory.policies]
        bodies["policy_documents"] = literal_rows(rows, DOCUMENTS)
    if inventory.vocabulary:
        bodies["vocabulary"] = f"FROM read_parquet({_file_list([inventory.vocabulary])})"
    if rollup := inventory.rollup:
        paths = {name: _file_list([rollup.folder / f"{name}.parquet"]) for name in ROLLED}
        bodies |= {name: f"FROM read_parquet({path}, hive_partitioning = false) UNION ALL BY NAME "
                         f"{_newly_computed(name)}" for name, path in paths.items()}
    return "\n".join(_stored_macro(name, body) for name, body in bodies.items())


def rolled_views() -> str:
    """Views of newly computed rows; `stored_rows` combines them with those of a rollup."""
    return "\n".join(_stored_view(name, _newly_computed(name)) for name in ROLLED)


def _newly_computed(name: str) -> str:
    rows = "fresh_train_samples" if name == "rolled_mismatch" else "fresh_samples"
    return f"FROM {name.removeprefix('iteration_').removeprefix('rolled_')}_of('{rows}')"


def literal_rows(rows: list[dict[str, Any]], kinds: dict[str, str]) -> str:
    """A query that gives these rows, with columns of these types."""
    return f"SELECT unnest({_from_json(rows, [kinds])}, max_depth := 2)"


def quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def condition(chosen: Mapping[str, Collection[Any]]) -> str:
    """The condition that each column has one of the chosen values; true if none is chosen."""
    kept = [f"{name} IN ({', '.join(map(quoted, values))})" for name, values in chosen.items() if values]
    return " AND ".join(kept) or "true"


def of_purposes(purposes: Collection[str], column: str = "purpose") -> str:
    """The condition that rows have one of the purposes, true if none is given; `eval` is every evaluation."""
    every = f" OR starts_with({column}, 'eval-')" if "eval" in purposes else ""
    return f"({condition({column: purposes})}{every})"


def quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _stored_view(name: str, body: str) -> str:
    return f"{_stored_macro(name, body)}\nCREATE OR REPLACE VIEW {name} AS FROM stored_{name}();"


def _table_rows(name: str, paths: list[Path], version: int) -> str:
    """The rows of a physical table's files; null if files of an older version lack a column."""
    stored = STORED_AS.get(name, name)
    by_name = _by_name(stored, paths)
    selected = ", ".join(_column(stored, column, by_name) for column in TABLES[stored])
    options = _options(stored, by_name)
    later = {column.stored or column.name: SQL_TYPES[column.type] for column in TABLES[stored]
             if column.since > version}
    if not later:
        return f"SELECT {selected}\nFROM read_parquet({_file_list(paths)}, {options})"
    return (f"SELECT {selected}\nFROM (FROM read_parquet({_file_list(paths)}, {options}, "
            f"union_by_name = true) UNION ALL BY NAME SELECT {_nulls(later)} WHERE false)")


def _nulls(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"NULL::{kind} AS {name}" for name, kind in kinds.items())


def _stored_macro(name: str, body: str) -> str:
    return f"CREATE OR REPLACE MACRO stored_{name}() AS TABLE {body};"


def _column(table: str, column: Column, by_name: bool) -> str:
    # Filtering by a value in the path leaves other files unopened. Rows trained again later stay under their
    # own iteration, so for them the folder's iteration is that of the training.
    if by_name and column.name in FOLDER_KEYS[table]:
        key = column.name.removeprefix("trained_")
        return f"regexp_extract(filename, '.*/{key}=([^/]+)/', 1)::{SQL_TYPES[column.type]} AS {column.name}"
    # Plain timestamps in UTC: Python needs another package to fetch those with a time zone.
    if column.name == "finished_at":
        return "finished_at::TIMESTAMP AS finished_at"
    return f"{column.stored} AS {column.name}" if column.stored else column.name


def _options(table: str, by_name: bool) -> str:
    if table not in FOLDER_KEYS:
        return "hive_partitioning = false"
    if by_name:
        return "hive_partitioning = false, filename = true"
    types = ", ".join(f"'{column.name}': {SQL_TYPES[column.type]}" for column in TABLES[table]
                      if column.name in FOLDER_KEYS[table])
    return f"hive_partitioning = true, hive_types = {{{types}}}"


def _by_name(table: str, paths: list[Path]) -> bool:
    """True if DuckDB's own reading of key=value folders, which prunes more, would be wrong.

    It takes the first `iteration=` of a path, which is wrong for a run inside a folder of that name, and
    requires the same keys in all files, which old versions did not write.
    """
    return (table in ("train_samples", "train_tokens")
            or len({"/generation=" in str(path) for path in paths}) > 1
            or any(len(re.findall(f"/{key}=", str(paths[0]))) > 1 for key in FOLDER_KEYS.get(table, ())))


def _file_list(paths: list[Path]) -> str:
    # DuckDB treats every entry as a glob: brackets and stars in the run's own path must be taken literally.
    return _from_json([re.sub(r"([\[*?])", r"[\1]", str(path)) for path in paths], ["VARCHAR"])


def _from_json(values: list[Any], kind: list[Any]) -> str:
    """A list as one literal: from thousands of values DuckDB would make, and keep, as many expressions."""
    return f"from_json({quoted(json.dumps(values, indent=0, ensure_ascii=False))}, '{json.dumps(kind)}')"
