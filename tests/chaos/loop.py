"""A small loop under kills, and what must be the same as in an undisturbed one."""

import hashlib
from pathlib import Path
from typing import Any

from tests.building import runs
from tests.building.sound import check_run
from warehouse.maintain.check import folders_that_count
from warehouse.sql.inventory import take_inventory
from warehouse.store.run_folder import Warehouse

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

TABLES = ("tasks", "prompts", "completions", "samples", "policy_logprobs", "train")


def new_run(folder: Path) -> Warehouse:
    """A run of five small tasks with the starter policy."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    return runs.new_run(folder / "run", {f"t{number}": runs.TURN for number in range(5)},
                        model=runs.STARTER, config=folder / "config.toml")


def contents(warehouse: Warehouse) -> dict[str, Any]:
    """What two runs must share: rows by key, rewards, adapters; not times, hosts or measurements of load."""
    found: dict[str, Any] = {}
    for iteration in warehouse.state.iterations("rollout"):
        keys: dict[str, Any] = {"iteration": iteration, "purpose": "train"}
        columns = ["task_id", "sample_index", "group_id", "completion_ids", "behaviour_logprobs", "seed"]
        found[f"completions {iteration}"] = warehouse.read("completions", columns, **keys).to_pylist()
        for scorer in warehouse.state.scorers(iteration, "train"):
            columns = ["task_id", "sample_index", "reward", "correct", "fingerprint", "error_class"]
            rows = warehouse.read("samples", columns, **keys, scorer=scorer)
            found[f"samples {iteration}"] = rows.to_pylist()
        columns = ["task_id", "sample_index", "advantage", "old_logprobs", "optimizer_step", "drop_reason"]
        rows = warehouse.read("train_samples", columns, iteration=iteration)
        found[f"train {iteration}"] = rows.to_pylist()
    for version in warehouse.state.versions[1:]:
        weights = warehouse.policy_dir(version) / "adapter_model.safetensors"
        found[f"policy {version}"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    return found


def page(warehouse: Warehouse) -> bytes:
    """The report, which the same run gives to the byte; empty if there is none."""
    path = warehouse.root / "report.html"
    return path.read_bytes() if path.exists() else b""


def leftovers(warehouse: Warehouse) -> list[str]:
    """Parts that a reader of the folders could pick up although no stage stands behind them."""
    listed = {path for paths in take_inventory(warehouse).parts.values() for path in paths}
    counting = folders_that_count(warehouse)
    present = {path for table in TABLES for path in (warehouse.root / table).rglob("*.parquet")
               if path.parent in counting}
    return sorted(str(path) for path in present - listed)


def problems(warehouse: Warehouse) -> list[str]:
    """What `warehouse check` finds."""
    return check_run(warehouse).problems
