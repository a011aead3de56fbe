"""A run with a long past: its first iteration again and again, under other numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.building.runs import begin, without_waiting
from warehouse.store.run_folder import STAGE_OF, Warehouse

TABLES = ("prompts", "completions", "samples", "train_samples", "train_steps")


def lengthen(warehouse: Warehouse, iterations: int) -> None:
    """Give a run of one trained iteration as many, each with the rows and the policy of the first."""
    scorer, = warehouse.state.scorers(0, "train")
    parts = {table: [warehouse.read(table, **_keys(table, 0, scorer))] for table in TABLES}
    manifests = {stage.name: stage.manifest() or {} for stage in _stages(warehouse, 0, scorer)}
    with without_waiting():
        for iteration in range(1, iterations):
            for stage in _stages(warehouse, iteration, scorer):
                settings, facts = (manifests[stage.name][key] for key in ("settings", "facts"))
                begin(warehouse, stage.name, settings | {"policy_version": iteration}, **stage.identity)
                for table in (table for table in parts if STAGE_OF[table] == stage.name):
                    for number, part in enumerate(parts[table]):
                        warehouse.write_part(table, number, _renumbered(part, iteration),
                                             **_keys(table, iteration, scorer))
                if stage.name == "train":
                    facts = facts | {"policy_version": iteration + 1}
                    _copy_policy(warehouse, iteration + 1)
                stage.complete(facts)


def _keys(table: str, iteration: int, scorer: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"iteration": iteration}
    keys |= {} if table.startswith("train_") else {"purpose": "train"}
    return keys | ({"scorer": scorer} if table == "samples" else {})


def _stages(warehouse: Warehouse, iteration: int, scorer: str) -> list[Any]:
    keys: dict[str, Any] = {"iteration": iteration, "purpose": "train"}
    return [warehouse.stage("rollout", **keys), warehouse.stage("score", **keys, scorer=scorer),
            warehouse.stage("train", iteration=iteration)]


def _renumbered(rows: pa.Table, iteration: int) -> pa.Table:
    columns = {"group_id": lambda text: text.replace("0/", f"{iteration}/", 1),
               **dict.fromkeys(("iteration", "trained_iteration", "policy_version"), lambda _: iteration)}
    for name, change in columns.items():
        if name in rows.column_names:
            field = rows.schema.field(name)
            values = [change(value) for value in rows[name].to_pylist()]
            rows = rows.set_column(rows.schema.get_field_index(name), field, pa.array(values, field.type))
    return rows


def _copy_policy(warehouse: Warehouse, version: int) -> None:
    facts = warehouse.policy(1) | {"policy_version": version, "parent": version - 1}
    folder = warehouse.new_policy_dir(version - 1)
    shutil.copytree(warehouse.policy_dir(1), folder, copy_function=_link)
    (folder / "policy.json").unlink()
    (folder / "policy.json").write_text(json.dumps(facts))


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
