"""The door to transformers' tokenizers, without torch: they load in a second."""

import json
import threading
from pathlib import Path
from typing import Any

from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.stages.base_model import TOKENIZER_FILES

IMPORTING = threading.Lock()     # transformers cannot be imported by two threads at once


def load_encoder(model: str, revision: str | None) -> PromptEncoder:
    """The encoder of a model folder, or of a hub model at its commit."""
    folder = find_folder(model, revision)
    with IMPORTING:
        if (folder / "tokenizer.json").exists():
            from transformers import PreTrainedTokenizerFast as Tokenizer
        else:
            from transformers import AutoTokenizer as Tokenizer  # converts; imports torch
    return PromptEncoder(Tokenizer.from_pretrained(folder), read_config(model, revision))


def read_config(model: str, revision: str | None) -> dict[str, Any]:
    """The content of config.json."""
    return dict(json.loads((find_folder(model, revision) / "config.json").read_text(encoding="utf-8")))


def find_folder(model: str, revision: str | None) -> Path:
    """The folder of a model, or the hub's copy of its config and tokenizer."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    return Path(snapshot_download(model, revision=revision, allow_patterns=["config.json", *TOKENIZER_FILES]))
