"""A small loop under kills, and what must be the same as in an undisturbed one."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.runs import arc_file
from warehouse.init import init_run
from warehouse.store import Warehouse, open_warehouse

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "starter" / "model"
CONFIG = """
[rollout]
group-size = 4
prompt-format = "compact"
max-tokens = 100
part-size = 8
spill-seconds = 0
[score]
reward = "arc-exact-shaped"
lanes = 1
[train]
learning-rate = 1e-3
updates-per-shard = 2
lora-rank = 2
dtype = "float32"
threads = 1
max-mismatch = 1e9
checkpoint-seconds = 0
"""
STAGES = ("rollout", "score", "train")


def new_run(folder: Path) -> Warehouse:
    """A run of five small tasks with the starter policy."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    tasks = arc_file(folder, [f"t{number}" for number in range(5)])
    init_run(folder / "run", str(MODEL), (str(tasks),), (), folder / "config.toml")
    return open_warehouse(folder / "run")


def chaos(option: list[str], command: str, warehouse: Warehouse,
          *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the scripted engine; `option` as tests.chaos.commands takes it."""
    words = [sys.executable, "-m", "tests.chaos.commands", *option, command, str(warehouse.root), *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


def whole(command: str, warehouse: Warehouse, iteration: int) -> list[str]:
    """Run a stage to its end; the instants it passed."""
    done = chaos(["--list"], command, warehouse, "--iteration", str(iteration))
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^instant \d+: (.*)$", done.stdout, flags=re.MULTILINE)


def contents(warehouse: Warehouse) -> dict[str, Any]:
    """What two runs must share: rows by key, rewards, adapters; not times, hosts or measurements of load."""
    found: dict[str, Any] = {}
    for iteration in warehouse.iterations("completions"):
        keys: dict[str, Any] = {"iteration": iteration, "purpose": "train"}
        columns = ["task_id", "sample_index", "group_id", "completion_ids", "behaviour_logprobs", "seed"]
        found[f"completions {iteration}"] = warehouse.read("completions", columns, **keys).to_pylist()
        for scorer in warehouse.scorers(iteration, "train"):
            columns = ["task_id", "sample_index", "reward", "correct", "fingerprint", "error_class"]
            rows = warehouse.read("samples", columns, **keys, scorer=scorer)
            found[f"samples {iteration}"] = rows.to_pylist()
        columns = ["task_id", "sample_index", "advantage", "old_logprobs", "optimizer_step", "drop_reason"]
        rows = warehouse.read("train_samples", columns, iteration=iteration)
        found[f"train {iteration}"] = rows.to_pylist()
    for version in warehouse.policy_versions()[1:]:
        weights = warehouse.policy_dir(version) / "adapter_model.safetensors"
        found[f"policy {version}"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    return found


def leftovers(warehouse: Warehouse) -> list[str]:
    """Files that a reader of the tables could pick up although no stage stands behind them."""
    parts = set(warehouse.root.rglob("*.parquet"))
    listed: set[Path] = set((warehouse.root / "tasks").glob("part-*.parquet"))
    listed |= set(warehouse.root.glob("prompts/*/*/part-*.parquet"))
    for manifest in warehouse.root.rglob("manifest.json"):
        listed |= set(manifest.parent.glob("*-*.parquet"))
    return sorted(str(path) for path in parts - listed)
