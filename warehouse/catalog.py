"""The text that turns stored parts into SQL tables: file lists with absolute paths, types, comments."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from warehouse.inventory import Inventory
from warehouse.rollup_files import Rollup
from warehouse.schema import TABLES
from warehouse.scorers import Choice

TABLE_COMMENTS = {
    "tasks": "One row per imported task.",
    "prompts": "One row per group: the prompt as the engine saw it, with its augmentation. "
               "Complete rollouts only.",
    "completions": "One row per completion: token ids, behaviour logprobs, text. Complete rollouts only.",
    "all_samples": "One row per completion and scorer: every complete score stage, earlier scorers too.",
    "samples": "One row per completion: reward, correctness, error, lengths, repetition, under the chosen "
               "scorer (see the view scorers). Complete score stages only.",
    "fresh_samples": "The rows of samples that no rollup holds yet.",
    "train_samples": "One row per completion that a complete train stage read: old logprobs, advantage, "
                     "mismatch.",
    "fresh_train_samples": "The rows of train_samples that no rollup holds yet.",
    "train_steps": "One row per optimizer step of the complete train stages.",
}
SQL_TYPES = {pa.string(): "VARCHAR", pa.bool_(): "BOOLEAN", pa.float32(): "FLOAT", pa.float64(): "DOUBLE",
             pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.timestamp("ms", tz="UTC"): "TIMESTAMP",
             pa.list_(pa.int32()): "INTEGER[]", pa.list_(pa.float32()): "FLOAT[]",
             pa.list_(pa.int8()): "TINYINT[]"}
HIVE_TYPES = {"iteration": "INTEGER", "purpose": "VARCHAR", "scorer": "VARCHAR"}
FOLDER_KEYS = {"prompts": ("iteration", "purpose"), "completions": ("iteration", "purpose"),
               "samples": ("iteration", "purpose", "scorer"), "train_samples": ("trained_iteration",),
               "train_steps": ("iteration",)}
STORED_AS = {"all_samples": "samples", "fresh_samples": "samples", "fresh_train_samples": "train_samples"}
BASELINE_ITERATIONS = 3
PART_GLOBS = ("tasks/*.parquet", "prompts/*/*/*.parquet", "completions/*/*/*.parquet",
              "samples/*/*/*/*.parquet", "train/*/*.parquet")


def table_views(root: Path, inventory: Inventory) -> str:
    """CREATE VIEW and COMMENT statements of the physical tables and of what the inventory knows."""
    baseline = inventory.first_iterations[:BASELINE_ITERATIONS]
    return "\n".join([*(_table_view(name, inventory.parts[name]) for name in TABLE_COMMENTS),
                      _scorers_view(inventory.choices),
                      _documents_view("stage_manifests", inventory.manifests),
                      _documents_view("policy_documents", inventory.policies), _part_files_view(root),
                      f"CREATE OR REPLACE MACRO first_iterations() AS {baseline}::INTEGER[];"])


def rolled_macro(name: str, rollup: Rollup | None) -> str:
    """Rows of a table that were computed before; none where nothing was."""
    rows = "fresh_train_samples" if name == "mismatch" else "fresh_samples"
    body = f"{name.replace('iteration_', '')}_of('{rows}') WHERE false"
    if rollup:
        path = _file_list([rollup.folder / f"{name}.parquet"])
        body = f"read_parquet({path}, hive_partitioning = false)"
    return f"CREATE OR REPLACE MACRO rolled_{name}() AS TABLE FROM {body};\n"


def quoted(text: object) -> str:
    """A SQL string literal."""
    return "'" + str(text).replace("'", "''") + "'"


def _table_view(name: str, paths: list[Path]) -> str:
    """One physical table as a view; typed and without rows while it has no part."""
    stored = STORED_AS.get(name, name)
    columns = TABLES[stored]
    if paths:
        by_name = _by_name(stored, paths[0])
        selected = ", ".join(_column(stored, column.name, by_name) for column in columns)
        body = f"SELECT {selected}\nFROM read_parquet({_file_list(paths)}, {_options(stored, by_name)})"
    else:
        body = "SELECT " + ", ".join(f"NULL::{SQL_TYPES[column.type]} AS {column.name}"
                                     for column in columns) + " WHERE false"
    # The list of files stands in a macro: every COMMENT copies its view's whole text.
    stored_rows = f"CREATE OR REPLACE MACRO stored_{name}() AS TABLE {body};"
    comments = [f"COMMENT ON VIEW {name} IS {quoted(TABLE_COMMENTS[name])};"]
    comments += [f"COMMENT ON COLUMN {name}.{column.name} IS {quoted(column.comment)};" for column in columns]
    return "\n".join([stored_rows, f"CREATE OR REPLACE VIEW {name} AS FROM stored_{name}();", *comments, ""])


def _column(table: str, column: str, by_name: bool) -> str:
    # A filter on what a file's name gives leaves the other files unopened. Rows trained again later stay
    # under their own iteration, so for them the folder's iteration is that of the training.
    key = "iteration" if (table, column) == ("train_samples", "trained_iteration") else column
    if key != column or (by_name and column in FOLDER_KEYS.get(table, ())):
        return f"regexp_extract(filename, '.*/{key}=([^/]+)/', 1)::{HIVE_TYPES[key]} AS {column}"
    # Plain timestamps in UTC: Python needs another package to fetch those with a time zone.
    return "finished_at::TIMESTAMP AS finished_at" if column == "finished_at" else column


def _options(table: str, by_name: bool) -> str:
    keys = FOLDER_KEYS.get(table, ())
    if not keys:
        return "hive_partitioning = false"
    if by_name:
        return "hive_partitioning = false, filename = true"
    types = ", ".join(f"'{key}': {HIVE_TYPES[key]}" for key in keys)
    return f"hive_partitioning = true, hive_types = {{{types}}}"


def _by_name(table: str, path: Path) -> bool:
    """True where DuckDB's own reading of key=value folders would be wrong.

    It takes the first `iteration=` of a path, which a run inside a folder of that name does not mean.
    """
    if table == "train_samples":
        return True
    return any(len(re.findall(f"/{key}=", str(path))) > 1 for key in FOLDER_KEYS.get(table, ()))


def _file_list(paths: list[Path]) -> str:
    return "[" + ",\n  ".join(quoted(_literal(path)) for path in paths) + "]"


def _literal(path: Path) -> str:
    # DuckDB reads every entry as a glob: brackets and stars in the run's own path must be taken literally.
    return re.sub(r"([\[*?])", r"[\1]", str(path))


def _part_files_view(root: Path) -> str:
    globs = ", ".join(quoted(f"{_literal(root)}/{pattern}") for pattern in PART_GLOBS)
    return ("CREATE OR REPLACE VIEW part_files AS SELECT filename AS path, "
            f"substr(filename, {len(str(root)) + 2}) AS name, size AS bytes, last_modified AS modified "
            f"FROM read_blob([{globs}]);\n")


def _scorers_view(choices: list[Choice]) -> str:
    rows = [f"({one.iteration}, {quoted(one.purpose)}, {quoted(one.scorer)}, {str(one.chosen).lower()}, "
            f"{quoted(one.reason) if one.reason else 'NULL'})" for one in choices]
    names = "(iteration, purpose, scorer, chosen, reason)"
    if rows:
        body = "SELECT * FROM (VALUES\n  " + ",\n  ".join(rows) + f") AS choices{names}"
    else:
        body = ("SELECT NULL::INTEGER AS iteration, NULL::VARCHAR AS purpose, NULL::VARCHAR AS scorer, "
                "NULL::BOOLEAN AS chosen, NULL::VARCHAR AS reason WHERE false")
    return f"CREATE OR REPLACE VIEW scorers AS {body};\n"


def _documents_view(name: str, paths: list[Path]) -> str:
    """A view of JSON files: their path and content."""
    body = (f"SELECT filename AS path, content AS document FROM read_text({_file_list(paths)})" if paths
            else "SELECT NULL::VARCHAR AS path, NULL::VARCHAR AS document WHERE false")
    return f"CREATE OR REPLACE VIEW {name} AS {body};\n"
