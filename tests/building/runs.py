"""A run folder for tests, and the one way in which made-up rows get into it."""

import datetime
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from warehouse.init import init_run
from warehouse.store.commit import commit_json
from warehouse.store.json_files import json_bytes, read_json
from warehouse.store.parts import part_number, read_parts
from warehouse.store.parts import write_part as write_file
from warehouse.store.run_folder import STAGE_OF, Stage, Warehouse, open_warehouse
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


def change_settings(run: Warehouse, stage: str, iteration: int, *, scorer: str | None = None,
                    **settings: object) -> None:
    """Have the manifest of a stage say that it was started otherwise."""
    [held] = [each for each in run.stages() if each.name == stage and each.identity["iteration"] == iteration
              and scorer in (None, each.identity.get("scorer"))]
    path = held.folder / "manifest.json"
    change_document(path, settings=(json.loads(path.read_text())["settings"] or {}) | settings)


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
            "truncated": completion["finish_reason"] in CUT_OFF, "reward": reward,
            "reward_parts": json.dumps({} if reward is None else {"exact": reward}), **columns}


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as the Arrow table of a stored kind; columns left out are null."""
    return pa.Table.from_pylist(rows, schema=arrow_schema(name))


def begin(warehouse: Warehouse, name: str, settings: dict[str, Any] | None = None,
          answers: Iterable[tuple[int, str]] = (), **keys: Any) -> Stage:
    """A stage that has begun, standing on what there is of its iteration, as the commands have it.

    A rollout `answers` those of these iterations and purposes.
    """
    stage, state, iteration = warehouse.stage(name, **keys), warehouse.state, keys["iteration"]
    reads = [state.life("rollout", *key) for key in answers]
    if name == "score":
        reads = [state.life("rollout", iteration, keys["purpose"])]
    elif name == "train":
        reads = [*state.of_stage("rollout", iteration), *state.of_stage("score", iteration)]
        reads = [life for life in reads if life and str(life.purpose).startswith("train")]
    version = (settings or {}).get("policy_version", iteration)
    trained = state.policies[version].trained if version in state.policies and name != "score" else None
    stage.settle(settings or {}, reads=[*([] if trained is None else [trained]),
                                        *(life.begun for life in reads if life)])
    return stage


def write_rows(warehouse: Warehouse, name: str, parts: Iterable[list[dict[str, Any]]], *,
               scorer: str | None = None, settings: dict[str, Any] | None = None) -> None:
    """Rows of one iteration and purpose as parts of a table; their stage begins with `settings`."""
    for number, rows in enumerate(filter(None, parts)):
        keys = {"iteration": rows[0]["trained_iteration" if name in ("train_samples", "train_tokens")
                                     else "iteration"]}
        if not name.startswith("train"):
            keys |= {"purpose": rows[0]["purpose"]} | ({"scorer": scorer} if scorer else {})
        answers = {(row["parent_iteration"], row["parent_purpose"]) for row in rows
                   if "parent_purpose" in row}
        write_part(warehouse, name, number, table(name, rows), settings=settings, answers=answers, **keys)


def write_part(warehouse: Warehouse, name: str, number: int, rows: pa.Table,
               settings: dict[str, Any] | None = None, answers: Iterable[tuple[int, str]] = (),
               **keys: Any) -> bool:
    """A part of a stage, which begins if it has not."""
    life = warehouse.stage(STAGE_OF[name], **keys).life
    if life is None or life.key not in warehouse.joined:
        begin(warehouse, STAGE_OF[name], dict(life.settings) if life else settings, answers,
              **keys)
    return warehouse.write_part(name, number, rows, **keys)


def back_before(warehouse: Warehouse, name: str, *, complete: bool = False, **keys: Any) -> Warehouse:
    """Take entries off the end of the log: the run is as it was before a stage began, or was `complete`."""
    life = warehouse.stage(name, **keys).life
    assert life is not None
    first = (life.completed if complete else life.begun) or 0
    for other in warehouse.state.lives.values():
        if other.completed is not None and other.completed >= first:
            (warehouse.stage_of(other).folder / "manifest.json").unlink(missing_ok=True)
        if other.begun >= first:            # its number will be another's
            for folder in list(warehouse.root.rglob(f"generation={other.begun}")):
                shutil.rmtree(folder)
    for path in sorted((warehouse.root / "_log").glob("*.json")):
        if int(path.stem) >= first:
            path.unlink()
    return open_warehouse(warehouse.root)


def add_policy(warehouse: Warehouse, version: int, folder: Path) -> None:
    """Give the run a policy whose files are in `folder`, by a training without rows."""
    begin(warehouse, "train", iteration=version - 1)
    warehouse.commit_policy(version - 1, folder)
    warehouse.stage("train", iteration=version - 1).complete({})


def finish(warehouse: Warehouse, stage: str, settings: dict[str, Any] | None = None,
           facts: dict[str, Any] | None = None, **keys: Any) -> None:
    """Settings and manifest of a stage whose parts lie there."""
    made = warehouse.stage(stage, **keys)
    if made.life is None:
        begin(warehouse, stage, settings, **keys)
    made.settle(settings or made.settings() or {})
    made.complete(facts or {})


def score_again(warehouse: Warehouse, scorer: str, as_scorer: str, iteration: int, purpose: str = "train",
                complete: bool = True) -> Stage:
    """Another scorer's rows of a rollout: the same as one has given already."""
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    stage = begin(warehouse, "score", **keys, scorer=as_scorer)
    for part in warehouse.parts("samples", **keys, scorer=scorer):
        rows = [{**row, "scorer": as_scorer} for row in read_parts([part], "samples").to_pylist()]
        warehouse.write_part("samples", part_number(part), table("samples", rows), **keys, scorer=as_scorer)
    if complete:
        stage.complete({})
    return stage


def in_run(root: Path, name: str) -> Path:
    """A file of a run by its path without the generation: of the only generation that there is."""
    place = root / name
    found = sorted(place.parent.glob(f"generation=*/{place.name}"))
    assert len(found) < 2, f"several generations hold {name}"
    return found[0] if found else place


def replace_rows(warehouse: Warehouse, name: str, change: Callable[[dict[str, Any]], dict[str, Any] | None],
                 **keys: Any) -> None:
    """Replace rows of a complete stage by `change(row)` of each, as a broken writer would have left them."""
    for part in warehouse.parts(name, **keys):
        rows = [change(row) for row in read_parts([part], name).to_pylist()]
        part.unlink()
        write_file(part, name, table(name, [row for row in rows if row is not None]),
                   {"run_id": warehouse.run_id})
    write_manifest_again(warehouse.stage(STAGE_OF[name], **keys))


def write_manifest_again(stage: Stage, facts: dict[str, Any] | None = None) -> None:
    """The manifest of a complete stage whose parts were changed by hand."""
    facts = (stage.manifest() or {}).get("facts", {}) if facts is None else facts
    (stage.folder / "manifest.json").unlink()
    commit_json(stage.folder / "manifest.json", stage.facts_to_store(facts))
