"""Load a base model and a policy on it; share prompts in the first way that gives the same logits."""

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from train.model.attention import is_supported
from train.model.flash import use_flash_attention_3
from train.model.fused import fuse_adapter, fuse_gates, fuse_norms, installed_gate
from train.model.policy import CACHED_PROMPT, SHARED_PROMPT, WHOLE_TEXTS, Policy, decoder_of, text_parameters
from train.model.prompt_cache import is_recurrent
from train.model.sharding import Sharding
from train.model.tiny_copy import auto_class, read_config, tiny_copy
from warehouse.store.errors import StageError, first_line

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Ways to share prompts, the fastest first. The last: not at all, with logits by the model's own forward.
WAYS = ((SHARED_PROMPT, False), (CACHED_PROMPT, False), (WHOLE_TEXTS, False), (WHOLE_TEXTS, True))
disable_progress_bar()
# The thread of the first backward warns so, then uses the existing context.
warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")


def load_lora(base: str, parent: Path | None, *, dtype: str, device: torch.device, seed: int = 0,
              rank: int = 1, alpha: float = 1, rslora: bool = False, targets: str = "all-linear",
              load_in_4bit: bool = False, revision: str | None = None, sharding: Sharding | None = None
              ) -> Policy:
    """Base model with the adapter in `parent`, or with a new one (B = 0: it changes nothing yet).

    Seed, rank, alpha, rslora and targets are those of a new one. `revision` is the commit of a base that
    comes from the hub.
    """
    from peft import LoraConfig, PeftModel, get_peft_model
    model = load_base(base, revision, dtype=dtype, load_in_4bit=load_in_4bit)
    if parent is not None:
        try:
            adapted = PeftModel.from_pretrained(model, str(parent), is_trainable=True)
        except (OSError, ValueError) as error:
            raise StageError(f"The adapter in {parent} cannot be loaded: {first_line(error)}. Restore it, or "
                             "go back to an earlier policy with `warehouse rollback`.") from error
        return _adapter_policy(adapted, dtype, device, sharding)
    torch.manual_seed(seed)
    try:
        config = LoraConfig(r=rank, lora_alpha=alpha, use_rslora=rslora, lora_dropout=0.0,
                            task_type="CAUSAL_LM")
        _choose_targets(config, model, targets)
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise StageError(f"No adapter can be put on {base} with --lora-targets {targets}: {error} "
                         "Name modules of the model, 'all-linear' or 'experts'.") from error
    return _adapter_policy(adapted, dtype, device, sharding)


def _choose_targets(config: Any, model: nn.Module, targets: str) -> None:
    """Set what PEFT adapts: names of modules or of parameters, all-linear, experts.

    all-linear excludes experts and routers. In some mixtures PEFT recognises experts by module name alone
    and would take those of dense layers and shared experts, too: these are excluded.
    """
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    names = {name.strip() for name in targets.split(",")}
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    stacked = experts_of(model)
    of_no_module = {name for name in names if not any(f".{found}".endswith(f".{name}") for found in modules)}
    chosen = {found: name for name in of_no_module for found in parameters if found.endswith(f".{name}")}
    chosen |= dict.fromkeys(stacked, "experts") if "experts" in names else {}
    if unknown := (of_no_module | names & {"experts"}) - {"all-linear", *chosen.values()}:
        raise ValueError(f"It has no {min(unknown)}.")
    named = names - {"all-linear", "experts", *chosen.values()}
    excluded = _not_adaptable(model)
    of_text = set(decoder_of(model).modules())
    linear = {name for name, module in modules.items()
              if isinstance(module, nn.Linear) and module in of_text and name not in excluded}
    plain = names == {"all-linear"} and not excluded and not stacked and (
        len(text_parameters(model)) == len(parameters))
    config.target_modules = "all-linear" if plain else named | (linear if "all-linear" in names else set())
    if not plain:
        convert_peft_config_for_transformers(config, model, None)
        if taken := named - config.target_modules:
            raise ValueError(f"PEFT takes {min(taken)} for the experts. Name them 'experts'.")
        config.target_parameters, config.rank_pattern, config.alpha_pattern = sorted(chosen) or None, {}, {}


def experts_of(model: nn.Module) -> set[str]:
    """Names of parameters that hold matrices of all experts: [E, out, in], or [E, in, out]."""
    of_text = text_parameters(model)
    return {name for name, parameter in model.named_parameters()
            if parameter.dim() == 3 and ("expert" in name or "moe" in name) and parameter in of_text}


