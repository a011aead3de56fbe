"""Completions of a part that is not whole yet, saved now and then so that a kill loses minutes, not the part.

A spill lies beside its part as `part-00007.parquet.spill-<id>`, a name that no reader of parts matches:
what finished first is short, so a part is only read once its long completions are there too.
"""

import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from warehouse.store.commit import commit_file
from warehouse.store.schema import arrow_schema

Key = tuple[str, int]  # (task_id, sample_index)


class Spill:
    """The finished completions of one part, `rows` by key: those of earlier runs and those added.

    Of earlier runs only rows with the values `same` are taken: a group is of one policy and one engine.
    """

    def __init__(self, part: Path, same: dict[str, Any]) -> None:
        self.part = part
        self.rows: dict[Key, dict[str, Any]] = {}
        self.files = self._files()  # those whose rows are here; another worker's later ones are not touched
        for path in self.files:
            for row in _rows_of(path):
                if all(row[name] == value for name, value in same.items()):
                    self.rows.setdefault((row["task_id"], row["sample_index"]), row)
        self.num_saved = len(self.rows)

    def _files(self) -> list[Path]:
        # Exactly so many digits: what another worker is writing just now has a longer name.
        return sorted(self.part.parent.glob(f"{self.part.name}.spill-{'[0-9a-f]' * 12}"))

    def has(self, member: tuple[dict[str, Any], int]) -> bool:
        """Whether the completion of (prompt row, sample index) is here."""
        prompt, sample = member
        return (prompt["task_id"], sample) in self.rows

    def add(self, row: dict[str, Any]) -> None:
        """Take one finished completion; the first of its key stays."""
        self.rows.setdefault((row["task_id"], row["sample_index"]), row)

    def save(self) -> None:
        """Commit all rows in one new file, then remove the older ones."""
        if len(self.rows) == self.num_saved or self.part.exists():
            return
        table = pa.Table.from_pylist(list(self.rows.values()), schema=arrow_schema("completions"))
        path = self.part.with_name(f"{self.part.name}.spill-{uuid.uuid4().hex[:12]}")
        commit_file(path, lambda temporary: pq.write_table(
            table, temporary, compression="zstd", write_page_checksum=True))
        for file in self.files:
            file.unlink(missing_ok=True)
        self.files, self.num_saved = [path], len(self.rows)

    def remove(self) -> None:
        """Remove the files and free the rows: the part is written."""
        self.rows, self.num_saved = {}, 0
        for file in self._files():
            file.unlink(missing_ok=True)


def _rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of one spill; none, and a line on stderr, if it is damaged: sampled again, with the same seeds."""
    try:
        return pq.read_table(path, page_checksum_verification=True).to_pylist()
    except FileNotFoundError:
        return []  # its part, or a newer spill, was written meanwhile
    except (pa.ArrowInvalid, OSError) as error:
        tqdm.write(f"{path.name} is damaged ({str(error).splitlines()[0]}); its completions are sampled "
                   "again", file=sys.stderr)
        return []
