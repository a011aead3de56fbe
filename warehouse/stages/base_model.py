"""Identify the base model: where it is, and hashes that later show whether it has changed."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from warehouse.store.errors import StageError, UnusableFile, first_line, shell_quote
from warehouse.store.run_folder import Warehouse

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "chat_template.jinja")
VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*")      # files that define a tokenizer
WEIGHT_PATTERNS = ("*.safetensors", "*.bin")
SAMPLE_BYTES, STRIDE = 1 << 20, 1 << 26


@dataclass(frozen=True)
class BaseModel:
    """`stored_path` goes into warehouse.json: absolute, relative to the run when inside it, or a hub id."""

    stored_path: str
    sha256: str
    tokenizer_sha256: str
    revision: str | None = None  # commit of a hub model


def find_model(model: str, run: Path, *, new: bool = False) -> BaseModel:
    """Find a model folder or hub id; StageError if it does not exist or has no tokenizer.

    For a `new` one the documents are checked, too: damage from the beginning never changes a hash.
    """
    folder, revision = Path(model), None
    if not folder.is_dir():
        if folder.exists():
            raise UnusableFile(folder, "file", f"{folder} is a file. Name the folder of a model, with "
                                               "config.json and weights.")
        if model.count("/") != 1 or model.startswith((".", "/", "~")):
            raise StageError(f"There is no model at {model}. Give a folder with config.json and weights, "
                             "or the id of a model on the hub (owner/name).")
        folder = download(model)
        revision = folder.name
    elif (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise StageError(f"{folder} is an adapter, not a model. Start from it with --model BASE --adapter "
                         f"{shell_quote(folder)}, where BASE is the model that it was trained on.")
    elif not (folder / "config.json").exists():
        raise StageError(f"{folder} is not a model folder: it has no config.json. "
                         "Give the folder that `save_pretrained` wrote.")
    if new:
        _check_documents(folder)
        if not revision and (twice := next(folder.glob("consolidated*.safetensors"), None)):
            raise StageError(f"{twice} holds weights a second time, in Mistral's own form, and vLLM would "
                             "load both. Remove it, or give the id of the model on the hub.")
    if not (files := [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]):
        raise _no_tokenizer(folder)
    tokenizer = _hash(files)
    if revision:
        return BaseModel(model, _hash([folder / "config.json"], revision), tokenizer, revision)
    weights = sorted(path for pattern in WEIGHT_PATTERNS for path in folder.glob(pattern))
    stored, inside = folder.resolve(), run.resolve()
    stored = stored.relative_to(inside) if stored.is_relative_to(inside) else stored
    return BaseModel(str(stored), _hash([folder / "config.json", *weights]), tokenizer)


def download(model: str, revision: str | None = None) -> Path:
    """Configuration and tokenizer of a hub model; the weights are fetched by the stages that need them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    try:
        return Path(snapshot_download(model, revision=revision,
                                      allow_patterns=["config.json", *TOKENIZER_FILES, *VOCABULARIES]))
    except Exception as error:  # the hub client raises a dozen unrelated types for "not there"
        if isinstance(error, (HfHubHTTPError, HFValidationError)):
            raise StageError(f"There is no folder {model}, and the hub has no model with that id "
                             f"({first_line(error)}). Check the spelling, or download the model and give "
                             "its folder.") from error
        raise StageError(f"There is no folder {model}, this machine does not reach the hub, and its cache "
                         f"has no copy ({first_line(error)}). On a machine that does: `hf download "
                         f"{model}`; then copy that folder and name it, or set HF_HOME to the cache that "
                         "has it.") from error


def _check_documents(folder: Path) -> None:
    """StageError for a damaged document, and for a tokenizer that consists only of a configuration."""
    for path in (folder / "config.json", folder / "tokenizer.json"):
        try:
            sound = not path.exists() or isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
        except (ValueError, RecursionError):
            sound = False
        if not sound:
            raise StageError(f"{path} is damaged: it holds no JSON object. Restore it, or download the model "
                             "again.")
    if not any(path for pattern in VOCABULARIES for path in folder.glob(pattern)):
        raise _no_tokenizer(folder)


def _no_tokenizer(folder: Path) -> StageError:
    return StageError(f"{folder} has no tokenizer ({', '.join(TOKENIZER_FILES[:2])}). Save the model's "
                      "tokenizer in the same folder.")


def _hash(files: list[Path], salt: str = "") -> str:
    """Hash of names, sizes, and the first MiB of every 64 MiB of each file: a second or two, not minutes.

    Files of up to 64 MiB are read whole; in larger files a change between two such MiB goes unseen.
    """
    digest = hashlib.sha256(salt.encode())  # the hub's commit represents weights that are not local
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}".encode())
        with file.open("rb") as stream:
            if size <= STRIDE:
                digest.update(stream.read())
            for start in range(0, size if size > STRIDE else 0, STRIDE):
                stream.seek(start)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def check_base(warehouse: Warehouse) -> None:
    """StageError if the base model's folder is gone, or if its weights or tokenizer have changed."""
    if warehouse.facts.get("model_revision"):
        return  # a hub model is pinned by its commit
    if not Path(warehouse.model).is_dir():
        raise StageError(f"The base model of {warehouse.root} is no longer at {warehouse.model}. Move it "
                         "back, or put a link to it there (`ln -s`).")
    model = find_model(warehouse.model, warehouse.root)
    for what, name, now in (("base model", "model_sha256", model.sha256),
                            ("tokenizer", "tokenizer_sha256", model.tokenizer_sha256)):
        before = warehouse.facts[name]
        if now != before:
            raise StageError(f"The {what} in {warehouse.model} has changed since the run was made (sha256 "
                             f"{now[:12]}, not {before[:12]}). Restore it, or start a new run from it.")
