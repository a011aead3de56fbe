"""The door to transformers' tokenizers, without torch: they load in a second."""

import json
from pathlib import Path

from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.stages.base_model import TOKENIZER_FILES


def load_encoder(model: str, revision: str | None) -> PromptEncoder:
    """The encoder of a model folder, or of a hub model at its commit."""
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        patterns = ["config.json", *TOKENIZER_FILES]
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    if (folder / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast as Tokenizer
    else:
        from transformers import AutoTokenizer as Tokenizer  # converts; imports torch
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return PromptEncoder(Tokenizer.from_pretrained(folder), config)
