"""Middleware of a vLLM server: it requires a key and allows only the routes that a rollout uses."""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"      # vLLM reads its own key from it, which guards only /v1
LOCAL = ("localhost", "127.0.0.1", "::1")
ROUTES = frozenset({
    "/health", "/version", "/server_info", "/is_sleeping", "/wake_up", "/sleep", "/tokenize", "/v1/models",
    "/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/v1/load_lora_adapter",
    "/collective_rpc", "/reset_prefix_cache"})
NO_KEY = (b'{"error": "This server requires its key. Set VLLM_API_KEY to the value that it had where '
          b'the server was started."}')
NO_ROUTE = b'{"error": "This server has no such route."}'

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Gate:
    """ASGI middleware: vLLM's development mode lets any client replace weights and write files."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.bearer = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        """Pass a request on, or answer 401 without the key and 404 for other routes."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None                  # no websockets
        sent = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(sent, self.bearer):
            return await _refuse(send, 401, NO_KEY)
        if scope["path"] not in ROUTES:
            return await _refuse(send, 404, NO_ROUTE)
        return await self.app(scope, receive, send)


async def _refuse(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status,
                "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
