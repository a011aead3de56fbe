"""The requests of one rollout while servers work on them: waiting, in flight, finished."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rollout.engines.engine import Request, Sampled
from rollout.engines.stopping import Drawn
from warehouse.store.errors import StageError

MOST_ATTEMPTS, MOST_REFUSALS = 5, 5
FIRST_PAUSE = 0.1                # seconds before a failed request is retried; doubled every time
TURN = 0.2                       # seconds between heartbeats


def results(loop: asyncio.AbstractEventLoop, work: Work,
            serving: Coroutine[None, None, None]) -> Generator[Sampled | None, None, None]:
    """Yield finished samples while `serving` runs in the loop; None is a heartbeat. Ends with the caller."""
    crew = loop.create_task(serving)
    crew.add_done_callback(lambda _: work.news.set())
    try:
        while not crew.done() or work.finished:
            loop.run_until_complete(work.some_news(TURN))
            yield from work.collect()
            yield None
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


@dataclass
class Draw:
    """A request in flight and, if the server streams, the tokens it has sampled since."""

    request: Request
    ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)   # per token: its own and the likeliest
    reason: str = ""

    def hear(self, answer: Any) -> None:
        """Add a piece of vLLM's answer, or the whole."""
        for choice in answer.get("choices", []):
            self.ids += choice.get("token_ids") or []
            self.logprobs += (choice.get("logprobs") or {}).get("content") or []
            self.reason = choice["finish_reason"] or ""

    def drawn(self) -> Drawn:
        """Everything sampled so far."""
        return Drawn(self.ids, [token["logprob"] for token in self.logprobs], self.reason, [])


class Work:
    """Requests are taken in the given order; a returned request is taken next."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.waiting, self.returned = iter(requests), deque[Request]()
        self.finished: deque[Sampled] = deque()
        self.under_way: dict[int, Draw] = {}
        self.exhausted = False
        self.attempts: Counter[int] = Counter()
        self.refused: list[Request] = []
        self.answered = False
        self.news, self._changed = asyncio.Event(), asyncio.Event()

    async def next(self, wanted: Callable[[], bool] = lambda: True) -> Draw | None:
        """Wait for the next request to serve; None when all are finished, or no more are wanted."""
        while wanted():
            request = self.returned.popleft() if self.returned else next(self.waiting, None)
            if request is not None:
                draw = self.under_way[request.index] = Draw(request)
                return draw
            self.exhausted = True
            if self.is_done():
                break
            await self._changed.wait()     # a request is returned, or all are finished
        return None

    def finish(self, request: Request, sampled: Sampled) -> None:
        """Store the completion of a request."""
        self.answered = True
        self.finished.append(sampled)
        self.news.set()
        self._end(request)

    def leave_out(self, request: Request, refusal: StageError) -> None:
        """Continue without a refused request; raise the refusal if prompt after prompt is refused."""
        self.refused.append(request)
        if not self.answered and len({each.messages for each in self.refused}) >= MOST_REFUSALS:
            raise refusal
        self._end(request)

    def _end(self, request: Request) -> None:
        del self.under_way[request.index]
        if self.is_done():
            self._tell()

    def go_on(self, request: Request) -> None:
        """Return a request with an unfinished completion; it is taken next."""
        del self.under_way[request.index]
        self.returned.append(request)
        self._tell()

    def give_back(self, request: Request, url: str, failure: Exception) -> float:
        """Return a failed request; the result is the pause in seconds. StageError if it always fails."""
        self.go_on(request)
        self.attempts[request.index] += 1
        if self.attempts[request.index] == MOST_ATTEMPTS:
            raise StageError(f"A request failed {MOST_ATTEMPTS} times, last at {url}: {failure}. Finished "
                             "completions are kept: run the same command again when the servers are well.")
        return FIRST_PAUSE * 2 ** self.attempts[request.index]

    def is_done(self) -> bool:
        """True if nothing waits and nothing is in flight."""
        return self.exhausted and not self.returned and not self.under_way

    async def some_news(self, seconds: float) -> None:
        """Wait until something finishes, at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), seconds)

    def collect(self) -> Iterator[Sampled]:
        """The samples finished since the last call."""
        self.news.clear()
        while self.finished:
            yield self.finished.popleft()

    def broken_off(self) -> Iterator[Draw]:
        """Draws that were started and not finished; they may have sampled tokens."""
        yield from map(Draw, self.returned)
        yield from self.under_way.values()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
