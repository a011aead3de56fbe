"""An engine that stays from rollout to rollout, in the one process of `warehouse warm` that runs them."""

from dataclasses import dataclass, replace
from functools import lru_cache

from rollout.engines.engine import EngineSettings
from rollout.engines.merged import base_folder
from rollout.engines.probe import check_said, read_probe
from rollout.engines.vllm_engine import VllmEngine, load_encoder
from rollout.prompts.prompt_encoder import PromptEncoder


@dataclass
class Kept:
    """A started engine, how it was started, and which weights it holds now."""

    engine: VllmEngine
    settings: EngineSettings
    weights: str


_kept: Kept | None = None


@lru_cache(maxsize=1)
def keep_encoder(model: str, base: str) -> PromptEncoder:
    """The encoder of a model, loaded once: a large tokenizer takes a second. `base` tells bases apart."""
    return load_encoder(model)


def start_kept(settings: EngineSettings) -> VllmEngine:
    """The engine of the rollout before with this policy's weights, or a new one where that does not fit.

    StageError, before anything is sampled, if it does not say what the policy said when it was trained.
    """
    global _kept
    if _kept and suffices(_kept.settings, settings) and takes(_kept, settings):
        _kept.engine.wake()
    else:
        if _kept:
            _kept.engine.close()
            if _kept.settings.base == settings.base:
                settings = replace(settings, max_model_len=max(settings.max_model_len,
                                                               _kept.settings.max_model_len))
        _kept = None                                   # an engine that does not start leaves none behind
        _kept = Kept(VllmEngine(settings, sleeps=True), settings,
                     settings.base if settings.merge else settings.weights)
    engine = _kept.engine
    if _kept.weights != settings.weights:
        engine.load(base_folder(settings.model, settings.revision), settings.merge, settings.dtype)
        _kept.weights = settings.weights
    engine.serve(settings.adapter)
    probe = read_probe(settings.probe, _kept.settings.max_model_len) if settings.probe else None
    if probe:
        check_said(probe, engine.prompt_logprobs(probe.ids), engine.dtype, "The engine that was kept")
    return engine


def suffices(kept: EngineSettings, wanted: EngineSettings) -> bool:
    """Whether an engine has all that a rollout wants, but for weights that can be changed.

    Another base may have other layers, another tokenizer: it needs another engine.
    """
    return kept.max_model_len >= wanted.max_model_len and all(
        getattr(kept, name) == getattr(wanted, name) for name in (
            "base", "adapter_rank", "dtype", "max_num_seqs", "gpu_memory_utilization"))


def takes(kept: Kept, wanted: EngineSettings) -> bool:
    """Whether an engine holds these weights, or can be given them.

    On a CPU vLLM packs an output layer that is tied to the embedding when it starts, and not when it is given
    other weights: what `train --full` made would be sampled with the output layer of the policy before.
    """
    whole = any(each.weights != each.base and not each.merge for each in (kept.settings, wanted))
    return kept.weights == wanted.weights or kept.engine.device != "cpu" or not whole


def rest() -> None:
    """Give up the GPU until the next rollout."""
    if _kept:
        _kept.engine.sleep()
