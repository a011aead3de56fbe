"""Lines of rollouts sampled elsewhere, each checked against the columns that it would fill."""

import functools
import math
from pathlib import Path
from typing import Any

import pyarrow as pa

from warehouse.store.errors import StageError, shorten
from warehouse.store.names import UNTRUNCATED
from warehouse.store.schema import arrow_schema
from warehouse.tasks.augmentation import NUM_COLORS
from warehouse.tasks.task_files import json_lines

OF_POLICY = ("behaviour_logprobs", "policy_version")         # null if another model wrote the rows
REQUIRED = ("task_id", "prompt_ids", "completion_ids", "completion", "finish_reason", *OF_POLICY)
SAMPLING = {"temperature": 1.0, **UNTRUNCATED}
PROCESSED = "processed_logprobs"
FINISH_REASONS = ("stop", "length", "loop", "code")
# Least and greatest value of a number, or of each number of a list.
LIMITS = {"behaviour_logprobs": (-math.inf, 1e-6), "top_p": (0, 1), "min_p": (0, 1), "color_map": (0, 9),
          "max_tokens": (1, math.inf), **dict.fromkeys((
              "prompt_ids", "completion_ids", "support_ids", "policy_version", "temperature", "top_k",
              "repetition_penalty", "rotations", "pair_order", "shown_test", "iteration", "sample_index",
              "group_index", "group_size"), (0, math.inf))}
# Columns that the import fills itself: those of a line only have to be plausible.
OWN = {"iteration", "purpose", "sample_index", "group_id", "group_index", "group_size", "split", "prompt_id",
       "num_prompt_tokens", "num_completion_tokens", "finished_at"}
# Further columns of an export.
EXPORTED = {"messages", "payload", "finished_at", "scorer", "reward", "reward_parts", "correct",
            "error_class", "advantage", "old_logprobs"}


def read_lines(source: Path, tasks: dict[str, str], plain_sampling: bool,
               purpose: str) -> list[dict[str, Any]]:
    """All lines of a file, as rows of completions with prompt columns."""
    rows = [_checked(row, where, tasks, plain_sampling, purpose) for where, row in json_lines(source)]
    if not rows:
        raise StageError(f"{source} holds no completion. Give a file with one JSON object per line.")
    policies = {row["policy_version"] for row in rows}
    if len(policies) > 1:
        raise StageError(f"{source} holds completions of policies {sorted(policies, key=str)}. One rollout "
                         "has one policy: split the file.")
    return rows


def _checked(row: Any, where: str, tasks: dict[str, str], plain_sampling: bool,
             purpose: str) -> dict[str, Any]:
    """One line as a row of completions, with prompt columns."""
    if not isinstance(row, dict):
        raise StageError(f"{where} is not a JSON object. One line is one completion.")
    of_others = purpose.split("-")[0] != "train" and all(row.get(field) is None for field in OF_POLICY)
    for field in REQUIRED:
        if row.get(field) is None and not (of_others and field in OF_POLICY):
            without = " With --purpose distil the last two may both be missing." if field in OF_POLICY else ""
            raise StageError(f"{where}: '{field}' is missing. Every line needs {', '.join(REQUIRED)}."
                             f"{without}")
    if row.get("version_segments"):
        raise StageError(f"{where}: 'version_segments' has tokens of several policies. One "
                         "rollout has one policy: leave such groups out.")
    for field, value in row.items():
        if field in EXPORTED:
            continue
        if field not in _columns():
            raise StageError(f"{where}: no column is named '{field}'. Fix its name, or leave it out.")
        if not _fits(field, value):
            least, most = LIMITS.get(field, (-math.inf, math.inf))
            within = f" from {least:g} to {most:g}" if field in LIMITS else ""
            raise StageError(f"{where}: '{field}' is {shorten(value, 60)}, not {_columns()[field]}"
                             f"{within}.")
    if row.get("purpose", purpose) != purpose:
        raise StageError(f"{where}: 'purpose' is '{row['purpose']}', not '{purpose}'. Export with "
                         "--purpose, and import under the same one: evaluations are never trained on.")
    if row["task_id"] not in tasks:
        raise StageError(f"{where}: task '{row['task_id']}' is not in this run. Add it with "
                         "`warehouse tasks add`.")
    if row["finish_reason"] not in FINISH_REASONS:
        raise StageError(f"{where}: 'finish_reason' is '{row['finish_reason']}'; it must be "
                         f"{' or '.join(FINISH_REASONS)}.")
    ids, logprobs = row["completion_ids"], row.get("behaviour_logprobs")
    if not ids or (logprobs is not None and len(ids) != len(logprobs)):
        raise StageError(f"{where}: {len(ids)} completion_ids but {len(logprobs or ())} "
                         "behaviour_logprobs; there must be one for each token.")
    support = row.get("support_ids")
    if support is not None and (len(support) != len(ids) or not all(
            kept and token in kept for token, kept in zip(ids, support, strict=True))):
        raise StageError(f"{where}: 'support_ids' must have a list for each of completion_ids, and it in the "
                         "list.")
    if not row["prompt_ids"]:
        raise StageError(f"{where}: 'prompt_ids' is empty. A completion follows a prompt.")
    if row.get("color_map") is not None and sorted(row["color_map"]) != list(range(NUM_COLORS)):
        raise StageError(f"{where}: 'color_map' is {shorten(row['color_map'], 60)}; it must hold "
                         "each of 0 to 9 once.")
    missing = [name for name in SAMPLING if row.get(name) is None]
    if missing and not (plain_sampling or of_others):
        raise StageError(f"{where}: '{missing[0]}' is missing. Give the sampling parameters in "
                         "every line, or --plain-sampling if there were none (temperature 1, no truncation, "
                         "no penalty).")
    is_hot, mode = row.get("temperature") not in (None, 1), row.get("logprobs_mode")
    if logprobs and is_hot and mode != PROCESSED and purpose.split("-")[0] == "train":
        raise StageError(f"{where}: 'logprobs_mode' is {mode or 'missing'}, and the "
                         f"temperature is not 1. Give '{PROCESSED}' if the logprobs are those at this "
                         "temperature; others cannot be trained on.")
    for name, plain in SAMPLING.items() if plain_sampling else ():
        if row.get(name) not in (None, plain):
            raise StageError(f"{where}: '{name}' is {row[name]:g}, which --plain-sampling denies. Leave the "
                             "option out, and give all sampling parameters in every line.")
    stored = {field: row.get(field) for field in _columns().keys() - OWN}
    return {**stored, **{name: SAMPLING[name] for name in missing}}


@functools.cache
def _columns() -> dict[str, pa.DataType]:
    """The columns of prompts and completions with their types."""
    return {field.name: field.type for table in ("prompts", "completions") for field in arrow_schema(table)}


def _fits(field: str, value: Any) -> bool:
    """Whether a value can be stored in its column; numbers have to be finite and within LIMITS."""
    kind = _columns()[field]
    try:
        held = pa.array([value], kind)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        return False
    numbers = held if pa.types.is_list(kind) else held.drop_null()
    while pa.types.is_list(numbers.type):
        numbers = numbers.flatten()
    if pa.types.is_integer(numbers.type) and held.to_pylist() != [value]:       # Arrow cuts off 1.5
        return False
    if not (pa.types.is_integer(numbers.type) or pa.types.is_floating(numbers.type)):
        return True
    least, most = LIMITS.get(field, (-math.inf, math.inf))
    return all(number is not None and math.isfinite(number) and least <= number <= most
               for number in numbers.to_pylist())
