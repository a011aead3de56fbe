"""Policy folders: adapter in PEFT format or full weights, their hash, and the files that go with them."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from train.model.policy import Policy
from train.model.sharding import whole

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TOKENIZER_PATTERNS = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
                      "chat_template*", "generation_config.json", "*.model", "*processor*.json")


class Whole(NamedTuple):
    """A policy to write: its weights by name, None for those in the model; and the optimizer's state."""

    weights: dict[str, Tensor] | None
    optimizer: dict[str, Any]


def whole_policy(policy: Policy, optimizer: torch.optim.Optimizer, *, keep: bool) -> Whole:
    """All of a policy. If it is sharded, all processes call this; those with `keep` get it, on the CPU."""
    state = optimizer.state_dict()
    if policy.shards is None:
        return Whole(None, state)

    def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        together = ((name, whole(part)) for name, part in tensors.items())
        return {name: tensor for name, tensor in together if keep}

    weights: dict[str, Tensor] = dict(policy.trainable())
    if not policy.is_adapter:       # and the buffers of the model
        weights |= {name: tensor for name, tensor in policy.model.state_dict().items()
                    if not isinstance(tensor, DTensor)}
    return Whole(gather(weights), {**state, "state": {place: gather(moments)
                                                      for place, moments in state["state"].items()}})


def save_policy(policy: Policy, folder: Path, *, base: str, weights: dict[str, Tensor] | None = None) -> None:
    """Write what PEFT and vLLM load: an adapter folder, or a model folder with the base's tokenizer.

    `weights` are the trained ones if the model holds only a part of them.
    """
    if policy.is_adapter:
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file
        state = get_peft_model_state_dict(policy.model, state_dict=weights, save_embedding_layers=False)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())},
                  str(folder / ADAPTER_WEIGHTS), metadata={"format": "pt"})
        (folder / ADAPTER_CONFIG).write_text(_adapter_config(policy, base))
    else:
        policy.model.save_pretrained(str(folder), state_dict=weights)  # type: ignore[operator]
        copy_tokenizer(base, folder)
    set_modes(folder)


def set_modes(folder: Path) -> None:
    """Give files the default permissions: safetensors makes its own for their owner alone."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~umask)


def copy_tokenizer(base: str, folder: Path) -> None:
    """Copy the base model's tokenizer files next to full weights: the folder is then a complete model."""
    if not Path(base).is_dir():
        from transformers import AutoTokenizer
        AutoTokenizer.from_pretrained(base).save_pretrained(str(folder))
        return
    for pattern in TOKENIZER_PATTERNS:
        for source in Path(base).glob(pattern):
            if not (folder / source.name).exists():
                shutil.copy2(source, folder / source.name)


def _adapter_config(policy: Policy, base: str) -> str:
    config = policy.model.peft_config["default"].to_dict()  # type: ignore[operator, index, union-attr]
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    return json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"


def read_adapter(policy: Policy, folder: Path) -> bool:
    """Give a policy the weights that `save_policy` wrote; False, with nothing changed, if they do not fit."""
    from peft import get_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    try:
        config = (folder / ADAPTER_CONFIG).read_text(encoding="utf-8")
        stored = load_file(str(folder / ADAPTER_WEIGHTS), device=str(policy.device))
        base = json.loads(config)["base_model_name_or_path"]
    except (OSError, SafetensorError, ValueError, LookupError):
        return False
    own = get_peft_model_state_dict(policy.model, save_embedding_layers=False)
    if config != _adapter_config(policy, base) or {name: tensor.shape for name, tensor in own.items()} != {
            name: tensor.shape for name, tensor in stored.items()}:
        return False
    for name, tensor in own.items():
        tensor.detach().copy_(stored[name])
    return True
