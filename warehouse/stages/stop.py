"""Orderly stops: on a signal, or at the time limit, a stage commits its work and can be requeued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from warehouse.stages import warm
from warehouse.store.errors import first_line

interrupted = False     # by Ctrl-C during the current command; a new command resets it


class StageStopped(Exception):
    """The stage stopped before its end with all finished work committed; run it again to continue."""


class StopRequest:
    """Whether the stage should stop. A second signal of the same kind ends the process at once, as usual.

    Ctrl-C reaches a stage twice: from the terminal as SIGINT, and as SIGTERM from the script that started it.

    `time_limit` and `grace` are seconds: the limit counts from now, or from the first start of a command that
    had to be restarted; the grace is how long the stage may continue after a signal.
    """

    def __init__(self, time_limit: float | None = None, grace: float = 0.0) -> None:
        self.deadline = None if time_limit is None else time.monotonic() + time_limit - warm.spent
        self.grace = grace
        self.signalled = self.interrupts = False
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
        with suppress(OSError):         # print may be interrupted in itself
            os.write(2, f"\nstopping ({signal.Signals(number).name}): finished work is kept\n".encode())
        until = time.monotonic() + self.grace
        if self.deadline is None or until < self.deadline:
            self.deadline, self.reason = until, f"{signal.Signals(number).name} was received"
        if self.interrupts:
            self.interrupts = False         # by one of several signals
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self, when: str) -> Iterator[None]:
        """Let a signal interrupt an import, `when` nothing has to be saved.

        What is imported may hide the interruption or fail by it.
        """
        try:
            self.interrupts = True
            if not self.signalled:
                yield
        finally:
            self.interrupts = False
            if self.signalled:
                warm.sound = False      # half imported
                raise StageStopped(f"Stopped because {self.reason}, {when}. Run the same command again to "
                                   "continue.")

    @contextmanager
    def excusing(self, what: str) -> Iterator[None]:
        """A failure of `what` after a signal becomes a stop that reports the failure.

        A signal to the whole process group also ends the children, and their parent only sees them fail.
        """
        try:
            yield
        except Exception as error:
            if not self.asked():
                raise
            raise StageStopped(f"Stopped because {self.reason}. {what} failed meanwhile: "
                               f"{first_line(error)}. Run the same command again to continue.") from error

    def asked(self) -> bool:
        """True once the stage should begin nothing new; it may finish its current work until `due`."""
        return self.signalled or self.due()

    def due(self) -> bool:
        """True once the stage should commit its work and end."""
        return self.deadline is not None and time.monotonic() >= self.deadline


@contextmanager
def stopping() -> Iterator[None]:
    """Raise StageStopped in this thread on Ctrl-C, SIGTERM or a closed terminal."""
    def stop(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)         # ignore repeated signals while ending
        time.sleep(0.1)     # a killed parent is the parent until all its threads have ended
        by = signal.Signals(number).name if os.getppid() == parent else "the end of the process that ran it"
        raise StageStopped(f"Stopped by {by}; finished work is kept. Run the same command again to continue.")
    parent = os.getppid()
    before = {number: signal.signal(number, stop)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
