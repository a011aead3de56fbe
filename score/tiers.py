"""Which isolation this machine offers, found out by trying it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tier:
    """One degree of isolation: its letter, the layers that lanes put on, and what was found out."""

    name: str
    layers: int
    words: str
    isolated: bool
    facts: dict[str, Any] = field(default_factory=dict)


def choose_tier(wanted: str | None, *, unsafe: bool) -> Tier:
    """The best tier there is, or the one asked for."""
    return Tier("D", 0, "limits only", isolated=False)
