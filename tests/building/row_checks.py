"""Invariants of the rows of one part: lengths, values, keys, and what they refer to."""

from collections import Counter
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warehouse.store.errors import StageError
from warehouse.store.parts import part_number, read_parts
from warehouse.store.run_folder import Warehouse

KEY = ["task_id", "sample_index"]
PARENT = ["parent_iteration", "parent_purpose", "parent_sample_index"]


def row_problems(warehouse: Warehouse, table: str, keys: dict[str, Any], part: Path) -> list[str]:
    """What is wrong with the rows of a part; StageError if it cannot be read."""
    checks = {"completions": _completion_problems, "samples": _sample_problems,
              "train_samples": _train_problems, "prompts": _prompt_problems, "carried": _carried_problems}
    return checks[table](warehouse, keys, part) if table in checks else []


def _completion_problems(warehouse: Warehouse, keys: dict[str, Any], part: Path) -> list[str]:
    """Ids and logprobs of one length, finite, at most 0; keys unique in the iteration; groups that exist."""
    rows = read_parts([part], "completions", [*KEY, "group_id", "completion_ids", "behaviour_logprobs",
                                              "num_completion_tokens", "policy_version"])
    problems, seen = _token_problems(rows), _keys_of(rows)
    problems += [f"{_label(key)} is there {count} times."
                 for key, count in Counter(seen).items() if count > 1]
    earlier = [path for path in warehouse.parts("completions", **keys)
               if part_number(path) < part_number(part)]
    before = _readable(earlier, "completions", [*KEY, "group_id"])
    twice = set(seen) & set(_keys_of(before))
    problems += [f"{_label(key)} is in an earlier part too." for key in sorted(twice)[:3]]
    split = set(rows["group_id"].to_pylist()) & set(before["group_id"].to_pylist())
    problems += [f"group {group} began in an earlier part; its rows must be in one."
                 for group in sorted(split)[:3]]
    prompts = _readable(warehouse.parts("prompts", **keys), "prompts", ["group_id"])
    lost = sorted(set(rows["group_id"].to_pylist()) - set(prompts["group_id"].to_pylist()))
    return problems + [f"group {group} has no prompt." for group in lost[:3]]


def _carried_problems(warehouse: Warehouse, keys: dict[str, Any], part: Path) -> list[str]:
    """Ids and logprobs of one length, finite, at most 0; groups that the iteration has not among its own."""
    rows = read_parts([part], "carried", ["group_id", "completion_ids", "behaviour_logprobs",
                                          "num_completion_tokens", "policy_version"])
    problems = _token_problems(rows)
    whole = _readable(warehouse.parts("completions", **keys), "completions", ["group_id"])
    twice = set(rows["group_id"].to_pylist()) & set(whole["group_id"].to_pylist())
    return problems + [f"group {group} was carried over and is there whole." for group in sorted(twice)[:3]]


def _prompt_problems(warehouse: Warehouse, keys: dict[str, Any], part: Path) -> list[str]:
    """The prompt's length as counted, one row per group; later turns begin with what they answer."""
    rows = read_parts([part], "prompts", ["task_id", "group_id", "prompt_ids", "num_prompt_tokens",
                                          "verbatim_prefix", *PARENT])
    kept = rows.filter(rows["prompt_ids"].is_valid())           # others were pruned
    problems = _length_problems(kept, "prompt_ids", "num_prompt_tokens")
    problems += _parent_problems(warehouse, kept)
    counts = Counter(rows["group_id"].to_pylist())
    return problems + [f"group {group} is there {count} times."
                       for group, count in counts.items() if count > 1]


def _parent_problems(warehouse: Warehouse, rows: pa.Table) -> list[str]:
    """Tokens of the parent that are not those at the beginning, or parents that are gone."""
    turns = [row for row in rows.to_pylist() if row["parent_purpose"] is not None]
    problems = []
    for iteration, purpose in sorted({(row["parent_iteration"], row["parent_purpose"]) for row in turns}):
        of: dict[str, Any] = {"iteration": iteration, "purpose": purpose}
        asked = _readable(warehouse.parts("prompts", **of), "prompts", ["group_id", "prompt_ids"])
        prompts = dict(zip(asked["group_id"].to_pylist(), asked["prompt_ids"].to_pylist(), strict=True))
        sampled = _readable(warehouse.parts("completions", **of), "completions",
                            [*KEY, "group_id", "completion_ids"])
        begins = {(row["task_id"], row["sample_index"]): [prompts.get(row["group_id"]), row["completion_ids"]]
                  for row in sampled.to_pylist()}
        for row in turns:
            if (row["parent_iteration"], row["parent_purpose"]) == (iteration, purpose):
                begin = begins.get((row["task_id"], row["parent_sample_index"]))
                if begin and None in begin:     # pruned
                    continue
                verbatim = list(chain(*(begin or [])))
                if not begin or (row["verbatim_prefix"] and row["prompt_ids"][:len(verbatim)] != verbatim):
                    problems.append(f"group {row['group_id']} does not go on from what it answers, which "
                                    "was sampled again or is gone. Discard it.")
    return problems[:3]


