"""Whether this machine can sample, and whether the engine supports a model and computes it like `train`."""

import json
import os
from pathlib import Path
from typing import Any

from rollout.engines.engine import EngineSettings, Request, Sampled, Sampling
from rollout.engines.environment import engine_version, on_cpu, prepare_environment
from rollout.engines.merged import merged_weights
from rollout.engines.probe import FURTHEST, mean_gap
from warehouse.start import CPU_SET
from warehouse.start.finding import ADAPTER, SAID, Finding
from warehouse.store.errors import StageError, first_line, shell_quote

WITHOUT_GPU = f"pip install --no-deps -r {shell_quote(CPU_SET)}"
WITH_GPU = "pip install 'rollhouse[gpu]'"
ENDPOINT = "Without an engine here, `rollout --endpoint URL` samples from a vLLM server"
SHORT = 64                      # tokens of a text for the tiny copy


def examine() -> Finding:
    """The installed engine, and its device."""
    has_gpu = os.path.exists("/dev/nvidiactl")
    command = WITH_GPU if has_gpu else WITHOUT_GPU
    try:
        name = engine_version()
    except StageError:
        return Finding(lines=[ENDPOINT]).refuse("vLLM is not installed", command)
    found = Finding(lines=[name], facts={"engine": name})
    if has_gpu and on_cpu():
        return found.refuse("there is a GPU, but this vLLM is the CPU build", WITH_GPU)
    from rollout.start import check_semaphores
    prepare_environment()
    try:
        check_semaphores()
        from rollout.engines import vllm_engine
        found.facts["device"] = vllm_engine.device_name()
        vllm_engine.check_compiler()
    except StageError as error:
        return found.refuse(str(error))
    except Exception as error:      # a library built for another machine may raise anything
        return found.refuse(f"vLLM cannot be imported: {first_line(error)}", command)
    if not found.facts["device"]:
        return found.refuse("this vLLM is the GPU build, but it sees no GPU",
                            None if has_gpu else WITHOUT_GPU)
    found.lines.append(f"on {found.facts['device']}")
    return found


def examine_model(model: str, revision: str | None, copy: Path) -> Finding:
    """Whether vLLM has the architecture, and with which --dtype it computes the tiny copy in `copy`."""
    found = examine()
    if not found.able:
        return found
    from rollout.engines import vllm_engine
    if reason := vllm_engine.why_unknown(model, revision):
        return found.refuse(f"vLLM cannot serve it: {reason}. {ENDPOINT}.")
    if not (copy / SAID).exists():
        return found
    dtypes = FURTHEST if found.facts["device"] == "cpu" else ("bfloat16",)      # a GPU's engine starts slowly
    tried = found.facts["dtypes"] = {dtype: _gap(copy, dtype) for dtype in dtypes}
    served = [dtype for dtype, gap in tried.items() if isinstance(gap, float)]
    if not served:
        line = f"vLLM does not serve a tiny random copy of it: {next(iter(tried.values()))}"
        if found.facts["device"] == "cpu":
            return found.refuse(f"{line}. {ENDPOINT}.")
        found.lines.append(f"{line}. The model itself may: some kernels need wide layers")
        return found
    found.lines.append("a tiny random copy of it is sampled; mean nats from `train`: " + ", ".join(
        f"{dtype} {tried[dtype]:.1g}" for dtype in served))
    for reason in dict.fromkeys(str(tried[dtype]) for dtype in tried if dtype not in served):
        refused = " or ".join(dtype for dtype in tried if tried[dtype] == reason)
        found.lines.append(f"vLLM does not serve it with --dtype {refused}: {reason}. Give --dtype "
                           + " or ".join(served))
    if (copy / ADAPTER).exists():
        gap = found.facts["served_adapter"] = _gap(copy, served[-1], str(copy / ADAPTER))
        unmerged = _why_not_merged(copy)
        if unmerged:
            found.lines.append(f"no adapter of it can be merged: {unmerged}. Give --serve adapter")
        if isinstance(gap, str):
            found.lines.append(f"vLLM does not serve an adapter of it: {gap}. "
                               + ("Train with --full" if unmerged else "Give --serve merged"))
    return found


def _gap(copy: Path, dtype: str, adapter: str | None = None) -> float | str:
    """Mean nats between engine and `train` on the tiny copy, or why it cannot be sampled."""
    from rollout.engines import vllm_engine
    ids, said = json.loads((copy / SAID).read_text(encoding="utf-8"))
    try:
        engine = vllm_engine.VllmEngine(EngineSettings(
            model=str(copy), adapter=adapter, adapter_rank=1 if adapter else 0, max_model_len=SHORT,
            dtype=dtype, max_num_seqs=1, gpu_memory_utilization=0.2))
        gap = mean_gap(engine.prompt_logprobs(ids), said)
        apart = _own_gap(engine, ids)
    except Exception as error:      # an architecture may raise anything
        return error.reason if isinstance(error, vllm_engine.NotServed) else first_line(error)
    if not gap < FURTHEST[dtype]:
        return f"vLLM and `train` are {gap:.2g} nats apart"
    return gap if apart < FURTHEST[dtype] else (
        f"its logprobs of sampled tokens and of the same tokens in a prompt are {apart:.2g} nats apart")


def _why_not_merged(copy: Path) -> str | None:
    try:
        with merged_weights(str(copy), None, copy / ADAPTER, "auto"):
            return None
    except StageError as error:
        return str(error).replace(f"{copy / ADAPTER} ", "it ").partition(". ")[0]


def _own_gap(engine: Any, ids: list[int]) -> float:
    """Mean nats between an engine's logprobs of tokens that it samples and of the same tokens in a prompt.

    Layers with a state compute single tokens by other code than prompts.
    """
    requests = [Request(number, ids, seed=number) for number in range(4)]
    sampled = [each for each in engine.sample(requests, Sampling(max_tokens=SHORT // 2))
               if isinstance(each, Sampled)]
    again = [engine.prompt_logprobs([*ids, *each.completion_ids])[len(ids) - 1:] for each in sampled]
    return mean_gap([number for each in sampled for number in each.logprobs or ()],
                    [number for logprobs in again for number in logprobs])
