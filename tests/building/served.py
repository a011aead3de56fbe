"""A server that speaks as vLLM's does and answers by seed, for tests of what can go wrong with real ones."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from rollout.engines.engine import Request, Sampling
from rollout.prompts.prompt_encoder import load_encoder
from tests.building.scripted import ScriptedEngine


class FakeServer:
    """Serves a model folder on a port of this machine; `lora_rank` and `told` are what it says of itself.

    `trouble(number, request)` may return a response in place of the answer to the number-th completion, or
    raise ConnectionResetError: then the server closes all connections and is gone for good. The one token
    that is asked for as a trial is not counted, and has no trouble unless `wrong_from_the_start`.
    """

    def __init__(self, folder: Path, *, lora_rank: int = 16,
                 trouble: Callable[[int, dict[str, Any]], Any] = lambda number, request: None,
                 wrong_from_the_start: bool = False, **told: Any) -> None:
        self.model, self.lora_rank, self.trouble = str(folder), lora_rank, trouble
        self.model_config = {
            "model": self.model, "revision": None, "dtype": "torch.float32", "quantization": None,
            "logprobs_mode": "processed_logprobs", "generation_config": "vllm", "max_model_len": 1024,
            "override_generation_config": {}, "enable_sleep_mode": True, **told}
        self.wrong_from_the_start = wrong_from_the_start
        self.adapters: dict[str, str] = {}
        self.calls: list[str] = []
        self.served: list[dict[str, Any]] = []
        self.sleeping, self.most_at_once, self.at_once = True, 0, 0
        self.says: list[float] = []              # logprobs of the end of any prompt
        self.deaf, self.hangs = False, False     # serves no adapters though it takes them; answers nothing
        self.encoder = load_encoder(self.model, None)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, with nothing loaded; on the same port as before."""
        self.adapters = {}
        self._do(self._start())

    def stop(self) -> None:
        """Close all connections and listen no more."""
        self._do(self._stop())

    def _do(self, task: Any) -> None:
        asyncio.run_coroutine_threadsafe(task, self.loop).result(10)

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.route("*", "/{path:.*}", self._answer)])
        self.runner = web.AppRunner(app, shutdown_timeout=0, access_log=None, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def _stop(self) -> None:
        for connection in list(self.runner.server.connections if self.runner.server else ()):
            if connection.transport:
                connection.transport.abort()
        await self.runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.hangs:
            await asyncio.sleep(60)
        body = await request.json() if request.can_read_body else {}
        self.calls.append(request.path)
        if request.path in ("/v1/completions", "/inference/v1/generate"):
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                return await self._complete(body)
            finally:
                self.at_once -= 1
        answers: dict[str, Any] = {
            "/health": {}, "/version": {"version": "0.99"}, "/is_sleeping": {"is_sleeping": self.sleeping},
            "/server_info": {"vllm_config": {
                "model_config": self.model_config, "device_config": {"device": "cpu"},
                "lora_config": {"max_lora_rank": self.lora_rank} if self.lora_rank else None}},
            "/v1/models": {"data": [{"id": "base", "root": self.model, "parent": None}, *(
                {"id": name, "root": path, "parent": "base"} for name, path in self.adapters.items())]},
            "/tokenize": {"tokens": self.encoder.encode(body.get("prompt", ""))},
        }
        if request.path in ("/sleep", "/wake_up"):
            self.sleeping = request.path == "/sleep"
        if request.path == "/v1/load_lora_adapter":
            self.adapters[body["lora_name"]] = body["lora_path"]
        return web.json_response(answers.get(request.path, {}))

    async def _complete(self, body: dict[str, Any]) -> web.StreamResponse:
        if body["model"] not in {"base", *self.adapters}:
            return web.json_response({"error": {"message": f"no model {body['model']}"}}, status=404)
        if "prompt_logprobs" in body:
            moved = 0.0 if self.deaf or body["model"] == "base" else 0.5
            said = [-1.0 - moved] * len(body["prompt"])
            said[len(said) - len(self.says):] = self.says
            rows = [None, *({str(token): {"logprob": logprob}}
                            for token, logprob in zip(body["prompt"][1:], said[1:], strict=True))]
            return web.json_response({"choices": [{"prompt_logprobs": rows}]})
        await asyncio.sleep(0.001)
        asked = body["sampling_params"]
        trial = asked["max_tokens"] == 1         # what is asked before a rollout begins
        try:
            calm = trial and not self.wrong_from_the_start
            instead = None if calm else self.trouble(len(self.served), body)
        except ConnectionResetError:
            self.loop.create_task(self._stop())
            await asyncio.sleep(60)
        if asyncio.iscoroutine(instead):
            instead = await instead
        if instead is not None:
            return instead
        self.served += [] if trial else [body]
        sampling = Sampling(**{name: asked.get(name) for name in vars(Sampling())})
        [sampled] = ScriptedEngine().sample([Request(0, body["token_ids"], asked["seed"])], sampling)
        return web.json_response({"choices": [{
            "token_ids": sampled.completion_ids, "finish_reason": sampled.finish_reason,
            "logprobs": {"content": [{"logprob": logprob} for logprob in sampled.logprobs]}}]})