def _sample_problems(warehouse: Warehouse, keys: dict[str, Any], part: Path) -> list[str]:
    """The same completions, in the same order, as the part they score; finite rewards; first outputs."""
    rows = read_parts([part], "samples", [*KEY, "group_id", "reward", "num_completion_tokens", "fingerprint",
                                          "first_output"])
    rollout = {"iteration": keys["iteration"], "purpose": keys["purpose"]}
    scored = warehouse.part_path("completions", part_number(part), **rollout)
    problems = []
    sampled = _readable([scored], "completions", [*KEY, "num_completion_tokens"])
    if sampled.num_rows and _keys_of(sampled) != _keys_of(rows):
        problems.append(f"its completions are not those of {scored}; score again.")
    elif sampled.num_rows and sampled["num_completion_tokens"] != rows["num_completion_tokens"]:
        problems.append(f"its token counts are not those of {scored}; score again.")
    rewards = rows["reward"].drop_null().to_numpy()
    if not np.isfinite(rewards).all():
        problems.append("a reward is not a finite number (unmeasured rewards are null); score again.")
    return problems + _first_output_problems(rows)


def _first_output_problems(rows: pa.Table) -> list[str]:
    """first_output is true once for each group and fingerprint, at its first row, and null without one."""
    seen: set[tuple[str, str]] = set()
    columns = (rows[name].to_pylist() for name in ("group_id", "fingerprint", "first_output"))
    for key, (group_id, fingerprint, first) in zip(_keys_of(rows), zip(*columns, strict=True), strict=True):
        if first is not (None if fingerprint is None else (group_id, fingerprint) not in seen):
            return [f"first_output of {_label(key)} does not fit the fingerprints of its group; score again."]
        seen.add((group_id, fingerprint))
    return []


def _train_problems(warehouse: Warehouse, _keys: dict[str, Any], part: Path) -> list[str]:
    """Old logprobs as long as the completion they belong to, finite, at most 0."""
    rows = read_parts([part], "train_samples", ["iteration", "purpose", *KEY, "old_logprobs"])
    rows = rows.filter(rows["old_logprobs"].is_valid())
    problems = _logprob_problems(rows, "old_logprobs")
    lengths = dict(zip(_keys_of(rows, "iteration", "purpose"), _lengths(rows["old_logprobs"]), strict=True))
    for iteration, purpose in sorted({key[:2] for key in lengths}):
        rollout = warehouse.state.life("rollout", iteration, purpose)
        with suppress(StageError):              # of a damaged part it is said already
            sampled = warehouse.read("completions", [*KEY, "num_completion_tokens"], iteration=iteration,
                                     purpose=purpose)
            tokens = dict(zip(_keys_of(sampled), sampled["num_completion_tokens"].to_pylist(), strict=True))
            mine = {key[2:]: length for key, length in lengths.items() if key[:2] == (iteration, purpose)}
            if rollout and rollout.is_complete and not rollout.lost:
                problems += [f"{_label(key)} of iteration {iteration} is not among its completions. Restore "
                             "them, or run its rollout again." for key in mine if key not in tokens][:3]
            problems += [f"{_label(key)} has {length} old_logprobs for {tokens[key]} tokens."
                         for key, length in mine.items() if tokens.get(key, length) != length][:3]
    return problems


def _token_problems(rows: pa.Table) -> list[str]:
    """Ids and logprobs of one length, as counted; the logprobs finite and at most 0."""
    kept = rows.filter(rows["completion_ids"].is_valid())       # others were pruned
    sampled = kept.filter(kept["policy_version"].is_valid())    # a model behind an API gives no logprobs
    return [*_length_problems(kept, "completion_ids", "num_completion_tokens"),
            *_length_problems(sampled, "behaviour_logprobs", "num_completion_tokens"),
            *_logprob_problems(sampled, "behaviour_logprobs")]


def _length_problems(rows: pa.Table, column: str, count: str) -> list[str]:
    wrong = np.flatnonzero(_lengths(rows[column]) != rows[count].to_numpy())
    return [f"row {index}: {rows[count][index].as_py()} tokens, but {column} has "
            f"{len(rows[column][index].as_py() or [])}." for index in wrong[:3].tolist()]


def _logprob_problems(rows: pa.Table, column: str) -> list[str]:
    values = rows[column].combine_chunks().flatten()
    numbers = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    problems = []
    if not np.isfinite(numbers).all():
        problems.append(f"{(~np.isfinite(numbers)).sum()} of {column} are missing or not finite; "
                        "nothing can be trained on them. Sample the iteration again.")
    above = numbers[np.isfinite(numbers)] > 1e-6  # log_softmax in float32 may end a rounding above 0
    if above.any():
        problems.append(f"{above.sum()} of {column} are above 0, so they are not log probabilities.")
    return problems


def _readable(paths: list[Path], table: str, columns: list[str]) -> pa.Table:
    """Rows of the parts that can be read; damaged ones have been reported by their footer."""
    readable = []
    for path in paths:
        with suppress(StageError):
            readable.append(read_parts([path], table, columns))
    return pa.concat_tables(readable) if readable else read_parts([], table, columns)


def _lengths(column: pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy()


def _keys_of(rows: pa.Table, *before: str) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in (*before, *KEY)), strict=True))


def _label(key: tuple[Any, ...]) -> str:
    return f"completion {key[1]} of task {key[0]}"
