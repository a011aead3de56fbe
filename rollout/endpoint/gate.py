"""What stands before a server of our own: the run's key, and only the routes that a rollout uses."""

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warehouse.store.errors import StageError

KEY_VARIABLE = "VLLM_API_KEY"      # where vLLM's own key comes from; its key guards /v1 alone
LOCAL = ("localhost", "127.0.0.1", "::1")
ROUTES = frozenset({
    "/health", "/version", "/server_info", "/is_sleeping", "/wake_up", "/sleep", "/tokenize", "/v1/models",
    "/v1/completions", "/v1/chat/completions", "/inference/v1/generate", "/v1/load_lora_adapter",
    "/collective_rpc", "/reset_prefix_cache"})
NO_KEY = (b'{"error": "This server answers to the key of its run alone. Run `rollout` as the user who '
          b'started the server, or set VLLM_API_KEY to the value that it had there."}')
NO_ROUTE = b'{"error": "This server has no such route."}'

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Gate:
    """ASGI middleware: vLLM's development mode lets who reaches it replace weights and write files."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.bearer = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        """Pass a request on, or answer 401 without the key and 404 for other routes."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None                  # no sockets
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


def make_key(run_id: str) -> str:
    """The key of a run's servers: of the environment, else the user's own for this run, made once.

    It lies outside of the run, which is copied and shared, in a folder that only the user can enter.
    """
    if key := os.environ.get(KEY_VARIABLE):
        return key
    path = _key_file(run_id)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as stream, suppress(FileExistsError):
            stream.write(secrets.token_urlsafe(32))
            stream.flush()
            os.link(stream.name, path)       # whole, and only for the user
    except OSError as error:
        raise StageError(f"Cannot write the key of the server, {path} ({error.strerror}). Name a folder for "
                         f"such files in XDG_STATE_HOME, or a key in {KEY_VARIABLE}.") from error
    return path.read_text()


def known_key(run_id: str, urls: Iterable[str]) -> str:
    """The key for servers at these addresses, or ""; a run's own key stays on this machine."""
    if key := os.environ.get(KEY_VARIABLE):
        return key
    path = _key_file(run_id)
    return path.read_text() if all(urlsplit(url).hostname in LOCAL for url in urls) and path.exists() else ""


def _key_file(run_id: str) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "rollhouse" / "keys" / hashlib.sha256(run_id.encode()).hexdigest()[:32]
