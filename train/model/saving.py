"""Policy folders: adapter in PEFT format or full weights, their hash, and the files that go with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from train.model.policy import Policy

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OPTIMIZER = "optimizer.pt"
TOKENIZER_PATTERNS = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
                      "chat_template*", "generation_config.json", "*.model")


def save_policy(policy: Policy, folder: Path, *, base: str) -> None:
    """Write what PEFT and vLLM load: an adapter folder, or a model folder with the base's tokenizer."""
    if policy.is_adapter:
        _save_adapter(policy, folder, base)
    else:
        policy.model.save_pretrained(str(folder))  # type: ignore[operator]
        copy_tokenizer(base, folder)


def copy_tokenizer(base: str, folder: Path) -> None:
    """Put the base model's tokenizer files beside full weights: the folder is a model of its own."""
    if not Path(base).is_dir():
        from transformers import AutoTokenizer
        AutoTokenizer.from_pretrained(base).save_pretrained(str(folder))
        return
    for pattern in TOKENIZER_PATTERNS:
        for source in Path(base).glob(pattern):
            if not (folder / source.name).exists():
                shutil.copy2(source, folder / source.name)


def _save_adapter(policy: Policy, folder: Path, base: str) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file
    state = get_peft_model_state_dict(policy.model)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())},
              str(folder / ADAPTER_WEIGHTS), metadata={"format": "pt"})
    config = policy.model.peft_config["default"].to_dict()  # type: ignore[operator, index, union-attr]
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")
