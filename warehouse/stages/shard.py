"""The share of a rollout's parts that one of several workers takes."""

from __future__ import annotations

from dataclasses import dataclass

from warehouse.store.errors import StageError


@dataclass(frozen=True)
class Shard:
    """Parts with number % count == index."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From 'INDEX/COUNT'; StageError if it is not 0 <= INDEX < COUNT."""
        index, _, count = text.partition("/")
        if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
            raise StageError(f"--shard {text} is not INDEX/COUNT with INDEX from 0 to COUNT - 1, as in 3/16.")
        return cls(int(index), int(count))

    def holds(self, part_number: int) -> bool:
        return part_number % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
