"""The requests of one rollout while servers work on them: waiting, under way, finished."""

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
FIRST_PAUSE = 0.1                # seconds, doubled every time before a request that failed is asked again
TURN = 0.2                       # seconds after which the caller gets a chance to stop


def results(loop: asyncio.AbstractEventLoop, work: Work,
            serving: Coroutine[None, None, None]) -> Generator[Sampled | None, None, None]:
    """What is finished while `serving` runs in the loop, and None now and then; it ends with the caller."""
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
    """Wait until all workers are done, or one fails; no task of these or of the watches is left."""
    try:
        await asyncio.gather(*workers)
    finally:
        for task in (*workers, *watches):
            task.cancel()
        await asyncio.gather(*workers, *watches, return_exceptions=True)


@dataclass
class Draw:
    """A request under way and, where the server tells as it goes, the tokens that it has drawn since."""

    request: Request
    ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)   # of each token: its own, the likeliest
    reason: str = ""

    def hear(self, answer: Any) -> None:
        """Take a piece of vLLM's answer, or the whole."""
        for choice in answer.get("choices", []):
            self.ids += choice.get("token_ids") or []
            self.logprobs += (choice.get("logprobs") or {}).get("content") or []
            self.reason = choice["finish_reason"] or ""

    def drawn(self) -> Drawn:
        """All that was drawn."""
        return Drawn(self.ids, [token["logprob"] for token in self.logprobs], self.reason, [])


class Work:
    """Requests are taken in the order given; a request that is given back is the next to be taken."""

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
        """The next request to serve, waited for; None when all are finished, or none is wanted any more."""
        while wanted():
            request = self.returned.popleft() if self.returned else next(self.waiting, None)
            if request is not None:
                draw = self.under_way[request.index] = Draw(request)
                return draw
            self.exhausted = True
            if self.is_done():
                break
            await self._changed.wait()     # a request is given back, or all are finished
        return None

    def finish(self, request: Request, sampled: Sampled) -> None:
        """Take the completion of a request that was taken."""
        self.answered = True
        self.finished.append(sampled)
        self.news.set()
        self._end(request)

    def leave_out(self, request: Request, refusal: StageError) -> None:
        """Go on without a request that is refused; raises it where prompt after prompt is refused."""
        self.refused.append(request)
        if not self.answered and len({each.messages for each in self.refused}) >= MOST_REFUSALS:
            raise refusal
        self._end(request)

    def _end(self, request: Request) -> None:
        del self.under_way[request.index]
        if self.is_done():
            self._tell()

    def go_on(self, request: Request) -> None:
        """Take back a request whose completion is not whole yet; it is the next to be taken."""
        del self.under_way[request.index]
        self.returned.append(request)
        self._tell()

    def give_back(self, request: Request, url: str, failure: Exception) -> float:
        """Take back a request that failed; seconds to wait before the next. StageError if it always fails."""
        self.go_on(request)
        self.attempts[request.index] += 1
        if self.attempts[request.index] == MOST_ATTEMPTS:
            raise StageError(f"A request failed {MOST_ATTEMPTS} times, last at {url}: {failure}. What "
                             "was finished is kept: run the same command again when the servers are well.")
        return FIRST_PAUSE * 2 ** self.attempts[request.index]

    def is_done(self) -> bool:
        """True once nothing waits and nothing is under way."""
        return self.exhausted and not self.returned and not self.under_way

    async def some_news(self, seconds: float) -> None:
        """Wait until something finishes, or for so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), seconds)

    def collect(self) -> Iterator[Sampled]:
        """What has finished since the last time."""
        self.news.clear()
        while self.finished:
            yield self.finished.popleft()

    def broken_off(self) -> Iterator[Draw]:
        """What was begun and nobody took the end of, which may have been drawn."""
        yield from map(Draw, self.returned)
        yield from self.under_way.values()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
