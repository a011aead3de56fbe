"""The gate of a server: its key, and the routes that a rollout uses."""

import asyncio
from typing import Any

import pytest

from rollout.endpoint.gate import Gate


def status(path: str, header: bytes | None, kind: str = "http") -> int | None:
    """What a server behind the gate answers; None where it says nothing."""
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> None:
        return None
    headers = [] if header is None else [(b"authorization", header)]
    asyncio.run(Gate(application)({"type": kind, "path": path, "headers": headers}, receive, send))
    return sent[0]["status"] if sent else None


def test_only_who_has_the_key_reaches_the_routes_that_a_rollout_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert status("/v1/models", b"Bearer secret") == status("/collective_rpc", b"Bearer secret") == 200
    for header in (None, b"", b"Bearer ", b"Bearer other", b"secret"):
        assert status("/health", header) == status("/collective_rpc", header) == 401
    for route in ("/pause", "/v1/unload_lora_adapter", "/collective_rpc/", "/", "/docs", "/abort_requests"):
        assert status(route, b"Bearer secret") == 404
    assert status("/v1/realtime", b"Bearer secret", "websocket") is None
