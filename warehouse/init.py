"""Make a run folder: read the tasks, identify the base model, store both."""

import datetime
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warehouse.ledger.log import FOLDER
from warehouse.objects.place import sync_copy
from warehouse.options import check_config, untrusted
from warehouse.sources.named import read_sources, task_table
from warehouse.stages.base_model import find_model
from warehouse.store.checksums import file_hashes, tasks_sha256, weights_sha256
from warehouse.store.commit import commit_bytes, commit_directory, commit_json, remove_folder, twin_of
from warehouse.store.errors import StageError, counted, shell_quote
from warehouse.store.parts import write_part
from warehouse.store.run_folder import Warehouse, check_not_lost, open_warehouse
from warehouse.store.schema import SCHEMA_VERSION

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def init_run(run: Path, model: str, tasks: tuple[str, ...], heldout: tuple[str, ...] = (),
             config: Path | None = None, *, adapter: Path | None = None,
             check_model: Callable[[str, str | None, Path | None], list[str]] = lambda *_: []) -> list[str]:
    """Make the run folder `run` after checking everything; return the lines to print.

    Each of `tasks` and `heldout` reads `[SPLIT=]SOURCE[@FILE_OF_IDS]` (see warehouse.sources). Splits of
    `heldout` are never trained on unless a rollout names them. Calling it again with the same arguments does
    nothing; other arguments raise StageError. Policy 0 is the model, or an `adapter` on it.
    `check_model` returns lines about the model and config of a new run, or raises.
    """
    run = sync_copy(run)
    if config:
        if not config.is_file():        # a pipe could be read only once
            raise StageError(f"{config} is not a plain file. Write the config into one.")
        check_config(config)
    base = find_model(model, run, new=True)
    adapter = _adapter_folder(adapter) if adapter else None
    rows = read_sources(tasks, heldout)
    counts, num_tasks = Counter(source.split for source, _task in rows), len(rows)
    if config:
        check_config(config, {task.kind for _source, task in rows})
    hidden = sum(task.is_hidden for _source, task in rows)
    solved = list(dict.fromkeys(source.text for source, task in rows if task.solution))
    table = task_table(rows)
    facts = {"schema_version": SCHEMA_VERSION, "model": base.stored_path, "model_sha256": base.sha256,
             "tokenizer_sha256": base.tokenizer_sha256, "tasks_sha256": tasks_sha256(table.to_batches(64)),
             "model_revision": base.revision, "sources": [*tasks, *heldout],
             **({"adapter_sha256": weights_sha256(adapter)} if adapter else {})}
    if (run / "warehouse.json").exists():
        return _same_run(open_warehouse(run), facts, config)
    notes = check_model(model, base.revision, config)
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    warehouse = Warehouse(run.resolve(), {**facts, "run_id": uuid.uuid4().hex, "created": created})
    _remove_unfinished(warehouse)
    try:
        warehouse.root.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:          # as in /proc, which takes no folder
        raise StageError(f"{warehouse.root} cannot be made: its filesystem takes no folder there. Name "
                         "another for the run.") from error
    write_part(warehouse.root / "tasks" / "part-00000.parquet", "tasks", table,
               {"run_id": warehouse.run_id, "part_uuid": "tasks"})
    _commit_first_policy(warehouse, base.sha256, adapter)
    commit_bytes(run / "config.toml", config.read_bytes() if config else CONFIG_TEMPLATE.encode())
    warehouse.log.make(warehouse.facts)
    commit_json(run / "warehouse.json", dict(warehouse.state.facts))    # of the first of two processes
    if twin_of(warehouse.root) is None:
        (run / "config.toml").chmod(run.stat().st_mode & 0o666)     # users edit it
    if hidden:
        notes = [*notes, f"{counted(hidden, 'task')} without solutions: programs are run and outputs stored, "
                "without a verdict or a reward"]
    notes = [*notes, *(f"{text} brings solutions, which try its tests: score gold {shell_quote(text)}"
                       for text in solved)]
    if said := untrusted(warehouse.root):
        notes = [*notes, f"note, before the next command: {said}"]
    listing = ", ".join(f"{count} {split}" for split, count in counts.items())
    kinds = ", ".join(sorted(set(table["kind"].to_pylist())))
    return [*notes, f"{run}: {counted(num_tasks, 'task')} ({listing}) of kind {kinds}, "
            f"base model {base.stored_path}",
            f"next: rollout {shell_quote(run)}{'' if tasks else ' --eval'}"]


