"""Identify the base model: where it is, and hashes that show later whether it is still the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from warehouse.errors import StageError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin")
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class BaseModel:
    """`stored_path` goes into warehouse.json: absolute, relative to the run when inside it, or a hub id."""

    stored_path: str
    sha256: str
    tokenizer_sha256: str


def find_model(model: str, run: Path) -> BaseModel:
    """Find a model folder or hub id; StageError if there is none or it has no tokenizer."""
    folder = Path(model)
    if folder.is_dir():
        return _describe(folder, _path_to_store(folder, run))
    if folder.exists() or model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise StageError(f"There is no model at {model}. Give a folder with config.json and weights, "
                         "or the id of a model on the hub (owner/name).")
    return _describe(_download(model), model)


def _download(model: str) -> Path:
    """Configuration and tokenizer of a hub model; the weights are fetched by the stages that need them."""
    from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(model, allow_patterns=["config.json", *TOKENIZER_FILES]))
    except Exception as error:  # the hub client raises a dozen unrelated types for "not there"
        raise StageError(f"There is no folder {model}, and the hub did not give a model of that id "
                         f"({type(error).__name__}: {str(error).splitlines()[0][:200]}). Check the spelling, "
                         "or download the model and give its folder.") from error


def _path_to_store(folder: Path, run: Path) -> str:
    resolved, inside = folder.resolve(), run.resolve()
    return str(resolved.relative_to(inside)) if resolved.is_relative_to(inside) else str(resolved)


def _describe(folder: Path, stored_path: str) -> BaseModel:
    if not (folder / "config.json").exists():
        raise StageError(f"{folder} is not a model folder: it has no config.json. "
                         "Give the folder that `save_pretrained` wrote.")
    tokenizer = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
    if not tokenizer:
        raise StageError(f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES[:2])}). "
                         "Save the model's tokenizer beside its weights.")
    weights = sorted(path for pattern in WEIGHT_PATTERNS for path in folder.glob(pattern))
    snapshot = "" if weights else folder.name  # without weights at hand, the hub's commit stands for them
    return BaseModel(stored_path, _hash([folder / "config.json", *weights], snapshot), _hash(tokenizer, ""))


def _hash(files: list[Path], salt: str) -> str:
    """Hash of names, sizes, and the first and last MiB of each file: seconds, not minutes, for 100 GB."""
    digest = hashlib.sha256(salt.encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(SAMPLE_BYTES))
            if size > SAMPLE_BYTES:
                stream.seek(max(SAMPLE_BYTES, size - SAMPLE_BYTES))
                digest.update(stream.read())
    return digest.hexdigest()
