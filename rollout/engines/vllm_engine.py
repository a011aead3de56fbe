"""The only module that imports vLLM: its tokenizer, its engine, and what its errors mean.

Call rollout.engines.environment.prepare_environment before importing this.
"""

import itertools
import logging
import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pydantic import ValidationError
from vllm import LLM, ModelRegistry, SamplingParams
from vllm import __version__ as VLLM_VERSION
from vllm.engine.arg_utils import EngineArgs
from vllm.logprobs import FlatLogprobs
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.tokenizers import get_tokenizer
from vllm.transformers_utils.config import get_config

from rollout.engines.engine import (
    AS_TRANSFORMERS,
    LOGPROBS_MODE,
    EngineSettings,
    Request,
    Sampled,
    Sampling,
    vllm_options,
)
from rollout.engines.merged import merged_tensors
from rollout.engines.stopping import Drawn, after_draw, draw_parameters, likely, next_draw
from rollout.prompts.prompt_encoder import PromptEncoder
from warehouse.store.errors import StageError, first_line, shell_quote

BATCHES_AHEAD = 4
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
RUNNER_IS_SET = RUNNER in os.environ        # by the user
# It logs a traceback of each model class that it cannot import; _reason says why in a line.
logging.getLogger("vllm.model_executor.models.registry").disabled = True


def load_encoder(model: str, revision: str | None = None) -> PromptEncoder:
    """The encoder of a model folder, or of a hub model at its commit, as vLLM loads its tokenizer."""
    config = get_config(model, trust_remote_code=False, revision=revision, config_format="hf")
    return PromptEncoder(get_tokenizer(model, tokenizer_mode="hf", revision=revision), config.to_dict())


def device_name() -> str:
    """vLLM's device: 'cpu', the name of a GPU, or '' if this build sees none."""
    if current_platform.is_unspecified():
        return ""
    return "cpu" if current_platform.is_cpu() else str(current_platform.get_device_name())


def why_unknown(model: str, revision: str | None) -> str | None:
    """Why vLLM refuses a model by its config; None if it accepts the model."""
    try:
        EngineArgs(model=model, revision=revision, tokenizer_revision=revision,
                   **AS_TRANSFORMERS).create_model_config()
    except ValueError as error:
        return _reason(error)
    return None


class NotServed(StageError):
    """vLLM does not serve a model with these options, for a `reason` that names its module."""

    def __init__(self, settings: EngineSettings, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"vLLM does not serve {settings.model} with these options, --dtype {settings.dtype}: {reason}. "
            "Correct the options of `rollout`, or sample from a server elsewhere with --endpoint; `warehouse "
            f"doctor --model {shell_quote(settings.model)}` says which --dtype works on this machine.")


class VllmEngine:
    """A started vLLM that serves one policy: the base, or the base with a LoRA adapter.

    If it `sleeps`, it can free the GPU between rollouts and get other weights.
    """

    def __init__(self, settings: EngineSettings, *, sleeps: bool = False) -> None:
        self.engine = f"vllm {VLLM_VERSION}"
        self.logprobs_mode = LOGPROBS_MODE
        self.device = device_name()
        check_compiler()
        self.sleeps, self.asleep = sleeps and self.device != "cpu", False
        self.llm = _start(settings, {"enable_sleep_mode": True} if self.sleeps else {})
        self.num_ahead = BATCHES_AHEAD * settings.max_num_seqs
        self.dtype = str(self.llm.llm_engine.model_config.dtype).removeprefix("torch.")
        self.num_loras, self.lora = 0, None
        self.serve(settings.adapter)

    def serve(self, adapter: str | None) -> None:
        """Sample with an adapter, or without one, from now on."""
        self.num_loras += 1                            # vLLM remembers an adapter by its number
        self.lora = LoRARequest(f"policy-{self.num_loras}", self.num_loras, adapter) if adapter else None

    def load(self, folder: Path, adapter: Path | None, dtype: str) -> None:
        """Replace the weights by those in a folder, with an adapter merged."""
        device = "cpu" if self.device == "cpu" else "cuda"
        weights = ((name, weight) for name, weight, _ in merged_tensors(folder, adapter, dtype, device))
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self.llm.reset_prefix_cache()

    def sleep(self) -> None:
        """Free the GPU until `wake`: move weights to main memory and drop the cache."""
        if self.sleeps:
            self.llm.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        """Return to the GPU with the same weights."""
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False
        self.llm.reset_prefix_cache()

    def prompt_logprobs(self, ids: list[int], *, with_adapter: bool = True) -> list[float]:
        """Logprobs, in nats, of the tokens after the first, [n - 1]."""
        ask = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        [answer] = self.llm.generate([{"prompt_token_ids": ids}], ask, use_tqdm=False,
                                     lora_request=self.lora if with_adapter else None)
        return [row[token].logprob for token, row in zip(ids[1:], answer.prompt_logprobs[1:], strict=True)]

    def moves(self, prompt_ids: list[int]) -> bool:
        """True if the adapter changes any logprob of a prompt; False if no adapter is served."""
        return self.prompt_logprobs(prompt_ids, with_adapter=False) != self.prompt_logprobs(prompt_ids)

    def sample(self, requests: Iterable[Request], sampling: Sampling,
               over: Callable[[], bool] | None = None) -> Iterator[Sampled | Request | None]:
        """Sample in one continuous batch; yield each request when it finishes, and None after every step.

        The engine gets a few batches ahead, not everything: a waiting request costs its prompt's memory.
        """
        decode, waiting = PromptEncoder(self.llm.get_tokenizer(), {}).decode, iter(requests)
        core, inside = self.llm.llm_engine, dict[int, Request]()

        def ended(output: Any) -> Sampled | Request:
            request = inside.pop(int(output.request_id.split("-")[0]))      # vLLM appends a unique suffix
            return after_draw(request, sampling, _drawn(output, sampling), decode)

        while not (over and over()):
            for request in itertools.islice(waiting, self.num_ahead - len(inside)):
                prompt_ids, seed, max_tokens = next_draw(request, sampling)
                core.add_request(str(request.index), {"prompt_token_ids": prompt_ids},
                                 parameters(sampling, seed, max_tokens), lora_request=self.lora)
                inside[request.index] = request
            if not inside:
                return
            yield from (ended(output) for output in core.step() if output.finished)
            yield None
        broken = SimpleQueue[Any]()
        for state in core.output_processor.request_states.values():
            state.queue = broken        # vLLM puts the tokens of an aborted request here
        core.abort_request([str(index) for index in inside])
        while not broken.empty():
            yield ended(broken.get())
        yield from inside.values()


