"""A small model and stored rows of a given shape, the same for every trainer that is compared."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from train.cli import train as train_command
from train.model.policy import DTYPES, Policy, load_lora
from train.model.saving import save_policy
from train.model.shared_prompt import group_logprobs
from train.rows.groups import Group, Rollout
from train.rows.settings import Settings

MODELS = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 512},
    "0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864,
             "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936},
    "7b": {"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944,
           "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064},
}
LEARNING_RATE = 1e-3


class Shape(NamedTuple):
    """Prompt tokens, completions per group, tokens per completion."""

    prompt: int
    group: int
    completion: int


def parse_shape(text: str) -> Shape:
    """'1024x16x128' as a Shape."""
    return Shape(*(int(part) for part in text.split("x")))


def useful_flops(model: str, shape: Shape) -> float:
    """FLOPs of a step that forwards the prompt once, base frozen: 2 a weight forward, 2 back."""
    config = MODELS[model]
    size, layers = config["hidden_size"], config["num_hidden_layers"]
    key_value = size // config["num_attention_heads"] * config["num_key_value_heads"]
    weights = layers * (2 * size * size + 2 * size * key_value + 3 * size * config["intermediate_size"])
    answers = shape.group * shape.completion
    pairs = shape.prompt**2 / 2 + answers * (shape.prompt + shape.completion / 2)
    return 4 * (weights * (shape.prompt + answers) + config["vocab_size"] * size * answers) \
        + 12 * layers * size * pairs


def peak_mb() -> float:
    """Peak memory so far: of the GPU's tensors where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def make_model(folder: Path, name: str) -> None:
    """Save a Qwen2 with random weights and an adapter whose B is not 0, if they are not there."""
    if (folder / "adapter" / "adapter_config.json").exists():
        return
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(0)
    config = Qwen2Config(**MODELS[name], max_position_embeddings=32768, tie_word_embeddings=name != "7b")
    dtype = "float32" if name == "small" else "bfloat16"
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen2ForCausalLM(config).to(DTYPES[dtype]).save_pretrained(folder)
    policy = new_policy(folder, None, dtype)
    for parameter in policy.trainable().values():
        parameter.data.normal_(std=0.02)
    (folder / "adapter").mkdir()
    save_policy(policy, folder / "adapter", base=str(folder))


def new_policy(folder: Path, adapter: Path | None, dtype: str) -> Policy:
    """The model with the adapter, LoRA r = 8 on all linear layers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return load_lora(str(folder), adapter, dtype=dtype, device=device, seed=0, rank=8, alpha=16, rslora=False,
                     targets="all-linear")


def make_groups(policy: Policy, shape: Shape, count: int) -> list[Group]:
    """Groups of random tokens with random rewards; mu is the policy's own logprob with a little noise."""
    generator = torch.Generator().manual_seed(1)
    groups = []
    for number in range(count):
        prompt = torch.randint(0, 500, (shape.prompt,), generator=generator)
        completions = [torch.randint(0, 500, (shape.completion,),
                                     generator=generator) for _ in range(shape.group)]
        logprobs, _ = group_logprobs(policy, prompt.to(policy.device),
                                  [ids.to(policy.device) for ids in completions],
                                  temperature=1.0, token_budget=shape.completion)
        rollouts = []
        for index, (ids, one) in enumerate(zip(completions, logprobs, strict=True)):
            noise = 0.05 * torch.randn(len(ids), generator=generator)
            reward = float(torch.rand((), generator=generator))
            rollouts.append(Rollout(str(number), index, ids.numpy(),
                                    (one.cpu() + noise).numpy().astype(np.float32),
                                    False, reward, False))
        groups.append(Group(0, str(number), prompt.numpy(), tuple(rollouts), 0, "", 1.0, "float32",
                            shape.completion))
    return groups


def settings(*options: str) -> Settings:
    """Settings as the command line would make them."""
    arguments = ["nowhere", "--learning-rate", str(LEARNING_RATE), "--lora-rank", "8", "--lora-alpha", "16",
                 *options]
    values = train_command.make_context("train", arguments).params
    return Settings(**{key: value for key, value in values.items()
                       if key not in ("run", "iteration", "scorer")})
