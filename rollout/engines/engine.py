"""What a rollout needs of an engine: one Protocol, so that tests can script it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from warehouse.fields import option
from warehouse.store.names import UNTRUNCATED

LOGPROBS_MODE = "processed_logprobs"  # of the sampling distribution, not of the raw logits
MOST_TOP_K, TIES = 64, 16  # largest top_k with stored support; room for ties at its edge
# Mistral publishes a model twice in one repository; the trainer and merged weights are of this form.
AS_TRANSFORMERS = {"tokenizer_mode": "hf", "config_format": "hf"}
OTHER_FORM = "consolidated*"    # files of the other one
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # adapter sizes vLLM makes room for


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters, stored with every completion; the defaults sample from the policy itself."""

    max_tokens: int = option(1024, "Limit on completion tokens.", least=1, group="Set first")
    temperature: float = option(1.0, "0 is greedy.", least=0, most=2)
    top_p: float = option(1.0, "1 is off.", least=0, most=1, above=True, group="Sampling")
    top_k: int = option(0, "0 is off.", least=0)
    min_p: float = option(0.0, "0 is off.", least=0, most=1)
    repetition_penalty: float = option(1.0, "1 is off; counts prompt tokens too.", least=0, above=True)
    presence_penalty: float = option(0.0, "0 is off.", least=-2, most=2)
    frequency_penalty: float = option(0.0, "0 is off.", least=-2, most=2)

    def departures(self) -> list[str]:
        """Options that make the sampled distribution differ from softmax(logits / temperature)."""
        return [name for name, neutral in UNTRUNCATED.items() if getattr(self, name) != neutral]

    def num_likely(self) -> int:
        """How many of the likeliest tokens an engine must return to include all that truncation keeps.

        0 if truncation keeps all or too many, or if sampling is greedy.
        """
        return self.top_k + TIES if 0 < self.top_k <= MOST_TOP_K and self.temperature else 0


@dataclass(frozen=True)
class EngineSettings:
    """How the engine is started: the policy it serves and the resources it may use."""

    model: str
    adapter: str | None
    adapter_rank: int
    max_model_len: int
    dtype: str = "auto"
    max_num_seqs: int = 128
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    quantization: str | None = None
    revision: str | None = None  # commit of a hub model
    probe: Path | None = None  # the trainer's logprobs of the policy, if stored
    merge: Path | None = None  # an adapter that a resident engine merges
    base: str = ""  # hash of the base's content: a path may change its content
    weights: str = ""  # hash of the loaded weights, with `merge`, without `adapter`


def vllm_options(settings: EngineSettings, on_cpu: bool) -> dict[str, Any]:
    """vLLM's own options, by their names in Python, for an engine in this process or for a server."""
    options: dict[str, Any] = {
        "model": settings.model, "dtype": settings.dtype, "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs, "logprobs_mode": LOGPROBS_MODE, "enable_prefix_caching": True,
        "revision": settings.revision, "tokenizer_revision": settings.revision, **AS_TRANSFORMERS,
        "load_format": "hf", "ignore_patterns": ["original/**/*", OTHER_FORM],
        "tensor_parallel_size": settings.tensor_parallel_size, "quantization": settings.quantization,
        "max_logprobs": MOST_TOP_K + TIES,
        "generation_config": "vllm",  # ignore a model's own sampling defaults
        "disable_log_stats": True, "use_tqdm_on_load": False,
        "language_model_only": True,  # no memory for images
    }
    if settings.adapter_rank:
        rank = next((rank for rank in LORA_RANKS if rank >= settings.adapter_rank), settings.adapter_rank)
        options |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    if on_cpu:
        # On a CPU a seeded request cannot be prefilled in chunks, so a step must hold every prompt whole.
        # There its rotary kernel misreads queries of [tokens, heads, width], which some models pass.
        options |= {"enforce_eager": True, "compilation_config": {"custom_ops": ["-rotary_embedding"]},
                    "max_num_batched_tokens": settings.max_num_seqs * settings.max_model_len}
    else:
        options["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return options


@dataclass(frozen=True)
class Request:
    """One completion to sample: `index` identifies it, the prompt is given as token ids.

    Earlier tokens of the completion are continued.
    """

    index: int
    prompt_ids: list[int]
    seed: int
    messages: str = ""                       # as JSON, for APIs that take messages
    sample_index: int = 0
    drawn_ids: list[int] = field(default_factory=list)
    drawn_logprobs: list[float] = field(default_factory=list)
    drawn_support: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Sampled:
    """One finished completion: `logprobs` (nats) are of the distribution each token was sampled from.

    They are None if the engine gives none. `support` holds the ids that truncated sampling kept for each
    token, None if it kept all.
    """

    index: int
    completion_ids: list[int]
    logprobs: list[float] | None
    completion: str
    finish_reason: str  # 'stop' or 'length'
    host: str = ""  # name of the sampling server; "" is this machine
    support: list[list[int]] | None = None


class Engine(Protocol):
    """A started engine that serves one policy."""

    engine: str  # name and version
    dtype: str  # "" if the engine does not report it; also the next two
    device: str
    logprobs_mode: str

    def moves(self, prompt_ids: list[int]) -> bool:
        """True if the served adapter changes the base's logprobs of a prompt."""

    def sample(self, requests: Iterable[Request], sampling: Sampling,
               over: Callable[[], bool] | None = None) -> Iterator[Sampled | Request | None]:
        """Sample all requests in one run; yield each when it finishes. Requests start in the given order.

        None is a heartbeat, a chance to stop; an engine yields it between steps. Once `over` is true, each
        request in flight is yielded with its tokens so far, and the iteration ends.
        """