def _start(settings: EngineSettings, more: dict[str, Any], *, second: bool = True) -> LLM:
    """An engine with vLLM's second model runner, which samples all seeded requests in one kernel.

    With unmerged adapters, on a CPU, and for models that this runner lacks, vLLM chooses the runner.
    """
    options = vllm_options(settings, on_cpu=current_platform.is_cpu()) | more
    if not RUNNER_IS_SET:
        os.environ.pop(RUNNER, None)
        if second and not settings.adapter_rank and not current_platform.is_cpu():
            os.environ[RUNNER] = "1"
    try:
        if current_platform.is_cpu() and EngineArgs(**options).create_model_config().has_inner_state:
            options["enable_prefix_caching"] = False    # its kernels keep no states in between
        llm = LLM(**options)
        # Some kernels refuse a dtype or a device only when they compute, a prompt or a single token.
        llm.generate([{"prompt_token_ids": [0]}], use_tqdm=False, sampling_params=SamplingParams(
            max_tokens=min(2, settings.max_model_len - 1), seed=0, logprobs=0, ignore_eos=True))
        return llm
    except Exception as error:      # a model's modules may raise anything
        if second and "Model Runner V2" in str(error):
            return _start(settings, more, second=False)
        if "memory" in str(error).lower() or isinstance(error, MemoryError):
            raise StageError(f"The engine found too little free memory: {_reason(error)}. {_memory_advice()}"
                             ) from error
        raise NotServed(settings, _reason(error)) from error


def _memory_advice() -> str:
    if current_platform.is_cpu():
        return ("Free some memory, or set VLLM_CPU_KVCACHE_SPACE (GiB for the KV cache, now "
                f"{os.environ['VLLM_CPU_KVCACHE_SPACE']}) to a size that fits.")
    return ("Free the GPU (`nvidia-smi` shows who uses it), or lower --gpu-memory-utilization, "
            "--max-num-seqs or --max-prompt-tokens.")


def check_compiler() -> None:
    """vLLM compiles small kernels at start on a GPU; without a compiler it fails much later."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not current_platform.is_cpu() and not compiler:
        raise StageError("vLLM needs a C compiler on a GPU and found none. Install gcc (Debian: "
                         "`apt-get install gcc`), or set CC to a compiler.")


def parameters(sampling: Sampling, seed: int, max_tokens: int) -> SamplingParams:
    """The same as for a server, but with logprobs as flat lists: objects cost a small model an eighth."""
    values = draw_parameters(sampling, seed, max_tokens)
    values["output_kind"] = RequestOutputKind(values["output_kind"])
    return SamplingParams(**values, flat_logprobs=True)


def _drawn(output: Any, sampling: Sampling) -> Drawn:
    completion = output.outputs[0]
    ids, logprobs = list(completion.token_ids), completion.logprobs or FlatLogprobs()  # None at first
    if not sampling.num_likely():
        return Drawn(ids, logprobs.logprobs, completion.finish_reason, [])
    places = list(map(slice, logprobs.start_indices, logprobs.end_indices))
    left = [likely(zip(logprobs.token_ids[place], logprobs.logprobs[place], strict=True)) for place in places]
    sampled = [logprobs.logprobs[place.start] - whole for place, (_, whole) in zip(places, left, strict=True)]
    return Drawn(ids, sampled, completion.finish_reason, [support for support, _ in left])


def _reason(error: Exception) -> str:
    """What an error says, in a line, behind vLLM's module of the model that raised it, if one did."""
    cause = error.__cause__     # transformers itself says only what needs the module
    line = first_line(cause if isinstance(cause, ModuleNotFoundError) else error).removeprefix("ValueError: ")
    if isinstance(error, ValidationError):         # its first line only counts the errors
        line = error.errors()[0]["msg"].removeprefix("Value error, ").rstrip(".")
    if "failed to be inspected" in line:        # the reason is only in the logs
        try:
            ModelRegistry.models[line.split("'")[1]].load_model_cls()
        except Exception as cause:      # a module may raise anything
            return _reason(cause)
    names = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [f"{name}: " for name in names if name.startswith("vllm.model_executor.")]
    return "".join(modules[-1:]) + line.partition(" Supported architectures")[0].rstrip(".")
