"""A run folder for tests, and the one way in which made-up rows get into it."""

import datetime
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from warehouse.init import init_run
from warehouse.store.json_files import json_bytes, read_json
from warehouse.store.run_folder import Warehouse, open_warehouse
from warehouse.store.schema import CUT_OFF, arrow_schema

STARTER = Path(__file__).parents[2] / "examples" / "starter" / "model"
NOON = datetime.datetime(2026, 1, 5, 12, tzinfo=datetime.UTC)
# A task that mirrors the grid.
TURN = {"train": [{"input": [[1, 2], [3, 4]], "output": [[2, 1], [4, 3]]},
                  {"input": [[5, 6, 7]], "output": [[7, 6, 5]]}],
        "test": [{"input": [[0, 9], [8, 0]], "output": [[9, 0], [0, 8]]}]}
SAMPLER = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
           "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs_mode": "processed_logprobs",
           "engine": "scripted 1", "dtype": "float32", "device": "cpu", "host": "somewhere"}
SHARED = ("iteration", "purpose", "task_id", "sample_index", "group_id")      # columns that name a completion
SAID = ("policy_version", "finish_reason", "num_prompt_tokens", "num_completion_tokens")


def new_run(root: Path, tasks: Mapping[str, Any] | None = None, heldout: Mapping[str, Any] | None = None,
            *, model: Path | None = None, config: Path | None = None) -> Warehouse:
    """A run folder without rows; `tasks` are payloads of grid tasks by id, or (kind, payload) of any kind.

    The model is a fake by default.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    base = str(model or fake_model(root / "model"))
    with tempfile.TemporaryDirectory() as folder:
        trained = _task_file(Path(folder) / "tasks.json", tasks or {"turn": TURN})
        held_out = (_task_file(Path(folder) / "heldout.json", heldout),) if heldout else ()
        init_run(root, base, (trained,), held_out, config)
    return open_warehouse(root)


def change_document(path: Path, **changes: Any) -> None:
    """Give keys of a JSON file of a run other values, as whoever wrote it would have written them."""
    facts = read_json(path) or {}
    path.chmod(0o644)
    path.write_bytes(json_bytes({**facts, **changes}))


def small_run(folder: Path, num_tasks: int = 5, num_heldout: int = 2) -> Warehouse:
    """The run folder / "run" with training tasks t0.. and held-out tasks h0.., its model beside it."""
    return new_run(folder / "run", {f"t{number}": TURN for number in range(num_tasks)},
                   {f"h{number}": TURN for number in range(num_heldout)}, model=fake_model(folder / "model"))


def fake_model(folder: Path) -> Path:
    """A folder that passes for a model as far as the warehouse looks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 1024}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def arc_file(folder: Path, names: list[str]) -> Path:
    """A file in Kaggle's format whose tasks of these names all mirror."""
    return Path(_task_file(folder / f"{names[0]}.json", dict.fromkeys(names, TURN)))


def _task_file(path: Path, payloads: Mapping[str, Any]) -> str:
    if any(isinstance(payload, tuple) for payload in payloads.values()):
        path = path.with_suffix(".jsonl")
        kinds = {name: each if isinstance(each, tuple) else ("grid", each) for name, each in payloads.items()}
        path.write_text("".join(json.dumps({
            "task_id": name, "kind": kind, "payload": payload,
            "messages": None if kind == "grid" else [{"role": "user", "content": "?"}]}) + "\n"
            for name, (kind, payload) in kinds.items()))
    else:
        path.write_text(json.dumps(dict(payloads)))
    return str(path)


def copy_run(warehouse: Warehouse, folder: Path) -> Warehouse:
    """The same run in another folder."""
    shutil.copytree(warehouse.root, folder)
    return open_warehouse(folder)


def without_waiting() -> Any:
    """A context in which nothing is flushed to disk: for runs whose making is not what is tested."""
    return patch("os.fsync", lambda _descriptor: None)


# Rows ------------------------------------------------------------------------------------------------------


def prompt_row(task_id: str, group_size: int, *, iteration: int = 0, purpose: str = "train",
               group_index: int = 0, prompt_ids: Iterable[int] = (1, 2, 3, 4),
               **columns: Any) -> dict[str, Any]:
    """The prompt of a group."""
    ids = list(prompt_ids)
    return {"iteration": iteration, "purpose": purpose, "task_id": task_id, "group_index": group_index,
            "group_id": f"{iteration}/{purpose}/{task_id}/{group_index}", "group_size": group_size,
            "split": "train", "prompt_id": task_id, "prompt": "In\n12\nOut\n21\n", "prompt_ids": ids,
            "num_prompt_tokens": len(ids), "prompt_format": "compact@1", "format_options": "{}",
            "prefill": "", "seed": 1, **columns}


def completion_row(prompt: dict[str, Any], sample_index: int, ids: list[int], logprobs: list[float],
                   completion: str = "", **columns: Any) -> dict[str, Any]:
    """A completion of a prompt, sampled by the iteration's own policy unless `columns` say otherwise."""
    return {**{name: prompt[name] for name in SHARED if name != "sample_index"},
            "sample_index": sample_index, "completion": completion, "completion_ids": ids,
            "behaviour_logprobs": logprobs, "num_prompt_tokens": prompt["num_prompt_tokens"],
            "num_completion_tokens": len(ids), "finish_reason": "stop",
            "policy_version": prompt["iteration"],
            "finished_at": NOON + datetime.timedelta(minutes=prompt["iteration"]), **SAMPLER, **columns}


def sample_row(completion: dict[str, Any], scorer: str, reward: float, **columns: Any) -> dict[str, Any]:
    """The score of a completion."""
    return {**{name: completion[name] for name in (*SHARED, *SAID)}, "scorer": scorer, "split": "train",
            "truncated": completion["finish_reason"] in CUT_OFF, "reward": reward, "reward_parts": "{}",
            **columns}


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as the Arrow table of a stored kind; columns left out are null."""
    return pa.Table.from_pylist(rows, schema=arrow_schema(name))


def write_rows(warehouse: Warehouse, name: str, parts: Iterable[list[dict[str, Any]]], *,
               scorer: str | None = None) -> None:
    """Rows of one iteration and purpose as parts of a table."""
    for number, rows in enumerate(parts):
        keys = {"iteration": rows[0]["iteration"]}
        if not name.startswith("train"):
            keys |= {"purpose": rows[0]["purpose"]} | ({"scorer": scorer} if scorer else {})
        warehouse.write_part(name, number, table(name, rows), **keys)


def finish(warehouse: Warehouse, stage: str, settings: dict[str, Any] | None = None,
           facts: dict[str, Any] | None = None, **keys: Any) -> None:
    """Settings and manifest of a stage whose parts lie there."""
    made = warehouse.stage(stage, **keys)
    made.settle(settings or {})
    with patch("warehouse.store.stage._revision", return_value="test"):       # asking git takes time
        made.complete(facts or {})
