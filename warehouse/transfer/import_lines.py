"""Lines of rollouts sampled elsewhere, each checked against the columns that it would fill."""

import functools
import json
import re
from pathlib import Path
from typing import Any

from warehouse.store.errors import StageError, shorten
from warehouse.store.names import UNTRUNCATED
from warehouse.store.schema import arrow_schema
from warehouse.tasks.augmentation import NUM_COLORS
from warehouse.tasks.task_files import HALF_LETTER

REQUIRED = ("task_id", "prompt_ids", "completion_ids", "behaviour_logprobs", "completion", "finish_reason",
            "policy_version")
SAMPLING = {"temperature": 1.0, **UNTRUNCATED}
FINISH_REASONS = ("stop", "length", "loop", "code")
# Least and greatest value of a number, or of each number of a list.
LIMITS = {"prompt_ids": (0, None), "completion_ids": (0, None), "behaviour_logprobs": (None, 1e-6),
          "policy_version": (0, None), "temperature": (0, None), "top_p": (0, 1), "top_k": (0, None),
          "min_p": (0, 1), "repetition_penalty": (0, None), "max_tokens": (1, None), "rotations": (0, None),
          "color_map": (0, 9), "pair_order": (0, None), "shown_test": (0, None),
          **dict.fromkeys(("iteration", "sample_index", "group_index", "group_size"), (0, None))}
# Columns that the import fills itself and ignores in lines.
OWN = {"iteration", "purpose", "sample_index", "group_id", "group_index", "group_size", "split", "prompt_id",
       "num_prompt_tokens", "num_completion_tokens", "finished_at"}
# Further columns of an export.
EXPORTED = {"finished_at", "scorer", "reward", "correct", "error_class", "advantage", "old_logprobs"}
FLOATS = re.compile("float|double")
# JSON types of column types, and the largest number they hold.
TYPES: dict[str, tuple[tuple[type, ...], float]] = {
    "string": ((str,), 0), "bool": ((bool,), 0), "int8": ((int,), 127), "int32": ((int,), 2**31 - 1),
    "int64": ((int,), 2**63 - 1), **dict.fromkeys(("float", "double"), ((int, float), 3.4028234e38))}


