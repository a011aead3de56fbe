"""A tiny random model of the architecture of a large one, to test what can be done with the large one.

One layer of each kind and four experts are kept; widths and counts of heads are divided consistently.
Weights are random and keep activations near 1, so that a wrong computation shows.
"""

import copy
import re
from collections.abc import Iterator
from math import gcd
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig
from transformers.utils.logging import set_verbosity_error

from warehouse.store.errors import StageError, first_line

HEADS = re.compile(r"heads$|n_head$|groups$|heads_per_layer$")           # how many
HEAD_WIDTHS = re.compile(r"(?<!linear_key_)(?<!linear_value_)(?<!qk_rope_)head_?dim$|d_head$|kv_channels$")
INNER_WIDTHS = re.compile(r"intermediate_size|ffn|(?<!kv_lora)_rank$|d_ssm|lru_width|ngram_vocab")
WIDTHS = re.compile(r"hidden_size|d_model|n_embd|embedding_dim|embed_dim|^conv_dim$|^block_dim$")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
EXPERTS = re.compile(r"experts$")
CHOSEN_EXPERTS = re.compile(r"experts?_per_tok|moe_topk$|moe_k$|top_k_experts")
PERIODS = re.compile(r"layer_period$")
ONE = re.compile(r"layer_offset$|n_group$|topk_group$|expert_group$|first_k_dense|dense_layers$|start_index$"
                 r"|shared_experts$|window_layers$|kv_shared_layers$")
NOT_OF_LAYERS = ("moe_layers", "full_attn_idxs")        # numbers of layers, not one value for each
NOT_GIVEN_AGAIN = ("architectures", "model_type", "transformers_version", "dtype", "_name_or_path",
                   "output_attentions", "full_attn_idxs", "moe_layers", "hybrid_layer_ids", "qk_head_dim")
MOST_PARAMETERS, CONTEXT, CHUNK = 2**28, 1024, 16
KERNEL = 32             # vLLM's CPU kernels support multiples of this, or a model's own widths


def silence() -> None:
    """Silence the warnings of transformers: they list what a random copy lacks."""
    set_verbosity_error()


def read_config(model: str, revision: str | None = None) -> Any:
    """The config of a model folder or hub id; StageError if transformers has no such architecture."""
    try:
        return AutoConfig.from_pretrained(model, revision=revision)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(f"transformers cannot read the config of {model}: {first_line(error)}. Install a "
                         "version that has the architecture, or use another model.") from error


def auto_class(config: Any) -> Any:
    """The auto class that loads a model: all of a multimodal one, as engines load it."""
    sees = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def tiny_copy(config: Any, vocabulary_size: int | None = 128) -> nn.Module:
    """A causal language model in float32; StageError if none can be made of the config.

    Without `vocabulary_size` it keeps the vocabulary of the config, so the config's tokenizer fits.
    """
    reason = "there is no causal language model of this config"
    for small in _whole(config, vocabulary_size):
        try:
            with torch.device("meta"):
                model = auto_class(small).from_config(small)
            if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
                continue
            model = auto_class(small).from_config(small)
            _fill(model)
            with torch.no_grad():
                model(torch.arange(12)[None], use_cache=False)
            return model.eval()
        except Exception as error:      # an architecture may raise anything if sizes do not fit
            reason = first_line(error)
    raise StageError(f"No tiny copy can be made of a {config.model_type} model: {reason}.")


def _whole(config: Any, vocabulary_size: int | None) -> Iterator[Any]:
    """Smaller configs; image encoders get two layers."""
    text = config.get_text_config()
    for small in _smaller(text, vocabulary_size):
        if text is config:
            yield small
            continue
        whole = copy.deepcopy(config)
        for name, part in vars(whole).items():
            for depth in (*LAYERS, "depth") if isinstance(part, PreTrainedConfig) else ():
                if type(getattr(part, depth, None)) is int:
                    setattr(part, depth, min(2, getattr(part, depth)))
            if type(part) is type(text):
                setattr(whole, name, small)
        yield whole


