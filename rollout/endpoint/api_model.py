"""A model behind an OpenAI-compatible API as an engine: texts without logprobs, requested by messages."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from rollout.endpoint.failures import OF_THE_KEY, Refused, Unavailable
from rollout.endpoint.server import Server, open_session
from rollout.endpoint.work import Work, finish_workers, results
from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
from rollout.prompts.prompt_encoder import load_encoder
from warehouse.store.errors import StageError, counted
from warehouse.tasks.task_files import HALF_LETTER

SHORTEST_WAIT = 0.1              # seconds; a lower bound on Retry-After
LONGEST_WAIT = 60.0              # seconds between two requests while the service is rate limited
LONGEST_SILENCE = 900.0          # seconds without any answer
ANSWERING = 1800.0               # limit on one answer, in seconds
OF_ONE_REQUEST = (400, 413, 422)  # status for a prompt that the service rejects
KEPT = "Finished completions are kept."
SHOWN = 60                       # characters of a rejected prompt in the error


class ApiEngine:
    """Requests one completion at a time; implements rollout.engines.engine.Engine without logprobs.

    Token ids come from the run's own tokenizer, with its end token appended if the model ended by itself.
    """

    dtype = device = logprobs_mode = ""

    def __init__(self, url: str, model: str, *, base: str, revision: str | None, key_variable: str) -> None:
        self.url, self.model, self.key_variable = url, model, key_variable
        self.engine = f"{model} (openai)"
        self.encoder = load_encoder(base, revision)
        self.limit_name, self.refusal = "max_tokens", ""
        self.places, self.last_answer, self.resting_until = 1, time.monotonic(), 0.0
        self.key = os.environ.get(key_variable, "").strip()      # strip a file's last line break
        if not (self.key.isascii() and self.key.isprintable()):
            raise StageError(f"The variable {key_variable} holds no key: it has characters that no key has. "
                             "Correct it; --api-key-variable names another one.")
        self.loop = asyncio.new_event_loop()
        self.session = self.loop.run_until_complete(open_session(self.key))
        self.server = Server(url if urlsplit(url).path else f"{url}/v1", self.session)

    def close(self) -> None:
        self.loop.run_until_complete(self.session.close())
        self.loop.close()

    def start(self, settings: EngineSettings) -> ApiEngine:
        """Load nothing; set the number of requests in flight."""
        self.places = settings.max_num_seqs
        return self

    def moves(self, prompt_ids: list[int]) -> bool:
        """True: there is no adapter that could be missing."""
        return True

    def sample(self, requests: Iterable[Request], sampling: Sampling,
               over: Callable[[], bool] | None = None) -> Iterator[Sampled | Request | None]:
        """Yield every request once it is answered; None is a heartbeat. Nothing is carried over."""
        work = Work(requests)
        yield from results(self.loop, work, self._serve(work, sampling))

    async def _serve(self, work: Work, sampling: Sampling) -> None:
        self.last_answer = time.monotonic()
        workers = [asyncio.create_task(self._work(work, sampling)) for _ in range(self.places)]
        await finish_workers(workers)
        if work.refused:
            raise self._left_out(work.refused)

    async def _work(self, work: Work, sampling: Sampling) -> None:
        while request := await work.next():
            try:
                sampled = await self._ask(request, sampling)
            except Refused as refusal:
                if refusal.status not in OF_ONE_REQUEST:
                    raise
                self.refusal = self.refusal or str(refusal)
                work.leave_out(request, refusal)
            except Unavailable as error:
                if error.status == 429:
                    work.go_on(request)
                    await self._rest(error)
                else:
                    await asyncio.sleep(work.give_back(request, self.url, error))
            else:
                work.finish(sampled)

    async def _ask(self, request: Request, sampling: Sampling) -> Sampled:
        """The service's answer; wait first if the service asked for a pause."""
        await asyncio.sleep(self.resting_until - time.monotonic())
        limit_name = self.limit_name            # other workers may change it meanwhile
        body = {"model": self.model, "messages": json.loads(request.messages), "seed": request.seed % 2**31,
                limit_name: sampling.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
                **{name: getattr(sampling, name) for name in sampling.departures()}}    # known to vLLM alone
        try:
            response = await self.server.ask("/chat/completions", body, seconds=ANSWERING)
        except Refused as error:
            if "max_completion_tokens" in str(error) and limit_name == "max_tokens":
                self.limit_name = "max_completion_tokens"
                return await self._ask(request, sampling)
            raise self._explain(error) from None
        except Unavailable as error:
            if error.status == 404 or (error.status == 429 and "quota" in str(error)):
                raise self._explain(error) from None
            raise
        sampled = self._read(request, response)
        self.last_answer = time.monotonic()
        return sampled

    async def _rest(self, error: Unavailable) -> None:
        """Pause all workers as long as the service asks; StageError after LONGEST_SILENCE of silence."""
        now = time.monotonic()
        if now - self.last_answer > LONGEST_SILENCE:
            raise StageError(f"{self.url} has answered nothing for {LONGEST_SILENCE / 60:.0f} minutes: "
                             f"{error}. Finished completions are kept: run the same command again later.")
        if error.after is not None and error.after > LONGEST_SILENCE:
            raise StageError(f"{self.url} asks for a pause of {error.after / 60:,.0f} minutes: "
                             f"{error}. Finished completions are kept: run the same command again then.")
        if self.resting_until <= now:
            silent = now - self.last_answer
            least = max(1.0, silent) if error.after is None else max(SHORTEST_WAIT, error.after, silent / 2)
            self.resting_until = now + max(error.after or 0.0, min(least, LONGEST_WAIT))
        await asyncio.sleep(self.resting_until - now)

    def _read(self, request: Request, response: Any) -> Sampled:
        """The single choice of an answer; Unavailable if it is malformed or incomplete."""
        try:
            choice = response["choices"][0]
            message = choice["message"]
            text, reason = message["content"] or "", choice["finish_reason"]
            thoughts = message.get("reasoning_content") or message.get("reasoning")
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise Unavailable(f"its answer is not a chat completion: {str(response)[:100]}") from error
        if not isinstance(text, str) or not isinstance(reason, str):
            raise Unavailable(f"its answer is not text, or has no end: {str(choice)[:100]}")
        if thoughts and isinstance(thoughts, str):
            text = f"<think>\n{thoughts.strip()}\n</think>\n\n{text}"      # as models write them
        text = HALF_LETTER.sub("\N{REPLACEMENT CHARACTER}", text)
        ended = "length" if reason in ("length", "content_filter") else "stop"
        ids = self.encoder.encode(text)
        if ended == "stop" and self.encoder.end_id is not None:
            ids.append(self.encoder.end_id)
        return Sampled(request.index, ids, None, text, ended, host=self.server.host)

    def _left_out(self, refused: list[Request]) -> StageError:
        prompts = list(dict.fromkeys(request.messages for request in refused))
        begin = str(json.loads(prompts[0])[-1]["content"])[:SHOWN]
        return StageError(
            f"{self.refusal.removesuffix(KEPT)}It refuses {counted(len(refused), 'request')} of "
            f"{counted(len(prompts), 'prompt')}, the first of which begins with {begin!r}; all others are "
            "answered. Run the same command again to retry only these. To leave their tasks out, discard "
            "the rollout and sample the others with --tasks-sql.")

    def _explain(self, refusal: Refused | Unavailable) -> Refused:
        """The service's refusal, with the way out if it is known."""
        said, way_out = str(refusal), KEPT
        if refusal.status in OF_THE_KEY:
            state = "holds a key that it rejects" if self.key else "is empty"
            way_out = (f"The key is read from the variable {self.key_variable}, which {state}; "
                       "--api-key-variable names another one.")
        elif refusal.status == 404:
            way_out = (f"Check the address (of most services it ends in /v1) and the name '{self.model}' of "
                       "--api-model.")
        place = "" if isinstance(refusal, Refused) else f"{self.url}: "
        return Refused(f"{place}{said.rstrip('.')}. {way_out}", refusal.status or 0)
