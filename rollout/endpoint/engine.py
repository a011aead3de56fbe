"""Several servers as one engine: requests are spread over them, and move to the others if one dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rollout.endpoint.checks import TRIED, check_alike, check_facts, check_tokenizer
from rollout.endpoint.failures import Unavailable
from rollout.endpoint.server import PATIENCE, Server, open_session
from rollout.endpoint.work import Work, finish_workers, results
from rollout.engines.engine import LOGPROBS_MODE, EngineSettings, Request, Sampled, Sampling
from rollout.engines.probe import check_said, read_probe
from rollout.engines.stopping import after_draw
from rollout.prompts.prompt_encoder import load_encoder
from warehouse.store.errors import StageError

CONNECTING, RECOVERY = 5.0, 30.0     # seconds to wait for a server: at first, after a failure
BATCHES_AHEAD = 2                    # batches per server: the one being sampled, and the next
WATCH_SECONDS, MOST_SILENCES = 5.0, 3
Answer = TypeVar("Answer")


class EndpointEngine:
    """Running vLLM servers that serve one policy; implements rollout.engines.engine.Engine."""

    def __init__(self, urls: Iterable[str], base: str, revision: str | None, key: str,
                 say: Callable[[str], None]) -> None:
        self.base, self.revision, self.say = base, revision, say
        self.probe: list[int] = []
        self.loop = asyncio.new_event_loop()
        self.session = self._now(open_session(key))
        self.servers = [Server(url, self.session) for url in urls]

    def meet(self) -> None:
        """Wake the servers and learn what they are; StageError if none answers, or if they differ."""
        self.encoder = load_encoder(self.base, self.revision)
        self.servers = self._now(self._connect(self.servers))
        first = self.servers[0]
        self.engine, self.dtype, self.device = f"vllm {first.version} server", first.dtype, first.device
        self.logprobs_mode, self.takes_adapters = LOGPROBS_MODE, first.max_lora_rank > 0

    def close(self) -> None:
        """Close the connections; put servers that can sleep to sleep, so that `train` gets their GPU."""
        self._now(self._leave())
        self.loop.close()

    def serving(self, kind: str, asked: str) -> str | None:
        """How the policy is served, 'adapter' or 'merged'; None for a policy without an adapter."""
        able = "adapter" if self.takes_adapters else "merged"
        if (kind == "lora" and asked not in ("auto", able)) or (kind == "full" and self.takes_adapters):
            started = ("with --enable-lora: it keeps its base and takes adapters" if self.takes_adapters
                       else "without --enable-lora: it takes whole weights, no adapters")
            raise StageError(f"{self.servers[0].url} was started {started}. Start it the other way, or leave "
                             "--serve out.")
        return able if kind == "lora" else None

    def start(self, settings: EngineSettings) -> EndpointEngine:
        """Have every server serve the policy; StageError, before sampling, if one must not."""
        self.settings = replace(settings, model=_absolute(settings.model),
                                adapter=_absolute(settings.adapter) if settings.adapter else None)
        for server in self.servers:
            try:
                self._now(self._prepare(server))
            except Unavailable as error:
                raise StageError(f"{server.url} failed: {error}. Nothing was sampled.") from error
        return self

    def moves(self, prompt_ids: list[int]) -> bool:
        """True if the adapter changes a logprob of the prompt on every server."""
        self.probe = prompt_ids
        return all(self._now(self._moves(server)) for server in self.servers)

    def sample(self, requests: Iterable[Request], sampling: Sampling,
               over: Callable[[], bool] | None = None) -> Iterator[Sampled | Request | None]:
        """Yield each completion once it is whole; None is a heartbeat. StageError when no server is left."""
        work = Work(requests)
        yield from results(self.loop, work, self._serve(work, sampling))

    def _now(self, task: Awaitable[Answer]) -> Answer:
        return self.loop.run_until_complete(task)

    async def _leave(self) -> None:
        for server in self.servers:
            if server.sleeps and not server.lost:
                with contextlib.suppress(Unavailable):      # it may have died since
                    await server.ask("/sleep?level=1", {}, seconds=CONNECTING + RECOVERY)
        await self.session.close()

    async def _connect(self, servers: list[Server]) -> list[Server]:
        """The servers that answer, awake; they must be alike."""
        silent = {}

        async def reach(server: Server) -> None:
            try:
                await _until(CONNECTING, server.wake)
            except Unavailable as error:
                silent[server] = f"{server.url} does not answer ({error})"

        await asyncio.gather(*map(reach, servers))
        answering = [server for server in servers if server not in silent]
        if not answering:
            raise StageError(f"{'; '.join(silent.values())}. Start a server as docs/endpoint.md says, or "
                             "leave --endpoint out.")
        for sentence in silent.values():
            self.say(f"{sentence}: it is left out")
        await asyncio.gather(*[server.introduce() for server in answering])
        check_alike(answering)
        return answering

    async def _prepare(self, server: Server) -> None:
        check_facts(server, self.base, self.revision, self.settings)
        await server.load(self.settings)
        await check_tokenizer(server, self.encoder)
        await server.complete(Request(0, self.encoder.encode(TRIED), seed=0), Sampling(max_tokens=1))
        if self.settings.probe and (probe := read_probe(self.settings.probe, server.max_model_len)):
            said = await server.prompt_logprobs(server.serving, probe.ids)
            check_said(probe, said, server.dtype, server.url)

    async def _moves(self, server: Server) -> bool:
        plain, adapted = [await server.prompt_logprobs(name, self.probe)
                          for name in (server.base, server.serving)]
        return plain != adapted

    async def _serve(self, work: Work, sampling: Sampling) -> None:
        places = BATCHES_AHEAD * self.settings.max_num_seqs
        workers = [asyncio.create_task(self._work(server, work, sampling))
                 for _ in range(places) for server in self.servers if not server.lost]
        watches = [asyncio.create_task(self._watch(server)) for server in self.servers]
        await finish_workers(workers, watches)
        if not work.is_done():
            reasons = "; ".join(f"{server.url} {server.lost}" for server in self.servers)
            raise StageError(f"No server is left: {reasons}. Finished completions are kept: run the same "
                             "command again when a server runs.")

    async def _work(self, server: Server, work: Work, sampling: Sampling) -> None:
        while request := await work.next(lambda: not server.lost):
            life = server.life
            try:
                drawn = await server.complete(request, sampling)
            except Unavailable as error:
                pause = work.give_back(request, server.url, error)
                await self._recover(server, life, error)
                await asyncio.sleep(pause)
            else:
                sampled = after_draw(request, sampling, drawn, self.encoder.decode)
                assert isinstance(sampled, Sampled)
                work.finish(replace(sampled, host=server.host))

    async def _recover(self, server: Server, life: int, failure: Unavailable) -> None:
        """Wait for a server that failed; check and load a restarted one again."""
        async with server.recovering:
            if server.life != life or server.lost:
                return
            try:
                await _until(RECOVERY, lambda: self._restore(server))
            except (Unavailable, StageError) as error:
                server.lost = f"failed ({failure}) and did not come back ({error})"
                left = sum(not other.lost for other in self.servers)
                self.say(f"{server.url} {server.lost}; {left} of {len(self.servers)} servers are left")
            server.life += 1

    async def _restore(self, server: Server) -> None:
        await server.wake()
        await server.introduce()
        check_alike([server, self.servers[0]])
        await self._prepare(server)
        if self.probe and not await self._moves(server):
            raise StageError("it no longer serves the adapter")

    async def _watch(self, server: Server) -> None:
        """Cancel a server's requests if it has been silent for too long."""
        while True:
            silences = 0
            while silences < MOST_SILENCES:
                await asyncio.sleep(WATCH_SECONDS)
                try:
                    await server.ask("/health", seconds=PATIENCE)
                    silences = 0
                except Unavailable:
                    silences += 1
            for task in server.under_way:
                task.cancel()       # whoever waits for it gets Unavailable


async def _until(seconds: float, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
    """The result of `attempt`, retried after growing pauses while the server is unavailable."""
    end, pause = time.monotonic() + seconds, 0.25
    while True:
        try:
            return await attempt()
        except Unavailable:
            if time.monotonic() + pause > end:
                raise
        await asyncio.sleep(pause)
        pause *= 2


def _absolute(path: str) -> str:
    """The absolute path of a folder, for a server elsewhere; the name of a hub model."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path
