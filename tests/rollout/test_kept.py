"""The engine that stays between rollouts: which weights it has, whatever happened to a policy's folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rollout.engines.engine import EngineSettings


class Engine:
    """What it is told to load, and which adapters it is to serve."""

    dtype = "bfloat16"

    def __init__(self, settings: EngineSettings, *, sleeps: bool) -> None:
        self.loaded: list[Path | None] = []
        self.served = [settings.adapter]

    def load(self, folder: Path, adapter: Path | None, dtype: str) -> None:
        self.loaded.append(adapter)

    def serve(self, adapter: str | None) -> None:
        self.served.append(adapter)

    def wake(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with an engine that notes what is asked of it."""
    engine: Any = ModuleType("rollout.engines.vllm_engine")
    engine.VllmEngine = Engine
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.delitem(sys.modules, "rollout.engines.kept", raising=False)
    module = importlib.import_module("rollout.engines.kept")
    yield module
    sys.modules.pop(module.__name__, None)


def settings(base: Path, **more: Any) -> EngineSettings:
    return EngineSettings(model=str(base), adapter=None, adapter_rank=0, max_model_len=64, **more)


def test_other_weights_in_the_same_place_are_loaded_anew(kept: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    policy = tmp_path / "policies" / "3"
    engine = kept.start_kept(settings(tmp_path))
    assert engine.loaded == []
    for sha256 in ("trained", "trained", "rolled back"):
        assert kept.start_kept(settings(tmp_path, merge=policy, weights=sha256)) is engine
    assert engine.loaded == [policy, policy]
    kept.start_kept(settings(tmp_path))
    assert engine.loaded == [policy, policy, None]


def test_adapters_beside_the_base_load_no_weights(kept: SimpleNamespace, tmp_path: Path) -> None:
    engine = kept.start_kept(EngineSettings(str(tmp_path), None, 8, 64))
    kept.start_kept(EngineSettings(str(tmp_path), "policies/1", 8, 64))
    kept.start_kept(EngineSettings(str(tmp_path), "policies/2", 8, 64))
    assert engine.loaded == [] and engine.served[-1] == "policies/2"