def read_lines(content: bytes, source: Path, tasks: dict[str, str], plain_sampling: bool,
               purpose: str) -> list[dict[str, Any]]:
    """All lines of a file, as rows of completions with prompt columns.

    StageError for the first invalid line.
    """
    if source.suffix == ".zst":
        content = _decompress(content, source)
    rows = [_read_line(line, number, tasks, plain_sampling, purpose)
            for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if not rows:
        raise StageError(f"{source} holds no completion. Give a file with one JSON object per line.")
    policies = {row["policy_version"] for row in rows}
    if len(policies) > 1:
        raise StageError(f"{source} holds completions of policies {sorted(policies)}. One rollout has one "
                         "policy: split the file.")
    return rows


def _decompress(content: bytes, source: Path) -> bytes:
    """All frames of a .zst file; StageError if a frame is damaged or cut off."""
    import pyarrow as pa
    try:
        return pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    except OSError as error:
        raise StageError(f"{source} is not a zstd file, damaged, or cut off ({error}). Make or copy it again."
                         ) from error


def _object_of(line: bytes, number: int) -> dict[str, Any]:
    """The JSON object in a line."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise StageError(f"Line {number} is not UTF-8 text ({error}). Save the file as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise StageError(f"Line {number} is not JSON ({error}). Fix or remove it.") from error
    if not isinstance(row, dict):
        raise StageError(f"Line {number} is not a JSON object. One line is one completion.")
    return row


def _read_line(line: bytes, number: int, tasks: dict[str, str], plain_sampling: bool,
               purpose: str) -> dict[str, Any]:
    """One line as a row of completions, with prompt columns."""
    row = _object_of(line, number)
    for field in REQUIRED:
        if row.get(field) is None:
            raise StageError(f"Line {number}: '{field}' is missing. Every line needs {', '.join(REQUIRED)}.")
    if row.get("version_segments"):
        raise StageError(f"Line {number}: 'version_segments' has tokens of several policies. One "
                         "rollout has one policy: leave such groups out.")
    for field, value in row.items():
        kind = (_kinds() | _own_kinds()).get(field)
        if kind is None and field not in EXPORTED:
            raise StageError(f"Line {number}: no column is named '{field}'. Fix its name, or leave it out.")
        if kind and (problem := _problem(field, value, kind)):
            raise StageError(f"Line {number}: '{field}' {problem}.")
    if row.get("purpose", purpose) != purpose:
        raise StageError(f"Line {number}: 'purpose' is '{row['purpose']}', not '{purpose}'. Export with "
                         "--purpose, and import under the same one: evaluations are never trained on.")
    if row["task_id"] not in tasks:
        raise StageError(f"Line {number}: task '{row['task_id']}' is not in this run. Import it with "
                         "`warehouse init --tasks`.")
    if row["finish_reason"] not in FINISH_REASONS:
        raise StageError(f"Line {number}: 'finish_reason' is '{row['finish_reason']}'; it must be "
                         f"{' or '.join(FINISH_REASONS)}.")
    ids, logprobs = row["completion_ids"], row["behaviour_logprobs"]
    if not ids or len(ids) != len(logprobs):
        raise StageError(f"Line {number}: {len(ids)} completion_ids but {len(logprobs)} "
                         "behaviour_logprobs; there must be one for each token.")
    if not row["prompt_ids"]:
        raise StageError(f"Line {number}: 'prompt_ids' is empty. A completion follows a prompt.")
    if row.get("color_map") is not None and sorted(row["color_map"]) != list(range(NUM_COLORS)):
        raise StageError(f"Line {number}: 'color_map' is {shorten(row['color_map'], 60)}; it must hold "
                         "each of 0 to 9 once.")
    missing = [name for name in SAMPLING if row.get(name) is None]
    if missing and not plain_sampling:
        raise StageError(f"Line {number}: '{missing[0]}' is missing. Give the sampling parameters in "
                         "every line, or --plain-sampling if there were none (temperature 1, no truncation, "
                         "no penalty).")
    stored = {field: _as_stored(row.get(field), kind) for field, kind in _kinds().items()}
    return {**stored, **{name: SAMPLING[name] for name in missing}}


@functools.cache
def _kinds() -> dict[str, str]:
    """The columns that a line may fill, each with its Arrow type."""
    return {field.name: str(field.type) for table in ("prompts", "completions")
            for field in arrow_schema(table) if field.name not in OWN}


@functools.cache
def _own_kinds() -> dict[str, str]:
    """Columns that the import fills itself: a line's own values only have to be plausible."""
    return {field.name: str(field.type) for table in ("prompts", "completions")
            for field in arrow_schema(table) if field.name in OWN - EXPORTED}


def _problem(field: str, value: Any, kind: str) -> str | None:
    """Why a value cannot be stored as `kind`, or is meaningless; None if it can be stored.

    Booleans are not numbers; NaN and infinity are outside all limits.
    """
    listed, item = kind.startswith("list<"), kind.rpartition(": ")[2].rstrip(">")
    if value is None:
        return None
    if listed and not isinstance(value, list):
        return f"is {shorten(value, 60)}, not a list"
    types, widest = TYPES[item]
    least, most = (widest if limit is None else limit for limit, widest in
                   zip(LIMITS.get(field, (None, None)), (-widest, widest), strict=True))
    for each in value if listed else [value]:
        if type(each) not in types or (widest and not least <= each <= most) or (
                item == "string" and HALF_LETTER.search(each)):
            within = f" from {least:g} to {most:g}" if widest else ""
            return f"{'holds' if listed else 'is'} {shorten(each, 60)}, not {item}{within}"
    return None


def _as_stored(value: Any, kind: str) -> Any:
    """A whole number as a float if the column holds floats: Arrow refuses large whole numbers."""
    if value is None or not FLOATS.search(kind):
        return value
    return [float(number) for number in value] if isinstance(value, list) else float(value)
