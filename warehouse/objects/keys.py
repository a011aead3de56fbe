"""Which files of a run are objects, and under which keys."""

import hashlib
import re
from pathlib import Path

from warehouse.store.commit import TEMPORARY_MARK

TABLES = ("_log", "tasks", "prompts", "completions", "samples", "policy_logprobs", "train", "policies")
TOP_FILES = ("warehouse.json", "config.toml", "intent.json", "pruned.jsonl")   # the last two of old runs
DOCUMENT = re.compile(r"(?!.*/files-).*\.(json|jsonl|toml)")     # downloaded when the run is opened
OWN = re.compile(rf"{re.escape(TEMPORARY_MARK)}|\.spill-")       # local to this machine, never an object
WHOLE = re.compile(r"(policies/[^/]+(?:/generation=[^/]+)?|train/[^/]+(?:/generation=[^/]+)?/checkpoint-\d+)"
                   r"(?:/((?!generation=).+))?")    # a folder that is committed as one


def document_of(folder: Path) -> Path:
    """The file that makes a folder a policy or a checkpoint; it is put last."""
    return folder / ("checkpoint.json" if folder.name.startswith("checkpoint-") else "policy.json")


def files_of(document: Path) -> str:
    """The location of the other files in the store: next to their document, named after it."""
    content = document.read_bytes() if document.exists() else b""
    return f"files-{hashlib.sha256(content).hexdigest()[:16]}"
