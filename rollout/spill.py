"""Completions of an open part, saved now and then so that a kill loses minutes, not the part.

A spill stands next to its part as `part-00007.parquet.spill-<id>`, a name that no reader of parts matches:
short completions finish first, so a part is only read once its long ones are there, too. Each spill holds
the rows since the previous one, so that saving often is cheap; the loop's `score` runs their programs.
"""

import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from warehouse.store.commit import commit_file
from warehouse.store.errors import first_line
from warehouse.store.parts import spills_of
from warehouse.store.schema import arrow_schema

Key = tuple[str, int]  # (task_id, sample_index)
MOST_FILES = 32        # spills of a part; then all its rows are saved in one file


class Spill:
    """The completions of a part by key, of earlier runs and of this one: `rows` are finished.

    `drawn` are unfinished. Of earlier runs, only rows with `wanted` keys and the values `same` are used: one
    policy and one engine sample a rollout. `begun` come from earlier iterations.
    """

    def __init__(self, part: Path, wanted: Iterable[Key], same: dict[str, Any],
                 begun: dict[Key, dict[str, Any]]) -> None:
        self.part = part
        self.rows: dict[Key, dict[str, Any]] = {}
        self.drawn: dict[Key, dict[str, Any]] = {}
        self.fresh: dict[Key, dict[str, Any]] = {}      # since the last save
        self.files = spills_of(part)  # files with these rows; another worker's later ones are not touched
        known = set(wanted)
        for path in self.files:
            for row in _rows_of(path):
                if all(row[name] == value for name, value in same.items()) and key_of(row) in known:
                    self.add(row)
        for key in known & begun.keys():
            if key not in self.drawn:
                self.add(begun[key])
        self.fresh = {}

    def has(self, member: tuple[dict[str, Any], int]) -> bool:
        prompt, sample = member
        return (prompt["task_id"], sample) in self.rows

    def add(self, row: dict[str, Any]) -> None:
        """Add a completion or its beginning: the first whole one stays, else the longest beginning."""
        key = key_of(row)
        if key in self.rows:
            return
        if row["finish_reason"] is not None:
            self.rows[key] = row
            self.drawn.pop(key, None)
        elif row["num_completion_tokens"] >= self.drawn.get(key, row)["num_completion_tokens"]:
            self.drawn[key] = row
        self.fresh[key] = row

    def save(self) -> None:
        """Commit the new rows in a file, or all rows in one file that replaces many."""
        if not self.fresh or self.part.exists():
            return
        merged = self.files if len(self.files) >= MOST_FILES else []
        rows = [*self.rows.values(), *self.drawn.values()] if merged else list(self.fresh.values())
        table = pa.Table.from_pylist(rows, arrow_schema("completions"))
        path = self.part.with_name(f"{self.part.name}.spill-{uuid.uuid4().hex[:12]}")
        commit_file(path, lambda temporary: pq.write_table(
            table, temporary, compression="zstd", use_dictionary=False, write_page_checksum=True))
        for file in merged:
            file.unlink(missing_ok=True)
        self.files, self.fresh = [*(() if merged else self.files), path], {}

    def remove(self) -> None:
        """Remove the files and free the rows, because the part is written."""
        self.rows, self.drawn, self.fresh = {}, {}, {}
        for file in spills_of(self.part):
            file.unlink(missing_ok=True)


def key_of(row: dict[str, Any]) -> Key:
    return row["task_id"], row["sample_index"]


def _rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a spill; none, and a line on stderr, if it is damaged: they are sampled again, as before."""
    try:
        return pq.read_table(path, page_checksum_verification=True).to_pylist()
    except FileNotFoundError:
        return []  # its part, or a newer spill, has replaced it
    except (pa.ArrowInvalid, OSError) as error:
        tqdm.write(f"{path.name} is damaged ({first_line(error)}); its completions are sampled again",
                   file=sys.stderr)
        return []
