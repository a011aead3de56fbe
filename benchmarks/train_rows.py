"""A small model and stored rows of a given shape, the same for every trainer that is compared."""

import resource
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from train.cli import train as train_command
from train.inputs.groups import Group, Rollout
from train.inputs.options import TrainOptions
from train.model.loading import DTYPES, load_lora
from train.model.packs import PromptGroup, pack_groups
from train.model.policy import Policy
from train.model.saving import save_policy
from train.model.shared_prompt import pack_logprobs
from warehouse.fields import options_from

MODELS = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 512},
    "0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "intermediate_size": 4864,
             "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936},
    "1.5b": {"hidden_size": 1536, "num_hidden_layers": 28, "intermediate_size": 8960,
             "num_attention_heads": 12,
             "num_key_value_heads": 2, "vocab_size": 151936},
    "7b": {"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944,
           "num_attention_heads": 28,
           "num_key_value_heads": 4, "vocab_size": 152064},
}
LEARNING_RATE = 1e-3


class Shape(NamedTuple):
    """Prompt tokens, completions per group, tokens per completion, groups per optimizer step.

    Several groups are ragged: the numbers of tokens are means, and lengths spread by a third and by 3/5.
    """

    prompt: int
    group: int
    completion: int
    groups: int = 1

    @property
    def name(self) -> str:
        """As the command line has it."""
        return "x".join(map(str, self[:3] if self.groups == 1 else self))

    def lengths(self, generator: torch.Generator) -> tuple[int, list[int]]:
        """Tokens of a prompt and of its completions."""
        if self.groups == 1:
            return self.prompt, [self.completion] * self.group

        def draw(mean: int, spread: float) -> int:
            return round(mean * (1 + spread * (2 * float(torch.rand((), generator=generator)) - 1)))
        return draw(self.prompt, 1 / 3), [draw(self.completion, 0.6) for _ in range(self.group)]


def parse_shape(text: str) -> Shape:
    """'1024x16x128' as a Shape; '150x16x160x64' has 64 ragged groups a step."""
    return Shape(*map(int, text.split("x")))


def useful_flops(model: str, groups: list[Group], *, passes: int = 2) -> float:
    """FLOPs of a step that forwards prompts once, base frozen: 2 a weight for each pass.

    Two passes are forward and back to the activations; three have the old logprobs beside them.
    """
    config = MODELS[model]
    size, layers = config["hidden_size"], config["num_hidden_layers"]
    key_value = size // config["num_attention_heads"] * config["num_key_value_heads"]
    weights = layers * (2 * size * size + 2 * size * key_value + 3 * size * config["intermediate_size"])
    total = 0.0
    for group in groups:
        prompt, answers = len(group.prompt_ids), [len(row.completion_ids) for row in group.rollouts]
        pairs = prompt**2 / 2 + sum(length * (prompt + length / 2) for length in answers)
        total += 2 * passes * (weights * (prompt + sum(answers))
                               + config["vocab_size"] * size * sum(answers))
        total += (4 * passes + 4 * (passes > 1)) * layers * size * pairs
    return total


def peak_mb() -> float:
    """Peak memory so far: of the GPU's tensors where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def make_model(folder: Path, name: str, rank: int) -> None:
    """Save a Qwen2 with random weights and an adapter whose B is not 0, if they are not there."""
    if (folder / "adapter" / "adapter_config.json").exists():
        return
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(0)
    config = Qwen2Config(**MODELS[name], max_position_embeddings=32768, tie_word_embeddings=name != "7b")
    dtype = "float32" if name == "small" else "bfloat16"
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen2ForCausalLM(config).to(DTYPES[dtype]).save_pretrained(folder)
    policy = new_policy(folder, None, dtype, rank)
    for parameter in policy.trainable().values():
        parameter.data.normal_(std=0.02)
    (folder / "adapter").mkdir()
    save_policy(policy, folder / "adapter", base=str(folder))


def new_policy(folder: Path, adapter: Path | None, dtype: str, rank: int = 8) -> Policy:
    """The model with the adapter, or with a new one of this rank on all linear layers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return load_lora(str(folder), adapter, dtype=dtype, device=device, seed=0, rank=rank, alpha=16,
                     rslora=False, targets="all-linear")


def make_groups(policy: Policy, shape: Shape, steps: int, token_budget: int = 0) -> list[Group]:
    """Groups of random tokens with random rewards; mu is the policy's own logprob with a little noise."""
    generator = torch.Generator().manual_seed(1)

    def draw(length: int) -> Tensor:
        return torch.randint(0, 500, (length,), generator=generator)

    drawn: list[PromptGroup] = []
    for _ in range(steps * shape.groups):
        prompt, lengths = shape.lengths(generator)
        drawn.append(PromptGroup(draw(prompt), [draw(length) for length in lengths], 1.0))
    budget, groups = max(shape.completion, 4096 if shape.groups > 1 else 0, token_budget), {}
    for pack in pack_groups(policy, drawn, budget):
        logprobs = iter(pack_logprobs(policy, [drawn[number] for number in pack], token_budget=budget)[0])
        for number in pack:
            rollouts = []
            for index, ids in enumerate(drawn[number].completions):
                noise = 0.05 * torch.randn(len(ids), generator=generator)
                rollouts.append(Rollout(str(number), index, ids.numpy(),
                                        (next(logprobs) + noise).numpy().astype(np.float32), False,
                                        float(torch.rand((), generator=generator)), False, 0))
            groups[number] = Group(0, str(number), drawn[number].prompt_ids.numpy(), tuple(rollouts), 0,
                                   {0: ""}, 1.0, "float32", 2 * shape.completion)
    return [groups[number] for number in range(len(drawn))]


def settings(*options: str) -> TrainOptions:
    """TrainOptions as the command line would make them."""
    arguments = ["nowhere", "--learning-rate", str(LEARNING_RATE), "--lora-rank", "8", "--lora-alpha", "16",
                 *options]
    return options_from(TrainOptions, train_command.make_context("train", arguments).params)
