"""A program to run: its source, its inputs, and the key by which equal programs are run only once."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from score.wire.allowed_imports import Allowed, mentioned
from score.wire.frames import Facts, JobKind


@dataclass(frozen=True)
class Program:
    """One program with its inputs. `tests` is a second program that judges it from a process of its own.

    `source_bytes` is its source in UTF-8, where a lone surrogate stays as bytes that the compiler refuses.
    `key` is the sha256 over everything that the process is given; its seed derives from it.
    """

    kind: JobKind
    source: str
    payload: bytes = b""
    stdin: bytes | None = None           # for scripts; their stdout is then kept
    tests: Program | None = None

    source_bytes: bytes = field(init=False, repr=False, compare=False)
    key: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = self.source.encode("utf-8", "surrogatepass")
        parts = (source, self.payload, self.stdin or b"", self.tests.key if self.tests else b"")
        lengths = struct.pack("<B4Q", self.kind, *map(len, parts))
        object.__setattr__(self, "source_bytes", source)
        object.__setattr__(self, "key", hashlib.sha256(lengths + b"".join(parts)).digest())

    def job(self, allowed: Allowed) -> tuple[Facts, bytes]:
        """What a lane is told (kind, seed, and the lengths of what follows), and what the child reads.

        That is those of the allowed modules that its code mentions, the source, and the payload.
        """
        text = self.source + (self.payload.decode("utf-8", "replace") if self.kind == JobKind.TEST else "")
        names = ",".join(mentioned(text, allowed)).encode()
        source, payload = self.source_bytes, self.payload
        facts = (self.kind, int.from_bytes(self.key[:8], "little"), len(names), len(source), len(payload))
        return facts, names + source + payload
