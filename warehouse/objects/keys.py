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


def key_of(root: Path, path: Path) -> str:
    """The key of a file's object.

    The files of a policy or checkpoint are below a name given in its document: two trainings may write the
    same one at once, and the files of the first document are complete and its own.
    """
    name = path.relative_to(root).as_posix()
    inside = WHOLE.fullmatch(name)
    if not inside or inside[2] in (None, document_of(root / inside[1]).name):
        return name
    return f"{inside[1]}/{files_of(document_of(root / inside[1]))}/{inside[2]}"


def document_of(folder: Path) -> Path:
    """The file that makes a folder a policy or a checkpoint; it is put last."""
    return folder / ("checkpoint.json" if folder.name.startswith("checkpoint-") else "policy.json")


def files_of(document: Path) -> str:
    """The location of the other files in the store: next to their document, named after it."""
    content = document.read_bytes() if document.exists() else b""
    return f"files-{hashlib.sha256(content).hexdigest()[:16]}"
