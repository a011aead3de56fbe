"""The gate of a server of our own: the key of the run, and the routes that a rollout uses."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from rollout.endpoint.gate import Gate, known_key, make_key


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


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


def test_a_run_has_one_key_that_its_user_alone_can_read(tmp_path: Path) -> None:
    local, elsewhere = ["http://127.0.0.1:8000"], ["http://127.0.0.1:8000", "http://gpu-1:8000"]
    assert known_key("run-1", local) == ""
    key = make_key("run-1")
    assert len(key) > 40 and key == make_key("run-1") == known_key("run-1", local) != make_key("run-2")
    assert known_key("run-1", elsewhere) == ""      # it never leaves this machine
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700


def test_a_key_of_the_environment_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "mine")
    assert make_key("run-1") == known_key("run-1", ["http://gpu-1:8000"]) == "mine"
    assert not (tmp_path / "state").exists()