def _smaller(config: Any, vocabulary_size: int | None) -> Iterator[Any]:
    """Configs, the smallest first; later ones keep more of the proportions."""
    values = {name: value for name, value in config.to_dict().items() if name not in NOT_GIVEN_AGAIN}
    if "qk_rope_head_dim" in values:        # the other follows from it
        values.pop("head_dim", None)
    layers = _layers_to_keep(values, int(config.num_hidden_layers))
    whole = {name: value for name, value in values.items() if type(value) is int and value}
    for most in (8, 4, 2, 1):
        heads = gcd(most, *(count for name, count in whole.items() if HEADS.search(name) and count > 1))
        widths = [width for name, width in whole.items() if HEAD_WIDTHS.search(name)]
        if "num_attention_heads" in whole and not {"head_dim", "qk_rope_head_dim"} & whole.keys():
            widths.append(whole["hidden_size"] // whole["num_attention_heads"])
        head_width = next(by for by in (8, 4, 2, 1) if by == 1 or (by <= most and all(
            width % (by * KERNEL) == 0 for width in widths)))
        sizes = heads, head_width, len(layers), vocabulary_size
        changed = {name: _shrink(name, value, *sizes) for name, value in values.items()}
        changed = {name: [value[layer] for layer in layers]
                   if _is_per_layer("", value, config.num_hidden_layers) else value
                   for name, value in changed.items()}
        if values.get("per_layer_config"):
            changed["per_layer_config"] = {
                str(place): {name: _shrink(name, value, *sizes)
                             for name, value in values["per_layer_config"][f"{layer:02}"].items()}
                for place, layer in enumerate(layers) if f"{layer:02}" in values["per_layer_config"]}
        try:
            yield type(config)(**changed)
        except (ValueError, TypeError, AttributeError, ZeroDivisionError):
            continue


def _layers_to_keep(values: dict[str, Any], count: int) -> list[int]:
    """The first layer of each kind, one more if others share what it computes, and at least two."""
    lists = [value for name, value in values.items() if _is_per_layer(name, value, count)]
    kinds: dict[str, int] = {}
    for layer in range(count):
        kinds.setdefault(str([value[layer] for value in lists]), layer)
    layers = list(kinds.values())
    if len(layers) == 1 or values.get("num_kv_shared_layers"):
        layers += [count - 1] * (count - 1 not in layers)
    return layers


def _is_per_layer(name: str, value: Any, count: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == count and name not in NOT_OF_LAYERS


def _shrink(name: str, value: Any, heads: int, head_width: int, num_layers: int,
            vocabulary_size: int | None) -> Any:
    if type(value) is not int or not value:
        return value
    if name in LAYERS:
        return num_layers
    if name.startswith("vocab_size"):
        return vocabulary_size or value
    if name.endswith("token_id"):
        return min(value, 3) if vocabulary_size else value
    if name in ("max_position_embeddings", "n_positions", "model_max_length"):
        return min(value, CONTEXT)
    if name in ("chunk_size", "mamba_chunk_size"):
        return min(value, CHUNK)
    for pattern, most in ((CHOSEN_EXPERTS, 2), (PERIODS, 2), (ONE, 1), (EXPERTS, 4)):
        if pattern.search(name):
            return min(value, most)
    if HEAD_WIDTHS.search(name):
        return value // head_width
    if HEADS.search(name):
        return max(value // heads, 1)
    if INNER_WIDTHS.search(name) or WIDTHS.search(name):
        by = heads * head_width
        exact = value % (by * KERNEL) == 0 or (value % by == 0 and name.endswith("d_ssm"))
        return value // by if exact else -(-value // (by * KERNEL)) * KERNEL
    return value


def _fill(model: nn.Module) -> None:
    """Random matrices that preserve the scale of activations; norms and rates keep their initial values."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not name.endswith("A_log"):
            parameter.data.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
