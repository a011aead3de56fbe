"""How a server fails, and what its answer says about it."""

import contextlib
import json
import math
import time
from email.utils import parsedate_to_datetime

from warehouse.store.errors import StageError, printable

OF_THE_KEY = (401, 403)


class Unavailable(Exception):
    """The server did not answer, or is not in a working state; another server may answer.

    `status` is that of its answer, if any; `after` is the pause in seconds that it asks for.
    """

    def __init__(self, message: str, *, status: int | None = None, after: float | None = None) -> None:
        super().__init__(printable(message, kept=""))
        self.status, self.after = status, after


class Refused(StageError):
    """The server understood the request and refuses it, with the `status` of its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(printable(message, kept=""))
        self.status = status


def seconds_to_wait(header: str | None) -> float | None:
    """Seconds from now according to a Retry-After header (seconds or a date); None if it holds neither."""
    if not header:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(header)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    with contextlib.suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None


def message_of(text: str) -> str:
    try:
        answer = json.loads(text)
        answer = answer.get("error", answer)
        text = str(answer.get("message", answer) if isinstance(answer, dict) else answer)
    except (ValueError, AttributeError):
        pass
    return (text.strip() or "no message").splitlines()[0][:300]
