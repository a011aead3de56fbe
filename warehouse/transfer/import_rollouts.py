"""Rollouts sampled elsewhere: JSON lines with token ids become one complete rollout stage."""

import datetime
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from warehouse.sql.vocabulary import load_tokenizer
from warehouse.store.checksums import sha256_of
from warehouse.store.errors import StageError, counted, shorten
from warehouse.store.json_files import read_json
from warehouse.store.names import begins_purpose, check_name, group_id_of, prompt_id_of, turn_of
from warehouse.store.run_folder import Stage, Warehouse
from warehouse.store.schema import arrow_schema
from warehouse.transfer.import_lines import read_lines

PART_ROWS = 4096
Rows = list[dict[str, Any]]


def import_rollouts(warehouse: Warehouse, source: Path, *, iteration: int, purpose: str,
                    plain_sampling: bool) -> int:
    """Write the lines of `source` as the rollout of an iteration; return its number of completions.

    Every line is checked before anything is written; a StageError names the line and the field. Sampling
    parameters must be in the lines unless `plain_sampling` says that there were none: temperature 1,
    no truncation, no penalty. The same file finishes a killed import; on a finished one it changes nothing.
    """
    import pyarrow as pa
    if turn_of(purpose) > 1:
        raise StageError(f"--purpose {purpose} is for later turns, which answer completions of their own "
                         "run. Import only first turns.")
    if not begins_purpose(check_name("The purpose", purpose)):
        raise StageError(f"No command reads rows of --purpose {purpose}. Use train, or eval or distil, alone "
                         "or with a label as in eval-mine.")
    keys: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
    stage = warehouse.stage("rollout", **keys)
    settings = _settings(stage, {"imported_from": source.name, "plain_sampling": plain_sampling,
                                 "sha256": sha256_of(source)})
    if facts := stage.facts():
        return facts["num_completions"]
    tasks = warehouse.read("tasks", ["task_id", "split", "heldout"]).to_pylist()
    splits = {row["task_id"]: row["split"] for row in tasks}
    rows = read_lines(source, splits, plain_sampling, purpose)
    if purpose.split("-")[0] in ("train", "distil"):
        held_out = {row["task_id"] for row in tasks if row["heldout"]}      # lines do not name splits
        if kept := sorted({row["task_id"] for row in rows} & held_out):
            raise StageError(f"{source} holds completions of {counted(len(kept), 'held-out task')} "
                             f"({kept[0]}); none is ever trained on. Import them with --purpose eval, or "
                             "leave them out.")
    _check_policy(warehouse, source, rows)
    _check_tokens(warehouse, source, rows)
    groups = _groups(rows, iteration, purpose)
    prompts = pa.Table.from_pylist([_prompt(group, splits) for group in groups], arrow_schema("prompts"))
    parts = [pa.Table.from_pylist(part, arrow_schema("completions")) for part in _parts(groups)]
    version = rows[0]["policy_version"]
    trained = None if version is None else warehouse.state.policies[version].trained
    stage.settle(settings, reads=[] if trained is None else [trained])
    warehouse.write_part("prompts", 0, prompts, **keys)
    for number, part in enumerate(parts):
        warehouse.write_part("completions", number, part, **keys)
    stage.complete({"num_completions": len(rows), "imported": True, "seconds": 0.0}, range(len(parts)))
    return len(rows)


def _settings(stage: Stage, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the import, or those it was begun with; StageError if other rows are there."""
    before, plain = stage.settings(), settings["plain_sampling"]
    if before is None:
        return settings
    if (before.get("sha256"), before.get("plain_sampling", plain)) != (settings["sha256"], plain):
        raise StageError(f"{stage.title} exists already, begun with other rows or options. Import into an "
                         f"iteration or purpose that does not, or {stage.way_to_discard()}.")
    return before       # the file may have been renamed


def _check_policy(warehouse: Warehouse, source: Path, rows: list[dict[str, Any]]) -> None:
    """StageError unless the run's policy or another model sampled the rows; those without its hash get it."""
    version = rows[0]["policy_version"]
    if version is None:
        return
    sha256 = warehouse.policy(version)["sha256"]
    for row in rows:
        if row["policy_sha256"] not in (None, sha256):
            raise StageError(f"{source} holds completions of a policy {version} with sha256 "
                             f"{row['policy_sha256'][:12]}, policy {version} of this run has {sha256[:12]}. "
                             "Import them into their own run.")
        row["policy_sha256"] = sha256


def _check_tokens(warehouse: Warehouse, source: Path, rows: list[dict[str, Any]]) -> None:
    """StageError for a token that the base model, if it is here, does not know, or that is not the text's."""
    config = read_json(Path(warehouse.model) / "config.json") or {}
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    highest = max(max(*row["prompt_ids"], *row["completion_ids"], *chain(*row["support_ids"] or ()))
                  for row in rows)
    if size is not None and highest >= size:
        raise StageError(f"{source} holds token {highest}, the base model knows 0 to {size - 1}. The rows "
                         "were sampled with another tokenizer: import those of this run's model.")
    if not (path := Path(warehouse.model) / "tokenizer.json").exists():         # nothing to compare with
        return
    tokenizer = load_tokenizer(path)
    for number, row in enumerate(rows, start=1):
        texts = [tokenizer.decode(row["completion_ids"], skip_special_tokens=skip) for skip in (True, False)]
        if not any(row["completion"].strip("\ufffd\n ") in text for text in texts):
            raise StageError(f"{source}, completion {number}: 'completion' is "
                             f"{shorten(row['completion'], 60)}, its completion_ids are "
                             f"{shorten(texts[0], 60)}. `score` reads the text and `train` the tokens: give "
                             "both of one completion.")


def _groups(rows: Rows, iteration: int, purpose: str) -> list[Rows]:
    """The rows of each prompt, in the order of the file, with their keys."""
    num_rows, num_groups = Counter[str](), Counter[str]()
    groups: dict[tuple[str, str], Rows] = {}
    now = datetime.datetime.now(datetime.UTC)
    for row in rows:
        task, prompt_id = row["task_id"], prompt_id_of(row["prompt_ids"])
        group = groups.setdefault((task, prompt_id), [])
        index = group[0]["group_index"] if group else num_groups[task]
        num_groups[task] += not group
        row.update(iteration=iteration, purpose=purpose, sample_index=num_rows[task], prompt_id=prompt_id,
                   group_index=index, group_id=group_id_of(iteration, purpose, task, index),
                   num_prompt_tokens=len(row["prompt_ids"]),
                   num_completion_tokens=len(row["completion_ids"]), finished_at=now)
        num_rows[task] += 1
        group.append(row)
    return list(groups.values())


def _prompt(group: Rows, splits: dict[str, str]) -> dict[str, Any]:
    row = group[0]
    return {**row, "group_size": len(group), "split": splits[row["task_id"]], "prompt": row["prompt"] or "",
            "prompt_format": row["prompt_format"] or "imported", "prefill": row["prefill"] or "",
            "seed": None}


def _parts(groups: list[Rows]) -> Iterator[Rows]:
    """Rows in parts of PART_ROWS or slightly more: the rows of a group stay together."""
    part: Rows = []
    for group in groups:
        part += group
        if len(part) >= PART_ROWS:
            yield part
            part = []
    if part:
        yield part
