"""The requests of one rollout while servers work on them: waiting, in flight, finished."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterable

from rollout.engines.engine import Request, Sampled
from warehouse.store.errors import StageError

MOST_ATTEMPTS, MOST_REFUSALS = 5, 5
FIRST_PAUSE = 0.1                # seconds before a failed request is retried; doubled every time
TURN = 0.2                       # seconds between heartbeats


def results(loop: asyncio.AbstractEventLoop, work: Work,
            serving: Coroutine[None, None, None]) -> Generator[Sampled | None, None, None]:
    """Yield finished samples while `serving` runs in the loop; None is a heartbeat. Ends with the caller."""
    crew = loop.create_task(serving)
    crew.add_done_callback(lambda _: work.finished.put_nowait(None))
    try:
        while not crew.done() or not work.finished.empty():
            news = None
            with contextlib.suppress(TimeoutError):
                news = loop.run_until_complete(asyncio.wait_for(work.finished.get(), TURN))
            yield news
        crew.result()
    finally:
        crew.cancel()
        loop.run_until_complete(asyncio.wait({crew}))


async def finish_workers(workers: list[asyncio.Task[None]],
                         watches: Iterable[asyncio.Task[None]] = ()) -> None:
    """Wait until all workers are done, or one fails; cancel all tasks that are left."""
    try:
        await asyncio.gather(*workers)
    finally:
        for task in (*workers, *watches):
            task.cancel()
        await asyncio.gather(*workers, *watches, return_exceptions=True)


class Work:
    """Requests are taken in the given order; a returned request is taken next."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.waiting, self.returned = iter(requests), deque[Request]()
        self.finished = asyncio.Queue[Sampled | None]()
        self.num_in_flight, self.exhausted, self.answered = 0, False, False
        self.attempts, self.refused = Counter[int](), list[Request]()
        self._changed = asyncio.Event()

    async def next(self, wanted: Callable[[], bool] = lambda: True) -> Request | None:
        """Wait for the next request to serve; None when all are finished, or no more are wanted."""
        while wanted():
            request = self.returned.popleft() if self.returned else next(self.waiting, None)
            if request is not None:
                self.num_in_flight += 1
                return request
            self.exhausted = True
            if self.is_done():
                break
            await self._changed.wait()     # a request is returned, or all are finished
        return None

    def finish(self, sampled: Sampled) -> None:
        self.answered = True
        self.finished.put_nowait(sampled)
        self._land()

    def leave_out(self, request: Request, refusal: StageError) -> None:
        """Continue without a refused request; raise the refusal if prompt after prompt is refused."""
        self.refused.append(request)
        if not self.answered and len({each.messages for each in self.refused}) >= MOST_REFUSALS:
            raise refusal
        self._land()

    def go_on(self, request: Request) -> None:
        """Return an unfinished request; it is taken next."""
        self.returned.append(request)
        self._land()

    def give_back(self, request: Request, url: str, failure: Exception) -> float:
        """Return a failed request; the result is the pause in seconds. StageError if it always fails."""
        self.go_on(request)
        self.attempts[request.index] += 1
        if self.attempts[request.index] == MOST_ATTEMPTS:
            raise StageError(f"A request failed {MOST_ATTEMPTS} times, last at {url}: {failure}. Finished "
                             "completions are kept: run the same command again when the servers are well.")
        return FIRST_PAUSE * 2 ** self.attempts[request.index]

    def is_done(self) -> bool:
        return self.exhausted and not self.returned and not self.num_in_flight

    def _land(self) -> None:
        self.num_in_flight -= 1
        if self.returned or self.is_done():
            self._changed.set()
            self._changed = asyncio.Event()
