"""The socket between a program and its tests: a line of JSON per message, of bounded length."""

import contextlib
import json
import os
from functools import cached_property
from io import BufferedReader
from typing import Any

from score.isolation.lockdown import LINK_FD
from score.protocol.crossing import TooLarge

MAX_MESSAGE = 16 << 20      # bytes of one message
# Surrogates cross as bytes, because JSON joins two that are escaped.
to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False,
                           ensure_ascii=False).encode
from_json = json.JSONDecoder().decode


class LinkLost(BaseException):
    """The other process is gone or writes no messages; no `except Exception` of a test catches this."""


class Link:
    """One end of the socket."""

    @cached_property
    def lines(self) -> BufferedReader:
        """The reading end."""
        return open(LINK_FD, "rb", closefd=False)

    def send(self, message: list[Any]) -> None:
        """Send a message; TooLarge if it is too long. Reading tells whether the other end is gone."""
        line = to_json(message).encode("utf-8", "surrogatepass") + b"\n"
        if len(line) > MAX_MESSAGE:
            raise TooLarge(f"{len(line)} bytes of data, at most {MAX_MESSAGE}")
        left = memoryview(line)
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(LINK_FD, left):]

    def receive(self) -> list[Any]:
        """The next message; LinkLost if there is none, or it is not a list."""
        try:
            line = self.lines.readline(MAX_MESSAGE + 1)
            message = from_json(line.decode("utf-8", "surrogatepass")) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            message = None
        if not isinstance(message, list):
            raise LinkLost("the other process ended, or writes no messages")
        return message