def _adapter_folder(adapter: Path) -> Path:
    """The folder with the adapter's files; for RUN/policies/N the current folder of policy N.

    StageError if it holds no LoRA adapter in PEFT's format.
    """
    place = adapter.absolute()
    if place.parent.name == "policies" and place.name.isdigit():
        adapter = open_warehouse(place.parents[1]).policy_dir(int(place.name))
    try:
        kind = json.loads((adapter / CONFIG).read_text(encoding="utf-8")).get("peft_type")
    except (OSError, ValueError) as error:
        raise StageError(f"{adapter} is not an adapter: {CONFIG} is missing or damaged. Give a folder that "
                         "PEFT wrote, or RUN/policies/N of another run.") from error
    if kind != "LORA" or not (adapter / WEIGHTS).is_file():
        raise StageError(f"{adapter} is not a LoRA adapter with {WEIGHTS}. Give a folder that PEFT wrote, or "
                         "merge the adapter into its base and pass the result as --model.")
    return adapter


def _bring_adapter(adapter: Path, folder: Path) -> dict[str, Any]:
    """Copy an adapter into the folder of a policy; return its facts for policy.json."""
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(adapter / name, folder / name)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    settings = {"lora_rank": config["r"], "lora_alpha": float(config["lora_alpha"]),
                "rslora": bool(config.get("use_rslora"))}
    return {"kind": "lora", "sha256": weights_sha256(folder), "files": file_hashes(folder),
            "settings": settings}


def _commit_first_policy(warehouse: Warehouse, sha256: str, adapter: Path | None) -> None:
    folder = warehouse.scratch("policy-0")
    facts = _bring_adapter(adapter, folder) if adapter else {"kind": "base", "sha256": sha256}
    commit_json(folder / "policy.json", {"policy_version": 0, "parent": None,
                                         "base": warehouse.facts["model"], **facts})
    commit_directory(folder, warehouse.root / "policies" / "0")


def _remove_unfinished(warehouse: Warehouse) -> None:
    """Remove what a killed init left: without warehouse.json it is not a run."""
    check_not_lost(warehouse.root)
    for name in ("tasks", "policies/0", FOLDER):
        remove_folder(warehouse.root / name)


def _same_run(warehouse: Warehouse, facts: dict[str, Any], config: Path | None) -> list[str]:
    known = {**warehouse.facts, "schema_version": SCHEMA_VERSION,
             "tasks_sha256": warehouse.state.tasks_sha256}
    for key, value in facts.items():
        if known.get(key) != value and key == "tasks_sha256":
            raise StageError(f"{warehouse.root} exists already with other tasks. Choose another folder, give "
                             "the former arguments, or give it more tasks with `warehouse tasks add`.")
        if known.get(key) != value:
            raise StageError(f"{warehouse.root} exists already with {key} = {known.get(key)}, now "
                             f"it is {value}. Choose another folder, or give the former arguments.")
    lines = [f"{warehouse.root} exists already with these tasks and this model; nothing to do."]
    own = warehouse.root / "config.toml"
    if config and own.exists() and own.read_bytes() != config.read_bytes():
        lines.append(f"{own} differs from {config} and was kept.")
    return lines


CONFIG_TEMPLATE = """\
# One table per command, keys as the command's long options, which win. Examples:
# [rollout]
# num-tasks = 32
# group-size = 16
# [score]
# reward = "arc-v2-no-pixel-score"
# [train]
# learning-rate = 1e-5
"""
