"""The starter's network, its loss and its optimizers: a standard Qwen2 of 0.9 million parameters."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

MAX_LENGTH = 1024           # prompts reach about 700 tokens, answers 56
WARMUP_STEPS, CONSTANT_SHARE, FINAL_SHARE = 60, 0.3, 0.05


def new_model(tokenizer: Any, seed: int) -> Qwen2ForCausalLM:
    """A fresh model in float32, its weights drawn from the seed."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True, use_cache=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return Qwen2ForCausalLM(config)


def load_model(path: Path) -> Any:
    """A stored model in float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def save_model(model: Any, tokenizer: Any, path: Path) -> None:
    """Weights in bfloat16, which halves the file, with a config that has them loaded in float32."""
    model.to(torch.bfloat16).save_pretrained(path)
    model.config.dtype = torch.float32
    model.config.save_pretrained(path)
    tokenizer.save_pretrained(path)


def weighted_loss(model: Qwen2ForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross entropy in nats of ids[:, 1:], weighted by weights[:, 1:]."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]           # [B, T-1, V]
    token_loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    target_weights = weights[:, 1:].flatten()
    return (token_loss * target_weights).sum() / target_weights.sum()


def make_optimizers(model: Qwen2ForCausalLM, *, muon_learning_rate: float,
                    learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers, AdamW for embeddings, norms and biases."""
    hidden = [parameter for name, parameter in model.named_parameters()
              if parameter.ndim == 2 and "embed" not in name]
    hidden_ids = {id(parameter) for parameter in hidden}
    others = [parameter for parameter in model.parameters() if id(parameter) not in hidden_ids]
    return [
        torch.optim.Muon(hidden, lr=muon_learning_rate, weight_decay=0.05, momentum=0.95,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)]


def make_schedules(optimizers: list[torch.optim.Optimizer], num_steps: int) -> list[LambdaLR]:
    """Linear warmup, constant, then a cosine to a twentieth."""
    constant_until = round(CONSTANT_SHARE * num_steps)

    def share(step: int) -> float:
        warmup = min(1.0, (step + 1) / WARMUP_STEPS)
        done = max(0.0, (step - constant_until) / max(1, num_steps - constant_until))
        return warmup * (FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * done)) / 2)

    return [LambdaLR(optimizer, share) for optimizer in optimizers]
