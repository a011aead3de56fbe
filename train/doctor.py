"""What can be trained of a model, from its config and a tiny random copy: no weights are read."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from train.model.loading import experts_of, load_full, load_lora
from train.model.policy import CACHED_PROMPT, SHARED_PROMPT, WHOLE_TEXTS, Policy
from train.model.saving import copy_tokenizer
from train.model.tiny_copy import read_config, silence, tiny_copy
from train.start import position_limit
from warehouse.store.errors import StageError

WORDS = {SHARED_PROMPT: "prompts are shared", CACHED_PROMPT: "each row copies what its prompt left",
         WHOLE_TEXTS: "prompts are not shared, each row goes through whole"}
CPU = torch.device("cpu")


def examine(model: str, revision: str | None = None, copy: Path | None = None) -> dict[str, Any]:
    """What `train` does with a model, or why it cannot; StageError where transformers does not know it.

    `copy` is a folder to leave the tiny copy in, with the model's tokenizer.
    """
    silence()
    config = read_config(model, revision)
    limit, stretched = position_limit(config.get_text_config())
    quantized = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    found: dict[str, Any] = {"architecture": (config.architectures or [""])[0],
                             "model_type": config.model_type,
                             "positions": limit, "stretched": stretched, "quantized": quantized}
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy or Path(scratch)
        tiny = tiny_copy(config, None if copy else 128)
        tiny.save_pretrained(folder)  # type: ignore[operator]
        if copy:
            copy_tokenizer(model, copy)
        found["experts"] = bool(experts_of(tiny))
        for name in ("adapter", "full"):
            try:
                found[name] = _told(_load(folder, name))
            except StageError as error:
                found[name] = {"refused": str(error).replace(str(folder), model)}
    return found


def _load(folder: Path, name: str) -> Policy:
    if name == "full":
        return load_full(str(folder), dtype="float32", device=CPU)
    return load_lora(str(folder), None, dtype="float32", device=CPU, seed=0, rank=1, alpha=1, rslora=False,
                     targets="all-linear")


def _told(policy: Policy) -> dict[str, Any]:
    modules = (name.split(".lora_")[0].rpartition(".")[2] for name in policy.trainable() if ".lora_" in name)
    return {"prompts": policy.attention, "because": policy.why_not_shared, "targets": sorted({*modules})}


def told_lines(found: dict[str, Any]) -> list[str]:
    """The same as sentences."""
    lines = []
    for name, words in (("adapter", "an adapter"), ("full", "all weights (--full)")):
        way = found[name]
        lines.append(f"train, {words}: " + (way.get("refused") or WORDS[way["prompts"]] + (
            f" ({way['because']})" if way["because"] else "")))
    if targets := found["adapter"].get("targets"):
        lines.append(f"train --lora-targets all-linear: {', '.join(targets)}"
                     + ("; 'experts' adds the experts" if found["experts"] else ""))
    if found["stretched"]:
        lines.append(f"train: rows of more than {found['positions']} tokens are refused, from where "
                     f"the {found['stretched']} position encoding changes with the length")
    if found["quantized"]:
        lines.append(f"train: its weights are stored in {found['quantized']}, to which nothing can be added: "
                     "`rollout` needs --serve adapter, and --full a base in bfloat16")
    return lines
