"""Whether this machine can train, and how a model can be trained, tested on a tiny random copy of it."""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from warehouse.start import CPU_SET
from warehouse.start.finding import ADAPTER, SAID, Finding
from warehouse.store.errors import StageError, first_line, shell_quote

PACKAGES = ("torch", "transformers", "peft", "accelerate")
WITHOUT_GPU = f"pip install --no-deps -r {shell_quote(CPU_SET)}"
# CUDA builds of these break a CPU build of torch, because transformers imports them if installed.
STRANGERS = "pip uninstall -y torchvision torchaudio torchcodec"


def examine() -> Finding:
    """Whether the packages for training are here, and on which device it runs."""
    try:
        import torch

        from train.model import loading  # noqa: F401   as every training does
    except Exception as error:      # a library built for another machine may raise anything
        strangers = "torchvision" in str(error)
        return Finding().refuse(f"its libraries cannot be imported: {first_line(error)}",
                                STRANGERS if strangers else WITHOUT_GPU)
    versions = {name: version(name) for name in PACKAGES}
    found = Finding(lines=[", ".join(f"{name} {number}" for name, number in versions.items())],
                    facts={"versions": versions, "gpus": []})
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        found.facts["gpus"].append(gpu.name)
        found.lines.append(f"on GPU {number}, {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")
    if not found.facts["gpus"]:
        found.lines.append(f"on the CPU, {len(os.sched_getaffinity(0))} cores: for models of some million "
                           "parameters")
        if os.path.exists("/dev/nvidiactl"):
            found.refuse("this torch does not see the GPU", "pip install 'rollhouse[gpu]'")
    return found


def examine_model(model: str, revision: str | None, copy: Path, targets: str = "all-linear") -> Finding:
    """What `train` does with a model, or why it cannot; the tiny copy is left in `copy`, with a tokenizer."""
    import torch

    from train.model.loading import experts_of, load_full, load_lora
    from train.model.policy import CACHED_PROMPT, SHARED_PROMPT, WHOLE_TEXTS
    from train.model.saving import copy_tokenizer, save_policy
    from train.model.tiny_copy import read_config, silence, tiny_copy
    from train.start import position_limit
    words = {SHARED_PROMPT: "prompts are shared", CACHED_PROMPT: "each row copies the cache of its prompt",
             WHOLE_TEXTS: "prompts are not shared, each row is forwarded whole"}
    silence()
    try:
        config = read_config(model, revision)
    except StageError as error:
        return Finding().refuse(str(error))
    found = Finding(lines=[], facts={"architecture": (config.architectures or [""])[0],
                                     "model_type": config.model_type})
    try:
        tiny = tiny_copy(config, None)
    except StageError as error:
        found.lines.append(f"{error} Load it to find out how it can be trained.")
        return found
    tiny.to(config.get_text_config().dtype).save_pretrained(copy)  # type: ignore[operator]
    copy_tokenizer(model, copy)
    options: dict[str, Any] = {"dtype": "float32", "device": torch.device("cpu")}
    for name, way in (("adapter", "an adapter"), ("full", "all weights (--full)")):
        try:
            policy = (load_full(str(copy), **options) if name == "full" else
                      load_lora(str(copy), None, targets=targets, **options))
            said = _tried(policy)
            facts = found.facts[name] = _facts(policy)
            if policy.is_adapter:
                (copy / ADAPTER).mkdir()
                save_policy(policy, copy / ADAPTER, base=str(copy))
            (copy / SAID).write_text(json.dumps(said), encoding="utf-8")
            text = words[facts["prompts"]] + (f" ({facts['because']})" if facts["because"] else "")
        except Exception as error:      # an architecture may raise anything
            text = (str(error) if isinstance(error, StageError) else first_line(error)).replace(
                str(copy), model)
            found.facts[name] = {"refused": text}
        found.lines.append(f"{way}: {text}")
    if chosen := found.facts["adapter"].get("targets"):
        found.lines.append(f"--lora-targets {targets}: {', '.join(chosen)}"
                           + ("; 'experts' adds the experts" if experts_of(tiny) else ""))
    limit, stretched = position_limit(config.get_text_config())
    if stretched:
        found.lines.append(f"rows of more than {limit} tokens are refused: beyond this the {stretched} "
                           "position encoding changes with the length")
    if quantized := (getattr(config, "quantization_config", None) or {}).get("quant_method"):
        found.lines.append(f"its weights are stored in {quantized}, so nothing can be merged: `rollout` "
                           "needs --serve adapter, and --full a base in bfloat16")
    if all("refused" in found.facts[name] for name in ("adapter", "full")):
        found.refuse(found.facts["adapter"]["refused"])
    return found


def _tried(policy: Any) -> list[list[Any]]:
    """Some ids, and the logprobs in nats of all but the first; a new adapter changes none.

    Before that, gradients of two completions of one prompt, as a training computes them.
    """
    import torch

    from train.export import logprobs_of
    from train.model.packs import PromptGroup
    from train.model.shared_prompt import backward_pack
    ids = torch.arange(24)
    backward_pack(policy, [PromptGroup(ids[:8], [ids[8:16], ids[16:]], 1.0)],
                  lambda _rows, logprobs, _entropy: logprobs.sum(), token_budget=len(ids))
    with torch.no_grad():
        return [ids.tolist(), logprobs_of(policy.full_logits(ids[None])[0], ids).tolist()]


def _facts(policy: Any) -> dict[str, Any]:
    modules = (name.split(".lora_")[0].rpartition(".")[2] for name in policy.trainable() if ".lora_" in name)
    return {"prompts": policy.attention, "because": policy.why_not_shared, "targets": sorted({*modules})}
