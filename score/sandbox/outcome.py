"""What became of one program: the outcome that answers are judged from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from score.wire.error_classes import INFRASTRUCTURE, ErrorClass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one program did: `result` when it ran (in the form of its kind of task), else an error class."""

    result: Any = None
    error_class: ErrorClass | None = None
    error_name: str | None = None
    error_message: str | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None
    max_rss_mib: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)     # more about it, kept in the column `extra`

    @property
    def infrastructure(self) -> bool:
        """True when this says nothing about the program."""
        return self.error_class in INFRASTRUCTURE
