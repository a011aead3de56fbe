"""Names that become folders (purposes, labels of evaluations, scorers), and names of groups and prompts."""

import hashlib
import json
import re

from warehouse.store.errors import StageError

# Sampling parameters that do not change a policy's own distribution.
UNTRUNCATED = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
               "frequency_penalty": 0.0}
PURPOSE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
SCORER = re.compile(r"[^/\x00-\x1f\ud800-\udfff]{1,200}")  # a file of rewards may have any name
TURN = re.compile(r"(.+)-turn([2-9]|[1-9]\d+)")
MOST_BYTES = 200  # of a name, which is only part of the folder's


def check_name(what: str, name: str, fitting: re.Pattern[str] = PURPOSE) -> str:
    """The name; StageError if it cannot be part of a folder's name."""
    if not fitting.fullmatch(name) or len(name.encode()) > MOST_BYTES:
        shown = ascii(name if len(name) <= 40 else f"{name[:40]}..")
        raise StageError(f"{what} {shown} is not possible: it may have up to 100 letters (A to Z), digits, "
                         "'_', '.' and '-'. Choose another name.")
    return name


def completion_name(iteration: int, purpose: str, task_id: str, index: int) -> str:
    """The name of a completion for `score explain`.

    It contains `train` if the first piece of the task id looks like a purpose.
    """
    first, slash, _ = task_id.partition("/")
    left_out = purpose == "train" and not (slash and begins_purpose(first))
    return f"{iteration}/{'' if left_out else f'{purpose}/'}{task_id}/{index}"


def begins_purpose(name: str) -> bool:
    """Whether a piece of a completion's name looks like a purpose."""
    return name.partition("-")[0] in ("train", "eval", "distil")


def group_id_of(iteration: int, purpose: str, task_id: str, index: int) -> str:
    return f"{iteration}/{purpose}/{task_id}/{index}"


def prompt_id_of(prompt_ids: list[int]) -> str:
    """Equal for equal prompts."""
    return hashlib.sha256(json.dumps(prompt_ids).encode()).hexdigest()[:16]


def turn_purpose(base: str, turn: int) -> str:
    """The purpose under which turn number `turn` of a purpose is stored."""
    return base if turn == 1 else f"{base}-turn{turn}"


def turn_of(purpose: str) -> int:
    """The turn of a conversation that rows of a purpose belong to, from 1."""
    match = TURN.fullmatch(purpose)
    return int(match[2]) if match else 1


def base_purpose(purpose: str) -> str:
    """The purpose of the first turns of a purpose."""
    match = TURN.fullmatch(purpose)
    return match[1] if match else purpose


def sampled_by(purpose: str) -> str:
    """The options with which `rollout` writes rows of a purpose, after a space if there are any."""
    base, turn = base_purpose(purpose), turn_of(purpose)
    kind, _, label = base.partition("-")
    options = {"eval": " --eval", "distil": " --api-model NAME --distil"}.get(kind, "")
    return options + (f" --label {label}" if label else "") + (f" --turn {turn}" if turn > 1 else "")


def is_of(purpose: str, asked: str | None) -> bool:
    """Whether rows of a purpose are asked for: by its name, by None, or by `eval` for every evaluation."""
    return asked in (None, purpose) or (asked == "eval" and purpose.startswith("eval-"))


def is_training(purpose: str) -> bool:
    """Whether rows of a purpose, of any turn, are training rows."""
    return base_purpose(purpose) == "train"
