"""A program to run: its source, its inputs, and the key by which equal programs are run only once."""

from __future__ import annotations

import hashlib
import secrets
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from score.protocol.allowed_imports import Allowed, mentioned_modules
from score.protocol.frames import TOKEN_BYTES, Facts, JobKind

if TYPE_CHECKING:
    from score.sandbox.outcomes import Outcome


class FollowUp(Protocol):
    """What is run because of how a program ended, and what then becomes of its outcome."""

    @property
    def key(self) -> bytes:
        """Equal where the same follows."""

    def programs(self, program: Program, outcome: Outcome) -> list[Program]:
        """What to run next."""

    def settle(self, outcome: Outcome, later: list[tuple[Program, Outcome]]) -> Outcome:
        """The outcome in the light of what was run next."""


@dataclass(frozen=True)
class Program:
    """One program with its inputs. `tests` is a second program that judges it from a process of its own.

    `source_bytes` is its source in UTF-8, where a lone surrogate stays as bytes that the compiler refuses.
    `key` is the sha256 over everything that decides the outcome; its seed derives from it, but never from the
    test that a program is run together with.
    """

    kind: JobKind
    source: str
    payload: bytes = b""
    handed: bytes = b""                  # its second file: the stdin of a script, or a test
    tests: Program | None = None
    then: FollowUp | None = None
    mentions: str = field(default="", compare=False)      # further code whose modules are imported beforehand

    source_bytes: bytes = field(init=False, repr=False, compare=False)
    key: bytes = field(init=False, repr=False, compare=False)
    seed: int = field(init=False, repr=False, compare=False)
    token: bytes = field(init=False, repr=False, compare=False)       # what proves that the test was run

    def __post_init__(self) -> None:
        source, together = self.source.encode("utf-8", "surrogatepass"), self.kind == JobKind.TOGETHER
        parts = [source, self.payload, self.handed, self.tests.key if self.tests else b""]
        key = digest_of(self.kind, [*parts, self.then.key] if self.then else parts)
        object.__setattr__(self, "source_bytes", source)
        object.__setattr__(self, "key", key)
        seeded = digest_of(self.kind, parts[:2]) if together else key
        object.__setattr__(self, "seed", int.from_bytes(seeded[:8], "little"))
        object.__setattr__(self, "token", secrets.token_bytes(TOKEN_BYTES) if together else b"")

    def job(self, allowed: Allowed) -> tuple[Facts, bytes]:
        """What a lane is told (kind, seed, and the lengths of what follows), and what the child reads.

        That is those of the allowed modules that its code mentions, the source, and the payload.
        """
        names = ",".join(mentioned_modules(self.source + self.mentions, allowed)).encode()
        source, payload = self.source_bytes, self.payload
        return (self.kind, self.seed, len(names), len(source), len(payload)), names + source + payload


def digest_of(kind: JobKind, parts: list[bytes]) -> bytes:
    """The sha256 of the parts, none of which can be taken for another."""
    return hashlib.sha256(struct.pack(f"<B{len(parts)}Q", kind, *map(len, parts)) + b"".join(parts)).digest()
