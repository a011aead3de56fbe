"""A program to run, by a key under which equal programs are run only once, and what it did."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from score.protocol.allowed_imports import LATE, Allowed, mentioned_modules
from score.protocol.error_classes import INFRASTRUCTURE, ErrorClass
from score.protocol.frames import Facts, JobKind

# Modules of objects that a program and its tests pass to each other.
PASSED = ("dataclasses", "datetime", "decimal", "fractions", "heapq", "inspect", "pathlib", "pickle",
          "uuid")
EVALUATE = re.compile("eval|exec|doctest")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one program: `result` if it ran (as its kind of job has it), else an error class."""

    result: Any = None
    error_class: ErrorClass | None = None
    error_name: str | None = None
    error_message: str | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None
    max_rss_mib: float | None = None

    @property
    def infrastructure(self) -> bool:
        """True when this says nothing about the program."""
        return self.error_class in INFRASTRUCTURE

    @property
    def said(self) -> str:
        """The error in words; empty where there is none."""
        return ": ".join(filter(None, (self.error_class, self.error_name, self.error_message)))


class FollowUp(Protocol):
    """A second program that depends on the first one's outcome, such as a checker."""

    @property
    def key(self) -> bytes:
        """Equal where the same follows."""

    def program(self, outcome: Outcome) -> Program | Part | None:
        """What to run next."""

    def settle(self, outcome: Outcome, later: Outcome | None) -> Outcome:
        """The outcome in the light of what was run next."""


class Whole(Protocol):
    """What several parts are run as, in one process; equal where they belong together."""

    def program(self, places: Sequence[int]) -> Program:
        """The program that runs these parts, whose result has an item for each."""


@dataclass(frozen=True)
class Part:
    """One of the parts of a whole, which are run together as far as they get there; it may read its tests."""

    whole: Whole
    place: int
    reads_tests: ClassVar[bool] = True

    def outcome(self, whole: Outcome, places: Sequence[int]) -> Outcome:
        """The outcome of this part, from that of all."""
        if len(places) == 1 or not whole.result or len(whole.result) != len(places):
            return whole
        return replace(whole, result=[whole.result[places.index(self.place)]])


@dataclass(frozen=True)
class Program:
    """One program with its inputs. `tests` is a second program that judges it from a process of its own.

    `source_bytes` is its source in UTF-8, where a lone surrogate stays as bytes that the compiler refuses.
    `key` is the sha256 over everything that decides the outcome; its seed derives from all of that but its
    tests and what follows, which it could tell by it.
    """

    kind: JobKind
    source: str
    payload: bytes = b""
    handed: bytes = b""                  # its second file: the stdin of a script
    tests: Program | None = None
    then: FollowUp | None = None
    mentions: str = field(default="", compare=False)      # further code whose modules are imported beforehand
    reads_tests: bool = field(default=False, compare=False)       # its code may run where its tests are
    num_limits: int = field(default=1, compare=False)         # times the limits on time

    source_bytes: bytes = field(init=False, repr=False, compare=False)
    key: bytes = field(init=False, repr=False, compare=False)
    seed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = self.source.encode("utf-8", "surrogatepass")
        parts = [source, self.payload, self.handed, self.tests.key if self.tests else b""]
        key = digest_of(self.kind, [*parts, self.then.key] if self.then else parts)
        object.__setattr__(self, "source_bytes", source)
        object.__setattr__(self, "key", key)
        seeded = digest_of(self.kind, [*parts[:3], b""])
        object.__setattr__(self, "seed", int.from_bytes(seeded[:8], "little"))

    def job(self, allowed: Allowed, other: Program | None = None) -> tuple[Facts, bytes]:
        """What a lane is told (kind, seed, and the lengths of what follows), and what the child reads.

        That is those of the allowed modules that its code mentions, the source, and the payload. What it may
        be passed by its tests, or pass to them, takes modules that the `other` mentions.
        """
        modules = mentioned_modules(self.source + self.mentions, allowed)
        if other is not None:
            said = other.source + other.mentions
            modules += [name for name in PASSED if name not in modules and any(
                word in said for word in (name, *LATE.get(name, ())))]
            if EVALUATE.search(self.mentions + other.mentions):    # text of one may run with the other
                modules += [name for name in mentioned_modules(said, allowed) if name not in modules]
        names = ",".join(modules).encode()
        source, payload = self.source_bytes, self.payload
        return (self.kind, self.seed, len(names), len(source), len(payload)), names + source + payload


def digest_of(kind: JobKind, parts: list[bytes]) -> bytes:
    """The sha256 of the parts, none of which can be taken for another."""
    return hashlib.sha256(struct.pack(f"<B{len(parts)}Q", kind, *map(len, parts)) + b"".join(parts)).digest()
