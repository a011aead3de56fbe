"""Parts of a rollout: the completions of each, which are missing, and what an open part has saved."""

import sys
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from warehouse.stages.shard import Shard
from warehouse.store.commit import commit_file
from warehouse.store.errors import first_line
from warehouse.store.parts import spills_of
from warehouse.store.run_folder import Warehouse
from warehouse.store.schema import CUT_OFF, arrow_schema

Row = dict[str, Any]
Key = tuple[str, int]  # (task_id, sample_index)
MOST_FILES = 32        # spills of a part; then all its rows are saved in one file


class Member(NamedTuple):
    """One completion of a part: its row of prompts, and its number within the task."""

    prompt: Row
    sample: int

    @property
    def key(self) -> Key:
        return self.prompt["task_id"], self.sample


@dataclass(frozen=True)
class Part:
    """One part to sample: its number, its completions, and whether its carried-over groups are settled."""

    number: int
    members: list[Member]
    decided: bool = False

    def without(self, groups: Collection[str]) -> Self:
        return replace(self, members=[member for member in self.members
                                      if member.prompt["group_id"] not in groups])


def split_parts(prompts: list[Row], part_size: int, shard: Shard) -> list[Part]:
    """All parts of a worker's share.

    The plan alone decides which part a completion belongs to, never the order of arrival, so a kill does not
    keep only the short ones.
    """
    per_part = max(1, part_size // prompts[0]["group_size"])
    return [Part(number, [Member(prompt, prompt["group_index"] * prompt["group_size"] + sample)
                          for prompt in prompts[first:first + per_part]
                          for sample in range(prompt["group_size"])])
            for number, first in enumerate(range(0, len(prompts), per_part)) if shard.holds(number)]


def rollout_facts(warehouse: Warehouse, **keys: Any) -> Row:
    columns = ["task_id", "group_id", "num_completion_tokens", "finish_reason"]
    rows = warehouse.read("completions", columns, **keys)
    left = warehouse.read("carried", columns[1:], **keys)
    facts = {"num_completions": rows.num_rows, "num_tokens": sum(rows["num_completion_tokens"].to_pylist()),
             "num_groups": len(rows["group_id"].unique()), "num_tasks": len(rows["task_id"].unique()),
             "num_truncated": sum(reason in CUT_OFF for reason in rows["finish_reason"].to_pylist())}
    return facts if not left.num_rows else facts | {
        "num_carried_groups": len(left["group_id"].unique()),
        "num_carried_unfinished": left["finish_reason"].null_count,
        "num_carried_tokens": sum(left["num_completion_tokens"].to_pylist())}


class Spill:
    """The completions of an open part by key, saved now and then: `rows` are finished, `drawn` are not.

    A file of it stands next to the part under a name that no reader of parts matches: short completions
    finish first. It holds the rows since the one before, and the loop's `score` runs their programs. Of
    earlier runs, only rows with `wanted` keys and the values `same` are used: one policy and one engine
    sample a rollout. `begun` come from earlier iterations.
    """

    def __init__(self, part: Path, wanted: Iterable[Key], same: dict[str, Any],
                 begun: dict[Key, Row]) -> None:
        self.part = part
        self.rows, self.drawn = dict[Key, Row](), dict[Key, Row]()
        self.fresh = dict[Key, Row]()       # since the last save
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

    def add(self, row: Row) -> None:
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
        self.rows, self.drawn, self.fresh = {}, {}, {}
        for file in spills_of(self.part):
            file.unlink(missing_ok=True)


def key_of(row: Row) -> Key:
    return row["task_id"], row["sample_index"]


def _rows_of(path: Path) -> list[Row]:
    """Rows of a spill; none, and a line on stderr, if it is damaged: they are sampled again, as before."""
    try:
        return pq.read_table(path, page_checksum_verification=True).to_pylist()
    except FileNotFoundError:
        return []  # its part, or a newer spill, has replaced it
    except (pa.ArrowInvalid, OSError) as error:
        tqdm.write(f"{path.name} is damaged ({first_line(error)}); its completions are sampled again",
                   file=sys.stderr)
        return []