def _not_adaptable(model: nn.Module) -> set[str]:
    """Linear layers that cannot carry an adapter: routers, and layers with weights that a scan reads itself.

    A state-space layer may hand these weights to its kernel, past any adapter.
    """
    names = set[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and type(module).__module__.startswith("transformers.models."):
            names.add(name)
        if hasattr(module, "A_log") and hasattr(module, "D"):
            names |= {f"{name}.{part}" for part in ("out_proj", "dt_proj") if hasattr(module, part)}
    return names


def load_full(weights: str, *, dtype: str, device: torch.device, revision: str | None = None,
              sharding: Sharding | None = None) -> Policy:
    """A model with all weights trained: kept in float32, computed in `dtype` by autocast."""
    model = load_base(weights, revision, dtype="float32")
    for parameter in set(model.parameters()) - text_parameters(model):     # of an image encoder
        parameter.requires_grad_(False)
    autocast = None if dtype == "float32" else DTYPES[dtype]
    return _choose_attention(Policy(model, is_adapter=False, device=device, autocast=autocast,
                                    sharding=sharding))


def load_frozen(source: str, *, dtype: str, device: torch.device, revision: str | None = None,
                sharding: Sharding | None = None) -> Policy:
    """A model without trainable weights, kept and computed in `dtype`."""
    model = load_base(source, revision, dtype=dtype).requires_grad_(False)
    return _choose_attention(Policy(model, is_adapter=False, device=device, sharding=sharding))


def load_base(source: str, revision: str | None, *, dtype: str, load_in_4bit: bool = False) -> nn.Module:
    """A model as it is stored, in main memory (in 4 bits on the GPU); StageError if there is none."""
    options: dict[str, Any] = {"dtype": DTYPES[dtype], "revision": revision}
    if load_in_4bit:
        from transformers import BitsAndBytesConfig
        options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                                            bnb_4bit_compute_dtype=DTYPES[dtype])
    try:
        model = auto_class(read_config(source, revision)).from_pretrained(source, **options)
    except (OSError, ValueError, ImportError) as error:
        raise StageError(f"The model {source} cannot be loaded: {first_line(error)}. Check the path or id in "
                         "warehouse.json, and that its weights are there.") from error
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            # Transformers clamps the steps of some Mamba 2 layers from below; engines do not.
            module.time_step_limit = getattr(model.config.get_text_config(), "time_step_limit", (0, math.inf))
    return model


def _adapter_policy(adapted: nn.Module, dtype: str, device: torch.device, sharding: Sharding | None
                    ) -> Policy:
    """A policy with its adapter in float32, computed in `dtype` as engines serve it."""
    whole = fuse_adapter(adapted)
    if whole and device.type == "cuda" and not sharding:     # a gathered weight is another tensor each time
        fuse_norms(adapted.to(device))
    autocast = None if dtype == "float32" or whole else DTYPES[dtype]
    for module in adapted.modules() if autocast else ():
        if hasattr(module, "cast_input_dtype_enabled"):
            # Otherwise PEFT makes a float32 copy of every activation.
            module.cast_input_dtype_enabled = False  # type: ignore[assignment]
    return _choose_attention(Policy(adapted, is_adapter=True, device=device, autocast=autocast,
                                    sharding=sharding))


def _choose_attention(policy: Policy) -> Policy:
    """The policy with the first way of sharing prompts that gives the model's own logits on a probe.

    StageError if none does.
    """
    if policy.device.type == "cuda":
        use_flash_attention_3(policy.device)
        if gate := installed_gate():
            fuse_gates(policy.model, gate)
    probe = (torch.arange(12, device=policy.device) * 7 + 1) % policy.vocabulary_size
    reasons: list[str] = []
    with torch.no_grad():
        try:
            expected = policy.full_logits(probe[None])[0, 5:].float()
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            raise StageError(f"{type(policy.model).__name__} cannot be run with what is trained of it: "
                             f"{first_line(error)}. Name other modules with --lora-targets, or train all "
                             "weights with --full.") from error
        for way, gives_logits in WAYS if _goes_on_from_states(policy) else WAYS[-2:]:
            policy.use_attention(way, gives_logits=gives_logits)
            try:
                reason = _difference(policy, probe, expected)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:     # other cache designs may raise anything
                reason = first_line(error)
            if reason is None:
                policy.why_not_shared = "; ".join(dict.fromkeys(reasons))
                return policy
            reasons.append(reason)
    raise StageError(f"{type(policy.model).__name__} does not compute the same for a text alone and with "
                     f"others ({reasons[-1]}), so it cannot be trained here. Use a decoder-only model, "
                     "such as Qwen or Llama.")


def _goes_on_from_states(policy: Policy) -> bool:
    """Whether recurrent layers, if any, continue from a prompt's state: visible only in float32.

    Some architectures keep a state for single tokens only, and half precision hides the difference.
    """
    if _is_exact(policy) or not is_recurrent(policy.config):
        return True
    copy = Policy(tiny_copy(policy.config), is_adapter=False, device=torch.device("cpu"))
    return _choose_attention(copy).attention != WHOLE_TEXTS


def _is_exact(policy: Policy) -> bool:
    return policy.model.dtype == torch.float32 and policy.compute_dtype == torch.float32


def _difference(policy: Policy, probe: Tensor, expected: Tensor) -> str | None:
    """None if continuing the probe's first five tokens gives the logits in every way of forwarding."""
    prompt, row = probe[:5].cpu(), probe[5:].cpu()
    if policy.attention == WHOLE_TEXTS:
        hidden = [policy.hidden([probe.cpu(), row[:1]], [None, None], [])[5:len(probe)]]
    elif policy.can_pack and not is_supported(policy.config, policy.device, policy.compute_dtype):
        return "its attention, the dtype or the device has no kernel for it"
    else:
        hidden = [policy.hidden([row], [None], policy.prompt_kv(prompt, []))]
    if policy.can_pack:     # two groups
        hidden.append(policy.hidden([prompt[:3], prompt, row[:1], row], [None, None, 0, 1], [])[-len(row):])
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm()
    for states in hidden:
        difference = policy.logits(states).float() - expected
        if not difference.norm() <= (1e-3 if _is_exact(policy) else 0.1) * spread:
            return f"difference {difference.abs().max():.2g}"
    return None
