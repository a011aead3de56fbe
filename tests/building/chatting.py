"""A service that speaks OpenAI's chat completions and answers by the request's seed, with troubles."""

import asyncio
import json
import random
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

Trouble = Callable[[int, dict[str, Any]], Any]
FLIP = "```python\nimport numpy as np\n\ndef transform(grid):\n    return np.fliplr(grid)\n```"


class ChatService:
    """Answers on a port of this machine, rightly for even seeds.

    `trouble(number, request)` may return a response in place of the answer to the number-th request.
    """

    def __init__(self, trouble: Trouble = lambda number, request: None, key: str = "") -> None:
        self.trouble, self.key = trouble, key
        self.asked: list[dict[str, Any]] = []
        self.at_once = self.most_at_once = 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Listen no more."""
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(10)

    async def _start(self) -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self._answer)])
        self.runner = web.AppRunner(app, shutdown_timeout=0, access_log=None)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.port = self.runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            told = request.headers.get("Authorization", "none")
            return web.json_response({"error": {"message": f"Incorrect API key: {told}"}}, status=401)
        number = len(self.asked)
        self.asked.append(body)
        instead = self.trouble(number, body)
        if instead is not None:
            return instead
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.002)
        self.at_once -= 1
        return web.json_response(answer_to(body))


def answer_to(body: dict[str, Any]) -> dict[str, Any]:
    """What the service says to a request."""
    text = FLIP if body["seed"] % 2 == 0 else f"I do not know {random.Random(body['seed']).randrange(999)}."
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 50}}
