"""A vLLM server for the rollouts of a run, started with what they need: `python -P -m rollout.server RUN`.

Nothing of it is left behind when it ends, fails or is interrupted, nor when this process is killed.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import IO

import click
from tqdm import tqdm

from rollout.cli import default_options
from rollout.endpoint.gate import KEY_VARIABLE, Gate, make_key
from rollout.endpoint.tokenizer import load_encoder
from rollout.engines.engine import EngineSettings, vllm_options
from rollout.engines.environment import engine_version, on_cpu, prepare_environment
from rollout.settings import rank_of_adapters
from warehouse.options import HELP, run_folder, shows_errors
from warehouse.stages.children import child
from warehouse.stages.clock import bar_interval
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

SETTINGS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "fork"}  # its engine need not import everything once more
SCALE_OUT = (0, 30)              # the first vLLM that samples by token ids only where it is asked to
LINES_SHOWN = 30


@click.command(context_settings=HELP)
@run_folder
@click.option("--port", type=int, default=None, help="Port to listen on. [default: a free one]")
@shows_errors
def main(run: Path, port: int | None) -> None:
    """Serve the policies of RUN with the options of its config.toml until Ctrl-C."""
    warehouse = open_warehouse(run)
    url = f"http://127.0.0.1:{port or free_port()}"
    key = make_key(warehouse.run_id)
    prepare_environment()
    with tempfile.TemporaryFile("w+") as log, child(
            server_command(warehouse, url), os.environ | SETTINGS | {KEY_VARIABLE: key}, own_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log) as server:
        wait_until_ready(server, url, key, log)
        with contextlib.suppress(KeyboardInterrupt):
            click.echo(f"{url} serves {run}; Ctrl-C ends it", err=True)
            server.wait()


def server_command(warehouse: Warehouse, url: str) -> list[str]:
    """How vLLM's server is started: as a rollout with the options of config.toml would start its engine."""
    options = default_options(warehouse.root).replace(endpoint=())
    base, revision = warehouse.model, warehouse.facts.get("model_revision")
    length = options.max_prompt_tokens and options.max_prompt_tokens + options.sampling.max_tokens
    model_length = load_encoder(base, revision).model_length
    settings = EngineSettings(
        model=base if revision else str(Path(base).resolve()), revision=revision, adapter=None,
        adapter_rank=rank_of_adapters(warehouse, options),
        max_model_len=min(length or model_length, model_length),
        **{name: getattr(options, name) for name in ("dtype", "max_num_seqs", "gpu_memory_utilization",
                                                     "tensor_parallel_size", "quantization")})
    release = tuple(map(int, engine_version().split()[1].split(".")[:2]))
    address = {"host": "127.0.0.1", "port": url.rpartition(":")[2], "uvicorn_log_level": "error",
               "disable_uvicorn_access_log": True, "middleware": f"{Gate.__module__}.{Gate.__name__}",
               "enable_sleep_mode": None if on_cpu() else True,
               "enable_scale_out": True if release >= SCALE_OUT else None}
    words = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in (vllm_options(settings, on_cpu()) | address).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words.append(f"--{flag}={value}")
    return words


def free_port() -> int:
    """A port on this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until_ready(server: subprocess.Popen[bytes], url: str, key: str, log: IO[str]) -> None:
    """Wait until it answers, then let it sleep until a rollout wakes it; StageError if it ends."""
    with tqdm(desc="starting the server", bar_format="{desc}: {elapsed}",
              mininterval=bar_interval()) as progress:
        while not answers(url + "/health", key):
            if server.poll() is not None:
                log.seek(0)
                said = "\n".join(log.read().splitlines()[-LINES_SHOWN:])
                raise StageError(f"The server ended with code {server.returncode} before it answered. "
                                 "Correct the options in config.toml, or free the GPU. The end of what it "
                                 f"said:\n{said}")
            time.sleep(0.25)
            progress.update()
    answers(url + "/server_info", key)     # which takes its time the first time
    if not on_cpu():
        answers(url + "/sleep?level=1", key, data=b"")


def answers(url: str, key: str, data: bytes | None = None) -> bool:
    """Whether a server answers a GET, or with data a POST, that all is well."""
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


if __name__ == "__main__":
    main()
