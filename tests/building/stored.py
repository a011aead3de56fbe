"""A run in an object store for tests: made, sampled, and opened from several machines' working copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollout.engines.engine import Sampling
from tests.building import scripted
from tests.building.runs import TURN, fake_model
from warehouse.init import init_run
from warehouse.stages.shard import Shard
from warehouse.store.checksums import file_hashes, weights_sha256
from warehouse.store.commit import json_bytes
from warehouse.store.run_folder import Warehouse, open_warehouse


def stored_run(address: str, folder: Path, num_tasks: int = 8) -> str:
    """A run at the address with tasks t0..; model and file of tasks lie in the folder."""
    tasks = folder / "tasks.json"
    tasks.write_text(json.dumps({f"t{number}": TURN for number in range(num_tasks)}))
    init_run(Path(address), str(fake_model(folder / "model")), (str(tasks),))
    return address


def on_machine(name: str, address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """The run as another machine opens it: by a working copy of its own."""
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(folder / name))
    return open_warehouse(address)


def sample(warehouse: Warehouse, shard: Shard | None = None, max_tokens: int = 20, **more: Any) -> None:
    """Sample the due iteration, or a share of it, with the scripted engine; `more` are options too."""
    scripted.sample(warehouse, sampling=Sampling(max_tokens=max_tokens), spill_seconds=0.0,
                    shard=shard or Shard(), **more)


def weights(warehouse: Warehouse, version: int, text: str) -> Path:
    """A policy's folder, not committed yet."""
    folder = warehouse.scratch(f"policy-{version}")
    (folder / "adapter_model.safetensors").write_text(text)
    (folder / "adapter_config.json").write_text('{"r": 1}')
    (folder / "optimizer.pt").write_text(f"moments {text}")
    (folder / "policy.json").write_bytes(json_bytes(
        {"policy_version": version, "kind": "lora", "sha256": weights_sha256(folder), "parent": version - 1,
         "files": file_hashes(folder), "base": "base"}))
    return folder
