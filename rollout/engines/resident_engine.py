"""An engine that stays loaded between rollouts, in the rollout process of `warehouse warm`."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache

from rollout.engines.engine import EngineSettings
from rollout.engines.merged import adapts_experts, base_folder, merged_weights
from rollout.engines.probe import check_engine
from rollout.engines.vllm_engine import VllmEngine, load_encoder
from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.stages import warm


@dataclass
class Kept:
    """A started engine, how it was started, whether it packed weights then, and its current weights."""

    engine: VllmEngine
    settings: EngineSettings
    packed: bool
    weights: str


_kept: Kept | None = None


@lru_cache(maxsize=1)
def keep_encoder(model: str, revision: str | None, base: str) -> PromptEncoder:
    """The encoder of a model, loaded once: a large tokenizer takes a second. `base` identifies the base."""
    return load_encoder(model, revision)


def check_fits(settings: EngineSettings, *, keeps: bool) -> None:
    """NewProcess if the kept engine is in the way of one that fits, resident or not.

    On a GPU, a process can hold one sleeping vLLM engine and no second one.
    """
    if _kept and not keeps:
        raise warm.NewProcess("The previous rollout's engine is kept, this one cannot be: another process "
                              "starts it.")
    if _kept and (reason := lacks(_kept, settings)):
        raise warm.NewProcess(f"The previous rollout's engine has {reason}: another is started.")


def start_kept(settings: EngineSettings) -> VllmEngine:
    """The previous rollout's engine with this policy's weights, or the first engine of this process."""
    global _kept
    if _kept is None and settings.merge and adapts_experts(settings.merge):
        with merged_weights(settings.model, settings.revision, settings.merge, settings.dtype) as folder:
            engine = VllmEngine(replace(settings, model=folder, revision=None), sleeps=True)
        _kept = Kept(engine, settings, True, settings.weights)
    elif _kept is None:
        _kept = Kept(VllmEngine(settings, sleeps=True), settings, packs(settings),
                     settings.base if settings.merge else settings.weights)
    else:
        _kept.engine.wake()
    engine = _kept.engine
    engine.serve(settings.adapter)
    if _kept.weights == settings.weights:
        check_engine(engine, settings, "The kept engine")
        return engine
    engine.load(base_folder(settings.model, settings.revision), settings.merge, settings.dtype)
    _kept.weights = settings.weights
    check_engine(engine, settings)
    return engine


def start_alone(settings: EngineSettings) -> VllmEngine:
    """An engine that cannot be kept, in a process that ends with its rollout: only this frees its memory."""
    warm.stays = False
    return start_cold(settings)


def start_cold(settings: EngineSettings) -> VllmEngine:
    """An engine for one rollout, checked against the probe of its policy."""
    engine = VllmEngine(settings)
    check_engine(engine, settings)
    return engine


def lacks(kept: Kept, wanted: EngineSettings) -> str:
    """What a rollout needs that the kept engine lacks, except changeable weights; '' for nothing.

    Another base needs another engine: its layers or tokenizer may differ. On a CPU vLLM packs the experts of
    a mixture, and an output layer that is tied to the embedding, when it starts. With replaced weights it
    would still sample with the previous policy's.
    """
    has = kept.settings
    if has.base != wanted.base:
        return "another base model"
    if has.max_model_len < wanted.max_model_len:
        return f"room for {has.max_model_len} tokens, not {wanted.max_model_len}"
    for name in ("adapter_rank", "dtype", "max_num_seqs", "gpu_memory_utilization"):
        if getattr(has, name) != getattr(wanted, name):
            return f"{name} {getattr(has, name)}, not {getattr(wanted, name)}"
    stale = (kept.weights != wanted.weights and kept.engine.device == "cpu"
             and (kept.packed or packs(wanted)))
    return "experts, or an output layer tied to the embedding, which a CPU cannot change" if stale else ""


def packs(settings: EngineSettings) -> bool:
    """Whether weights that vLLM packs on a CPU differ from the base's; the policy's files must exist."""
    return adapts_experts(settings.merge) if settings.merge else settings.weights != settings.base


def rest() -> None:
    """Free the GPU until the next rollout, unless a training has room next to the engine."""
    if _kept and not os.environ.get(warm.AWAKE):
        _kept.engine.sleep()
