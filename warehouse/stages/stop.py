"""Stopping in order: on a signal, or when the time allowed is over, a stage commits and can be requeued."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from warehouse.stages import warm
from warehouse.store.errors import first_line

STOPPED_EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: "try again later", what batch systems requeue on

interrupted = False     # by Ctrl-C, while this process runs its command; a command that begins takes it back


class StageStopped(Exception):
    """The stage stopped before its end, everything it finished is committed; run it again to go on."""


class StopRequest:
    """Whether the stage should stop. A second of the same signal ends the process at once, as without this.

    Ctrl-C reaches a stage twice, from the terminal as SIGINT and as SIGTERM from the script that started it.

    `time_limit` and `grace` are seconds: the first counts from now, or from when a command began that had to
    run anew, the second is how long the stage may go on after a signal.
    """

    def __init__(self, time_limit: float | None = None, grace: float = 0.0) -> None:
        self.deadline = None if time_limit is None else time.monotonic() + time_limit - warm.spent
        self.grace = grace
        self.signalled = False
        self.reason = f"the time limit of {time_limit:g} s is over" if time_limit is not None else ""
        self.former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def __enter__(self) -> StopRequest:
        for number in self.former:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.former.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, self.former[signal.Signals(number)])
        global interrupted
        interrupted |= number == signal.SIGINT
        self.signalled = True
        until = time.monotonic() + self.grace
        if self.deadline is None or until < self.deadline:
            self.deadline, self.reason = until, f"{signal.Signals(number).name} was received"

    @contextmanager
    def excusing(self, what: str) -> Iterator[None]:
        """A failure of `what` after a signal is a stop that tells the failure.

        A signal to the whole process group ends the children too, and their parent only sees them fail.
        """
        try:
            yield
        except Exception as error:
            if not self.asked():
                raise
            raise StageStopped(f"Stopped because {self.reason}. {what} failed meanwhile: "
                               f"{first_line(error)}. Run the same command again to go on.") from error

    def asked(self) -> bool:
        """True once the stage should begin nothing new; it may finish what is in hand until `due`."""
        return self.signalled or self.due()

    def due(self) -> bool:
        """True once the stage should commit what it has and end."""
        return self.deadline is not None and time.monotonic() >= self.deadline


@contextmanager
def stopping() -> Iterator[None]:
    """StageStopped in this thread by Ctrl-C, SIGTERM or a terminal that is closed."""
    def stop(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)         # what ends now is not ended twice
        raise StageStopped(f"Stopped by {signal.Signals(number).name}; all that was finished is kept. Run "
                           "the same command again to go on.")
    before = {number: signal.signal(number, stop)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
