"""An engine for models as small as the starter: a Qwen2 forward in this process, started in milliseconds.

vLLM takes longer to start than such a model takes to sample, and a study starts it thousands of times. What
is drawn depends on a completion's seed alone, by the inverse of the cumulative distribution.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from rollout.engines.engine import LOGPROBS_MODE, EngineSettings, Request, Sampled, Sampling
from rollout.prompts.prompt_encoder import PromptEncoder
from rollout.prompts.prompt_encoder import load_encoder as load_tokenizer

PROMPTS_TOGETHER = 32
FIRST_RENUMBERED = 267        # of the starter: np.fliplr(g) and what follows it
UNSUPPORTED = ("top_k", "min_p", "presence_penalty", "frequency_penalty")
Cache = list[tuple[Tensor, Tensor]]          # keys and values of each layer


def load_encoder(model: str) -> PromptEncoder:
    """The encoder of a model folder."""
    return load_tokenizer(model, None)


class SmallSampler:
    """A Qwen2 in float32 on a CPU that serves one policy, merged."""

    def __init__(self, settings: EngineSettings, renumbered: int = 0) -> None:
        """`renumbered`: that many ids mean the piece before them, as with another tokenizer's file."""
        self.engine, self.dtype, self.device, self.logprobs_mode = ("study", "float32", "cpu", LOGPROBS_MODE)
        assert settings.adapter is None and settings.dtype == "float32"
        folder = Path(settings.model)
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name.removeprefix("model."): weight.float() for name, weight
                        in load_file(folder / "model.safetensors").items()}
        if renumbered:
            rows = slice(FIRST_RENUMBERED, FIRST_RENUMBERED + renumbered)
            table = self.weights["embed_tokens.weight"].clone()
            table[rows] = table[rows].roll(1, 0)
            self.weights["embed_tokens.weight"] = table
        self.encoder = load_encoder(settings.model)
        self.heads = self.config["num_attention_heads"]
        assert self.heads == self.config["num_key_value_heads"] and self.config["tie_word_embeddings"]

    def moves(self, prompt_ids: list[int]) -> bool:
        """Weights come merged: there is no adapter apart."""
        return True

    @torch.no_grad()
    def sample(self, requests: Iterable[Request], sampling: Sampling,
               over: Callable[[], bool] | None = None) -> Iterator[Sampled | None]:
        """A few prompts at a time, with all their completions, which are whole: nothing is carried over."""
        assert over is None and not set(UNSUPPORTED) & set(sampling.departures()) and sampling.temperature > 0
        groups = [list(group) for _, group in groupby(requests, key=lambda request: request.prompt_ids)]
        for first in range(0, len(groups), PROMPTS_TOGETHER):
            yield from self._sample_groups(groups[first:first + PROMPTS_TOGETHER], sampling)
            yield None

    def _sample_groups(self, groups: list[list[Request]], sampling: Sampling) -> Iterator[Sampled]:
        """All completions of some prompts; rows that have ended give their place up as the batch shrinks."""
        requests = [request for group in groups for request in group]
        owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        lengths = torch.tensor([len(group[0].prompt_ids) for group in groups])
        prompts = torch.zeros(len(groups), int(lengths.max()), dtype=torch.long)
        for row, group in enumerate(groups):
            prompts[row, :lengths[row]] = torch.tensor(group[0].prompt_ids)
        hidden, prompt_cache = self._forward(prompts, torch.arange(prompts.shape[1]).expand_as(prompts))
        hidden = hidden[torch.arange(len(groups)), lengths - 1][torch.from_numpy(owner)]
        draws = torch.from_numpy(np.stack([np.random.default_rng(request.seed).random(sampling.max_tokens)
                                           for request in requests]))
        size = self.config["vocab_size"]
        seen = torch.zeros(len(requests), size, dtype=torch.bool)
        for row, request in enumerate(requests):
            seen[row, request.prompt_ids] = True
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        alive, own_cache = np.arange(len(requests)), None
        for step in range(sampling.max_tokens):
            logits = linear(hidden, self.weights["embed_tokens.weight"])
            scores = processed_logprobs(logits, seen[alive], sampling)
            tokens = draw(scores, draws[alive, step])
            chosen = scores.gather(1, tokens[:, None])[:, 0]
            for row, token, logprob in zip(alive.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
                ids[row].append(token)
                logprobs[row].append(logprob)
            seen[alive, tokens] = True
            going = (tokens != self.config["eos_token_id"]).numpy()
            if not going.any():
                break
            alive, tokens = alive[going], tokens[torch.from_numpy(going)]
            if own_cache is not None:
                own_cache = [(keys[going], values[going]) for keys, values in own_cache]
            hidden, own_cache = self._step(tokens, lengths[owner[alive]] + step, own_cache, prompt_cache,
                                           lengths, owner[alive])
        for row, request in enumerate(requests):
            ended = ids[row][-1] == self.config["eos_token_id"]
            yield Sampled(request.index, ids[row], logprobs[row], self.encoder.decode(ids[row]),
                          "stop" if ended else "length")

    def _forward(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Cache]:
        """Prompts [G, P], padded behind: last hidden states [G, P, D], keys and values [G, H, P, d]."""
        hidden, cache = self.weights["embed_tokens.weight"][ids], []
        for layer in range(self.config["num_hidden_layers"]):
            queries, keys, values = self._project(layer, hidden, positions)
            mixed = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            hidden = self._after(layer, hidden, mixed.transpose(1, 2).flatten(2))
            cache.append((keys, values))
        return self._norm("norm", hidden), cache

    def _step(self, tokens: Tensor, positions: Tensor, own: Cache | None, prompts: Cache, lengths: Tensor,
              owner: np.ndarray) -> tuple[Tensor, Cache]:
        """One more token of every row [R]: hidden [R, D], and the rows' own keys and values [R, H, T, d].

        Rows attend to their group's prompt, which is read once for all of them, and to their own tokens.
        """
        hidden, cache = self.weights["embed_tokens.weight"][tokens][:, None], []
        groups, place = np.unique(owner, return_inverse=True)
        slot = np.concatenate([np.arange(count) for count in np.bincount(place)])
        width = int(slot.max()) + 1
        padding = (torch.arange(prompts[0][0].shape[2]) >= lengths[groups][:, None])[:, None, None]
        for layer in range(self.config["num_hidden_layers"]):
            queries, keys, values = self._project(layer, hidden, positions[:, None])        # [R, H, 1, d]
            if own is not None:
                keys, values = torch.cat([own[layer][0], keys], 2), torch.cat([own[layer][1], values], 2)
            cache.append((keys, values))
            scale = queries.shape[-1] ** -0.5
            asked = queries.new_zeros(len(groups), width, self.heads, queries.shape[-1])
            asked[place, slot] = queries[:, :, 0]
            of_prompt = asked.transpose(1, 2) @ prompts[layer][0][groups].transpose(2, 3)    # [G, H, N, P]
            of_prompt = (of_prompt * scale).masked_fill(padding, -torch.inf)
            of_own = (queries @ keys.transpose(2, 3) * scale)[:, :, 0]                       # [R, H, T]
            top = torch.maximum(of_prompt.amax(-1).transpose(1, 2)[place, slot], of_own.amax(-1))   # [R, H]
            tops = top.new_zeros(len(groups), width, self.heads)
            tops[place, slot] = top
            of_prompt = (of_prompt - tops.transpose(1, 2)[..., None]).exp()
            of_own = (of_own - top[..., None]).exp()
            total = of_prompt.sum(-1).transpose(1, 2)[place, slot] + of_own.sum(-1)
            mixed = ((of_prompt @ prompts[layer][1][groups]).transpose(1, 2)[place, slot]
                     + (of_own[:, :, None] @ values)[:, :, 0]) / total[..., None]            # [R, H, d]
            hidden = self._after(layer, hidden, mixed.flatten(1)[:, None])
        return self._norm("norm", hidden)[:, 0], cache

    def _project(self, layer: int, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, d] of hidden states [B, T, D]; the first two rotated."""
        normed = self._norm(f"layers.{layer}.input_layernorm", hidden)
        parts = []
        for kind in "qkv":
            name = f"layers.{layer}.self_attn.{kind}_proj"
            states = linear(normed, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])
            parts.append(states.unflatten(-1, (self.heads, -1)).transpose(1, 2))
        return self._rotated(parts[0], positions), self._rotated(parts[1], positions), parts[2]

    def _rotated(self, states: Tensor, positions: Tensor) -> Tensor:
        """Rotary position embedding of [B, H, T, d] at positions [B, T]; arXiv 2104.09864."""
        half = states.shape[-1] // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        frequencies = theta ** -(torch.arange(half, dtype=torch.float32) / half)
        angles = (positions[..., None].float() * frequencies)[:, None]
        first, second = states[..., :half], states[..., half:]
        return torch.cat([first * angles.cos() - second * angles.sin(),
                          second * angles.cos() + first * angles.sin()], dim=-1)

    def _after(self, layer: int, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a layer, once attention has mixed the values."""
        name = f"layers.{layer}"
        hidden = hidden + linear(mixed, self.weights[f"{name}.self_attn.o_proj.weight"])
        normed = self._norm(f"{name}.post_attention_layernorm", hidden)
        gate, up = (linear(normed, self.weights[f"{name}.mlp.{kind}_proj.weight"]) for kind in ("gate", "up"))
        return hidden + linear(silu(gate) * up, self.weights[f"{name}.mlp.down_proj.weight"])

    def _norm(self, name: str, hidden: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return rms_norm(hidden, weight.shape, weight, self.config["rms_norm_eps"])


def processed_logprobs(logits: Tensor, seen: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities [R, V] of what is drawn from: penalty, temperature, nucleus, in vLLM's order."""
    penalty = sampling.repetition_penalty
    if penalty != 1:
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    logits = logits / sampling.temperature
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1)
        outside = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        outside[:, -1] = False
        logits = logits.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)
    return logits.log_softmax(-1)


def draw(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """A token [R] of each distribution [R, V], where its cumulative sum passes a uniform number [R]."""
    cumulative = logprobs.double().exp().cumsum(-1)
    tokens = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
    return tokens.clamp(max=logprobs.shape[1] - 1)
