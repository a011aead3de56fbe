"""Environment variables that must be set before torch and vLLM are imported; the user's own settings win."""

import logging
import os
import warnings

from rollout.engines.installed import on_cpu

DEFAULTS = {
    "OMP_WAIT_POLICY": "passive",            # spinning threads make a shared machine ten times slower
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",   # one process: it starts sooner and leaves no orphan when killed
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
GPU_DEFAULTS = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",      # it takes no seeds
}
CPU_DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",           # GiB
    "TORCHDYNAMO_DISABLE": "1",              # compiling the ranking of logprobs takes 5 s at every start
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def prepare_environment() -> None:
    """Set what is not set yet."""
    for name, value in (DEFAULTS | (CPU_DEFAULTS if on_cpu() else GPU_DEFAULTS)).items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # also before vLLM sets it up
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
