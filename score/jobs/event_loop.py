"""`asyncio` for a locked process, which can make no sockets: its loops wait by the clock only.

Imported instead of `asyncio` by what mentions it.
"""

import asyncio
import selectors


class ClockLoop(asyncio.SelectorEventLoop):
    """A loop without the pair of sockets by which other threads would wake it."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())

    _make_self_pipe = _close_self_pipe = _write_to_self = lambda self: None      # no other thread waits


class ClockPolicy(asyncio.DefaultEventLoopPolicy):
    """The policy that makes such loops."""

    _loop_factory = ClockLoop


asyncio.set_event_loop_policy(ClockPolicy())
