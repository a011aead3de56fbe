"""A vLLM server for tests: `python -m tests.building.vllm_server RUN PORT`, with the key in VLLM_API_KEY.

Started with the options of the run's config.toml, as docs/endpoint.md starts one, and also on a CPU.
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

from rollout.cli import default_options
from rollout.endpoint.gate import KEY_VARIABLE, Gate
from rollout.engines.engine import EngineSettings, vllm_options
from rollout.engines.environment import engine_version, on_cpu, prepare_environment
from rollout.prompts.prompt_encoder import load_encoder
from rollout.settings import rank_of_adapters
from warehouse.stages.children import child
from warehouse.store.run_folder import Warehouse, open_warehouse

KEY = "key-of-the-tests"
SETTINGS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "fork", KEY_VARIABLE: KEY}
READY = "the server is ready"


def server_command(warehouse: Warehouse, port: int) -> list[str]:
    """How vLLM's server is started."""
    options = default_options(warehouse.root).replace(endpoint=())
    base = str(Path(warehouse.model).resolve())
    model_length = load_encoder(base, None).model_length
    length = options.max_prompt_tokens and options.max_prompt_tokens + options.sampling.max_tokens
    settings = EngineSettings(
        model=base, adapter=None, adapter_rank=rank_of_adapters(warehouse, options),
        max_model_len=min(length or model_length, model_length),
        **{name: getattr(options, name) for name in ("dtype", "max_num_seqs", "gpu_memory_utilization")})
    release = tuple(map(int, engine_version().split()[1].split(".")[:2]))
    more = {"host": "127.0.0.1", "port": port, "uvicorn_log_level": "error",
            "disable_uvicorn_access_log": True, "middleware": f"{Gate.__module__}.{Gate.__name__}",
            "enable_sleep_mode": None if on_cpu() else True,
            "enable_scale_out": True if release >= (0, 30) else None}
    words = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in (vllm_options(settings, on_cpu()) | more).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


def main(run: str, port: str) -> None:
    """Serve until it is ended; READY on stderr once it answers, asleep on a GPU."""
    prepare_environment()
    with child(server_command(open_warehouse(run), int(port)), os.environ | SETTINGS) as server:
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, "the server ended before it answered"
            time.sleep(0.25)
        answers(f"http://127.0.0.1:{port}/server_info")
        if not on_cpu():
            answers(f"http://127.0.0.1:{port}/sleep?level=1", data=b"")
        print(READY, file=sys.stderr, flush=True)
        server.wait()


def answers(url: str, data: bytes | None = None) -> bool:
    """Whether a server answers a GET, or with data a POST, that all is well."""
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
